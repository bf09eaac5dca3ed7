//! `doctor --repair`. Each fault is created by hand in Redis. In a working fleet, `doctor` must find no faults.

mod busy;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tickfleet_store::{Store, StoreOptions};
use tickfleet_testkit::RedisServer;
use tokio::time::Instant;

use self::busy::BackgroundLoad;
use crate::support::binary::{CommandOutput, tickfleet};
use crate::support::process::{Process, pause};

/// In ms since the epoch, later than the end of any test.
const FAR: &str = "9999999999999";
/// The checks take at least this time, and at most `BUSY_MAX`.
const BUSY: Duration = Duration::from_secs(12);
const BUSY_MAX: Duration = Duration::from_secs(90);
/// Calls must reach all of these outcomes. Other outcomes are allowed too.
const ENDS: [&str; 9] = [
    "sleep ok",
    "sleep expired",
    "sleep cancelled",
    "echo approval_refused",
    "echo cancelled",
    "fail ok",
    "fail_once ok",
    "fail_once cancelled",
    "delegate_task ok",
];
/// Each fault, and the commands that create it. `demo:kept` is an unfinished turn.
const REPAIRED: [(&str, &[&str]); 4] = [
    ("timer_without_turn", &["ZADD timers 9999999999999 turn:demo:ghost"]),
    (
        "member_not_throttled",
        &["ZADD throttle:ghosts@demo 1 demo:ghost", "ZADD timers 9999999999999 throttle:ghosts@demo"],
    ),
    ("turn_without_timer", &["ZREM timers turn:demo:kept"]),
    ("tenant_miscounted", &["HDEL counters:_ _unfinished:demo"]),
];
const REPORTED: (&str, &str) = ("unreadable", "SET turn:acme:odd text");

struct RepairFixture {
    redis: RedisServer,
    dir: tempfile::TempDir,
}

impl RepairFixture {
    async fn new() -> Self {
        let redis = RedisServer::start().await;
        let dir = tempfile::tempdir().unwrap();
        let permissions = "permissions: {sleep: {everyone: true}, echo: {everyone: true}}";
        fs::write(dir.path().join("permissions.yaml"), permissions).unwrap();
        Self { redis, dir }
    }

    fn start(&self, role: &str) -> Process {
        Process::start(role, self.dir.path(), &self.redis.url())
    }

    /// Tests check the store directly where they can, because runs of the binary are much slower.
    fn store(&self) -> Store {
        Store::open(&self.redis.url(), 0, Arc::new(StoreOptions::default())).unwrap()
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        let dir = self.dir.path().to_str().unwrap();
        let url = self.redis.url();
        tickfleet(&[args, &["--config", dir, "--redis-url", &url]].concat())
    }

    /// The second word of `text` is a key without the shard's prefix.
    async fn redis(&self, text: &str) -> redis::Value {
        let mut words = text.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        command.arg(format!("{{tickfleet:0}}:{}", words.next().unwrap()));
        words.for_each(|word| {
            command.arg(word);
        });
        command.query_async(&mut self.redis.connection().await).await.unwrap()
    }

    async fn breaks(&self, commands: &[&str]) {
        for command in commands {
            self.redis(command).await;
        }
    }

    fn doctor(&self, more: &[&str]) -> Vec<String> {
        let report = self.run(&[&["doctor", "--json"], more].concat()).json();
        let findings = report["findings"].as_array().unwrap();
        let reported = findings.iter().filter(|finding| {
            let what = finding["what"].as_str().unwrap();
            let says = finding["says"].as_str().unwrap();
            what == "repaired" || what == "repair" && !says.contains("records checked")
        });
        reported
            .map(|finding| {
                let fault = finding["says"].as_str().unwrap().split([' ', ':']).nth(1).unwrap();
                format!("{} {fault}", finding["what"].as_str().unwrap())
            })
            .collect()
    }

    async fn acts(&self) -> Vec<Value> {
        self.audited().await.into_iter().filter(|entry| entry["action"] == "REPAIR").collect()
    }

    async fn ended(&self) -> BTreeSet<String> {
        let calls = self.audited().await.into_iter().filter(|entry| entry["action"] == "TOOL_CALL");
        let said = |text: &Value| text.as_str().unwrap().replace("tool_", "");
        calls.map(|entry| format!("{} {}", said(&entry["entity_id"]), said(&entry["meta"]["outcome"]))).collect()
    }

    async fn missing_ends(&self) -> Vec<&'static str> {
        let ended = self.ended().await;
        ENDS.into_iter().filter(|end| !ended.contains(*end)).collect()
    }

    async fn audited(&self) -> Vec<Value> {
        type Entries = Vec<(String, Vec<(String, String)>)>;
        let found: Entries = redis::from_redis_value(self.redis("XRANGE audit - +").await).unwrap();
        let read =
            |(_, fields): (String, Vec<(String, String)>)| -> Value { serde_json::from_str(&fields[0].1).unwrap() };
        found.into_iter().map(read).collect()
    }
}

async fn one_turn(place: &RepairFixture) {
    let scheduler = place.start("scheduler");
    place.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", "echo", "--turn-id", "kept"]).exits(0);
    while place.redis("EXISTS turn:demo:kept").await != redis::Value::Int(1) {
        pause();
    }
    scheduler.signal(Signal::SIGKILL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_is_found_and_repaired_separately_in_an_idle_fleet() {
    let place = RepairFixture::new().await;
    one_turn(&place).await;
    let store = place.store();
    let looks = async |repair: bool| -> Vec<(&'static str, bool)> {
        let found = store.check(repair).await.unwrap().faults;
        found.iter().map(|found| (found.kind.word(), found.repaired)).collect()
    };
    assert_eq!(looks(false).await, [], "before anything is broken");
    for (fault, commands) in REPAIRED {
        place.breaks(commands).await;
        assert_eq!(looks(false).await, [(fault, false)]);
        assert_eq!(looks(true).await, [(fault, true)]);
        assert_eq!(looks(false).await, [], "after {fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_repair_fixes_all_faults_except_those_only_reported() {
    let place = RepairFixture::new().await;
    one_turn(&place).await;
    assert_eq!(place.doctor(&[]), Vec::<String>::new(), "before anything is broken");
    for (_, commands) in REPAIRED {
        place.breaks(commands).await;
    }
    let all =
        |what: &str| -> BTreeSet<String> { REPAIRED.iter().map(|(fault, _)| format!("{what} {fault}")).collect() };
    assert_eq!(BTreeSet::from_iter(place.doctor(&[])), all("repair"));
    assert_eq!(BTreeSet::from_iter(place.doctor(&["--repair", "--by", "anna"])), all("repaired"));
    assert_eq!(place.doctor(&[]), Vec::<String>::new());
    let acts = place.acts().await;
    assert!(acts.iter().all(|act| act["actor_id"] == "anna" && act["meta"]["shard"] == 0), "{acts:#?}");
    let named: Vec<&Value> = acts.iter().flat_map(|act| act["meta"]["named"].as_array().unwrap()).collect();
    assert!(named.len() == REPAIRED.len() && named.contains(&&json!("timer_without_turn demo:ghost")), "{named:?}");

    let (fault, command) = REPORTED;
    place.redis(command).await;
    assert_eq!(place.doctor(&["--repair", "--by", "anna"]), [format!("repair {fault}")]);
    assert_eq!(place.acts().await.len(), acts.len(), "what is only reported changes nothing");
    let _fleet = (place.start("scheduler"), place.start("worker"));
    while place.run(&["explain", "demo:kept", "--json"]).json()["state"] != "done" {
        pause();
    }
}

/// The calls of the lost slices can no longer run, so the repair ends the turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_with_a_lost_slice_ends_after_a_repair() {
    let place = RepairFixture::new().await;
    one_turn(&place).await;
    place.redis("XTRIM ready:normal MAXLEN 0").await;
    assert_eq!(place.doctor(&[]), ["repair slice_lost"]);
    assert_eq!(place.doctor(&["--repair", "--by", "anna"]), ["repaired slice_lost"]);
    let _scheduler = place.start("scheduler");
    while place.run(&["explain", "demo:kept", "--json"]).json()["state"] != "done" {
        pause();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_fleet_has_no_faults_and_manual_damage_is_repaired_live() {
    let place = RepairFixture::new().await;
    busy::configure(place.dir.path());
    let _fleet = ["scheduler", "scheduler", "worker", "worker"].map(|role| place.start(role));
    let store = place.store();
    let busy = BackgroundLoad::start(&place.redis.url()).await;
    let began = Instant::now();
    let mut looks = 0;
    while began.elapsed() < BUSY || began.elapsed() < BUSY_MAX && !place.missing_ends().await.is_empty() {
        let found = store.check(true).await.unwrap().faults;
        assert_eq!(found, [], "look {looks} beside the work");
        looks += 1;
    }
    assert_eq!(place.doctor(&["--repair", "--by", "anna"]), Vec::<String>::new(), "beside the work");
    let done = busy.stop().await;
    assert!(looks > 5 && done.iter().all(|done| *done > 5), "{looks} looks; somebody had nothing to do: {done:?}");
    let missing = place.missing_ends().await;
    assert!(missing.is_empty(), "no call ended so: {missing:?} of {:?}", place.ended().await);
    // Only the first two faults can be created here. The others need the turn `kept`.
    let by_hand: Vec<_> = REPAIRED.iter().take(2).collect();
    for (_, commands) in &by_hand {
        place.breaks(commands).await;
    }
    let repaired = place.doctor(&["--repair", "--by", "anna"]);
    for (fault, _) in by_hand {
        assert!(repaired.contains(&format!("repaired {fault}")), "{fault} is not repaired: {repaired:?}");
    }
    assert_eq!(place.doctor(&[]), Vec::<String>::new());
    let call = "sleep {\"ms\":5}";
    place.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", call, "--wait"]).exits(0);
    assert_ne!(place.redis("ZSCORE timers turn:demo:ghost").await, redis::Value::BulkString(FAR.into()));
}
