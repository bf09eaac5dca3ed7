//! Runs real processes under load. A rolling restart must neither lose nor retry a turn, and overload must not fill the
//! memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tickfleet_client::{Client, Replies, Reply, ReplyStatus, SubmitError};
use tickfleet_model::{InboxName, TenantId, Turn};
use tickfleet_protocol::parse_turn;
use tickfleet_store::{StoreOptions, entry_ms};
use tickfleet_testkit::RedisServer;
use tokio::time::{Instant, sleep};

use crate::support::process::Process;

const AGENTS: u64 = 20;
const PROCESSES: [&str; 5] = ["scheduler", "scheduler", "worker", "worker", "worker"];
/// Even on an overloaded machine, no process loses this long lease.
const PATIENT: [(&str, &str); 2] = [("TICKFLEET_WORKER_LEASE", "30s"), ("TICKFLEET_WORKER_DRAIN", "30s")];
/// On an idle machine, replies arrive within a second.
const PATIENCE: Duration = Duration::from_secs(60);

fn chosen(name: &str, usual: u64) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "a knob of this run, documented beside it")]
    std::env::var(name).ok().map_or(usual, |text| text.parse().expect("a number"))
}

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

/// Arrival times are in seconds. The number in an ID is the submit time by Redis' clock.
type TimedReplies = BTreeMap<String, (Reply, f64)>;

/// Until `is_over` is set, returns `None` if no reply arrives within half a second.
async fn next(replies: &mut Replies, is_over: &AtomicBool) -> Option<Reply> {
    let was_over = is_over.load(Ordering::Relaxed);
    // All earlier turns may already have a reply, so the wait is short.
    let patience = if was_over { PATIENCE } else { Duration::from_millis(500) };
    let reply = replies.next(patience).await.unwrap();
    assert!(reply.is_some() || !was_over, "no reply within {PATIENCE:?}, and some are owed");
    reply
}

fn percentile(latencies: &mut [f64], share: f64) -> f64 {
    latencies.sort_by(f64::total_cmp);
    let index = (latencies.len() as f64 * share) as usize;
    latencies.get(index.min(latencies.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

fn said(what: &str, latencies: &mut [f64]) {
    let p50 = percentile(latencies, 0.5);
    let p99 = percentile(latencies, 0.99);
    let most = percentile(latencies, 1.0);
    eprintln!("{what}: {} turns, p50 {p50:.1} ms, p99 {p99:.1} ms, at most {most:.1} ms", latencies.len());
}

#[tokio::test]
async fn a_rolling_restart_loses_retries_and_fails_no_turn() {
    roll(20, 1, Duration::ZERO).await;
}

/// Measures and prints latencies. Run it with `TICKFLEET_DEPLOY_RATE=200 TICKFLEET_DEPLOY_ROUNDS=5 cargo nextest run
/// --workspace -E 'test(under_full_load)' --run-ignored only --no-capture`. `TICKFLEET_TEST_BINARY` selects another
/// build of the processes.
#[tokio::test]
#[ignore = "a minute, for its figures"]
async fn under_full_load_a_rolling_restart_loses_retries_and_fails_no_turn() {
    let rate = chosen("TICKFLEET_DEPLOY_RATE", 200);
    let rounds = chosen("TICKFLEET_DEPLOY_ROUNDS", 5);
    roll(rate, rounds, Duration::from_secs(10)).await;
}

/// `quiet` is the time before the first restart, with the same load.
async fn roll(rate: u64, rounds: u64, quiet: Duration) {
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
    let began = Instant::now();
    let produce = async {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap());
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
        let mut answered = TimedReplies::new();
        while !is_over.load(Ordering::Relaxed) || (answered.len() as u64) < submitted.load(Ordering::Relaxed) {
            let Some(reply) = next(&mut replies, &is_over).await else { continue };
            let id = reply.id().unwrap().to_string();
            let at = began.elapsed().as_secs_f64();
            assert!(answered.insert(id.clone(), (reply, at)).is_none(), "{id} was answered twice");
        }
        answered
    };
    let restart = async {
        // The time without restarts is for comparison.
        sleep(quiet).await;
        let quiet_s = began.elapsed().as_secs_f64();
        // Restarts block, so they run outside the async runtime.
        let fleet = tokio::task::spawn_blocking(move || restarted(fleet, rounds, start)).await.unwrap();
        is_rolled.store(true, Ordering::Relaxed);
        (quiet_s, fleet)
    };
    let ((), answered, (quiet_s, _fleet)) = tokio::join!(produce, consume, restart);
    assert_eq!(answered.len() as u64, submitted.into_inner());
    for (id, (reply, _)) in &answered {
        assert_eq!(reply.status, ReplyStatus::Done, "{id}: {reply:?}");
        assert!(reply.results.iter().all(|result| result.success && result.attempts == 1), "{id}: {reply:?}");
    }
    untroubled(&redis).await;
    let times = latencies(&redis, &answered).await;
    let of = |is_quiet: bool| times.iter().filter(move |(at, _)| (*at < quiet_s) == is_quiet).map(|(_, ms)| *ms);
    said("nothing restarted", &mut of(true).collect::<Vec<_>>());
    said("every process restarted", &mut of(false).collect::<Vec<_>>());
}

fn restarted(
    mut fleet: Vec<(&'static str, Process)>,
    rounds: u64,
    start: impl Fn(&'static str) -> (&'static str, Process),
) -> Vec<(&'static str, Process)> {
    for at in (0..rounds).flat_map(|_| 0..PROCESSES.len()) {
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

/// The time of each reply (s), and the latency of the turn by Redis' clock (ms).
async fn latencies(redis: &RedisServer, answered: &TimedReplies) -> Vec<(f64, f64)> {
    let mut connection = redis.connection().await;
    let mut times = Vec::new();
    for (id, (_, at)) in answered {
        let key = format!("{{tickfleet:0}}:done:demo:{id}");
        let record: String = redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap();
        let ended_ms = finished(&record)["e"].as_i64().unwrap();
        times.push((*at, (ended_ms - entry_ms(id.trim_start_matches('t')).unwrap()) as f64));
    }
    times
}

/// In bytes: Redis, then each process.
async fn memory(redis: &RedisServer, fleet: &[Process]) -> Vec<u64> {
    let mut connection = redis.connection().await;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await.unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap();
    let resident = |process: &Process| {
        let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    };
    std::iter::once(used).chain(fleet.iter().map(resident)).collect()
}

#[derive(Debug, Default)]
struct SubmitCounts {
    accepted: AtomicU64,
    full: AtomicU64,
}

/// Four slots can finish a tenth of these turns.
async fn offer(client: &Client, during: Duration, heard: &SubmitCounts, is_over: &AtomicBool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(25));
    let until = Instant::now() + during;
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

#[tokio::test]
async fn an_overloaded_fleet_finishes_every_accepted_turn() {
    let overloaded = overload(Duration::from_secs(3)).await;
    assert!(overloaded.refused > 0, "it was no overload: {overloaded:?}");
}

/// Checks the memory over a longer time. Run it with `TICKFLEET_OVERLOAD_SECONDS=300 cargo nextest run --workspace -E
/// 'test(ten_times)' --run-ignored only --no-capture`.
#[tokio::test]
#[ignore = "five minutes, and memory is judged"]
async fn at_ten_times_its_capacity_a_fleet_keeps_its_memory_flat() {
    let overloaded = overload(Duration::from_secs(chosen("TICKFLEET_OVERLOAD_SECONDS", 300))).await;
    assert!(overloaded.refused > 3 * overloaded.done, "it was no overload: {overloaded:?}");
    let samples = &overloaded.samples;
    let half = samples.len() / 2;
    let most = |samples: &[Vec<u64>], at: usize| samples.iter().map(|sample| sample[at]).max().unwrap();
    let names = ["Redis", "scheduler", "scheduler", "worker", "worker"];
    for (at, name) in names.iter().enumerate() {
        let first = most(&samples[..half], at);
        let second = most(&samples[half..], at);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!("{name}: {:.1} MiB at most in the first half, {:.1} MiB in the second", mib(first), mib(second));
        assert!(second < first + first / 10 + (4 << 20), "{name} grows: {first} bytes, then {second}");
    }
}

#[derive(Debug)]
struct OverloadResult {
    done: u64,
    refused: u64,
    /// In bytes, of Redis and of each process, every half second.
    samples: Vec<Vec<u64>>,
}

/// The load is ten times the capacity of the four slots, so the fleet rejects most turns.
async fn overload(during: Duration) -> OverloadResult {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    // With the default retention times, memory would grow for hours.
    configure(
        dir.path(),
        "caps: {tick: 1s, max_calls_per_tick: 1000, max_actions_per_day: 100000000}\n\
         worker: {slots: 2}\n\
         queues: {turns_max: 200, tenant_turns_max: 200, tenant_ready_max: 100}\n\
         retention: {records: 1s, dedupe_for: 1s, audit_bytes_max: 1MiB, dead: 1s}\n\
         scheduler: {collect_every: 1s}\n",
    );
    let start = |role: &'static str| Process::start_with(role, dir.path(), &redis.url(), &PATIENT);
    let fleet: Vec<Process> = ["scheduler", "scheduler", "worker", "worker"].map(start).into();
    let (client, tenant, inbox) = client(&redis, StoreOptions { turns_max: 200, ..StoreOptions::default() }).await;
    let heard = SubmitCounts::default();
    let is_over = AtomicBool::new(false);
    let produce = offer(&client, during, &heard, &is_over);
    let consume = take(client.replies(&tenant, &inbox), &heard, &is_over);
    let watch = async {
        let mut samples = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            // Memory growth causes no event, so the memory is sampled.
            sleep(Duration::from_millis(500)).await;
            samples.push(memory(&redis, &fleet).await);
        }
        samples
    };
    let ((), (done, refused), samples) = tokio::join!(produce, consume, watch);
    let accepted = heard.accepted.into_inner();
    let full = heard.full.into_inner();
    eprintln!(
        "offered {}, of which {full} were refused at once, {refused} by a reply, and {done} done",
        accepted + full
    );
    assert_eq!(done + refused, accepted);
    OverloadResult { done, refused: refused + full, samples }
}
