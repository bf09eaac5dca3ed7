//! Tests how consents interact with facts, equal calls and parallel reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_client::Client;
use tickfleet_model::policy::FactRow;
use tickfleet_model::{ApprovalDemand, Effect, Policy, TurnId};
use tickfleet_store::TurnName;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::sync::Semaphore;

use super::{Bank, Payment, VerdictInput, acme, approve, asked, large_payments_ask, of, pay, people, state};
use crate::calls::facts::{change, condition, row, waits};

fn read(name: &str) -> TypedTool {
    TypedTool::new(name, "Reads.", Effect::Read, |_, _: Value| async { Ok::<_, ToolError>(json!("read")) })
}

fn agreed(fleet: &Fleet) -> u64 {
    let text = fleet.metrics.render();
    let series = "tickfleet_approvals_total{event=\"approved\"} ";
    text.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or(0)
}

fn not_after_a_mail(policy: &mut Policy) {
    people(policy);
    let matrix = &mut policy.permissions.matrix;
    matrix.insert("mail".into(), row(FactRow { sets: vec![change("read_untrusted")], ..FactRow::default() }));
    matrix.insert("pay".into(), row(FactRow { forbid: vec![condition("read_untrusted")], ..FactRow::default() }));
}

#[tokio::test]
async fn a_call_denied_by_facts_does_not_use_its_approval() {
    let bank = Bank::default();
    let plan = bank.gated(of(1, &["finance"]));
    let tools = plan.tools.iter().cloned().chain([read("mail")]).collect();
    let mut fleet = Fleet::start(Plan { tools, policy: not_after_a_mail, ..plan }).await;
    fleet.submit(&[pay(700)]).await;
    let id = asked(&fleet).await.id;
    fleet.submit(&[("mail", json!({}))]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    approve(&fleet, "ann", &id).await;
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!((outcomes(&reply), bank.paid()), (vec!["denied"], 0), "{reply}");
    assert_eq!(result["error"]["details"]["reason"], "fact_forbidden", "{reply}");
    assert_eq!(state(&fleet, &id).await, "approved", "it was used up by a call that did not run");
    fleet.submit(&[pay(700)]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["denied"]);
    assert!(Client::over(vec![fleet.store.clone()]).approvals(&acme(), 10).await.unwrap().is_empty());
    fleet.stop().await;
}

fn pays_once(demand: ApprovalDemand, paid: &Arc<AtomicUsize>, gate: &Arc<Semaphore>) -> Plan {
    let paid = Arc::clone(paid);
    let gate = Arc::clone(gate);
    let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |context: CallContext, payment: Payment| {
        let paid = Arc::clone(&paid);
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.map_err(ToolError::internal)?.forget();
            if payment.amount == 1 {
                return Err(ToolError::Permanent("There is no cover.".into()));
            }
            if payment.amount == 7 && context.attempt < 2 {
                return Err(ToolError::NotExecuted { message: "It is busy.".into(), retry_after: None });
            }
            paid.fetch_add(1, Ordering::SeqCst);
            Ok(json!("paid"))
        }
    });
    let pay = pay.effect_key(&["/to"], Duration::from_secs(3_600)).approval(demand);
    Plan { tools: vec![pay], policy: people, slots: 2, ..Plan::default() }
}

/// Returns turn and approval of the second of two equal payments.
async fn waits_for_an_equal(fleet: &mut Fleet) -> (String, String) {
    let first = fleet.submit(&[pay(1)]).await;
    let agreed = asked(fleet).await.id;
    approve(fleet, "ann", &agreed).await;
    while state(fleet, &agreed).await != "used" {
        // The claim of an effect uses the consent. No event reports the claim, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = fleet.submit(&[pay(2)]).await;
    let id = asked(fleet).await.id;
    approve(fleet, "ann", &id).await;
    assert_eq!(waits(fleet, &second).await, first);
    assert_eq!(state(fleet, &id).await, "approved", "it was used up by a call that has not begun");
    (second, id)
}

#[tokio::test]
async fn a_retry_keeps_the_approval_and_the_effect_claim_of_its_call() {
    let paid = Arc::new(AtomicUsize::new(0));
    let mut fleet = Fleet::start(pays_once(of(1, &["finance"]), &paid, &Arc::new(Semaphore::new(2)))).await;
    fleet.submit(&[pay(7)]).await;
    let id = asked(&fleet).await.id;
    approve(&fleet, "ann", &id).await;
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!((&result["outcome"], &result["attempts"]), (&json!("ok"), &json!(2)), "{reply}");
    assert_eq!((&result["approval"]["by"], &result["repeats"]), (&json!(["ann"]), &json!(null)), "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_call_behind_an_equal_call_uses_its_approval_only_when_it_begins() {
    let paid = Arc::default();
    let gate = Arc::new(Semaphore::new(0));
    let mut fleet = Fleet::start(pays_once(of(1, &["finance"]), &paid, &gate)).await;
    let (second, id) = waits_for_an_equal(&mut fleet).await;
    let denied = VerdictInput { agrees: false, ..VerdictInput::yes("bob") }.about(&fleet, &id).await.unwrap();
    assert_eq!(denied.state, "denied");
    let reply = fleet.reply().await;
    assert_eq!((&reply["turn_id"], outcomes(&reply)), (&json!(second), vec!["approval_refused"]), "{reply}");
    assert_eq!(
        (&reply["results"][0]["error"]["details"]["by"], &reply["results"][0]["approval"]),
        (&json!("bob"), &Value::Null)
    );
    gate.add_permits(1);
    assert_eq!(outcomes(&fleet.reply().await), ["permanent"]);
    assert_eq!(agreed(&fleet), 1, "a consent that was not taken is counted");
    let (second, id) = waits_for_an_equal(&mut fleet).await;
    gate.add_permits(2);
    let one = fleet.reply().await;
    let two = fleet.reply().await;
    let (first, reply) = if two["turn_id"] == second { (one, two) } else { (two, one) };
    assert_eq!((outcomes(&first), outcomes(&reply)), (vec!["permanent"], vec!["ok"]), "{reply}");
    assert_eq!((state(&fleet, &id).await, paid.load(Ordering::SeqCst)), ("used".to_owned(), 1));
    assert_eq!(reply["results"][0]["approval"]["id"], id, "{reply}");
    assert_eq!(agreed(&fleet), 3, "a call is counted each time that it looks");
    fleet.stop().await;
}

#[tokio::test]
async fn an_approval_expires_while_its_call_waits_for_an_equal_call() {
    let paid = Arc::default();
    let gate = Arc::new(Semaphore::new(0));
    let demand = ApprovalDemand { expires_ms: Some(6_000), ..of(1, &["finance"]) };
    let mut fleet = Fleet::start(pays_once(demand, &paid, &gate)).await;
    let (second, _) = waits_for_an_equal(&mut fleet).await;
    // The consent expires 6 s after the approval.
    tokio::time::sleep(Duration::from_millis(6_100)).await;
    gate.add_permits(2);
    let one = fleet.reply().await;
    let two = fleet.reply().await;
    let (first, reply) = if two["turn_id"] == second { (one, two) } else { (two, one) };
    assert_eq!((outcomes(&first), outcomes(&reply)), (vec!["permanent"], vec!["approval_refused"]), "{reply}");
    assert_eq!(reply["results"][0]["error"]["code"], "approval_expired", "{reply}");
    assert_eq!(paid.load(Ordering::SeqCst), 0);
    fleet.stop().await;
}

fn after_a_quote(policy: &mut Policy) {
    large_payments_ask(policy);
    let matrix = &mut policy.permissions.matrix;
    matrix.insert("quote".into(), row(FactRow { sets: vec![change("quoted(/amount)")], ..FactRow::default() }));
    matrix.get_mut("pay").unwrap().facts = FactRow {
        require: vec![condition("quoted(/amount)")],
        clears: vec![change("quoted(/amount)")],
        ..FactRow::default()
    };
}

#[tokio::test]
async fn facts_are_checked_against_arguments_changed_by_approvers() {
    let bank = Bank::default();
    let plan = bank.ruled();
    let tools = plan.tools.iter().cloned().chain([read("quote")]).collect();
    let mut fleet = Fleet::start(Plan { tools, policy: after_a_quote, ..plan }).await;
    let quote = |amount: u32| ("quote", json!({"amount": amount}));
    for (quoted, outcome) in [(None, "denied"), (Some(600), "ok")] {
        let calls: Vec<_> = quoted.into_iter().chain([700]).map(quote).chain([pay(700)]).collect();
        fleet.submit(&calls).await;
        let id = asked(&fleet).await.id;
        VerdictInput { set: &[("/amount", "600")], ..VerdictInput::yes("ann") }.about(&fleet, &id).await.unwrap();
        let reply = fleet.reply().await;
        assert_eq!(reply["results"][calls.len() - 1]["outcome"], outcome, "{reply}");
        let is_used = outcome == "ok";
        assert_eq!(state(&fleet, &id).await, if is_used { "used" } else { "approved" });
        assert_eq!(agreed(&fleet), u64::from(is_used));
    }
    fleet.submit(&[pay(700)]).await;
    let id = asked(&fleet).await.id;
    approve(&fleet, "ann", &id).await;
    assert_eq!((outcomes(&fleet.reply().await), bank.paid()), (vec!["ok"], 2));
    fleet.stop().await;
}

#[tokio::test]
async fn a_parallel_read_beside_an_approval_is_not_reported_as_unexecuted() {
    let looked = Arc::new(AtomicUsize::new(0));
    let look = {
        let looked = looked.clone();
        TypedTool::new("look", "Looks.", Effect::Read, move |_, _: Value| {
            looked.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, ToolError>(json!("seen")) }
        })
    };
    let tools = vec![read("peek").requires_approval(), look];
    let mut fleet = Fleet::start(Plan { tools, policy: people, ..Plan::default() }).await;
    let calls = json!([{"name": "peek", "arguments": {}}, {"name": "look", "arguments": {}}]);
    let turn = fleet.submit_turn(json!({"parallel_reads": true, "calls": calls})).await;
    asked(&fleet).await;
    assert_eq!(looked.load(Ordering::SeqCst), 1, "it ran beside the other");
    let name = TurnName { tenant: acme(), turn: TurnId::new(turn).unwrap() };
    fleet.store.cancel(&name, "enough").await.unwrap();
    let reply = fleet.reply().await;
    let reported = |at: usize| reply["results"][at]["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(reported(1).contains("no result was recorded: it may have run"), "{reply}");
    fleet.stop().await;
}
