//! Tests of a worker's lifecycle: the slices that it takes, runs and returns.

use tickfleet_core::audit::AuditAppend;
use tickfleet_core::keys;
use tickfleet_core::settings::drain::{ChangeDrain, DrainChange};
use tickfleet_core::task::cancel::Cancel;
use tickfleet_core::turn::{Destination, State, Suspect, Turn};
use tickfleet_core::workers::{self, Consumer};
use tickfleet_core::{Query, StreamKey, Value};
use tickfleet_model::policy::Pause;
use tickfleet_model::{Call, Priority};
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::worker_of;

use std::time::Duration;

use bytes::Bytes;

use crate::shard::{Dispatch, LEASE_MS, Notify, Shard, name, turn};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_runs_and_its_turn_sends_one_reply() {
    let shard = Shard::start().await;
    shard
        .dispatch("t1", &[("echo", r#"{"text":"hi"}"#), ("fail_once", r#"{"outcomes":["ok"]}"#), ("none", "{}")])
        .await;
    let reply = shard.reply("t1").await;
    let outcomes: Vec<&str> =
        reply["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "ok", "unknown_tool"], "{reply}");
    assert_eq!(reply["results"][0]["output"]["text"], "hi");
    let inbox = Query::Entries { stream: StreamKey::new("replies:acme:main"), after: None, count: 9 };
    let Value::Entries(replies) = shard.store.query(inbox).await.unwrap() else { panic!("no entries") };
    assert_eq!(replies.len(), 1);
    assert!(shard.record("t1").await.is_none());
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspects_run_in_groups_and_a_lone_suspect_runs_alone() {
    let shard = Shard::start().await;
    // The worker may take the first turn before the others are dispatched.
    let group = |group_max| Some(Suspect { group_max, solo_crashes: 0 });
    for (id, group_max) in [("a", 2), ("b", 2), ("d", 2), ("c", 1)] {
        shard.dispatch_as(id, &[("sleep", r#"{"ms":300}"#)], group(group_max)).await;
    }
    let running = || async {
        let mut running = Vec::new();
        for id in ["a", "b", "c", "d"] {
            let state = shard.record(id).await.map(|turn| turn.state);
            running.extend(matches!(state, Some(State::Running { .. })).then_some(id));
        }
        running
    };
    let mut most: usize = 0;
    loop {
        let now = running().await;
        assert!(!now.contains(&"c") || now.len() == 1, "{now:?}: one that must run alone has company");
        assert!(now.len() <= 2, "{now:?}: more than a group");
        most = most.max(now.len());
        let mut left = 0;
        for id in ["a", "b", "c", "d"] {
            left += usize::from(shard.record(id).await.is_some());
        }
        if left == 0 {
            break;
        }
        // Polls the store.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(most, 2, "no group ran together");
    for id in ["a", "b", "c", "d"] {
        assert_eq!(shard.reply(id).await["results"][0]["outcome"], "ok");
    }
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_call_stops_when_its_turn_is_canceled() {
    let shard = Shard::start().await;
    shard.dispatch("t1", &[("sleep", r#"{"ms":30000}"#), ("echo", "{}")]).await;
    let queue = keys::ready(Priority::Normal);
    shard.until(|| async { (shard.held(queue.clone()).await == 1).then_some(()) }).await;
    let bounds = shard.store.bounds();
    let cancel = Cancel { name: name("t1"), reason: "enough".into(), above: None, bounds: &bounds };
    shard.store.decide(cancel).await.unwrap();
    let holder = shard.consumer().await;
    shard.store.decide(Notify { name: name("t1"), holder }).await.unwrap();
    let reply = shard.reply("t1").await;
    assert_eq!(reply["results"][0]["outcome"], "cancelled", "{reply}");
    assert_eq!(reply["results"][1]["outcome"], "cancelled", "{reply}");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_worker_takes_nothing_until_it_is_resumed() {
    let shard = Shard::start().await;
    let consumer = shard.consumer().await;
    let worker = worker_of(&consumer).unwrap().to_owned();
    let entry = || AuditAppend { text: Bytes::from_static(b"{}"), entries_max: 10 };
    let note = Pause { by: "op".into(), reason: "upgrade".into(), since_ms: 1 };
    let change = DrainChange::Drain { note, gone: Vec::new(), entry: entry() };
    shard.store.decide(ChangeDrain { worker: worker.clone(), change }).await.unwrap();
    let key = workers::key(&consumer);
    let is_drained = |drained| {
        let key = key.clone();
        let store = shard.store.clone();
        async move {
            let stored = store.record_of::<Consumer>(&key).await.unwrap()?;
            (stored.value.drained == drained).then_some(())
        }
    };
    shard.until(|| is_drained(true)).await;
    // A take in progress ends within a quarter of a lease.
    tokio::time::sleep(Duration::from_millis(LEASE_MS.unsigned_abs())).await;
    shard.dispatch("t1", &[("echo", "{}")]).await;
    // A worker that is not drained would take the turn within this time.
    tokio::time::sleep(Duration::from_millis(LEASE_MS.unsigned_abs())).await;
    assert_eq!(shard.held(keys::ready(Priority::Normal)).await, 0);
    assert!(shard.record("t1").await.is_some());
    let change = DrainChange::Resume { entry: entry() };
    shard.store.decide(ChangeDrain { worker, change }).await.unwrap();
    assert_eq!(shard.reply("t1").await["results"][0]["outcome"], "ok");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_with_a_lost_take_response_still_runs() {
    let shard = Shard::start().await;
    let consumer = shard.consumer().await;
    // Simulates a take with a lost response. The worker takes from the same queue, so repeat until the test wins.
    let take = TakeRequest { consumer, queues: vec![keys::ready(Priority::Low)], count: 1, wait_ms: 0 };
    let mut number = 0;
    let stray = loop {
        number += 1;
        let id = format!("t{number}");
        let now_ms = shard.store.refresh_state().await.unwrap().now_ms;
        let turn = Turn { destination: Destination::Workers(Priority::Low), ..turn(now_ms, 1, None) };
        let calls = vec![Call { provider_id: None, tool: "echo".into(), arguments: "{}".into() }];
        shard.store.decide(Dispatch { name: name(&id), turn, calls }).await.unwrap();
        if !shard.store.seam().take(&take).await.unwrap().is_empty() {
            break id;
        }
        assert!(number < 10_000, "the worker is always faster");
    };
    assert_eq!(shard.reply(&stray).await["results"][0]["outcome"], "ok");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_continues_after_a_restart_of_the_store() {
    let shard = Shard::start().await;
    shard.dispatch("t1", &[("sleep", r#"{"ms":300}"#), ("fail_once", r#"{"outcomes":["ok"]}"#)]).await;
    let queue = keys::ready(Priority::Normal);
    shard.until(|| async { (shard.held(queue.clone()).await == 1).then_some(()) }).await;
    shard.memory.restart().await.unwrap();
    shard.dispatch("t2", &[("fail_once", r#"{"outcomes":["ok"]}"#)]).await;
    for (id, at) in [("t1", 1), ("t2", 0)] {
        let reply = shard.reply(id).await;
        assert_eq!(reply["results"][at]["outcome"], "ok", "{reply}");
    }
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_worker_returns_its_unfinished_slices() {
    let shard = Shard::start().await;
    let ids: Vec<String> = (0..8).map(|number| format!("t{number}")).collect();
    for id in &ids {
        shard.dispatch(id, &[("sleep", r#"{"ms":100}"#)]).await;
    }
    let queue = keys::ready(Priority::Normal);
    shard.until(|| async { (shard.held(queue.clone()).await > 0).then_some(()) }).await;
    let store = shard.store.clone();
    shard.stop().await;
    let waiting = store.seam().backlog(&queue).await.unwrap().waiting;
    let mut unfinished = 0;
    for id in &ids {
        unfinished += u64::from(store.record_of::<Turn>(&name(id).record()).await.unwrap().is_some());
    }
    assert_eq!(waiting, unfinished);
}
