//! Tests tenants that are set while the fleet runs.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};
use tickfleet_model::{TenantId, ids};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, command};
use crate::support::process::{Process, pause, until};

/// With such a long lease, processes read their settings at the start, not with a later heartbeat.
const LONG_LEASE: &[(&str, &str)] = &[("TICKFLEET_WORKER_LEASE", "40s"), ("TICKFLEET_WORKER_DRAIN", "10s")];

struct RunTimeFixture {
    redis: RedisServer,
    dir: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl RunTimeFixture {
    async fn new(settings: &str, tenants: &str, variables: &[(&'static str, &'static str)]) -> Self {
        let redis = RedisServer::start().await;
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tickfleet.yaml"), settings).unwrap();
        fs::write(dir.path().join("tenants.yaml"), format!("tenants: {tenants}")).unwrap();
        fs::write(dir.path().join("permissions.yaml"), "permissions: {echo: {everyone: true}}").unwrap();
        Self { redis, dir, variables: variables.to_vec() }
    }

    fn start(&self, role: &str) -> Process {
        Process::start_with(role, self.dir.path(), &self.redis.url(), &self.variables)
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        run(self.dir.path(), &self.redis.url(), &self.variables, args)
    }

    fn submit(&self, tenant: &str, calls: usize, more: &[&str]) -> Value {
        let calls = ["--call", "echo"].repeat(calls);
        self.run(&[&["submit", "--tenant", tenant, "--agent", "kelly", "--json"], calls.as_slice(), more].concat())
            .json()
    }

    fn finished(&self, tenant: &str, turn: &Value) -> Value {
        let name = format!("{tenant}:{}", turn["turn_id"].as_str().unwrap_or_else(|| panic!("{turn}")));
        let story = || self.run(&["explain", &name, "--json"]);
        until(&name, story, |story| story.code == 0 && story.json()["state"] == "done").json()
    }

    async fn redis(&self, command: &[&str]) {
        let mut asked = redis::cmd(command[0]);
        asked.arg(&command[1..]);
        let _: redis::Value = asked.query_async(&mut self.redis.connection().await).await.unwrap();
    }
}

fn run(dir: &Path, url: &str, variables: &[(&str, &str)], args: &[&str]) -> CommandOutput {
    let mut command = command(&[args, &["--config", dir.to_str().unwrap(), "--redis-url", url]].concat());
    command.envs(variables.iter().copied());
    CommandOutput::of(&mut command, "")
}

fn outcomes(results: &[Value]) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for result in results {
        *counts.entry(result["outcome"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()).or_default() += 1;
    }
    counts.into_iter().collect()
}

fn counted(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    expected.iter().map(|(outcome, count)| ((*outcome).to_owned(), *count)).collect()
}

fn results(reply: &Value) -> Vec<Value> {
    reply["results"].as_array().unwrap_or_else(|| panic!("{reply}")).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_scheduler_applies_the_caps_of_run_time_tenants() {
    let place = RunTimeFixture::new("caps: {tick: 1s, max_calls_per_tick: 1}", "{demo: {}}", LONG_LEASE).await;
    let scheduler = place.start("scheduler");
    let worker = place.start("worker");
    for tenant in ["demo", "guest"] {
        place.run(&["tenant", "set", tenant, "--max-actions-per-day", "3"]).exits(0);
    }
    // Each tenant has turns in a throttle queue, and turns that no scheduler has read yet.
    let before: Vec<_> = ["demo", "guest"].map(|tenant| (tenant, place.submit(tenant, 6, &[]))).into();
    assert_eq!(scheduler.stop(), Some(0));
    let later: Vec<_> = ["demo", "guest"].map(|tenant| (tenant, place.submit(tenant, 6, &[]))).into();
    let scheduler = place.start("scheduler");
    for tenant in ["demo", "guest"] {
        let turns = before.iter().chain(&later).filter(|(of, _)| *of == tenant);
        let ended: Vec<Value> = turns.flat_map(|(of, turn)| results(&place.finished(of, turn))).collect();
        assert_eq!(outcomes(&ended), counted(&[("daily_cap_reached", 9), ("ok", 3)]), "{tenant}: {ended:#?}");
    }
    assert_eq!((scheduler.stop(), worker.stop()), (Some(0), Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_change_applies_to_the_next_turn() {
    let place = RunTimeFixture::new("caps: {tick: 1s, max_calls_per_tick: 100}", "{demo: {}}", LONG_LEASE).await;
    let scheduler = place.start("scheduler");
    let worker = place.start("worker");
    assert_eq!(outcomes(&results(&place.submit("demo", 1, &["--wait"]))), counted(&[("ok", 1)]));
    // The next heartbeat is ten seconds away, but both changes apply before.
    place.run(&["tenant", "set", "demo", "--max-actions-per-day", "3"]).exits(0);
    let reply = place.submit("demo", 4, &["--wait"]);
    assert_eq!(outcomes(&results(&reply)), counted(&[("daily_cap_reached", 1), ("ok", 3)]), "{reply:#}");
    place.run(&["tenant", "set", "guest", "--max-actions-per-day", "3"]).exits(0);
    let reply = place.submit("guest", 4, &["--wait"]);
    assert_eq!(outcomes(&results(&reply)), counted(&[("daily_cap_reached", 1), ("ok", 3)]), "{reply:#}");
    place.run(&["tenant", "unset", "demo"]).exits(0);
    assert_eq!(outcomes(&results(&place.submit("demo", 4, &["--wait"]))), counted(&[("ok", 4)]));
    place.run(&["tenant", "unset", "guest", "--by", "anna", "--reason", "gone"]).exits(0);
    place.run(&["audit", "search", "--tenant", "guest", "--text", "UNSET_TENANT"]).exits(0).says("anna");
    assert_eq!(place.submit("guest", 1, &["--wait"])["error"]["code"], "unknown_tenant");
    assert_eq!((scheduler.stop(), worker.stop()), (Some(0), Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_limit_can_be_changed_while_the_fleet_runs() {
    let place = RunTimeFixture::new("caps: {tick: 1s, max_calls_per_tick: 100}", "{demo: {}}", LONG_LEASE).await;
    let limits = "limits: {a_day: {per: [tenant], max: 3, every: day, on_reach: reject}, all: {max: 99, every: day}}";
    fs::write(place.dir.path().join("limits.yaml"), limits).unwrap();
    let scheduler = place.start("scheduler");
    let worker = place.start("worker");
    let asked = |calls| outcomes(&results(&place.submit("demo", calls, &["--wait"])));
    assert_eq!(asked(4), counted(&[("ok", 3), ("rejected", 1)]));
    place.run(&["tenant", "set", "demo", "--limit", "a_day=5"]).exits(0);
    assert_eq!(asked(4), counted(&[("ok", 2), ("rejected", 2)]), "what is used stays used");
    let table = place.run(&["tenant", "show", "demo"]);
    assert!(table.stdout.contains("a_day 5"), "{}", table.stdout);
    for (given, expected) in [
        ("a_dya=5", "limits.yaml has no limit \"a_dya\" with counters of tenants: a_day"),
        ("all=5", "limits.yaml has no limit \"all\" with counters of tenants"),
        ("a_day=-1", "--limit a_day: expected a number of calls"),
        ("a_day", "expected a limit and its number, such as mails=50"),
    ] {
        let said = place.run(&["tenant", "set", "demo", "--limit", given]);
        assert!(said.code == 2 && said.stderr.contains(expected), "{given}: {}", said.stderr);
    }
    place.run(&["tenant", "set", "demo", "--limit", "a_day=default"]).exits(0);
    assert_eq!(asked(1), counted(&[("rejected", 1)]));
    assert_eq!((scheduler.stop(), worker.stop()), (Some(0), Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_in_two_shards_keep_their_run_time_caps() {
    let home = |shard| {
        let names = (0..).map(|n| format!("tenant{n}"));
        names.into_iter().find(|name| ids::shard_of(&TenantId::new(name).unwrap(), 2) == shard).unwrap()
    };
    let first = home(0);
    let second = home(1);
    let shards = &[("TICKFLEET_REDIS_SHARDS", "2"), ("TICKFLEET_WORKER_LEASE", "1s"), ("TICKFLEET_WORKER_DRAIN", "5s")];
    let settings = "caps: {tick: 1s, max_calls_per_tick: 100}";
    let place = RunTimeFixture::new(settings, &format!("{{{first}: {{}}}}"), shards).await;
    let fleet = [place.start("scheduler"), place.start("worker")];
    let tenants = [first.as_str(), second.as_str()];
    for tenant in tenants {
        place.run(&["tenant", "set", tenant, "--max-actions-per-day", "3"]).exits(0);
    }
    place
        .redis(&["HSET", "{tickfleet:1}:tenants", &first, r#"{"plan":"","features":[],"agents":[],"users":[]}"#])
        .await;
    // The turns take several heartbeats of both shards.
    let turns =
        |tenant: &str| -> Vec<Value> { (0..20).flat_map(|_| results(&place.submit(tenant, 2, &["--wait"]))).collect() };
    let ended = thread::scope(|scope| {
        let running = tenants.map(|tenant| scope.spawn(move || turns(tenant)));
        running.map(|running| running.join().unwrap())
    });
    for (tenant, ended) in tenants.iter().zip(ended) {
        assert_eq!(outcomes(&ended), counted(&[("daily_cap_reached", 37), ("ok", 3)]), "{tenant}");
    }
    assert_eq!(fleet.map(Process::stop), [Some(0), Some(0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_or_broken_tenant_declaration_relaxes_no_cap() {
    let place = RunTimeFixture::new("caps: {tick: 1s, max_calls_per_tick: 100}", "{demo: {}, other: {}}", &[]).await;
    let scheduler = place.start("scheduler");
    let worker = place.start("worker");
    for tenant in ["demo", "other"] {
        place.run(&["tenant", "set", tenant, "--max-actions-per-day", "3"]).exits(0);
    }
    assert_eq!(outcomes(&results(&place.submit("demo", 1, &["--wait"]))), counted(&[("ok", 1)]));
    // The first process that detects the loss restores the settings from its memory.
    place.redis(&["DEL", "{tickfleet:0}:settings", "{tickfleet:0}:parts:settings"]).await;
    let put_back = "run-time tenant was missing from Redis; restoring";
    while scheduler.count(put_back) + worker.count(put_back) == 0 {
        pause();
    }
    let ended = results(&place.submit("demo", 4, &["--wait"]));
    assert_eq!(outcomes(&ended), counted(&[("daily_cap_reached", 2), ("ok", 2)]));
    place.run(&["tenant", "show", "other"]).exits(0).says("run time");

    // No process has a valid copy of the declaration any more, so new processes admit no turns of the tenant.
    assert_eq!((scheduler.stop(), worker.stop()), (Some(0), Some(0)));
    place.redis(&["HSET", "{tickfleet:0}:parts:settings", "tenant:demo", "{broken"]).await;
    let fleet = [place.start("scheduler"), place.start("worker")];
    fleet[0].says("unreadable declaration of a run-time tenant; admission for it stops");
    let refused = place.submit("demo", 1, &["--wait"]);
    assert_eq!(
        (refused["status"].as_str(), refused["error"]["code"].as_str()),
        (Some("rejected"), Some("unreadable_tenant"))
    );
    let ended = results(&place.submit("other", 4, &["--wait"]));
    assert_eq!(outcomes(&ended), counted(&[("daily_cap_reached", 1), ("ok", 3)]));
    place.run(&["doctor"]).says("demo");
    place.run(&["tenant", "set", "demo", "--max-actions-per-day", "4"]).exits(0);
    let ended = results(&place.submit("demo", 2, &["--wait"]));
    assert_eq!(outcomes(&ended), counted(&[("daily_cap_reached", 1), ("ok", 1)]), "three were used before");
    assert_eq!(json!(fleet.map(Process::stop)), json!([0, 0]));
}
