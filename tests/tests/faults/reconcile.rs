//! Payments with unknown outcomes. Each payment must be made at most once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::tool::{Reconcile, ReconcileArgument};
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inbox::submit_all;
use tickfleet_tests::killable::KillableProcess;
use tickfleet_tools::{CallContext, ToolError, TypedTool};

type Bank = Arc<Mutex<BTreeMap<u64, Vec<String>>>>;

fn pay(bank: &Bank) -> TypedTool {
    let bank = Arc::clone(bank);
    let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |context: CallContext, arguments: Value| {
        let bank = Arc::clone(&bank);
        let to = arguments["to"].as_u64().unwrap_or_default();
        async move {
            // A kill can hit the worker before the payment.
            tokio::time::sleep(Duration::from_millis(4)).await;
            if to.is_multiple_of(11) && context.call.turn.as_str().ends_with('a') {
                return Err(ToolError::internal("the connection was lost"));
            }
            bank.lock().unwrap().entry(to).or_default().push(context.idempotency_key.clone());
            // A kill can hit the worker after the payment.
            tokio::time::sleep(Duration::from_millis(4)).await;
            if to.is_multiple_of(7) {
                return Err(ToolError::internal("the connection was lost"));
            }
            Ok(json!({"paid": to}))
        }
    });
    let by = Reconcile {
        tool: "find_payment".into(),
        arguments: [
            ("to".to_owned(), ReconcileArgument::Of("/to".into())),
            ("key".to_owned(), ReconcileArgument::IdempotencyKey),
        ]
        .into(),
        happened: "/found".into(),
        output: Some("/payment".into()),
        tries: 5,
        grace_ms: 1_000,
    };
    pay.effect_key(&["/to"], Duration::from_secs(3_600)).reconcile(by)
}

fn find_payment(bank: &Bank) -> TypedTool {
    let bank = Arc::clone(bank);
    TypedTool::new("find_payment", "Finds a payment.", Effect::Read, move |context: CallContext, arguments: Value| {
        let bank = Arc::clone(&bank);
        async move {
            let (to, key) =
                (arguments["to"].as_u64().unwrap_or_default(), arguments["key"].as_str().unwrap_or_default());
            if to % 5 == 0 && context.attempt == 1 {
                return Err(ToolError::internal("it is away"));
            }
            let found = bank.lock().unwrap().get(&to).is_some_and(|keys| keys.iter().any(|made| made == key));
            Ok(json!({"found": found, "payment": {"paid": to}}))
        }
    })
}

fn plan(bank: &Bank) -> Plan {
    Plan {
        schedulers: 1,
        workers: 0,
        tools: vec![pay(bank), find_payment(bank)],
        agents: vec!["kelly".into(), "fran".into()],
        caps: DefaultCaps { calls_per_tick: 100_000, max_actions_per_day: 1_000_000, ..DefaultCaps::default() },
        store: StoreOptions { lease_ms: 1_000, crashes_max: 20, ..StoreOptions::default() },
        ..Plan::default()
    }
}

#[derive(Debug, Default)]
struct OutcomeCounts {
    outcomes: BTreeMap<String, usize>,
    reconciled: usize,
}

#[allow(clippy::disallowed_methods, reason = "a knob of the test, documented beside it")]
fn payments() -> u64 {
    std::env::var("TICKFLEET_PAYMENTS").ok().and_then(|number| number.parse().ok()).unwrap_or(150)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_payments_are_reconciled_and_never_made_twice() {
    let payments = payments();
    let bank = Bank::default();
    let fleet = Fleet::start(plan(&bank)).await;
    let turn = |to: u64, which: char, agent: &str| {
        json!({"turn_id": format!("t{to}{which}"), "tenant": "acme", "agent": agent, "reply_to": "box",
            "calls": [{"name": "pay", "arguments": {"to": to}}]})
    };
    let turns: Vec<Value> = (1..=payments).flat_map(|to| [turn(to, 'a', "kelly"), turn(to, 'b', "fran")]).collect();
    let mut workers = [KillableProcess::start(&fleet, "w0"), KillableProcess::start(&fleet, "w1")];
    submit_all(&fleet.server, fleet.store.keys(), &turns).await;
    let mut inbox = fleet.inbox("box").await;
    let mut reported = OutcomeCounts::default();
    let mut answered = BTreeSet::new();
    let mut kills = 0;
    while answered.len() < turns.len() {
        let replies = inbox.next(PATIENCE).await;
        assert!(!replies.is_empty(), "{} turns are answered, then nothing for {PATIENCE:?}", answered.len());
        for reply in replies {
            let id = reply["turn_id"].as_str().unwrap();
            let result = &reply["results"][0];
            assert!(answered.insert(id.to_owned()), "answered twice: {reply}");
            let outcome = result["outcome"].as_str().unwrap();
            let to: u64 = id[1..id.len() - 1].parse().unwrap();
            let made = bank.lock().unwrap().get(&to).map_or(0, Vec::len);
            assert!(outcome != "ok" || made == 1, "told as paid, and paid {made} times: {reply}");
            reported.reconciled += usize::from(result["reconciled"] == true && result["repeats"].is_null());
            if result["repeats"].is_null() {
                *reported.outcomes.entry(outcome.to_owned()).or_default() += 1;
            }
        }
        if answered.len() > (kills + 1) * turns.len() / 8 && kills < 6 {
            kills += 1;
            let other = KillableProcess::start(&fleet, &format!("after{kills}"));
            std::mem::replace(&mut workers[kills % 2], other).kill();
        }
    }
    let twice = bank.lock().unwrap().values().filter(|keys| keys.len() > 1).count();
    let unknown = reported.outcomes.get("outcome_unknown").copied().unwrap_or_default();
    eprintln!("{} calls, {kills} workers killed, {twice} made twice; {reported:?}", turns.len());
    assert_eq!(twice, 0, "paid twice");
    assert!(reported.reconciled > payments as usize / 8, "the test has something to settle: {reported:?}");
    assert!(unknown * 100 <= reported.reconciled + unknown, "at least 99 % are settled: {reported:?}");
    drop(workers);
    fleet.stop().await;
}

type QueryCounts = Arc<Mutex<BTreeMap<u64, usize>>>;

/// Finds payments to even numbers only from the second query on.
fn find_late(asked: &QueryCounts) -> TypedTool {
    let asked = Arc::clone(asked);
    TypedTool::new("find_payment", "Finds a payment.", Effect::Read, move |_, arguments: Value| {
        let asked = Arc::clone(&asked);
        async move {
            let to = arguments["to"].as_u64().unwrap_or_default();
            let mut asked = asked.lock().unwrap();
            let times = asked.entry(to).or_default();
            *times += 1;
            Ok(json!({"found": *times > 1 && to.is_multiple_of(2), "payment": {"paid": to}}))
        }
    })
}

#[tokio::test]
async fn a_payment_is_reconciled_as_not_made_only_after_a_second_query() {
    let bank = Bank::default();
    let asked = QueryCounts::default();
    // Even on a stalled machine, the default lease does not end.
    let store = StoreOptions::default();
    let tools = vec![pay(&bank), find_late(&asked)];
    let fleet = Fleet::start(Plan { workers: 1, tools, store, ..plan(&bank) }).await;
    // With these numbers and turn names, `pay` loses both requests.
    let turn = |to: u64| {
        json!({"turn_id": format!("t{to}a"), "tenant": "acme", "agent": "kelly", "reply_to": "box",
            "calls": [{"name": "pay", "arguments": {"to": to}}]})
    };
    submit_all(&fleet.server, fleet.store.keys(), &[turn(22), turn(33)]).await;
    let mut inbox = fleet.inbox("box").await;
    let mut reported = BTreeMap::new();
    while reported.len() < 2 {
        let replies = inbox.next(PATIENCE).await;
        assert!(!replies.is_empty(), "{reported:?} are answered, then nothing for {PATIENCE:?}");
        for reply in replies {
            reported.insert(reply["turn_id"].as_str().unwrap().to_owned(), reply["results"][0].clone());
        }
    }
    let arrived = &reported["t22a"];
    let lost = &reported["t33a"];
    assert_eq!((&arrived["outcome"], &arrived["reconciled"]), (&json!("ok"), &json!(true)), "{arrived}");
    assert_eq!((&lost["outcome"], &lost["reconciled"]), (&json!("transient"), &json!(true)), "{lost}");
    assert_eq!(lost["error"]["details"]["reason"], "did_not_happen", "{lost}");
    assert_eq!(*asked.lock().unwrap(), BTreeMap::from([(22, 2), (33, 2)]));
    fleet.stop().await;
}
