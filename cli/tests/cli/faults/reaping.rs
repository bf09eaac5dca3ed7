//! A worker is killed under settings that `config check` accepts. Another worker must continue the work of the killed
//! worker.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;
use tickfleet_testkit::RedisServer;

use crate::support::binary::tickfleet;
use crate::support::process::{Process, pause};

const STEPS_MAX: usize = 1_200;

async fn killed_workers_work_comes_back(lease: &'static str, reap_every: Option<&'static str>) {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let dir = dir.path();
    fs::write(dir.join("permissions.yaml"), "permissions: {sleep: {everyone: true}}").unwrap();
    let lease = [("TICKFLEET_WORKER_LEASE", lease)];
    let reap_every = reap_every.map(|every| ("TICKFLEET_SCHEDULER_REAP_EVERY", every));
    let variables: Vec<_> = lease.into_iter().chain(reap_every).collect();
    let ask = |args: &[&str]| tickfleet(&[args, &["--redis-url", &url, "--json"]].concat()).json();
    let scheduler = Process::start_with("scheduler", dir, &url, &variables);
    let doomed = Process::start_with("worker", dir, &url, &variables);
    let turn = ask(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", "sleep {\"ms\":1500}"]);
    held(&redis).await;
    doomed.signal(Signal::SIGKILL);
    let other = Process::start_with("worker", dir, &url, &variables);
    let name = format!("demo:{}", turn["turn_id"].as_str().unwrap());
    let mut story = Value::Null;
    for _ in 0..STEPS_MAX {
        story = ask(&["explain", &name]);
        if story["state"] == "done" {
            break;
        }
        pause();
    }
    assert_eq!(story["results"][0]["outcome"], "ok", "{story:#}");
    assert_eq!((scheduler.stop(), other.stop()), (Some(0), Some(0)));
}

async fn held(redis: &RedisServer) {
    let mut connection = redis.connection().await;
    for _ in 0..STEPS_MAX {
        let mut command = redis::cmd("XPENDING");
        command.arg("{tickfleet:0}:ready:normal").arg("workers");
        let held: (u64, redis::Value, redis::Value, redis::Value) = command.query_async(&mut connection).await.unwrap();
        if held.0 > 0 {
            return;
        }
        pause();
    }
    panic!("no worker holds the slice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_takes_a_killed_workers_call_under_a_short_lease() {
    killed_workers_work_comes_back("2s", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_takes_a_killed_workers_call_under_slow_reaping() {
    killed_workers_work_comes_back("3s", Some("3s")).await;
}
