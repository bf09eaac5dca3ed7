//! The backlog of a fleet fills Redis' memory. Every accepted turn must get a reply, and commands that reduce the
//! backlog must never be rejected.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tickfleet_client::Client;
use tickfleet_model::{InboxName, TenantId};
use tickfleet_store::StoreOptions;
use tickfleet_testkit::{RedisOptions, RedisServer};

use crate::support::binary::tickfleet;
use crate::support::process::{Process, pause};

const CONFIG: &str = "caps: {tick: 1s, max_calls_per_tick: 1000, max_actions_per_day: 100000000}
scheduler: {reap_every: 200ms}
";

fn config() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tickfleet.yaml"), CONFIG).unwrap();
    fs::write(dir.path().join("permissions.yaml"), "permissions: {echo: {everyone: true}}").unwrap();
    fs::write(dir.path().join("tenants.yaml"), "tenants: {demo: {}}").unwrap();
    dir
}

fn turn(id: &str, bytes: usize) -> String {
    let call = json!({"name": "echo", "arguments": {"text": "x".repeat(bytes)}});
    json!({"turn_id": id, "tenant": "demo", "agent": "kelly", "reply_to": "box", "calls": [call]}).to_string()
}

async fn memory(connection: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("memory").query_async(connection).await.unwrap();
    info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok()).unwrap()
}

async fn key<T: redis::FromRedisValue>(connection: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(format!("{{tickfleet:0}}:{}", words[1])).arg(&words[2..]);
    command.query_async(connection).await.unwrap()
}

async fn xadd(connection: &mut MultiplexedConnection, fields: &[&str]) -> redis::RedisResult<String> {
    redis::cmd("XADD").arg("{tickfleet:0}:turns").arg("*").arg(fields).query_async(connection).await
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    for _ in 0..2_400 {
        if is().await {
            return;
        }
        pause();
    }
    panic!("not within two minutes: {what}");
}

/// A tenant's unfinished turns can use at most a quarter of the memory, so some turns may be rejected.
async fn all_are_answered(url: &str, mut ids: BTreeSet<String>) {
    let client = Client::connect(url, StoreOptions::default()).await.unwrap();
    let mut replies = client.replies(&TenantId::new("demo").unwrap(), &InboxName::new("box").unwrap());
    let all = ids.len();
    let mut rejected = 0;
    while !ids.is_empty() {
        let reply = replies.next(Duration::from_secs(60)).await.unwrap();
        let reply = reply.unwrap_or_else(|| panic!("{} turns are not answered within 60 s", ids.len()));
        let full = reply.error.as_ref().is_some_and(|error| error.code == "tenant_queue_full");
        assert!(reply.is_success() || full, "{reply:?}");
        rejected += usize::from(full);
        assert!(ids.remove(reply.id().unwrap().as_str()), "answered twice: {:?}", reply.id());
    }
    replies.finish().await.unwrap();
    assert!(rejected < all / 2, "{rejected} of {all} turns were rejected");
}

#[tokio::test]
async fn every_turn_of_a_backlog_that_fills_redis_memory_gets_a_reply() {
    let options = RedisOptions { maxmemory: Some(48 << 20), ..RedisOptions::default() };
    let server = RedisServer::start_with(options).await;
    let dir = config();
    let url = server.url();
    let mut redis = server.connection().await;
    let mut ids = BTreeSet::new();
    loop {
        let id = format!("t{}", ids.len());
        if xadd(&mut redis, &["turn", &turn(&id, 4_096)]).await.is_err() {
            break;
        }
        ids.insert(id);
    }
    assert!(ids.len() > 1_000, "{}", ids.len());

    let scheduler = Process::start("scheduler", dir.path(), &url);
    let worker = Process::start("worker", dir.path(), &url);
    // The gauge uses the memory samples of the scheduler, because the pressure flag could not be written.
    until("the gauge says so", async || scheduler.metrics().contains("tickfleet_redis_pressure 1")).await;
    let said = tickfleet(&["doctor", "--redis-url", &url, "--config", dir.path().to_str().unwrap()]);
    said.says("new work is rejected");
    for blamed in ["no scheduler fires", "add a scheduler", "add schedulers"] {
        assert!(!said.stdout.contains(blamed), "{}", said.stdout);
    }
    all_are_answered(&url, ids).await;
    until("there is room again", async || key::<String>(&mut redis, &["HGET", "meta", "pressure"]).await == "0").await;
    assert_eq!(key::<u64>(&mut redis, &["XLEN", "dead"]).await, 0);
    assert_eq!([scheduler.stop(), worker.stop()], [Some(0), Some(0)]);
}

/// No worker runs. Suspects are turns that are marked as if their reader had died twice.
async fn suspects_wait(server: &RedisServer, dir: &Path) -> (Process, BTreeSet<String>) {
    let mut redis = server.connection().await;
    let mut ids: BTreeSet<String> = (0..256).map(|i| format!("t{i}")).collect();
    for id in &ids {
        xadd(&mut redis, &["turn", &turn(id, 1_000)]).await.unwrap();
    }
    // A large filler uses most of the memory, so later commands make little difference.
    let filler = redis::cmd("SETRANGE").arg("filler").arg(32 << 20).arg("x").to_owned();
    let _: u64 = filler.query_async(&mut redis).await.unwrap();
    let max = memory(&mut redis).await / 90 * 100;
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(max).query_async(&mut redis).await.unwrap();
    let scheduler = Process::start("scheduler", dir, &server.url());
    until("they are out", async || key::<u64>(&mut redis, &["XLEN", "ready:normal"]).await >= 256).await;
    // One transaction writes all entries, so that they are read together.
    let mut pipe = redis::pipe();
    pipe.atomic();
    for i in 0..20 {
        let id = format!("suspect{i}");
        pipe.cmd("XADD").arg("{tickfleet:0}:turns").arg("*").arg("x").arg(2).arg("o").arg(format!("1-{i}"));
        pipe.arg("turn").arg(turn(&id, 10)).ignore();
        ids.insert(id);
    }
    let () = pipe.query_async(&mut redis).await.unwrap();
    until("they are held", async || {
        let pending: redis::Value = key(&mut redis, &["XPENDING", "turns", "workers"]).await;
        matches!(pending, redis::Value::Array(summary) if summary[0] == redis::Value::Int(20))
    })
    .await;
    (scheduler, ids)
}

async fn each_suspect_is_answered(server: &RedisServer, dir: &Path, ids: BTreeSet<String>) {
    let mut redis = server.connection().await;
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).query_async(&mut redis).await.unwrap();
    let fleet = ["scheduler", "worker"].map(|role| Process::start(role, dir, &server.url()));
    all_are_answered(&server.url(), ids).await;
    assert_eq!(key::<u64>(&mut redis, &["XLEN", "dead"]).await, 0, "nobody was at fault");
    assert!(fleet.map(Process::stop).iter().all(|code| *code == Some(0)));
}

#[tokio::test]
async fn a_kill_during_memory_pressure_counts_no_crash_against_held_turns() {
    let server = RedisServer::start().await;
    let dir = config();
    let (scheduler, ids) = suspects_wait(&server, dir.path()).await;
    let mut redis = server.connection().await;
    // A suspect is marked only while the scheduler handles it. A later crash does not count against the suspect.
    let never = "tickfleet_redis_commands_total{verb=\"suspect\"} 0";
    until("it was named", async || !scheduler.metrics().lines().any(|line| line == never)).await;
    until("it is stopped while nothing is named", async || {
        scheduler.signal(Signal::SIGSTOP);
        let is_named = key::<u64>(&mut redis, &["HLEN", "suspects"]).await > 0;
        if is_named {
            scheduler.signal(Signal::SIGCONT);
        }
        !is_named
    })
    .await;
    scheduler.signal(Signal::SIGKILL);
    drop(scheduler);
    each_suspect_is_answered(&server, dir.path(), ids).await;
}

#[tokio::test]
async fn a_scheduler_short_of_memory_stops_quickly_and_returns_its_entries() {
    let server = RedisServer::start().await;
    let dir = config();
    let (scheduler, ids) = suspects_wait(&server, dir.path()).await;
    let mut redis = server.connection().await;
    scheduler.signal(Signal::SIGTERM);
    // If each of the twenty entries waited half a second, the return would time out.
    let returned = scheduler.says("returning undecided inbound entries");
    assert_eq!(returned["entries"], 20);
    assert_eq!(scheduler.stop(), Some(0));
    let entries: Vec<(String, Vec<String>)> = key(&mut redis, &["XRANGE", "turns", "-", "+"]).await;
    assert_eq!(entries.len(), 20);
    assert!(entries.iter().all(|(_, fields)| fields[2..4] == ["x", "2"]), "no crash was counted: {:?}", entries[0]);
    each_suspect_is_answered(&server, dir.path(), ids).await;
}
