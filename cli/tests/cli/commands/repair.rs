//! `doctor --repair`: each fault is made by hand in Redis, found, and mended; a fleet that works has none.

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

use self::busy::Busy;
use crate::support::binary::{Said, tickfleet};
use crate::support::process::{Process, pause};

/// Longer than any wait here.
const FAR: &str = "9999999999999";
/// How long it is looked at a busy fleet at least; and at most, while calls have not ended in all ways.
const BUSY: Duration = Duration::from_secs(12);
const BUSY_MAX: Duration = Duration::from_secs(90);
/// An audit entry as whoever has a shard mended writes it: two objects are open.
const ENTRY: &str = r#"{"action":"REPAIR","actor_id":"anna","meta":{"shard":0"#;
/// Some of the ends that calls of that fleet must have had.
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
/// Faults that are mended, each with the command that makes it. `demo:kept` is a turn under way.
const MENDED: [(&str, &str); 18] = [
    ("timer_without_turn", "ZADD timers 9999999999999 t:demo:ghost"),
    ("lane_without_timer", "ZADD lane:demo:ghost 1 ghost"),
    ("parked_not", "ZADD delayed 1 demo:ghost"),
    ("runtime_unlisted", "XGROUP CREATE external:demo:ghost workers 0 MKSTREAM"),
    ("entry_stranded", "XADD external:demo:ghost 1-1 t demo:ghost m {} d {}"),
    ("lease_endless", "HSET beats w-ghost 9999999999999"),
    ("node_without_lease", "HSET nodes w-gone nothing"),
    ("place_leaked", "ZADD held:ghosts@demo 1 demo:ghost/1"),
    ("place_not_counted", "HSET turn:demo:kept ho ghosts@demo 1"),
    ("limit_unlisted", "HSET counters:ghosts demo 123456789012345678901234"),
    ("tenant_miscounted", "HINCRBY tenant:demo q 3"),
    ("id_without_entry", "HSET queued demo:ghost 1-1"),
    ("turn_lost", "SET id:demo:lost a0"),
    ("id_endless", "SET id:demo:ended e0"),
    ("claim_endless", "HSET effect:demo:pay:ab b ghost/0/ab r {} e 9999999999999"),
    ("approval_unlisted", "HSET approval:demo:apr-1 s waiting ts 1 e 9999999999999"),
    ("turn_without_timer", "ZREM timers t:demo:kept"),
    ("stream_without_group", "XGROUP DESTROY ready:low workers"),
];
/// Faults that are only told.
const TOLD: [(&str, &str); 5] = [
    ("runtime_without_group", "XGROUP CREATE external:demo:old others 0 MKSTREAM"),
    ("claim_without_turn", "HSET effect:demo:pay:cd b ghost/0/cd e 9999999999999"),
    ("turn_unreadable", "HSET turn:demo:odd n many"),
    ("foreign", "SET turn:demo:none text"),
    ("foreign", "ZADD timers 9999999999999 t:demo:none"),
];

/// A Redis and a folder of a configuration.
struct Place {
    redis: RedisServer,
    dir: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        let (redis, dir) = (RedisServer::start().await, tempfile::tempdir().unwrap());
        let permissions = "permissions: {sleep: {everyone: true}, echo: {everyone: true}}";
        fs::write(dir.path().join("permissions.yaml"), permissions).unwrap();
        Self { redis, dir }
    }

    fn start(&self, role: &str) -> Process {
        Process::start(role, self.dir.path(), &self.redis.url())
    }

    /// The shard, as `doctor` has it: it is looked at many times in the time that one run of the binary takes.
    fn store(&self) -> Store {
        Store::open(&self.redis.url(), 0, Arc::new(StoreOptions::default())).unwrap()
    }

    fn run(&self, args: &[&str]) -> Said {
        let (dir, url) = (self.dir.path().to_str().unwrap(), self.redis.url());
        tickfleet(&[args, &["--config", dir, "--redis-url", &url]].concat())
    }

    /// A command whose second or third word is the key without the shard's prefix.
    async fn redis(&self, text: &str) -> redis::Value {
        let words: Vec<&str> = text.split(' ').collect();
        let at = if words[0] == "XGROUP" { 2 } else { 1 };
        let mut command = redis::cmd(words[0]);
        for (number, word) in words.iter().enumerate().skip(1) {
            // The places of a limit have a blank within.
            let rest = words[number..].join(" ");
            match number {
                _ if number == at => command.arg(format!("{{tickfleet:0}}:{word}")),
                3 if words[2] == "ho" => command.arg(rest),
                4 if words[2] == "ho" => &mut command,
                _ => command.arg(word),
            };
        }
        command.query_async(&mut self.redis.connection().await).await.unwrap()
    }

    /// What `doctor` finds that does not agree, or has mended, as `<what> <fault>`.
    fn doctor(&self, more: &[&str]) -> Vec<String> {
        let report = self.run(&[&["doctor", "--json"], more].concat()).json();
        let findings = report["findings"].as_array().unwrap();
        let told = findings.iter().filter(|finding| {
            let (what, says) = (finding["what"].as_str().unwrap(), finding["says"].as_str().unwrap());
            what == "repaired" || what == "repair" && !says.contains("records checked")
        });
        told.map(|finding| {
            let fault = finding["says"].as_str().unwrap().split([' ', ':']).nth(1).unwrap();
            format!("{} {fault}", finding["what"].as_str().unwrap())
        })
        .collect()
    }

    /// The acts in the audit log.
    async fn acts(&self) -> Vec<Value> {
        self.audited().await.into_iter().filter(|entry| entry["action"] == "REPAIR").collect()
    }

    /// How calls ended, as `<tool> <outcome>`.
    async fn ended(&self) -> BTreeSet<String> {
        let calls = self.audited().await.into_iter().filter(|entry| entry["action"] == "TOOL_CALL");
        let said = |text: &Value| text.as_str().unwrap().replace("tool_", "");
        calls.map(|entry| format!("{} {}", said(&entry["entity_id"]), said(&entry["meta"]["outcome"]))).collect()
    }

    /// The ends that no call has had yet.
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

/// One turn is admitted, and nobody carries it out.
async fn one_turn(place: &Place) {
    let scheduler = place.start("scheduler");
    place.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", "echo", "--turn-id", "kept"]).exits(0);
    while place.redis("EXISTS turn:demo:kept").await != redis::Value::Int(1) {
        pause();
    }
    scheduler.signal(Signal::SIGKILL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_is_found_and_mended_alone_while_nothing_runs() {
    let place = Place::new().await;
    one_turn(&place).await;
    let store = place.store();
    let looks = async |entry: Option<&str>| -> Vec<(&'static str, bool)> {
        let found = store.faults(entry).await.unwrap().found;
        found.iter().map(|found| (found.fault.as_str(), found.mended)).collect()
    };
    assert_eq!(looks(None).await, [], "before anything is broken");
    for (fault, breaks) in MENDED {
        place.redis(breaks).await;
        let found = looks(None).await;
        assert!(found.contains(&(fault, false)), "{fault} is not found: {found:?}");
        let mended = looks(Some(ENTRY)).await;
        assert!(mended.contains(&(fault, true)), "{fault} is not mended: {mended:?}");
        assert_eq!(looks(None).await, [], "after {fault}");
        if fault == "place_not_counted" {
            assert_ne!(place.redis("ZSCORE held:ghosts@demo demo:kept/1").await, redis::Value::Nil);
            place.redis("DEL held:ghosts@demo").await;
            place.redis("HDEL turn:demo:kept ho").await;
        }
    }
    assert!(place.acts().await.len() >= MENDED.len(), "who mends says so each time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_faults_are_told_and_mended_together_and_what_is_only_told_changes_nothing() {
    let place = Place::new().await;
    one_turn(&place).await;
    assert_eq!(place.doctor(&[]), Vec::<String>::new(), "before anything is broken");
    for (_, breaks) in MENDED {
        place.redis(breaks).await;
    }
    // A missing group is told among the streams, and by its timer a turn is counted.
    let elsewhere = ["stream_without_group", "tenant_miscounted"];
    let all = |what: &str, but: &[&str]| -> BTreeSet<String> {
        let faults = MENDED.iter().filter(|(fault, _)| !but.contains(fault));
        faults.map(|(fault, _)| format!("{what} {fault}")).collect()
    };
    assert_eq!(BTreeSet::from_iter(place.doctor(&[])), all("repair", &elsewhere));
    assert_eq!(BTreeSet::from_iter(place.doctor(&["--repair", "--by", "anna"])), all("repaired", &[]));
    assert_eq!(place.doctor(&[]), Vec::<String>::new());
    let acts = place.acts().await;
    assert!(acts.iter().all(|act| act["actor_id"] == "anna" && act["meta"]["shard"] == 0), "{acts:#?}");
    let named: Vec<&Value> = acts.iter().flat_map(|act| act["meta"]["named"].as_array().unwrap()).collect();
    assert!(named.len() >= MENDED.len() && named.contains(&&json!("turn_lost demo:lost")), "{named:?}");

    for (_, breaks) in TOLD {
        place.redis(breaks).await;
    }
    // The claim has an end.
    place.redis("PEXPIRE effect:demo:pay:cd 600000").await;
    let kept = place.doctor(&["--repair", "--by", "anna"]);
    let told: BTreeSet<String> = TOLD.iter().map(|(fault, _)| format!("repair {fault}")).collect();
    assert_eq!(BTreeSet::from_iter(kept), told);
    assert_eq!(place.acts().await.len(), acts.len(), "what is only told changes nothing");
    // What was kept is carried out as if nothing had been.
    let _fleet = (place.start("scheduler"), place.start("worker"));
    while place.run(&["explain", "demo:kept", "--json"]).json()["state"] != "done" {
        pause();
    }
}

/// A slice that has ended lies on its queue for as long as an older one is held. It is no fault; that nobody who lives holds
/// the older one is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_and_is_not_trimmed_yet_is_no_fault() {
    let place = Place::new().await;
    one_turn(&place).await;
    for turn in ["held", "ended"] {
        place.redis(&format!("XADD ready:low * t demo:{turn} m {{}} c {{}}")).await;
    }
    let mut read = redis::cmd("XREADGROUP");
    read.arg(&["GROUP", "workers", "w-gone", "STREAMS", "{tickfleet:0}:ready:low", ">"]);
    let read: redis::streams::StreamReadReply = read.query_async(&mut place.redis.connection().await).await.unwrap();
    let ids: Vec<&str> = read.keys[0].ids.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(ids.len(), 2);
    place.redis(&format!("XACK ready:low workers {}", ids[1])).await;
    assert_eq!(place.doctor(&[]), ["repair entry_stranded"], "of two entries one is nobody's");
    assert_eq!(place.doctor(&["--repair", "--by", "anna"]), ["repaired entry_stranded"]);
    let acts = place.acts().await;
    assert_eq!(acts[0]["meta"]["named"], json!([format!("entry_stranded ready:low {}", ids[0])]), "{acts:#?}");
    assert_eq!(place.doctor(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_fleet_has_no_faults_and_those_of_a_hand_are_mended_beside_it() {
    let place = Place::new().await;
    busy::configure(place.dir.path());
    let _fleet = ["scheduler", "scheduler", "worker", "worker"].map(|role| place.start(role));
    let (store, busy) = (place.store(), Busy::start(&place.redis.url()).await);
    let (began, mut looks) = (Instant::now(), 0);
    while began.elapsed() < BUSY || began.elapsed() < BUSY_MAX && !place.missing_ends().await.is_empty() {
        let found = store.faults(Some(ENTRY)).await.unwrap().found;
        assert_eq!(found, [], "look {looks} beside the work");
        looks += 1;
    }
    assert_eq!(place.doctor(&["--repair", "--by", "anna"]), Vec::<String>::new(), "beside the work");
    let done = busy.stop().await;
    assert!(looks > 20 && done.iter().all(|done| *done > 5), "{looks} looks; somebody had nothing to do: {done:?}");
    let missing = place.missing_ends().await;
    assert!(missing.is_empty(), "no call ended so: {missing:?} of {:?}", place.ended().await);
    // What schedulers and workers mend by themselves within a moment is left out.
    let theirs = ["turn_without_timer", "stream_without_group", "place_not_counted"];
    let by_hand: Vec<_> = MENDED.iter().filter(|(fault, _)| !theirs.contains(fault)).collect();
    for (_, breaks) in &by_hand {
        place.redis(breaks).await;
    }
    let mended = place.doctor(&["--repair", "--by", "anna"]);
    for (fault, _) in by_hand {
        // The lane's timer is looked at by a scheduler as soon as it is there.
        assert!(mended.contains(&format!("repaired {fault}")), "{fault} is not mended: {mended:?}");
    }
    assert_eq!(place.doctor(&[]), Vec::<String>::new());
    let call = "sleep {\"ms\":5}";
    place.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", call, "--wait"]).exits(0);
    assert_ne!(place.redis("ZSCORE timers t:demo:ghost").await, redis::Value::BulkString(FAR.into()));
}
