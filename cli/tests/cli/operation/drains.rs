//! Drained workers take no new work, but finish the slices that they hold.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tickfleet_model::limits;
use tickfleet_store::StoreOptions;
use tickfleet_testkit::{RedisOptions, RedisServer};

use crate::support::binary::{CommandOutput, command};
use crate::support::process::{Process, until};

/// Each worker is one process that serves both shards.
const SHARDS: (&str, &str) = ("TICKFLEET_REDIS_SHARDS", "2");
const BEGUN: &str = "tickfleet_schedule_to_start_seconds_count ";

struct DrainFixture {
    redis: RedisServer,
    dir: tempfile::TempDir,
}

impl DrainFixture {
    async fn new() -> Self {
        Self::on(RedisServer::start().await)
    }

    fn on(redis: RedisServer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("permissions.yaml", "permissions: {echo: {everyone: true}, sleep: {everyone: true}}"),
            ("tenants.yaml", "tenants: {demo: {}, acme: {}}"),
        ];
        files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
        Self { redis, dir }
    }

    fn start(&self, role: &str, host: &str) -> Process {
        let variables = [SHARDS, ("HOSTNAME", host), ("TICKFLEET_CAPS_MAX_CALLS_PER_TICK", "100")];
        Process::start_with(role, self.dir.path(), &self.redis.url(), &variables)
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        let conf = self.dir.path().to_str().unwrap();
        let url = self.redis.url();
        let mut command = command(&[&["--config", conf, "--redis-url", &url], args].concat());
        CommandOutput::of(command.envs([SHARDS]), "")
    }

    fn submit(&self, tenant: &str, id: &str, call: &str, more: &[&str]) {
        let args = ["submit", "--tenant", tenant, "--agent", "kelly", "--turn-id", id, "--call", call];
        self.run(&[&args[..], more].concat()).exits(0);
    }

    fn until(&self, host: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let of = |seen: &Value| {
            let mut workers = seen.as_array().unwrap().iter();
            workers.find(|one| one["name"].as_str().unwrap().contains(host)).filter(|one| is_so(one)).cloned()
        };
        let list = || self.run(&["workers", "list", "--json"]).exits(0).json();
        of(&until(host, list, |seen| of(seen).is_some())).unwrap()
    }

    fn change(&self, what: &str, host: &str) {
        let name = self.until(host, |one| one["alive"] == true)["name"].as_str().unwrap().to_owned();
        self.run(&["workers", what, &name, "--reason", "a new kernel", "--by", "anna"]).exits(0).says(&name);
        self.until(host, |one| one["drain_applied"] == true && one["drained"].is_object() == (what == "drain"));
    }

    /// Waits until the last read of the drained worker ends. Until then, the worker still accepts slices.
    async fn asks_no_more() {
        let lease_ms = StoreOptions::default().lease_ms.unsigned_abs();
        // The end of a read causes no event, so wait for the maximum duration of a read.
        tokio::time::sleep(Duration::from_millis(lease_ms / limits::BLOCK_FRACTION + 500)).await;
    }

    fn explained(&self, turn: &str, word: &str) {
        until(turn, || self.run(&["explain", turn]).stdout, |story| story.contains(word));
    }
}

fn begun(process: &Process) -> u64 {
    let text = process.metrics();
    let line = text.lines().find(|line| line.starts_with(BEGUN)).unwrap();
    line.trim_start_matches(BEGUN).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_finishes_its_slices_and_takes_no_new_ones() {
    let place = DrainFixture::new().await;
    let _scheduler = place.start("scheduler", "s");
    let quiet = place.start("worker", "quiet");
    place.submit("demo", "long", r#"sleep {"ms":600000}"#, &[]);
    let holds = place.until("quiet", |one| one["busy"] == 1);
    assert_eq!(holds["shards"], 2, "{holds}");
    place.change("drain", "quiet");
    DrainFixture::asks_no_more().await;
    let other = place.start("worker", "other");
    for n in 0..2 {
        for tenant in ["demo", "acme"] {
            place.submit(tenant, &format!("echo-{n}"), "echo", &["--wait"]);
        }
    }
    assert_eq!((begun(&quiet), begun(&other)), (1, 4));
    let seen = place.until("quiet", |one| one["busy"] == 1 && one["slots"] == 1);
    assert_eq!(seen["drained"]["by"], "anna", "{seen}");
    place.run(&["workers", "list"]).exits(0).says("drains").says("a new kernel");
    place.run(&["top"]).exits(0).says("drains 1");
    place.run(&["cancel", "demo:long"]).exits(0);
    place.until("quiet", |one| one["busy"] == 0);

    // The stopped worker loses its lease and continues under a new name, but stays drained.
    quiet.signal(Signal::SIGSTOP);
    place.until("quiet", |one| one["alive"] == false);
    quiet.signal(Signal::SIGCONT);
    place.until("quiet", |one| one["alive"] == true && one["drain_applied"] == true && one["drained"].is_object());
    DrainFixture::asks_no_more().await;
    assert_eq!(other.stop(), Some(0));
    place.submit("demo", "waits", "echo", &[]);
    place.explained("demo:waits", "drained by an operator");
    assert_eq!(begun(&quiet), 1);
    place.change("resume", "quiet");
    place.explained("demo:waits", "has ended");
    place
        .run(&["workers", "resume", "w-nobody-1", "--reason", "x", "--by", "anna"])
        .exits(1)
        .prints_error("unknown worker");
    let audit = place.run(&["audit", "search", "--text", "a new kernel", "--json"]).exits(0).stdout;
    assert!(audit.contains("DRAIN_WORKER") && audit.contains("RESUME_WORKER"), "{audit}");
    place.change("drain", "quiet");
    assert_eq!(quiet.stop(), Some(0));
    assert_eq!(place.run(&["workers", "list", "--json"]).exits(0).json().as_array().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_restores_its_drain_after_redis_lost_it() {
    let mut place = DrainFixture::new().await;
    let _quiet = place.start("worker", "quiet");
    place.change("drain", "quiet");
    // Redis has not written the drain to disk, so the kill loses the drain.
    place.redis.kill9();
    place.redis.restart().await;
    let is_back = |one: &Value| one["alive"] == true && one["drain_applied"] == true && one["drained"]["by"] == "anna";
    place.until("quiet", is_back);
    place.change("resume", "quiet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_does_not_restore_a_drain_lifted_after_a_redis_restart() {
    let options = RedisOptions { appendonly: true, ..RedisOptions::default() };
    let mut place = DrainFixture::on(RedisServer::start_with(options).await);
    let _scheduler = place.start("scheduler", "s");
    let quiet = place.start("worker", "quiet");
    place.change("drain", "quiet");
    let name = place.until("quiet", |one| one["alive"] == true)["name"].as_str().unwrap().to_owned();
    // The drain survives this restart, and ends while the worker is stopped.
    quiet.signal(Signal::SIGSTOP);
    place.redis.kill9();
    place.redis.restart().await;
    place.run(&["workers", "resume", &name, "--reason", "it is back", "--by", "anna"]).exits(0).says(&name);
    quiet.signal(Signal::SIGCONT);
    place.submit("demo", "goes-on", "echo", &["--wait"]);
    place.until("quiet", |one| one["alive"] == true && one["drain_applied"] == true && one["drained"].is_null());
}
