//! Tools with an effect key. Of several equal calls, only one runs, and the others get the same outcome.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tickfleet_core::call::claim::{Claim, ClaimState};
use tickfleet_core::record::RecordText;
use tickfleet_core::{Record, Stored};
use tickfleet_model::{Effect, TenantId, TurnId};
use tickfleet_proof::lines;
use tickfleet_proof::prove::{Proof, Prover};
use tickfleet_store::{TurnName, TurnView};
use tickfleet_testkit::{RedisOptions, RedisServer};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::killable::KillableProcess;
use tickfleet_tools::{ToolError, TypedTool};
use tokio::sync::Semaphore;
use tokio::time::Instant;

#[derive(Deserialize, JsonSchema)]
struct Payment {
    /// The recipient.
    to: String,
    /// The amount.
    amount: f64,
    /// The purpose.
    #[serde(default)]
    text: String,
}

#[derive(Clone)]
struct Bank {
    paid: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
    open: Arc<Semaphore>,
}

impl Bank {
    fn new(open: bool) -> Self {
        let permits = if open { Semaphore::MAX_PERMITS } else { 0 };
        Self { paid: Arc::default(), asked: Arc::default(), open: Arc::new(Semaphore::new(permits)) }
    }

    fn pay(&self) -> TypedTool {
        let bank = self.clone();
        let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |_, payment: Payment| {
            let bank = bank.clone();
            bank.asked.fetch_add(1, Ordering::SeqCst);
            async move {
                if payment.text == "without cover" {
                    return Err(ToolError::Permanent("There is no cover.".into()));
                }
                let number = bank.paid.fetch_add(1, Ordering::SeqCst) + 1;
                bank.open.acquire().await.map_err(ToolError::internal)?.forget();
                Ok(json!({"number": number, "to": payment.to, "amount": payment.amount}))
            }
        });
        pay.effect_key(&["/to", "/amount"], Duration::from_secs(3_600))
    }

    fn plan(&self) -> Plan {
        Plan { slots: 2, tools: vec![self.pay()], agents: vec!["kelly".into(), "fran".into()], ..Plan::default() }
    }

    fn paid(&self) -> usize {
        self.paid.load(Ordering::SeqCst)
    }

    async fn has_paid(&self, number: usize) {
        let began = Instant::now();
        while self.paid() < number {
            assert!(began.elapsed() < PATIENCE, "{} of {number} payments within {PATIENCE:?}", self.paid());
            // The tool does not report that it ran, so this polls.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn turn(id: &str, agent: &str, arguments: &[Value]) -> Value {
    let calls: Vec<Value> = arguments.iter().map(|a| json!({"name": "pay", "arguments": a})).collect();
    json!({"turn_id": id, "tenant": "acme", "agent": agent, "reply_to": "box", "calls": calls})
}

fn proof(audits: &[Value]) -> Proof {
    let mut prover = Prover::new(None, None);
    for (number, audit) in audits.iter().enumerate() {
        prover.line(&lines::entry(0, &format!("{number}-1"), "", &audit.to_string()));
    }
    prover.finish()
}

/// Returns the turn for which `turn` waits.
async fn waits(fleet: &Fleet, turn: &str) -> String {
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(turn).unwrap() };
    loop {
        if let TurnView::Live(live) = fleet.store.turn_view(&name).await.unwrap()
            && let Some(awaits) = live.turn.state.awaits()
        {
            return awaits.to_string();
        }
        // Redis does not announce the wait, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_equal_call_of_any_turn_or_agent_gets_the_first_outcome() {
    let bank = Bank::new(true);
    let mut fleet = Fleet::start(bank.plan()).await;
    fleet.submit_turn(turn("t1", "kelly", &[json!({"to": "kim", "amount": 5})])).await;
    let first = fleet.reply().await["results"][0].clone();
    assert_eq!((&first["outcome"], &first["repeats"]), (&json!("ok"), &Value::Null), "{first}");
    let equal = json!({"to": "kim", "amount": 5.0, "text": "again"});
    fleet.submit_turn(turn("t2", "fran", &[equal, json!({"to": "kim", "amount": 6})])).await;
    let reply = fleet.reply().await;
    let again = &reply["results"][0];
    let other = &reply["results"][1];
    assert_eq!((&again["outcome"], &again["output"]), (&json!("ok"), &first["output"]), "{reply}");
    assert_eq!((&again["repeats"], &again["attempts"]), (&json!("t1/0"), &json!(0)), "{reply}");
    assert_eq!((&other["outcome"], &other["repeats"]), (&json!("ok"), &Value::Null), "{reply}");
    assert_eq!(bank.paid(), 2);
    let twice = [json!({"to": "ada", "amount": 1}), json!({"to": "ada", "amount": 1e0})];
    fleet.submit_turn(turn("t3", "kelly", &twice)).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][1]["repeats"], "t3/0", "{reply}");
    assert_eq!(bank.paid(), 3);
    let audits = fleet.audits().await;
    let repeated: Vec<&Value> = audits.iter().map(|audit| &audit["meta"]["repeats"]).filter(|r| !r.is_null()).collect();
    assert_eq!(repeated, ["t1/0", "t3/0"], "{audits:?}");
    let effect = |proof: &Proof| proof.claims.iter().find(|claim| claim.claim.contains("effect key")).cloned().unwrap();
    let as_made = effect(&proof(&audits));
    assert_eq!((as_made.holds, as_made.checked), (true, 3), "{as_made:?}");
    let mut forged = audits.clone();
    let reported = forged.iter_mut().find(|audit| audit["meta"]["repeats"] == "t1/0").unwrap();
    reported["meta"].as_object_mut().unwrap().remove("repeats");
    let forged = effect(&proof(&forged));
    assert!(!forged.holds && forged.violations[0].contains("t1/0"), "{forged:?}");
    fleet.stop().await;
}

#[tokio::test]
async fn an_equal_call_waits_without_a_slot_while_the_first_one_runs() {
    let bank = Bank::new(false);
    let mut fleet = Fleet::start(bank.plan()).await;
    let payment = [json!({"to": "kim", "amount": 5})];
    fleet.submit_turn(turn("t1", "kelly", &payment)).await;
    bank.has_paid(1).await;
    fleet.submit_turn(turn("t2", "fran", &payment)).await;
    assert_eq!(waits(&fleet, "t2").await, "t1");
    let call = json!({"name": "echo", "arguments": {"text": "hello"}});
    fleet
        .submit_turn(json!({"turn_id": "t3", "tenant": "acme", "agent": "fran", "reply_to": "box", "calls": [call]}))
        .await;
    assert_eq!(fleet.reply().await["turn_id"], "t3");
    bank.open.add_permits(9);
    let one = fleet.reply().await;
    let two = fleet.reply().await;
    let (first, again) = if one["turn_id"] == "t1" { (one, two) } else { (two, one) };
    assert_eq!(again["results"][0]["output"], first["results"][0]["output"], "{again}");
    assert_eq!(again["results"][0]["repeats"], "t1/0", "{again}");
    assert_eq!(bank.paid(), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn a_canceled_waiting_call_is_reported_as_not_executed() {
    let bank = Bank::new(false);
    let mut fleet = Fleet::start(bank.plan()).await;
    let payment = [json!({"to": "kim", "amount": 5})];
    fleet.submit_turn(turn("t1", "kelly", &payment)).await;
    bank.has_paid(1).await;
    fleet.submit_turn(turn("t2", "fran", &payment)).await;
    waits(&fleet, "t2").await;
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("t2").unwrap() };
    fleet.store.cancel(&name, "no longer wanted").await.unwrap();
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!((&reply["turn_id"], &result["outcome"]), (&json!("t2"), &json!("cancelled")), "{reply}");
    assert!(result["error"]["message"].as_str().unwrap().contains("was not executed"), "{reply}");
    bank.open.add_permits(9);
    assert_eq!(fleet.reply().await["results"][0]["outcome"], "ok");
    fleet.stop().await;
}

#[tokio::test]
async fn a_call_rejected_by_its_tool_may_be_repeated() {
    let bank = Bank::new(true);
    let mut fleet = Fleet::start(bank.plan()).await;
    let refused = json!({"to": "kim", "amount": 5, "text": "without cover"});
    fleet.submit_turn(turn("t1", "kelly", &[refused])).await;
    assert_eq!(fleet.reply().await["results"][0]["outcome"], "permanent");
    fleet.submit_turn(turn("t2", "kelly", &[json!({"to": "kim", "amount": 5})])).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["results"][0]["outcome"], bank.paid()), (&json!("ok"), 1), "{reply}");
    assert_eq!(bank.asked.load(Ordering::SeqCst), 2);
    fleet.stop().await;
}

#[tokio::test]
async fn a_call_without_a_part_of_its_effect_key_is_rejected() {
    let tool = TypedTool::new("book", "Books.", Effect::Once, |_, _: Value| async { Ok::<_, ToolError>(json!({})) });
    let tool = tool.effect_key(&["/seat/row"], Duration::from_secs(60));
    let mut fleet = Fleet::start(Plan { tools: vec![tool], ..Plan::default() }).await;
    fleet.submit(&[("book", json!({"seat": {"row": null}})), ("book", json!({"seat": {"row": 3}}))]).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["outcome"], "invalid_arguments", "{reply}");
    assert!(reply["results"][0]["error"]["message"].as_str().unwrap().contains("/seat/row"), "{reply}");
    assert_eq!(reply["results"][1]["outcome"], "ok", "{reply}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_equal_calls_are_unknown_and_do_not_run_again() {
    let bank = Bank::new(false);
    let mut plan = Plan { workers: 0, ..bank.plan() };
    // The lease is long, because a worker on a stalled machine must still run the call.
    plan.store.lease_ms = 4_000;
    let mut fleet = Fleet::start(plan).await;
    let first = KillableProcess::start(&fleet, "first");
    let payment = [json!({"to": "kim", "amount": 5})];
    fleet.submit_turn(turn("t1", "kelly", &payment)).await;
    bank.has_paid(1).await;
    first.kill();
    let second = KillableProcess::start(&fleet, "second");
    fleet.submit_turn(turn("t2", "fran", &payment)).await;
    let one = fleet.reply().await;
    let two = fleet.reply().await;
    let (first, again) = if one["turn_id"] == "t1" { (one, two) } else { (two, one) };
    assert_eq!(first["results"][0]["outcome"], "outcome_unknown", "{first}");
    assert_eq!(again["results"][0]["outcome"], "outcome_unknown", "{again}");
    assert_eq!(again["results"][0]["repeats"], "t1/0", "{again}");
    assert_eq!(bank.paid(), 1);
    drop(second);
}

async fn keys_like(fleet: &Fleet, pattern: &str) -> Vec<String> {
    let all = fleet.store.keys().key(pattern);
    redis::cmd("KEYS").arg(all).query_async(&mut fleet.server.connection().await).await.unwrap()
}

/// Reopens all claims, as if no worker had recorded an outcome.
async fn forget_the_end(fleet: &Fleet) {
    let keys = keys_like(fleet, "effect:*").await;
    let mut redis = fleet.server.connection().await;
    for key in keys {
        let text: Vec<u8> = redis::cmd("GET").arg(&key).query_async(&mut redis).await.unwrap();
        let Stored { version, value, .. } = Stored::<Claim>::read(&text.into()).unwrap();
        let open = Claim { state: ClaimState::Open { waiters: BTreeSet::new() }, ..value };
        let text = RecordText::render(&version, None, &[], &open.encode());
        let () = redis::cmd("SET").arg(key).arg(&text[..]).arg("KEEPTTL").query_async(&mut redis).await.unwrap();
    }
}

#[tokio::test]
async fn a_later_turn_with_a_reused_id_does_not_hold_the_claim() {
    let bank = Bank::new(true);
    let mut fleet = Fleet::start(bank.plan()).await;
    let payment = [json!({"to": "kim", "amount": 5})];
    fleet.submit_turn(turn("t1", "kelly", &payment)).await;
    let first = fleet.reply().await;
    forget_the_end(&fleet).await;
    fleet.submit_turn(turn("t2", "fran", &payment)).await;
    let again = fleet.reply().await;
    assert_eq!(again["results"][0]["output"], first["results"][0]["output"], "{again}");
    forget_the_end(&fleet).await;
    let mut redis = fleet.server.connection().await;
    let gone: Vec<String> = [keys_like(&fleet, "done:acme:t1").await, keys_like(&fleet, "id:acme:t1").await].concat();
    let gone: usize = redis::cmd("DEL").arg(gone).query_async(&mut redis).await.unwrap();
    assert_eq!(gone, 2);
    let other = json!({"to": "ada", "amount": 5, "text": "without cover"});
    fleet.submit_turn(turn("t1", "kelly", &[other])).await;
    assert_eq!(fleet.reply().await["results"][0]["outcome"], "permanent");
    fleet.submit_turn(turn("t3", "fran", &payment)).await;
    let last = &fleet.reply().await["results"][0];
    assert_eq!((&last["outcome"], &last["repeats"]), (&json!("outcome_unknown"), &json!("t1/0")), "{last}");
    assert_eq!(bank.paid(), 1);
    fleet.stop().await;
}

async fn durable(plan: Plan) -> Fleet {
    let options = RedisOptions { appendonly: true, ..RedisOptions::default() };
    Fleet::start_on(RedisServer::start_with(options).await, plan).await
}

async fn lose_the_ledger(fleet: &mut Fleet) {
    let mut connection = fleet.server.connection().await;
    let all = fleet.store.keys().key("effect:*");
    let keys: Vec<String> = redis::cmd("KEYS").arg(all).query_async(&mut connection).await.unwrap();
    let gone: usize = redis::cmd("DEL").arg(&keys).query_async(&mut connection).await.unwrap();
    assert_eq!(gone, 1, "{keys:?}");
    fleet.server.restart().await;
    fleet.until_redis_answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reports_claims_of_running_calls_after_data_loss() {
    let bank = Bank::new(false);
    let mut fleet = durable(bank.plan()).await;
    let payment = [json!({"to": "kim", "amount": 5})];
    fleet.submit_turn(turn("t1", "kelly", &payment)).await;
    bank.has_paid(1).await;
    lose_the_ledger(&mut fleet).await;
    fleet.submit_turn(turn("t2", "fran", &payment)).await;
    assert_eq!(waits(&fleet, "t2").await, "t1");
    bank.open.add_permits(9);
    let one = fleet.reply().await;
    let two = fleet.reply().await;
    let again = if one["turn_id"] == "t1" { two } else { one };
    assert_eq!((&again["results"][0]["repeats"], bank.paid()), (&json!("t1/0"), 1), "{again}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reports_outcomes_of_recent_claims_after_data_loss() {
    let bank = Bank::new(true);
    let mut fleet = durable(bank.plan()).await;
    let payment = [json!({"to": "kim", "amount": 5})];
    fleet.submit_turn(turn("t1", "kelly", &payment)).await;
    let first = fleet.reply().await;
    lose_the_ledger(&mut fleet).await;
    fleet.submit_turn(turn("t2", "fran", &payment)).await;
    let again = fleet.reply().await;
    assert_eq!(again["results"][0]["output"], first["results"][0]["output"], "{again}");
    assert_eq!((&again["results"][0]["repeats"], bank.paid()), (&json!("t1/0"), 1), "{again}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_equal_payment_does_not_run_after_total_data_loss() {
    let bank = Bank::new(true);
    let mut fleet = Fleet::start(bank.plan()).await;
    let payment = [json!({"to": "kim", "amount": 5})];
    fleet.submit_turn(turn("t1", "kelly", &payment)).await;
    let first = fleet.reply().await;
    fleet.server.kill9();
    fleet.server.restart().await;
    fleet.until_redis_answers().await;
    fleet.submit_turn(turn("t2", "fran", &payment)).await;
    let again = fleet.reply().await;
    assert_eq!(again["results"][0]["output"], first["results"][0]["output"], "{again}");
    assert_eq!((&again["results"][0]["repeats"], bank.paid()), (&json!("t1/0"), 1), "{again}");
    fleet.stop().await;
}
