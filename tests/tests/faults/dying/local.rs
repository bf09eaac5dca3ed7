//! All processes of the fleet die at each step of a local call. The function must run at most once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tickfleet_config::ToolsFile;
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, Plan};

use super::{lease_ms, places, steps};

#[derive(Debug)]
struct LocalRun {
    commits: usize,
    result: Value,
    ran: usize,
    killed: bool,
}

/// The caller's process does not die.
async fn play(kill_after: usize) -> LocalRun {
    let declared = json!({"tools": {"pay": {
        "description": "Pays.", "input_schema": {"type": "object"}, "effect": "once", "local": {"lease_ms": 20_000},
    }}});
    let plan = Plan {
        schedulers: 0,
        workers: 0,
        declared: serde_json::from_value::<ToolsFile>(declared).unwrap(),
        store: StoreOptions { lease_ms: lease_ms(kill_after), ..StoreOptions::default() },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let caller = caller(&fleet, Arc::clone(&ran)).await;
    let submit = async |fleet: &Fleet| {
        let call = json!({"name": "pay", "arguments": {}});
        fleet.submit_turn(json!({"turn_id": "t1", "local_calls": true, "calls": [call]})).await;
    };
    let super::DyingRun { commits, mut replies, killed } = super::play(&mut fleet, 1, kill_after, submit).await;
    caller.abort();
    LocalRun { commits, result: replies[0]["results"][0].take(), ran: ran.load(Ordering::SeqCst), killed }
}

async fn caller(fleet: &Fleet, ran: Arc<AtomicUsize>) -> tokio::task::JoinHandle<()> {
    let mut connection = fleet.server.connection().await;
    let (local, tasks) = (fleet.store.keys().key("local:acme:t1"), fleet.store.keys().key("tasks"));
    tokio::spawn(async move {
        loop {
            let mut take = redis::cmd("XREADGROUP");
            take.arg("GROUP").arg("workers").arg("p1").arg("COUNT").arg(1).arg("STREAMS").arg(&local).arg(">");
            type Entries = Vec<(String, std::collections::BTreeMap<String, String>)>;
            let found: Option<Vec<(String, Entries)>> = take.query_async(&mut connection).await.unwrap_or_default();
            if let Some((lease, _)) = found.and_then(|mut found| found.pop()?.1.pop()) {
                ran.fetch_add(1, Ordering::SeqCst);
                let report = json!({"op": "finish", "tenant": "acme", "turn_id": "t1", "lease": lease, "output": 1});
                let mut add = redis::cmd("XADD");
                add.arg(&tasks).arg("*").arg("task").arg(report.to_string());
                add.query_async::<String>(&mut connection).await.unwrap();
            }
            // The stream does not exist before the offer, so this polls.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_call_runs_once_after_a_kill_of_the_fleet_at_any_step() {
    let whole = play(usize::MAX).await;
    assert_eq!((whole.ran, whole.killed, &whole.result["outcome"]), (1, false, &json!("ok")), "{whole:?}");
    for kill_after in places(whole.commits, steps(10)) {
        let played = play(kill_after).await;
        assert_eq!(played.ran, 1, "killed after {kill_after}: {played:?}");
        assert_eq!(played.result["outcome"], "ok", "killed after {kill_after}: {played:?}");
    }
}
