//! Single crashes and stalls, each at the moment when it does the most harm.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_core::keys;
use tickfleet_core::recovery::epoch::{RecoveredCall, RecoveredCalls};
use tickfleet_core::turn::Turn;
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{Effect, TenantId, TurnId};
use tickfleet_store::{StoreOptions, TurnName, TurnView};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::killable::KillableProcess;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::sync::{Notify, mpsc};

const LEASE_MS: i64 = 4_000;

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: u32,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    n: u32,
}

fn strike(log: Arc<Mutex<Vec<u32>>>, runs: mpsc::UnboundedSender<u32>) -> TypedTool {
    TypedTool::new("strike", "Strikes.", Effect::Once, move |_: CallContext, args: Number| {
        log.lock().unwrap().push(args.n);
        runs.send(args.n).unwrap();
        std::future::pending::<Result<Done, ToolError>>()
    })
}

fn outcomes(reply: &Value) -> Vec<&str> {
    reply["results"].as_array().unwrap().iter().map(|r| r["outcome"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_begun_by_a_killed_worker_never_runs_again() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (runs, mut running) = mpsc::unbounded_channel();
    let mut fleet = Fleet::start(Plan {
        workers: 0,
        tools: vec![strike(log.clone(), runs)],
        store: StoreOptions { lease_ms: LEASE_MS, crashes_max: 8, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    fleet.submit(&[("strike", json!({"n": 0})), ("strike", json!({"n": 1})), ("strike", json!({"n": 2}))]).await;
    for n in 0..3 {
        let worker = KillableProcess::start(&fleet, &format!("doomed-{n}"));
        assert_eq!(running.recv().await, Some(n), "each worker goes on after what the one before began");
        worker.kill();
    }
    let survivor = KillableProcess::start(&fleet, "survivor");
    assert_eq!(outcomes(&fleet.reply().await), ["outcome_unknown"; 3]);
    assert_eq!(*log.lock().unwrap(), [0, 1, 2], "what ran");
    drop(survivor);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begun_call_is_unknown_when_its_turn_is_canceled_after_a_crash() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (runs, mut running) = mpsc::unbounded_channel();
    let mut fleet = Fleet::start(Plan {
        workers: 0,
        tools: vec![strike(log.clone(), runs)],
        store: StoreOptions { lease_ms: LEASE_MS, crashes_max: 8, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    let turn = fleet.submit(&[("strike", json!({"n": 0})), ("strike", json!({"n": 1}))]).await;
    let worker = KillableProcess::start(&fleet, "doomed");
    assert_eq!(running.recv().await, Some(0));
    worker.kill();
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(&turn).unwrap() };
    fleet.store.cancel(&name, "no longer wanted").await.unwrap();
    let survivor = KillableProcess::start(&fleet, "survivor");
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["outcome_unknown", "cancelled"], "{reply:#}");
    assert_eq!(*log.lock().unwrap(), [0], "what ran");
    drop(survivor);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begun_call_is_unknown_even_on_a_worker_without_its_tool() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (runs, mut running) = mpsc::unbounded_channel();
    let plan = |tools| Plan {
        workers: 0,
        tools,
        store: StoreOptions { lease_ms: LEASE_MS, crashes_max: 8, ..StoreOptions::default() },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan(vec![strike(log.clone(), runs)])).await;
    fleet.submit(&[("strike", json!({"n": 0})), ("strike", json!({"n": 1}))]).await;
    let worker = KillableProcess::start(&fleet, "doomed");
    assert_eq!(running.recv().await, Some(0));
    worker.kill();
    let survivor = KillableProcess::start_as(&fleet, Arc::new(plan(Vec::new())), "survivor");
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["outcome_unknown", "unknown_tool"], "{reply:#}");
    drop(survivor);
    fleet.stop().await;
}

fn pay(log: Arc<Mutex<Vec<u32>>>, runs: mpsc::UnboundedSender<u32>, may_end: Arc<Notify>) -> TypedTool {
    TypedTool::new("pay", "Pays.", Effect::Once, move |_: CallContext, args: Number| {
        log.lock().unwrap().push(args.n);
        runs.send(args.n).unwrap();
        let may_end = Arc::clone(&may_end);
        async move {
            may_end.notified().await;
            Ok::<_, ToolError>(Done { n: args.n })
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reports_its_journal_again_after_a_second_data_loss() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let may_end = Arc::new(Notify::new());
    let (runs, mut running) = mpsc::unbounded_channel();
    let mut fleet = Fleet::start(Plan {
        tools: vec![pay(log.clone(), runs, may_end.clone())],
        store: StoreOptions { lease_ms: LEASE_MS, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    let turn = json!({"turn_id": "paid", "calls": [{"name": "pay", "arguments": {"n": 7}}]});
    fleet.submit_turn(turn.clone()).await;
    assert_eq!(running.recv().await, Some(7));
    fleet.server.kill9();
    fleet.server.restart().await;
    until_recovered(&fleet, |_| true).await;
    may_end.notify_one();
    until_recovered(&fleet, |mark| mark.result.is_some()).await;
    fleet.server.kill9();
    fleet.server.restart().await;
    fleet.submit_turn(turn).await;
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), &reply["results"][0]["output"]["n"]), (vec!["ok"], &json!(7)), "{reply:#}");
    assert_eq!(*log.lock().unwrap(), [7], "it must not run twice");
    fleet.stop().await;
}

async fn until_recovered(fleet: &Fleet, is_it: fn(&RecoveredCall) -> bool) {
    let key = keys::recovered_calls(&TurnName::parse("acme:paid").unwrap());
    fleet
        .until("the call is reported", async |fleet| {
            // Redis restarts, so errors are ignored.
            let recovered = fleet.store.record_of::<RecoveredCalls>(&key).await.ok().flatten();
            recovered.is_some_and(|recovered| recovered.value.calls.get(&0).is_some_and(is_it))
        })
        .await;
}

async fn until_held(fleet: &Fleet, stream: &str) {
    let command = redis::cmd("XPENDING").arg(fleet.store.keys().key(stream)).arg("workers").to_owned();
    let mut connection = fleet.server.connection().await;
    loop {
        let held: (u64, redis::Value, redis::Value, redis::Value) = command.query_async(&mut connection).await.unwrap();
        if held.0 > 0 {
            return;
        }
        // Redis does not announce reads, so this polls.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_runs_one_suspect_at_a_time_and_marks_no_other() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (runs, mut running) = mpsc::unbounded_channel();
    let suspects = SuspectSemaphore::default();
    let mut fleet = Fleet::start(Plan {
        workers: 0,
        tools: vec![strike(log.clone(), runs)],
        store: StoreOptions { lease_ms: 2_000, ..StoreOptions::default() },
        suspects: Some(suspects.clone()),
        ..Plan::default()
    })
    .await;
    let slice = fleet.submit(&[("strike", json!({"n": 0})), ("echo", json!({"text": "after"}))]).await;
    let worker = KillableProcess::start(&fleet, "doomed");
    assert_eq!(running.recv().await, Some(0));
    worker.kill();

    // The test holds the permit as another shard's loop would, so the survivor must wait for the permit.
    let look = suspects.acquire().await;
    let survivor = KillableProcess::start(&fleet, "survivor");
    until_held(&fleet, "ready:suspect:normal").await;
    let turn = json!({"tenant": "acme", "agent": "kelly", "turn_id": "alone", "reply_to": "box",
        "calls": [{"name": "sleep", "arguments": {"ms": 1}}]});
    let mut add = redis::cmd("XADD");
    add.arg(fleet.store.keys().key("turns")).arg("*").arg("turn").arg(turn.to_string()).arg("x").arg(1);
    let _: String = add.query_async(&mut fleet.server.connection().await).await.unwrap();
    until_held(&fleet, "turns").await;
    assert!(fleet.try_reply(Duration::from_millis(300)).await.is_none());
    let marks: Vec<String> = fleet.ask("KEYS", "suspect:turns:*", &[]).await;
    assert!(marks.is_empty(), "a turn that is not looked into is marked: {marks:?}");
    let name = TurnName::parse(&format!("acme:{slice}")).unwrap();
    let turn = fleet.store.record_of::<Turn>(&name.record()).await.unwrap().unwrap().value;
    assert!(turn.suspect.is_some(), "{turn:?}");
    assert_eq!(turn.state.word(), "ready", "a slice that does not run is marked: {turn:?}");

    drop(look);
    let mut replies = [fleet.reply().await, fleet.reply().await];
    replies.sort_by_key(|reply| reply["turn_id"] == "alone");
    assert_eq!(outcomes(&replies[0]), ["outcome_unknown", "ok"]);
    assert_eq!(outcomes(&replies[1]), ["ok"]);
    assert_eq!(*log.lock().unwrap(), [0], "what ran");
    drop(survivor);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_survives_a_redis_stall_shorter_than_its_lease() {
    let mut fleet = Fleet::start(Plan {
        caps: DefaultCaps { calls_per_tick: 128, ..DefaultCaps::default() },
        store: StoreOptions { lease_ms: LEASE_MS, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    // The worker does not record short calls one by one, so the worker sends no command to Redis for five seconds.
    fleet.submit(&vec![("sleep", json!({"ms": 50})); 100]).await;
    fleet.leased().await;
    fleet.server.pause();
    // The pause is shorter than a lease, but longer than the part of a lease in which calls may start.
    tokio::time::sleep(Duration::from_millis(LEASE_MS.unsigned_abs() * 33 / 40)).await;
    fleet.server.resume();
    assert_eq!(outcomes(&fleet.reply().await), ["ok"; 100]);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_delivered_to_a_draining_worker_counts_no_crash() {
    let mut fleet = Fleet::start(Plan { slots: 1, ..Plan::default() }).await;
    fleet.submit(&[("sleep", json!({"ms": 1_500}))]).await;
    fleet.leased().await;
    let astray = fleet.submit(&[("echo", json!({"text": "astray"}))]).await;
    // Simulates a read that was abandoned while Redis responded.
    fleet.read_astray().await;
    fleet.drain_worker().await;
    fleet.add_worker();
    fleet.reply().await;
    let reply = fleet.reply().await;
    assert_eq!((reply["turn_id"].as_str(), outcomes(&reply)), (Some(astray.as_str()), vec!["ok"]));
    let ended = fleet.store.turn_view(&TurnName::parse(&format!("acme:{astray}")).unwrap()).await.unwrap();
    let TurnView::Finished(ended) = ended else { panic!("{ended:?}") };
    assert_eq!(ended.crashes, 0, "whoever goes in order has not died: {ended:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_worker_returns_a_slice_from_an_abandoned_read() {
    let mut fleet = Fleet::start(Plan {
        slots: 1,
        store: StoreOptions { lease_ms: 1_000, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    // While the only slot is busy, the worker reads no slices, so `read_astray` gets the next slice.
    fleet.submit(&[("sleep", json!({"ms": 2_000}))]).await;
    fleet.leased().await;
    let astray = fleet.submit(&[("echo", json!({"text": "astray"}))]).await;
    fleet.read_astray().await;
    fleet.reply().await;
    let reply = fleet.reply().await;
    assert_eq!((reply["turn_id"].as_str(), outcomes(&reply)), (Some(astray.as_str()), vec!["ok"]));
    fleet.stop().await;
}
