//! Consents beside facts: a call that facts deny leaves its consent as it was. And reads beside one that asks people.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tickfleet_client::Client;
use tickfleet_model::policy::FactRow;
use tickfleet_model::{Effect, Policy, TurnId};
use tickfleet_store::TurnName;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{ToolError, TypedTool};

use super::{Bank, Word, acme, approve, asked, large_payments_ask, of, pay, people, state};
use crate::calls::facts::{change, condition, row};

fn read(name: &str) -> TypedTool {
    TypedTool::new(name, "Reads.", Effect::Read, |_, _: Value| async { Ok::<_, ToolError>(json!("read")) })
}

/// Nobody pays after a mail was read.
fn not_after_a_mail(policy: &mut Policy) {
    people(policy);
    let matrix = &mut policy.permissions.matrix;
    matrix.insert("mail".into(), row(FactRow { sets: vec![change("read_untrusted")], ..FactRow::default() }));
    matrix.insert("pay".into(), row(FactRow { forbid: vec![condition("read_untrusted")], ..FactRow::default() }));
}

#[tokio::test]
async fn a_call_that_facts_deny_leaves_its_consent_unused_and_people_are_not_asked_in_vain() {
    let bank = Bank::default();
    let plan = bank.gated(of(1, &["finance"]));
    let tools = plan.tools.iter().cloned().chain([read("mail")]).collect();
    let mut fleet = Fleet::start(Plan { tools, policy: not_after_a_mail, ..plan }).await;
    fleet.submit(&[pay(700)]).await;
    let id = asked(&fleet).await.id;
    // While people think about it, its agent reads a mail.
    fleet.submit(&[("mail", json!({}))]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    approve(&fleet, "ann", &id).await;
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!((outcomes(&reply), bank.paid()), (vec!["denied"], 0), "{reply}");
    assert_eq!(result["error"]["details"]["reason"], "fact_forbidden", "{reply}");
    assert_eq!(state(&fleet, &id).await, "approved", "it was used up by a call that did not run");
    // From now on nobody is asked: facts deny it first.
    fleet.submit(&[pay(700)]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["denied"]);
    assert!(Client::over(vec![fleet.store.clone()]).approvals(&acme(), 10).await.unwrap().is_empty());
    fleet.stop().await;
}

/// A payment needs a quote of its amount.
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
async fn facts_go_by_the_arguments_that_people_have_given_a_call() {
    let bank = Bank::default();
    let plan = bank.ruled();
    let tools = plan.tools.iter().cloned().chain([read("quote")]).collect();
    let mut fleet = Fleet::start(Plan { tools, policy: after_a_quote, ..plan }).await;
    let quote = |amount: u32| ("quote", json!({"amount": amount}));
    for (quoted, outcome) in [(None, "denied"), (Some(600), "ok")] {
        let calls: Vec<_> = quoted.into_iter().chain([700]).map(quote).chain([pay(700)]).collect();
        fleet.submit(&calls).await;
        let id = asked(&fleet).await.id;
        Word { set: &[("/amount", "600")], ..Word::yes("ann") }.about(&fleet, &id).await.unwrap();
        let reply = fleet.reply().await;
        assert_eq!(reply["results"][calls.len() - 1]["outcome"], outcome, "{reply}");
        assert_eq!(state(&fleet, &id).await, if outcome == "ok" { "used" } else { "approved" });
    }
    // What it used up is the quote of 600, not that of 700.
    fleet.submit(&[pay(700)]).await;
    let id = asked(&fleet).await.id;
    approve(&fleet, "ann", &id).await;
    assert_eq!((outcomes(&fleet.reply().await), bank.paid()), (vec!["ok"], 2));
    fleet.stop().await;
}

#[tokio::test]
async fn a_read_that_ran_beside_one_that_asks_people_is_not_told_as_not_run() {
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
    let told = |at: usize| reply["results"][at]["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(told(1).contains("whether it ran is not known"), "{reply}");
    fleet.stop().await;
}
