//! Slices of a killed worker must not delay other work. The worker processes and the SIGKILL are real.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;
use tickfleet_testkit::RedisServer;

use crate::support::binary::tickfleet;
use crate::support::process::{Process, pause};

/// Each slice has one call of four seconds.
const SUSPECTS: usize = 30;

fn ask(url: &str, args: &[&str]) -> Value {
    tickfleet(&[args, &["--redis-url", url, "--json"]].concat()).json()
}

async fn count(redis: &RedisServer, command: &[&str]) -> usize {
    let mut connection = redis.connection().await;
    let found: redis::Value =
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await.unwrap_or(redis::Value::Nil);
    match found {
        redis::Value::Int(count) => usize::try_from(count).unwrap(),
        redis::Value::Array(list) => list.first().and_then(|n| redis::from_redis_value(n.clone()).ok()).unwrap_or(0),
        _ => 0,
    }
}

#[tokio::test]
async fn an_urgent_call_overtakes_the_slices_of_a_killed_worker() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let dir = dir.path();
    fs::write(dir.join("tickfleet.yaml"), "caps: {max_calls_per_tick: 1000}\nworker: {slots: 64}\n").unwrap();
    fs::write(dir.join("permissions.yaml"), "permissions: {sleep: {everyone: true}, echo: {everyone: true}}").unwrap();
    let _scheduler = Process::start("scheduler", dir, &url);
    let doomed = Process::start("worker", dir, &url);
    let mut connection = redis.connection().await;
    for _ in 0..SUSPECTS {
        let turn =
            r#"{"tenant":"demo","agent":"kelly","reply_to":"slow","calls":[{"name":"sleep","arguments":{"ms":4000}}]}"#;
        let command = redis::cmd("XADD").arg("{tickfleet:0}:turns").arg("*").arg("turn").arg(turn).to_owned();
        let _: String = command.query_async(&mut connection).await.unwrap();
    }
    let held = ["XPENDING", "{tickfleet:0}:ready:normal", "workers"];
    while count(&redis, &held).await < SUSPECTS {
        pause();
    }
    doomed.signal(Signal::SIGKILL);
    let _survivor = Process::start("worker", dir, &url);
    while count(&redis, &["XLEN", "{tickfleet:0}:ready:suspect:normal"]).await < SUSPECTS - 1 {
        pause();
    }
    let before = count(&redis, &["XLEN", "{tickfleet:0}:replies:demo:slow"]).await;
    let urgent = ["submit", "--tenant", "demo", "--agent", "kelly", "--priority", "urgent", "--call", "echo", "--wait"];
    let reply = ask(&url, &urgent);
    let after = count(&redis, &["XLEN", "{tickfleet:0}:replies:demo:slow"]).await;
    assert_eq!(reply["results"][0]["outcome"], "ok", "{reply}");
    // The suspects run one after another. The urgent call did not wait for all of them.
    assert!(after < SUSPECTS, "{before} and {after} suspects had ended");
    while count(&redis, &["XLEN", "{tickfleet:0}:replies:demo:slow"]).await <= after {
        pause();
    }
}
