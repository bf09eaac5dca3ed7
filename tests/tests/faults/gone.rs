//! Data in Redis is malformed, deleted or lost. Every turn must get exactly one reply.

use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_core::check::Fault;
use tickfleet_model::{TenantId, TurnId};
use tickfleet_store::{FaultKind, Submission, Submitted};
use tickfleet_tests::fleet::Fleet;
use tickfleet_tests::inspect::outcomes;
use tickfleet_tests::node::{Node, Role};
use tickfleet_tests::plain_node::plan;

fn node(fleet: &Fleet, role: Role, number: usize) -> Node {
    fleet.node(env!("CARGO_BIN_EXE_fleet_node"), role, number)
}

fn echo() -> Value {
    json!({"id": "c", "name": "echo", "arguments": {"text": "x"}})
}

fn flaky() -> Value {
    json!({"id": "c", "name": "fail", "arguments": {"outcomes": ["transient", "ok"]}})
}

async fn submit(fleet: &Fleet, prefix: &str, count: usize) {
    for i in 0..count {
        fleet.submit_turn(json!({"turn_id": format!("{prefix}{i}"), "calls": [echo()]})).await;
    }
}

async fn answered(fleet: &mut Fleet, count: usize) {
    let replies = fleet.replies(count).await;
    for (turn, reply) in &replies {
        assert_eq!(outcomes(reply), ["ok"], "{turn}: {reply}");
    }
    let more = fleet.try_reply(Duration::from_millis(300)).await;
    assert!(more.is_none(), "a second reply: {more:?}");
}

async fn reasons(fleet: &Fleet) -> Vec<String> {
    fleet.dead().await.into_iter().map(|letter| letter["reason"].clone()).collect()
}

fn wide() -> Vec<(String, String)> {
    (0..4_500).map(|i| (format!("more{i}"), String::new())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_killed_processes_are_recovered_despite_malformed_entries() {
    let mut fleet = Fleet::start(plan()).await;
    let dying = (node(&fleet, Role::Scheduler, 0), node(&fleet, Role::Worker, 0));
    submit(&fleet, "first", 1).await;
    answered(&mut fleet, 1).await;
    let scheduler = fleet.reader_of("turns").await;
    let worker = fleet.reader_of("ready:normal").await;
    dying.1.pause();
    submit(&fleet, "slice", 3).await;
    fleet.until("slices wait", async |fleet| fleet.ask::<u64>("XLEN", "ready:normal", &[]).await >= 3).await;
    dying.0.pause();
    fleet.foreign("ready:normal", &[("m", "{}"), ("c", "{}"), ("x", "odd"), ("p", "odd")]).await;
    let fields = wide();
    let mut odd: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    odd.push(("x", "odd"));
    fleet.foreign("turns", &odd).await;
    fleet.foreign("tasks", &odd).await;
    submit(&fleet, "turn", 3).await;
    fleet.foreign("turns", &[("turn", "{}"), ("x", "-3e400")]).await;
    for (stream, consumer) in [("turns", &scheduler), ("tasks", &scheduler), ("ready:normal", &worker)] {
        fleet.read_as(stream, consumer).await;
    }
    dying.0.end();
    dying.1.end();
    let _living = (node(&fleet, Role::Scheduler, 1), node(&fleet, Role::Worker, 1));
    answered(&mut fleet, 6).await;
    fleet.until("all is put aside", async |fleet| reasons(fleet).await.len() >= 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_timers_do_not_block_turns_or_throttle_queues() {
    let mut fleet = Fleet::start(plan()).await;
    let () = fleet.ask("SET", "turn:acme:odd", &["foreign"]).await;
    let _: u64 = fleet.ask("RPUSH", "turn:acme:odder", &["foreign"]).await;
    for timer in ["turn:acme:odd", "turn:acme:odder", "turn:no name", "z:of a later build", "throttle:_tick@acme:kelly"]
    {
        let _: u64 = fleet.ask("ZADD", "timers", &["0", timer]).await;
    }
    let _: u64 =
        fleet.ask("ZADD", "throttle:_tick@acme:kelly", &["0", "odd", "0", "acme:odd", "0", "acme:odder"]).await;
    let _: u64 = fleet.ask("HSET", "counters:_", &["_day:acme:archy", "foreign"]).await;
    let _nodes = (node(&fleet, Role::Scheduler, 0), node(&fleet, Role::Worker, 0));
    fleet.submit_turn(json!({"turn_id": "t", "calls": [flaky()]})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok"], "{reply}");
    fleet.submit_turn(json!({"turn_id": "u", "agent": "archy", "calls": [echo()]})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["daily_cap_reached"], "{reply}");
    fleet.until("people are told", async |fleet| reasons(fleet).await.len() >= 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_ends_the_task_of_a_deleted_external_stream() {
    let mut fleet = Fleet::start(plan()).await;
    let _scheduler = node(&fleet, Role::Scheduler, 0);
    let lost = format!("k{}", fleet.delegate("archy", json!({"task_description": "far", "reply_to": "box"})).await);
    assert_eq!(fleet.lease_task("archy", "outside").await.id(), lost);
    let _: u64 = fleet.ask("DEL", "external:acme:archy", &[]).await;
    let _worker = node(&fleet, Role::Worker, 0);
    fleet
        .until("the task's timer is due", async |fleet| {
            let due: Option<f64> = fleet.ask("ZSCORE", "timers", &[&format!("turn:acme:{lost}")]).await;
            let now_ms = fleet.store.now_ms().await.unwrap();
            due.is_some_and(|due| due as i64 <= now_ms + 2_000)
        })
        .await;
    fleet.submit_turn(json!({"turn_id": "t", "calls": [flaky()]})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    assert_eq!(fleet.store.check(true).await.unwrap().faults.len(), 1);
    let reply = fleet.reply().await;
    assert_eq!((reply["task_id"].as_str(), outcomes(&reply)), (Some(&*lost), vec!["internal"]), "{reply}");
    let next = format!("k{}", fleet.delegate("archy", json!({"task_description": "far", "reply_to": "box"})).await);
    let leased = fleet.lease_task("archy", "outside").await;
    assert_eq!(leased.id(), next);
    fleet.say(leased.message("finish", json!({"output": "done"}))).await;
    assert_eq!(fleet.reply().await["task_id"], next.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_ends_the_turns_of_a_deleted_queue() {
    let mut fleet = Fleet::start(plan()).await;
    let _scheduler = node(&fleet, Role::Scheduler, 0);
    submit(&fleet, "queued", 20).await;
    fleet.until("slices wait", async |fleet| fleet.ask::<u64>("XLEN", "ready:normal", &[]).await == 20).await;
    let _: u64 = fleet.ask("DEL", "ready:normal", &[]).await;
    let _worker = node(&fleet, Role::Worker, 0);
    submit(&fleet, "after", 1).await;
    answered(&mut fleet, 1).await;
    let report = fleet.store.check(true).await.unwrap();
    assert_eq!(report.faults.len(), 20, "{report:?}");
    for fault in &report.faults {
        assert!(matches!(fault.kind, FaultKind::Found(Fault::SliceLost)) && fault.repaired, "{fault:?}");
    }
    for (turn, reply) in fleet.replies(20).await {
        assert_eq!(outcomes(&reply), ["internal"], "{turn}: {reply}");
    }
    assert_eq!(fleet.store.check(false).await.unwrap().faults, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_delivered_on_an_abandoned_connection_are_admitted_once() {
    let mut fleet = Fleet::start(plan()).await;
    let living = node(&fleet, Role::Scheduler, 0);
    let _worker = node(&fleet, Role::Worker, 0);
    submit(&fleet, "first", 1).await;
    answered(&mut fleet, 1).await;
    let name = fleet.reader_of("turns").await;
    // The scheduler does not receive the entries, as if Redis had delivered them on an abandoned connection.
    living.pause();
    submit(&fleet, "late", 30).await;
    fleet.read_as("turns", &name).await;
    living.resume();
    answered(&mut fleet, 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_of_a_deleted_stream_may_be_submitted_again_under_its_id() {
    let mut fleet = Fleet::start(plan()).await;
    let payload = json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "turn_id": "mine", "calls": [echo()]});
    let submission = Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: TurnId::new("mine").ok(),
        digest: tickfleet_protocol::parse_turn(payload.to_string().as_bytes())
            .map(|turn| tickfleet_model::content_digest(&turn))
            .unwrap_or_else(|refusal| panic!("{}", refusal.message)),
        reply_to: None,
        payload: payload.to_string().into(),
    };
    let ask = async |fleet: &Fleet| {
        let mut results = fleet.store.submit(std::slice::from_ref(&submission)).await.unwrap();
        results.remove(0).unwrap()
    };
    assert!(matches!(ask(&fleet).await, Submitted::Accepted { .. }));
    assert_eq!(ask(&fleet).await, Submitted::Duplicate);
    let _: u64 = fleet.ask("DEL", "turns", &[]).await;
    assert!(matches!(ask(&fleet).await, Submitted::Accepted { .. }), "it is nowhere");
    assert_eq!(ask(&fleet).await, Submitted::Duplicate);
    let _nodes = (node(&fleet, Role::Scheduler, 0), node(&fleet, Role::Worker, 0));
    answered(&mut fleet, 1).await;
    assert_eq!(ask(&fleet).await, Submitted::Duplicate, "it has ended");
}
