//! A monitored fleet with processes that can be killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use redis::aio::MultiplexedConnection;
use regex::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tickfleet_testkit::{RedisOptions, RedisServer};

use crate::support::process::Process;
use crate::support::prometheus::Target;

/// A new process of a member keeps the name of the killed process.
pub struct Member {
    pub job: &'static str,
    pub instance: String,
    process: Option<Process>,
}

pub struct Fleet {
    // This field must be dropped first, because the members depend on Redis.
    pub members: Vec<Member>,
    pub redis: RedisServer,
    slots: usize,
    /// If no files are given, the folder is empty and the built-in configuration applies.
    folder: TempDir,
}

impl Fleet {
    pub async fn start(slots: usize) -> Self {
        Self::under(&[], slots).await
    }

    pub async fn under(files: &[(&str, &str)], slots: usize) -> Self {
        let options = RedisOptions { appendonly: true, maxmemory: Some(256 * 1024 * 1024), ..RedisOptions::default() };
        let redis = RedisServer::start_with(options).await;
        let jobs = ["scheduler", "scheduler", "worker", "worker"];
        let member = |(n, job)| Member { job, instance: format!("{job}-{n}"), process: None };
        let members = jobs.into_iter().enumerate().map(member).collect();
        let mut fleet = Self { members, redis, slots, folder: tempfile::tempdir().unwrap() };
        for (name, text) in files {
            std::fs::write(fleet.folder.path().join(name), text).unwrap();
        }
        fleet.start_who_is_down();
        fleet
    }

    pub fn start_who_is_down(&mut self) {
        let folder = self.folder.path();
        let url = self.redis.url();
        let slots = self.slots.to_string();
        let variables = [
            ("TICKFLEET_WORKER_SLOTS", slots.as_str()),
            // Pauses on a busy machine are shorter, so only killed workers count as dead.
            ("TICKFLEET_WORKER_LEASE", "10s"),
            ("TICKFLEET_WORKER_TOOL_TIMEOUT", "1s"),
            ("TICKFLEET_WORKER_RETRY_DELAYS", "200ms"),
            ("TICKFLEET_CAPS_TICK", "1s"),
            ("TICKFLEET_CAPS_MAX_ACTIONS_PER_DAY", "100000"),
            ("TICKFLEET_LOG_LEVEL", "info"),
            ("TICKFLEET_PERMISSION_TRIAL_TOOLS", "true"),
            // The test must also run on machines that do not support a tool's sandbox.
            ("TICKFLEET_WORKER_WITHOUT_SANDBOX", "refuse_calls"),
        ];
        for member in self.members.iter_mut().filter(|member| member.process.is_none()) {
            member.process = Some(Process::start_with(member.job, folder, &url, &variables));
        }
    }

    pub fn command(&self, args: &[&str]) -> Process {
        Process::start_command(args, self.folder.path(), &self.redis.url(), None)
    }

    pub fn gateway(&self, place: &Path) -> (Process, u16) {
        let keys = place.join("keys.yaml");
        std::fs::write(&keys, "[]\n").unwrap();
        Process::start_gateway(&keys, self.folder.path(), &self.redis.url())
    }

    /// Call this function only while the workers hold slices.
    pub fn kill_workers(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.job == "worker") {
            member.process = None;
        }
    }

    pub fn targets(&self) -> Vec<Target> {
        let running = |member: &Member| Some(Target { job: member.job, port: member.process.as_ref()?.port() });
        self.members.iter().filter_map(running).collect()
    }

    pub fn scrape(&self) -> Scrape {
        let page = |member: &Member| member.process.as_ref().map(|process| samples(&process.metrics()));
        #[allow(clippy::disallowed_methods, reason = "the moment of a scrape, to tell ages from times by")]
        let at = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        Scrape { at, pages: self.members.iter().map(page).collect() }
    }
}

fn samples(answer: &str) -> BTreeMap<String, f64> {
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        Some((series.to_owned(), value.parse().ok()?))
    };
    page.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

pub struct Scrape {
    pub at: f64,
    /// By member. `None` if the member has no process.
    pub pages: Vec<Option<BTreeMap<String, f64>>>,
}

impl Scrape {
    /// Each label has the form `name="value"`.
    pub fn values<'a>(&'a self, metric: &'a str, labels: &'a [&'a str]) -> impl Iterator<Item = f64> + 'a {
        let series = self.pages.iter().flatten().flatten();
        let chosen = series.filter(move |(series, _)| {
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            name == metric && labels.iter().all(|label| rest.contains(label))
        });
        chosen.map(|(_, value)| *value)
    }

    pub fn sum(&self, metric: &str, labels: &[&str]) -> f64 {
        self.values(metric, labels).sum()
    }

    pub fn backlog(&self, state: &str) -> f64 {
        self.values("tickfleet_backlog", &[&format!("state=\"{state}\"")]).fold(0.0, f64::max)
    }

    /// True if every running process reached Redis and reported all its metrics.
    pub fn is_whole(&self) -> bool {
        let running = self.pages.iter().flatten().count();
        let schedulers = self.pages.iter().take(2).flatten().count();
        #[allow(clippy::cast_precision_loss, reason = "four processes")]
        let all_up = self.sum("tickfleet_redis_up", &[]) == running as f64;
        let memory = self.values("tickfleet_redis_memory_used_bytes", &[]).count();
        let known = self.values("tickfleet_backlog", &["state=\"ready\""]).count();
        all_up && known == schedulers && memory >= schedulers
    }

    /// In this state, the metrics do not depend on the machine's speed.
    pub fn is_calm(&self) -> bool {
        let looping = |name| self.values("tickfleet_loop_progress_timestamp_seconds", &[name]).count();
        let loops = looping("loop=\"tick\"") >= 1 && looping("loop=\"lease\"") == 2;
        let idle = ["inbound", "ready", "suspect", "running"].into_iter().all(|state| self.backlog(state) == 0.0);
        let punctual = self.values("tickfleet_tick_lag_seconds", &[]).all(|lag| lag < 5.0);
        self.is_whole() && loops && idle && punctual
    }

    pub fn summary(&self) -> String {
        let reported =
            Regex::new("^tickfleet_(backlog|oldest_age|slots|redis_up|reaped|quarantined|epoch|tick_lag|calls_)")
                .unwrap();
        let series = self.pages.iter().flatten().flatten();
        let chosen = series.filter(|(name, value)| **value != 0.0 && reported.is_match(name));
        chosen.map(|(name, value)| format!("\n  {name} {value}")).collect()
    }
}

pub fn turn(agent: &str, calls: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> = calls.iter().map(|(name, args)| json!({"name": name, "arguments": args})).collect();
    json!({"tenant": "atlas-ux", "agent": agent, "calls": calls})
}

pub async fn enqueue(connection: &mut MultiplexedConnection, turns: &[Value]) -> redis::RedisResult<()> {
    for turn in turns {
        let mut command = redis::cmd("XADD");
        command.arg("{tickfleet:0}:turns").arg("*").arg("turn").arg(turn.to_string());
        command.exec_async(connection).await?;
    }
    Ok(())
}

pub fn echo() -> (&'static str, Value) {
    ("echo", json!({"text": "hello"}))
}

/// More calls than the caps allow, with all kinds of outcomes.
pub fn work(round: u64) -> Vec<Value> {
    let mut turns = vec![
        turn("atlas", &[echo()]),
        turn("kelly", &[echo()]),
        turn("tina", &[("fail", json!({"outcomes": ["transient", "ok"]}))]),
        turn("fran", &[("post_to_x", json!({"content": "not mine to post"}))]),
        turn("sunday", &[("sleep", json!({"ms": "soon"}))]),
        turn("archy", &[("no_such_tool", json!({}))]),
    ];
    if round.is_multiple_of(10) {
        // A rejection by the service is not counted as a failure of the tool.
        turns.push(turn("donna", &[("fail", json!({"outcomes": ["permanent"]}))]));
    }
    if round.is_multiple_of(3) {
        // Some of these calls wait in the agent's throttle queue, because they exceed ten calls per second.
        turns.push(turn("binky", &vec![echo(); 12]));
        // One dead letter in three minutes is not enough for an alert.
        turns.push(turn("nobody", &[echo()]));
    }
    turns
}
