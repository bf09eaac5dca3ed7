//! Runs real processes under load. A rolling restart neither loses nor retries a turn, and an overloaded fleet finishes
//! every turn that it accepts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tickfleet_client::{Client, Replies, Reply, ReplyStatus, SubmitError};
use tickfleet_model::{InboxName, TenantId, Turn};
use tickfleet_protocol::parse_turn;
use tickfleet_store::StoreOptions;
use tickfleet_testkit::RedisServer;
use tokio::time::Instant;

use crate::support::process::Process;

const AGENTS: u64 = 20;
const PROCESSES: [&str; 5] = ["scheduler", "scheduler", "worker", "worker", "worker"];
/// Even on an overloaded machine, no process loses this long lease.
const PATIENT: [(&str, &str); 2] = [("TICKFLEET_WORKER_LEASE", "30s"), ("TICKFLEET_WORKER_DRAIN", "30s")];
/// On an idle machine, replies arrive within a second.
const PATIENCE: Duration = Duration::from_secs(60);

fn configure(dir: &Path, settings: &str) {
    fs::write(dir.join("tickfleet.yaml"), settings).unwrap();
    fs::write(dir.join("tenants.yaml"), "tenants: {demo: {}}\n").unwrap();
    let agents: String = (0..AGENTS).map(|n| format!("  agent-{n}: {{}}\n")).collect();
    fs::write(dir.join("agents.yaml"), format!("agents:\n{agents}")).unwrap();
    fs::write(dir.join("permissions.yaml"), "permissions: {echo: {everyone: true}, sleep: {everyone: true}}\n")
        .unwrap();
}

fn turn(number: u64, calls: usize, ms: u64) -> Turn {
    let agent = number % AGENTS;
    let calls = vec![format!(r#"{{"name":"sleep","arguments":{{"ms":{ms}}}}}"#); calls].join(",");
    let text = format!(r#"{{"tenant":"demo","agent":"agent-{agent}","reply_to":"box","calls":[{calls}]}}"#);
    parse_turn(text.as_bytes()).unwrap()
}

async fn client(redis: &RedisServer, options: StoreOptions) -> (Client, TenantId, InboxName) {
    let client = Client::connect(&redis.url(), options).await.unwrap();
    (client, TenantId::new("demo").unwrap(), InboxName::new("box").unwrap())
}

/// Until `is_over` is set, returns `None` if no reply arrives within half a second.
async fn next(replies: &mut Replies, is_over: &AtomicBool) -> Option<Reply> {
    let was_over = is_over.load(Ordering::Relaxed);
    // All earlier turns may already have a reply, so the wait is short.
    let patience = if was_over { PATIENCE } else { Duration::from_millis(500) };
    let reply = replies.next(patience).await.unwrap();
    assert!(reply.is_some() || !was_over, "no reply within {PATIENCE:?}, and some are owed");
    reply
}

#[tokio::test]
async fn a_rolling_restart_loses_retries_and_fails_no_turn() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), "caps: {tick: 1s, max_calls_per_tick: 1000, max_actions_per_day: 100000000}\n");
    let config = dir.path().to_owned();
    let url = redis.url();
    let start = move |role: &'static str| (role, Process::start_with(role, &config, &url, &PATIENT));
    let fleet: Vec<(&'static str, Process)> = PROCESSES.map(&start).into();
    let (client, tenant, inbox) = client(&redis, StoreOptions::default()).await;
    let submitted = AtomicU64::new(0);
    let is_rolled = AtomicBool::new(false);
    let is_over = AtomicBool::new(false);
    let produce = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while !is_rolled.load(Ordering::Relaxed) {
            ticks.tick().await;
            client.submit(turn(submitted.load(Ordering::Relaxed), 2, 20)).await.unwrap();
            submitted.fetch_add(1, Ordering::Relaxed);
        }
        // The last turn must also get a reply.
        is_over.store(true, Ordering::Relaxed);
    };
    let consume = async {
        let mut replies = client.replies(&tenant, &inbox);
        let mut answered: BTreeMap<String, Reply> = BTreeMap::new();
        while !is_over.load(Ordering::Relaxed) || (answered.len() as u64) < submitted.load(Ordering::Relaxed) {
            let Some(reply) = next(&mut replies, &is_over).await else { continue };
            let id = reply.id().unwrap().to_string();
            assert!(answered.insert(id.clone(), reply).is_none(), "{id} was answered twice");
        }
        answered
    };
    let restart = async {
        // Restarts block, so they run outside the async runtime.
        let fleet = tokio::task::spawn_blocking(move || restarted(fleet, start)).await.unwrap();
        is_rolled.store(true, Ordering::Relaxed);
        fleet
    };
    let ((), answered, _fleet) = tokio::join!(produce, consume, restart);
    assert_eq!(answered.len() as u64, submitted.into_inner());
    for (id, reply) in &answered {
        assert_eq!(reply.status, ReplyStatus::Done, "{id}: {reply:?}");
        assert!(reply.results.iter().all(|result| result.success && result.attempts == 1), "{id}: {reply:?}");
    }
    untroubled(&redis).await;
}

fn restarted(
    mut fleet: Vec<(&'static str, Process)>,
    start: impl Fn(&'static str) -> (&'static str, Process),
) -> Vec<(&'static str, Process)> {
    for at in 0..PROCESSES.len() {
        let (role, old) = fleet.remove(at);
        assert_eq!(old.stop(), Some(0), "a {role} told to stop");
        fleet.insert(at, start(role));
    }
    fleet
}

async fn untroubled(redis: &RedisServer) {
    let mut connection = redis.connection().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*:done:*").query_async(&mut connection).await.unwrap();
    assert!(!keys.is_empty());
    for chunk in keys.chunks(500) {
        let records: Vec<String> = redis::cmd("MGET").arg(chunk).query_async(&mut connection).await.unwrap();
        for record in records {
            let turn = finished(&record);
            assert!(turn["c"].is_null() && turn["r"].is_null(), "workers died or calls were retried: {turn}");
        }
    }
}

/// Returns the JSON in the first line of the record, after its header. The next line has the reply.
fn finished(record: &str) -> Value {
    let line = record.lines().next().unwrap();
    serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap()
}

#[derive(Debug, Default)]
struct SubmitCounts {
    accepted: AtomicU64,
    full: AtomicU64,
}

/// Four slots can finish a tenth of these turns.
async fn offer(client: &Client, heard: &SubmitCounts, is_over: &AtomicBool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(25));
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        ticks.tick().await;
        for submitted in client.submit_many((0..10).map(|number| turn(number, 1, 100)).collect()).await {
            match submitted {
                Ok(_) => heard.accepted.fetch_add(1, Ordering::Relaxed),
                Err(SubmitError::QueueFull) => heard.full.fetch_add(1, Ordering::Relaxed),
                Err(other) => panic!("{other}"),
            };
        }
    }
    is_over.store(true, Ordering::Relaxed);
}

/// (finished, rejected)
async fn take(mut replies: Replies, heard: &SubmitCounts, is_over: &AtomicBool) -> (u64, u64) {
    let mut done = 0;
    let mut refused = 0;
    while !is_over.load(Ordering::Relaxed) || done + refused < heard.accepted.load(Ordering::Relaxed) {
        let Some(reply) = next(&mut replies, is_over).await else { continue };
        if reply.status == ReplyStatus::Done {
            assert!(reply.is_success(), "{reply:?}");
            done += 1;
        } else {
            assert_eq!(reply.error.as_ref().map(|error| &*error.code), Some("tenant_queue_full"), "{reply:?}");
            refused += 1;
        }
    }
    (done, refused)
}

/// The load is ten times the capacity of the four slots, so the fleet rejects most turns.
#[tokio::test]
async fn an_overloaded_fleet_finishes_every_accepted_turn() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    configure(
        dir.path(),
        "caps: {tick: 1s, max_calls_per_tick: 1000, max_actions_per_day: 100000000}\n\
         worker: {slots: 2}\n\
         queues: {turns_max: 200, tenant_turns_max: 200, tenant_ready_max: 100}\n",
    );
    let start = |role: &'static str| Process::start_with(role, dir.path(), &redis.url(), &PATIENT);
    let _fleet: Vec<Process> = ["scheduler", "scheduler", "worker", "worker"].map(start).into();
    let (client, tenant, inbox) = client(&redis, StoreOptions { turns_max: 200, ..StoreOptions::default() }).await;
    let heard = SubmitCounts::default();
    let is_over = AtomicBool::new(false);
    let produce = offer(&client, &heard, &is_over);
    let consume = take(client.replies(&tenant, &inbox), &heard, &is_over);
    let ((), (done, refused)) = tokio::join!(produce, consume);
    let accepted = heard.accepted.into_inner();
    assert_eq!(done + refused, accepted);
    assert!(refused + heard.full.into_inner() > 0, "it was no overload: {done} done");
}
