//! Pools of workers. Each pool serves some priorities.

use std::collections::BTreeMap;

use serde_json::json;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{Priorities, Priority};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;

/// Returns the ID of the last entry that was read. `0-0` if no entry was read.
async fn read_up_to(fleet: &Fleet, stream: &str) -> String {
    let command = redis::cmd("XINFO").arg("GROUPS").arg(fleet.store.keys().key(stream)).to_owned();
    let groups: Vec<BTreeMap<String, redis::Value>> =
        command.query_async(&mut fleet.server.connection().await).await.unwrap();
    redis::from_redis_value(groups[0]["last-delivered-id"].clone()).unwrap()
}

#[tokio::test]
async fn a_worker_pool_takes_only_its_own_priorities() {
    let priorities = Priorities::new([Priority::Urgent]).unwrap();
    let caps = DefaultCaps { tick_ms: 1_000, calls_per_tick: 100, ..DefaultCaps::default() };
    let mut fleet = Fleet::start(Plan { priorities, caps, ..Plan::default() }).await;
    let calls = json!([{"name": "echo", "arguments": {"text": "hi"}}]);
    for priority in ["normal", "low"] {
        fleet.submit_turn(json!({"turn_id": priority, "priority": priority, "calls": calls})).await;
    }
    let ready = async |fleet: &Fleet| {
        let waiting = [fleet.ask::<u64>("XLEN", "ready:normal", &[]).await, fleet.ask("XLEN", "ready:low", &[]).await];
        waiting == [1, 1]
    };
    fleet.until("both turns are ready", ready).await;

    // In some of twenty rounds, the starvation guard reverses the order. Even then, the other queues stay unread.
    for round in 0..20 {
        let id = format!("urgent-{round}");
        fleet.submit_turn(json!({"turn_id": id, "agent": "kelly", "priority": "urgent", "calls": calls})).await;
        assert_eq!(fleet.reply().await["turn_id"], *id);
    }
    assert_eq!(read_up_to(&fleet, "ready:normal").await, "0-0");
    assert_eq!(read_up_to(&fleet, "ready:low").await, "0-0");

    let rest = Priorities::new([Priority::Low, Priority::Normal]).unwrap();
    let stop = Shutdown::default();
    let plan = Plan { priorities: rest, ..Plan::default() };
    let now = stop.now.child_token();
    let other = plan.worker(fleet.store.clone(), fleet.active.clone(), fleet.metrics.clone(), "rest", now);
    let running = tokio::spawn(other.run(stop.clone()));
    for _ in 0..2 {
        assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    }
    stop.drain();
    running.await.unwrap().unwrap();
    fleet.stop().await;
}
