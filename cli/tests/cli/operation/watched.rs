//! A real Prometheus watches a real fleet: every panel of every dashboard finds its data, and when a tool hangs,
//! workers are killed and Redis is away, the alerts that should fire do, and the others do not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use regex::Regex;
use serde_json::{Value, json};
use tickfleet_testkit::{RedisOptions, RedisServer};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::binary::command;
use crate::support::prometheus::{Prometheus, Target, free_port};

/// Seconds that stand for a minute: one, and more at each further try, for a machine that often stands still for a
/// second sees that many minutes of trouble.
fn motion() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the test runner says which try this is")]
    let attempt = std::env::var("NEXTEST_ATTEMPT").ok().and_then(|attempt| attempt.parse().ok());
    attempt.unwrap_or(1).clamp(1, 4)
}

/// The longest wait for anything; on a quiet machine each takes some seconds.
fn patience() -> Duration {
    Duration::from_secs(60 * motion())
}

/// What should fire, and why.
const SHOULD: [(&str, &str); 10] = [
    ("TickfleetSlotsExhausted", "calls that hang hold all slots"),
    ("TickfleetToolFailing", "they time out, and so do their retries"),
    ("TickfleetOutcomeUnknown", "some of them must not run twice"),
    ("TickfleetNoWorker", "all workers are killed"),
    ("TickfleetTargetDown", "and stay away for a while"),
    ("TickfleetWorkersDying", "again and again"),
    ("TickfleetQuarantined", "with the same slice in work"),
    ("TickfleetInternalErrors", "which is then ended as internal"),
    ("TickfleetRedisDown", "Redis is killed"),
    ("TickfleetRedisRestarted", "and comes back"),
];

/// What may fire besides: in fast motion, a minute is a second, and a busy machine is late by seconds.
const MAY: [(&str, &str); 7] = [
    ("TickfleetStartSlowFastBurn", "what waits for a slot starts late"),
    ("TickfleetStartSlowSlowBurn", "the same"),
    ("TickfleetReadyStuck", "a restarted worker has free slots for a moment before it leases"),
    ("TickfleetInboundStuck", "what was submitted just before Redis died has waited when it is back"),
    ("TickfleetRedisErrors", "questions fail until Redis is back"),
    ("TickfleetRedisUnreachable", "some processes find it again before others"),
    ("TickfleetLeasesLost", "nobody could renew while it was away"),
];

/// Panels that are empty while all is well, and why.
const EMPTY_WHEN_WELL: [(&str, &str); 3] = [
    ("Outcome unknown by tool", "shows only tools that had one"),
    ("Errors by verb", "shows only verbs that failed"),
    ("Alerts that fire", "none does"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_finds_every_panels_data_and_fires_for_the_right_things() {
    let mut fleet = Watched::start().await;
    every_panel_finds_its_data(&fleet.prometheus).await;
    // Long enough for what fires by mistake: in fast motion most alerts take seconds.
    let (window_s, scrapes) = (15 * motion(), 14 * motion());
    let well = format!("min(count_over_time(up[{window_s}s])) >= {scrapes}");
    let watched = async |p: &Prometheus| p.number(&well).await.is_some();
    fleet.prometheus.until(patience(), "all is well for a quarter of an hour", watched).await;
    assert_eq!(fleet.prometheus.fired().await, BTreeSet::new(), "all is well: load, capped agents, denied calls");

    fleet.note("a tool hangs");
    fleet.call_tools_that_hang().await;
    let hanging = ["TickfleetSlotsExhausted", "TickfleetToolFailing", "TickfleetOutcomeUnknown"];
    fleet.prometheus.until_fired(patience(), &hanging).await;
    let over = async |p: &Prometheus| p.number("sum(tickfleet_slots_busy) <= 2").await.is_some();
    fleet.prometheus.until(patience(), "the slots are free again", over).await;

    fleet.note("workers are killed");
    fleet.kill_workers_until_it_is_noticed().await;

    fleet.note("Redis is killed");
    fleet.redis.kill9();
    fleet.prometheus.until_fired(patience(), &["TickfleetRedisDown"]).await;
    fleet.note("Redis comes back");
    fleet.redis.restart().await;
    fleet.prometheus.until_fired(patience(), &["TickfleetRedisRestarted"]).await;
    let back = async |p: &Prometheus| !p.firing().await.contains("TickfleetRedisDown");
    fleet.prometheus.until(patience(), "Redis counts as back", back).await;

    fleet.note("the verdict");
    let fired = fleet.prometheus.fired().await;
    let should: BTreeSet<String> = SHOULD.iter().map(|(name, _)| (*name).to_owned()).collect();
    let may: BTreeSet<String> = MAY.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(should.difference(&fired).collect::<Vec<_>>(), Vec::<&String>::new(), "these should have fired");
    let wrong: Vec<&String> = fired.iter().filter(|name| !should.contains(*name) && !may.contains(*name)).collect();
    assert_eq!(wrong, Vec::<&String>::new(), "these should not have fired");
    annotations_are_filled_in(&fleet.prometheus).await;
}

/// Every query of every dashboard, with all fleets and jobs chosen.
fn queries() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for file in chart("dashboards").read_dir().unwrap().map(|file| file.unwrap().path()) {
        let Some("json") = file.extension().and_then(|e| e.to_str()) else { continue };
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().unwrap();
                let query = query.replace("$namespace", ".*").replace("$job", ".*").replace("$__rate_interval", "10s");
                assert!(!query.contains('$'), "{query}");
                found.push((dashboard["title"].to_string(), panel["title"].as_str().unwrap().to_owned(), query));
            }
        }
    }
    assert!(found.len() > 60, "{} queries", found.len());
    found
}

async fn every_panel_finds_its_data(prometheus: &Prometheus) {
    let queries = queries();
    let may_be_empty = |title: &str| EMPTY_WHEN_WELL.iter().any(|(known, _)| *known == title);
    let empty = async |prometheus: &Prometheus| {
        let mut empty = Vec::new();
        for (dashboard, title, query) in &queries {
            if prometheus.query(query).await.is_empty() && !may_be_empty(title) {
                empty.push(format!("{dashboard}: {title}: {query}"));
            }
        }
        empty
    };
    let deadline = Instant::now() + patience();
    loop {
        let empty = empty(prometheus).await;
        if empty.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "these find nothing:\n{}", empty.join("\n"));
        // Rates need two scrapes, and some kinds of work take a tick: the same questions again.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // What may be empty must at least ask for something that is there.
    let metric = Regex::new(r"\btickfleet_[a-z_]+").unwrap();
    for (_, title, query) in queries.iter().filter(|(_, title, _)| may_be_empty(title)) {
        for name in metric.find_iter(query) {
            assert!(!prometheus.query(name.as_str()).await.is_empty(), "{title}: no process exports {}", name.as_str());
        }
    }
    for (title, _) in EMPTY_WHEN_WELL {
        assert!(queries.iter().any(|(_, known, _)| known == title), "no panel is called {title:?}");
    }
}

/// What people would read: no template is left, none failed.
async fn annotations_are_filled_in(prometheus: &Prometheus) {
    let rules = prometheus.rules().await;
    let groups = rules["data"]["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    let alerts: Vec<&Value> = rules.iter().flat_map(|rule| rule["alerts"].as_array().into_iter().flatten()).collect();
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    for alert in alerts {
        for text in alert["annotations"].as_object().unwrap().values() {
            let text = text.as_str().unwrap();
            assert!(!text.contains("{{") && !text.contains("<no value>") && !text.contains("<error"), "{alert}");
        }
    }
}

fn chart(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm/tickfleet").join(folder)
}

/// The rules in fast motion: a minute is a second (see [`motion`]), an hour a minute, and the age that alerts is three
/// seconds.
fn in_fast_motion(rules: &str) -> String {
    let duration = Regex::new(r"(?P<before>for: |\[|offset )(?P<number>\d+)(?P<unit>[mh])\b").unwrap();
    let faster = |found: &regex::Captures<'_>| {
        let unit = if &found["unit"] == "m" { "s" } else { "m" };
        let number: u64 = found["number"].parse().unwrap();
        format!("{}{}{unit}", &found["before"], number * motion())
    };
    duration.replace_all(rules, faster).replace("} > 30", &format!("}} > {}", 3 * motion()))
}

/// One process of the fleet, which is killed when it is dropped.
struct Process {
    role: &'static str,
    port: u16,
    redis: String,
    child: Child,
}

impl Process {
    fn start(role: &'static str, redis: &str) -> Self {
        let (port, redis) = (free_port(), redis.to_owned());
        let child = Self::spawn(role, port, &redis);
        Self { role, port, redis, child }
    }

    fn spawn(role: &str, port: u16, redis: &str) -> Child {
        let mut command = command(&[role]);
        command.env("REDIS_URL", redis).env("TICKFLEET_HTTP_ADDRESS", format!("127.0.0.1:{port}"));
        for (knob, value) in [
            ("WORKER_SLOTS", "6"),
            ("WORKER_LEASE", "3s"),
            ("WORKER_TOOL_TIMEOUT", "2s"),
            ("WORKER_RETRY_LADDER", "200ms"),
            ("CAPS_TICK", "1s"),
            ("CAPS_MAX_ACTIONS_PER_DAY", "100000"),
            ("LOG_LEVEL", "off"),
            ("PERMISSION_TRIAL_TOOLS", "true"),
        ] {
            command.env(format!("TICKFLEET_{knob}"), value);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::spawn(self.role, self.port, &self.redis);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Redis, two schedulers, two workers, agents that make calls all the time, and the Prometheus that watches.
struct Watched {
    // Dropped first: what depends on Redis.
    load: JoinHandle<()>,
    processes: Vec<Process>,
    prometheus: Prometheus,
    redis: RedisServer,
    began: Instant,
}

impl Watched {
    async fn start() -> Self {
        let began = Instant::now();
        let options = RedisOptions { appendonly: true, maxmemory: Some(256 * 1024 * 1024), ..RedisOptions::default() };
        let redis = RedisServer::start_with(options).await;
        let url = redis.url();
        let roles = ["scheduler", "scheduler", "worker", "worker"];
        let processes: Vec<Process> = roles.map(|role| Process::start(role, &url)).into();
        let load = tokio::spawn(load(url));
        let targets: Vec<Target> = processes.iter().map(|p| Target { job: p.role, port: p.port }).collect();
        let answers = async |port: u16| tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok();
        for target in &targets {
            while !answers(target.port).await {
                // The process opens its port when it has started, and tells nobody else.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        // Only now: a target that is expected and not there yet would be an alert.
        let prometheus = Prometheus::start(&targets, &chart("rules"), in_fast_motion).await;
        Self { load, processes, prometheus, redis, began }
    }

    /// What happens when, for `--nocapture`.
    fn note(&self, what: &str) {
        eprintln!("{:5.1} s: {what}", self.began.elapsed().as_secs_f64());
    }

    /// A hundred calls at once of tools that do not answer: each holds its slot until its timeout, for a third of a
    /// minute altogether; in slower motion as many more.
    async fn call_tools_that_hang(&self) {
        let agents =
            ["cornwall", "daily-intel", "dwight", "emma", "link", "penny", "petra", "reynolds", "terry", "timmy"];
        let mut connection = self.redis.connection().await;
        for agent in agents {
            for number in 0..10 * motion() {
                let tool = if number % 10 < 3 { "fail" } else { "fail_once" };
                let hanging = turn(agent, &[(tool, json!({"outcomes": ["hang"]}))]);
                enqueue(&mut connection, &hanging).await.unwrap();
            }
        }
    }

    /// Kills both workers with slices in work, again and again, until all alerts about that have fired.
    async fn kill_workers_until_it_is_noticed(&mut self) {
        const NOTICED: [&str; 5] = [
            "TickfleetNoWorker",
            "TickfleetTargetDown",
            "TickfleetWorkersDying",
            "TickfleetQuarantined",
            "TickfleetInternalErrors",
        ];
        const ROUNDS_MAX: usize = 30;
        // Of kills of the same slice, after which it is quarantined.
        const CRASHES_MAX: usize = 3;
        let mut started_at = 0.0;
        for round in 0.. {
            let fired = self.prometheus.fired().await;
            let missing: Vec<&str> = NOTICED.into_iter().filter(|name| !fired.contains(*name)).collect();
            if missing.is_empty() {
                break;
            }
            assert!(round < ROUNDS_MAX, "workers were killed {round} times, and these do not fire: {missing:?}");
            if round.is_multiple_of(CRASHES_MAX) {
                // It outlasts every kill, and so meets the next one too.
                let mut connection = self.redis.connection().await;
                enqueue(&mut connection, &turn("petra", &[("sleep", json!({"ms": 600_000}))])).await.unwrap();
            }
            // New processes, busy at two scrapes in a row: the long call has been taken over.
            let at_work = format!(
                "min(process_start_time_seconds{{job=\"worker\"}}) > {started_at} \
                 and sum(tickfleet_slots_busy) >= 1 and sum(tickfleet_slots_busy offset 1s) >= 1"
            );
            let working = async |p: &Prometheus| p.number(&at_work).await.is_some();
            self.prometheus.until(patience(), "a worker works on the long call", working).await;
            started_at = self.prometheus.number("max(process_start_time_seconds{job=\"worker\"})").await.unwrap();
            self.note(&format!("kill {}", round + 1));
            self.workers().for_each(Process::kill9);
            if round == 0 {
                self.prometheus.until_fired(patience(), &["TickfleetNoWorker", "TickfleetTargetDown"]).await;
            }
            self.workers().for_each(Process::restart);
        }
    }

    fn workers(&mut self) -> impl Iterator<Item = &mut Process> {
        self.processes.iter_mut().filter(|process| process.role == "worker")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.load.abort();
    }
}

fn turn(agent: &str, calls: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> = calls.iter().map(|(name, args)| json!({"name": name, "arguments": args})).collect();
    json!({"tenant": "atlas-ux", "agent": agent, "calls": calls})
}

async fn enqueue(connection: &mut redis::aio::MultiplexedConnection, turn: &Value) -> redis::RedisResult<()> {
    redis::cmd("XADD")
        .arg("{tickfleet:0}:turns")
        .arg("*")
        .arg("turn")
        .arg(turn.to_string())
        .query_async(connection)
        .await
}

/// What agents do all day: calls that succeed, that are repeated, denied, invalid, unknown, and more of them than
/// their caps allow. Where Redis is away, they come back with it.
async fn load(redis: String) {
    let client = redis::Client::open(redis).unwrap();
    let mut number = 0;
    loop {
        if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
            while round(&mut connection, number).await.is_ok() {
                number += 1;
                // The pace of the agents.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        // Redis is away.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A tenth of a second's work.
async fn round(connection: &mut redis::aio::MultiplexedConnection, number: u64) -> redis::RedisResult<()> {
    let echo = || ("echo", json!({"text": "hello"}));
    let mut turns = vec![
        turn("atlas", &[echo()]),
        turn("kelly", &[echo()]),
        // More than ten a second, mostly: they wait on the agent's lane.
        turn("binky", &[echo(), echo()]),
        turn("tina", &[("fail", json!({"outcomes": ["transient", "ok"]}))]),
        turn("fran", &[("post_to_x", json!({"content": "not mine to post"}))]),
        turn("sunday", &[("sleep", json!({"ms": "soon"}))]),
        turn("archy", &[("no_such_tool", json!({}))]),
    ];
    if number.is_multiple_of(10) {
        // The far side refuses, which is no fault of the tool.
        turns.push(turn("donna", &[("fail", json!({"outcomes": ["permanent"]}))]));
    }
    if number.is_multiple_of(25 * motion()) {
        // A refused turn is a dead letter: one in two and a half minutes is not many enough for an alert.
        turns.push(turn("nobody", &[echo()]));
    }
    for turn in turns {
        enqueue(connection, &turn).await?;
    }
    Ok(())
}
