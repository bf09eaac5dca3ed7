//! Single crashes and stalls, each at the moment where it would do the most harm.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{Effect, TenantId, TurnId};
use tickfleet_store::{StoreOptions, TurnName};
use tickfleet_tests::doomed::Doomed;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::sync::mpsc;

const LEASE_MS: i64 = 4_000;

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: u32,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    n: u32,
}

/// A tool that says that it runs, and then never answers.
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
async fn an_effect_that_a_lost_worker_began_is_never_begun_again_however_many_workers_are_lost() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (runs, mut running) = mpsc::unbounded_channel();
    let mut fleet = Fleet::start(Plan {
        workers: 0,
        tools: vec![strike(log.clone(), runs)],
        store: StoreOptions { lease_ms: 1_000, crashes_max: 8, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    fleet.submit(&[("strike", json!({"n": 0})), ("strike", json!({"n": 1})), ("strike", json!({"n": 2}))]).await;
    for n in 0..3 {
        let worker = Doomed::start(&fleet, &format!("doomed-{n}"));
        assert_eq!(running.recv().await, Some(n), "each worker goes on after what the one before began");
        worker.kill();
    }
    let survivor = Doomed::start(&fleet, "survivor");
    assert_eq!(outcomes(&fleet.reply().await), ["outcome_unknown"; 3]);
    assert_eq!(*log.lock().unwrap(), [0, 1, 2], "what ran");
    drop(survivor);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begun_call_of_a_turn_that_was_cancelled_when_its_worker_died_is_unknown_and_the_rest_is_cancelled() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (runs, mut running) = mpsc::unbounded_channel();
    let mut fleet = Fleet::start(Plan {
        workers: 0,
        tools: vec![strike(log.clone(), runs)],
        store: StoreOptions { lease_ms: 1_000, crashes_max: 8, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    let turn = fleet.submit(&[("strike", json!({"n": 0})), ("strike", json!({"n": 1}))]).await;
    let worker = Doomed::start(&fleet, "doomed");
    assert_eq!(running.recv().await, Some(0));
    worker.kill();
    // Nobody holds it now who would hear of it: the next worker learns with the slice that somebody died over it.
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(&turn).unwrap() };
    fleet.store.cancel(&name, "no longer wanted").await.unwrap();
    let survivor = Doomed::start(&fleet, "survivor");
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["outcome_unknown", "cancelled"], "{reply:#}");
    assert_eq!(*log.lock().unwrap(), [0], "what ran");
    drop(survivor);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begun_call_that_comes_to_a_worker_without_its_tool_is_unknown_all_the_same() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (runs, mut running) = mpsc::unbounded_channel();
    let plan = |tools| Plan {
        workers: 0,
        tools,
        store: StoreOptions { lease_ms: 1_000, crashes_max: 8, ..StoreOptions::default() },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan(vec![strike(log.clone(), runs)])).await;
    fleet.submit(&[("strike", json!({"n": 0})), ("strike", json!({"n": 1}))]).await;
    let worker = Doomed::start(&fleet, "doomed");
    assert_eq!(running.recv().await, Some(0));
    worker.kill();
    let survivor = Doomed::start_as(&fleet, Arc::new(plan(Vec::new())), "survivor");
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["outcome_unknown", "unknown_tool"], "{reply:#}");
    drop(survivor);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_heartbeat_was_nearly_late_goes_on_when_redis_answers_again() {
    let mut fleet = Fleet::start(Plan {
        caps: DefaultCaps { calls_per_tick: 128, ..DefaultCaps::default() },
        store: StoreOptions { lease_ms: LEASE_MS, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    // Calls that are too short to be settled one by one: nothing is asked of Redis for five seconds.
    fleet.submit(&vec![("sleep", json!({"ms": 50})); 100]).await;
    fleet.leased().await;
    fleet.server.pause();
    // Longer than the three quarters of a lease in which calls may be sent, shorter than the lease.
    tokio::time::sleep(Duration::from_millis(LEASE_MS.unsigned_abs() * 33 / 40)).await;
    fleet.server.resume();
    assert_eq!(outcomes(&fleet.reply().await), ["ok"; 100]);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_that_a_living_worker_was_given_and_knows_nothing_of_is_handed_back() {
    let mut fleet = Fleet::start(Plan {
        slots: 1,
        store: StoreOptions { lease_ms: 1_000, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    // The worker's one slot is taken, so that it reads nothing for a while.
    fleet.submit(&[("sleep", json!({"ms": 2_000}))]).await;
    fleet.leased().await;
    let astray = fleet.submit(&[("echo", json!({"text": "astray"}))]).await;
    fleet.read_astray().await;
    fleet.reply().await;
    let reply = fleet.reply().await;
    assert_eq!((reply["turn_id"].as_str(), outcomes(&reply)), (Some(astray.as_str()), vec!["ok"]));
    fleet.stop().await;
}
