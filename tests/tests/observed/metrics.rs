//! Scrapes a real fleet: backlog, counters and label values. Prometheus' own checker must accept the text.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use scheduler::scrape::Scrape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{Effect, TenantId, TurnId};
use tickfleet_ops::health::{Health, Progress};
use tickfleet_store::{StoreOptions, TurnName};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tools::{CallContext, TypedTool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// No tick ends during a test.
const A_DAY_MS: i64 = 86_400_000;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Serialize, JsonSchema)]
struct Done {}

fn hold(open: &watch::Sender<bool>) -> TypedTool {
    let open = open.clone();
    TypedTool::new("hold", "Waits for the gate.", Effect::Read, move |_: CallContext, _: Nothing| {
        let mut open = open.subscribe();
        async move {
            drop(open.wait_for(|open| *open).await);
            Ok(Done {})
        }
    })
}

struct Endpoint(SocketAddr);

impl Endpoint {
    async fn of(fleet: &Fleet) -> Self {
        // The same shard twice: counts must add up over shards, but ages must not.
        let stores = [fleet.store.clone(), fleet.store.clone()];
        let scrape = Arc::new(Scrape::new(&stores, &fleet.active, &fleet.metrics));
        let store = fleet.store.clone();
        let ready = move || {
            let store = store.clone();
            async move { store.now_ms().await.map(|_| String::new()).map_err(|error| error.to_string().into()) }
        };
        let health = Health::new(Progress::default(), fleet.metrics.clone(), ready).with_scrape(move || {
            let scrape = scrape.clone();
            async move { scrape.scrape().await }
        });
        Self(health.serve(ANY_PORT, CancellationToken::new()).await.unwrap())
    }

    async fn scrape(&self) -> String {
        let mut stream = tokio::net::TcpStream::connect(self.0).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }

    async fn shows(&self, wanted: &[(&str, f64)]) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.scrape().await;
            let wrong: Vec<_> =
                wanted.iter().filter(|(series, value)| self::value(&text, series) != Some(*value)).collect();
            if wrong.is_empty() {
                return text;
            }
            assert!(Instant::now() < until, "not shown within {PATIENCE:?}: {wrong:?}\n{text}");
            // A scrape reports no changes, so this polls.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn value(text: &str, series: &str) -> Option<f64> {
    let series = format!("tickfleet_{series} ");
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

async fn cancel(fleet: &Fleet, turn: &str) {
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(turn).unwrap() };
    fleet.store.cancel(&name, "the test is over").await.unwrap();
}

async fn submit(fleet: &Fleet, agent: &str, call: (&str, Value)) -> String {
    let turn = json!({"agent": agent, "calls": [{"id": "c", "name": call.0, "arguments": call.1}]});
    fleet.submit_turn(turn).await
}

/// Returns the turns that do not end by themselves.
async fn everything_waits(open: &watch::Sender<bool>) -> (Fleet, Endpoint, Vec<String>) {
    let fleet = Fleet::start(Plan {
        slots: 2,
        agents: ["retry", "busy", "queue"].map(String::from).into(),
        caps: DefaultCaps { tick_ms: A_DAY_MS, calls_per_tick: 3, ..DefaultCaps::default() },
        retry_delays: RetryDelays::new([Duration::from_secs(3_600)].into()),
        tools: vec![hold(open)],
        // Longer than the outage of Redis in the test.
        store: StoreOptions { lease_ms: 30_000, ..StoreOptions::default() },
        ..Plan::default()
    })
    .await;
    let endpoint = Endpoint::of(&fleet).await;
    let mut left = vec![submit(&fleet, "retry", ("fail", json!({"outcomes": ["transient"]}))).await];
    endpoint.shows(&[("backlog{state=\"delayed\"}", 2.0), ("backlog{state=\"running\"}", 0.0)]).await;
    for _ in 0..2 {
        submit(&fleet, "busy", ("hold", json!({}))).await;
    }
    endpoint.shows(&[("backlog{state=\"running\"}", 4.0), ("slots_busy", 2.0)]).await;
    for n in 0..7_u32 {
        let turn = submit(&fleet, "queue", ("echo", json!({"text": n.to_string()}))).await;
        // The first three turns are within the cap, so they end by themselves.
        left.extend((n >= 3).then_some(turn));
    }
    fleet.xadd("turns", "turn", b"{").await;
    (fleet, endpoint, left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_reports_the_backlog_and_omits_it_while_redis_is_down() {
    let open = watch::Sender::new(false);
    let (mut fleet, endpoint, left) = everything_waits(&open).await;
    // The endpoint has the shard twice, so each value is doubled.
    let text = endpoint
        .shows(&[
            ("backlog{state=\"inbound\"}", 0.0),
            ("backlog{state=\"ready\"}", 6.0),
            ("backlog{state=\"parked_capped\"}", 8.0),
            ("backlog{state=\"delayed\"}", 2.0),
            ("backlog{state=\"running\"}", 4.0),
            ("backlog{state=\"dead\"}", 2.0),
            ("redis_up", 1.0),
            ("redis_pressure", 0.0),
            ("slots", 2.0),
        ])
        .await;
    let age = |state: &str| value(&text, &format!("oldest_age_seconds{{state=\"{state}\"}}")).unwrap();
    assert!(age("delayed") >= age("running") && age("running") >= age("ready"), "in the order of submission:\n{text}");
    assert!(age("ready") > 0.0 && age("inbound") == 0.0, "{text}");
    assert!(age("parked_capped") > 0.0, "{text}");
    assert!(value(&text, "redis_memory_used_bytes").unwrap() > 100_000.0, "{text}");
    assert!(value(&text, "shard_clock_ahead_seconds").unwrap().abs() < 60.0, "Redis has this machine's clock:\n{text}");

    fleet.server.pause();
    // Redis responds only after this scrape.
    let text = endpoint.scrape().await;
    assert_eq!(value(&text, "redis_up"), Some(0.0), "{text}");
    let names = [
        "backlog{",
        "oldest_age_seconds{",
        "redis_memory_used_bytes ",
        "redis_pressure ",
        "shard_clock_ahead_seconds ",
    ];
    for absent in names {
        assert!(!text.contains(&format!("tickfleet_{absent}")), "{absent}:\n{text}");
    }
    fleet.server.resume();
    endpoint.shows(&[("redis_up", 1.0), ("backlog{state=\"parked_capped\"}", 8.0)]).await;

    open.send_replace(true);
    for turn in &left {
        cancel(&fleet, turn).await;
    }
    for _ in 0..10 {
        fleet.reply().await;
    }
    let empty = ["inbound", "ready", "parked_capped", "delayed", "running"];
    let series: Vec<String> = empty.iter().map(|state| format!("backlog{{state=\"{state}\"}}")).collect();
    endpoint.shows(&series.iter().map(|series| (series.as_str(), 0.0)).collect::<Vec<_>>()).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_each_event_once_and_promtool_accepts_them() {
    let mut fleet = Fleet::start(Plan {
        caps: DefaultCaps { tick_ms: 1_000, calls_per_tick: 3, ..DefaultCaps::default() },
        ..Plan::default()
    })
    .await;
    let endpoint = Endpoint::of(&fleet).await;
    let echo = |n: u32| ("echo", json!({"text": n.to_string()}));
    fleet.submit(&[echo(0), echo(1), echo(2), echo(3), echo(4)]).await;
    fleet.reply().await;
    fleet.submit(&[("fail", json!({"outcomes": ["transient", "ok"]}))]).await;
    fleet.reply().await;
    fleet.submit_turn(json!({"agent": "nobody", "calls": [{"id": "c", "name": "echo", "arguments": {}}]})).await;
    fleet.reply().await;

    let text = endpoint
        .shows(&[
            ("inbound_entries_total{stream=\"turns\"}", 3.0),
            ("turns_rejected_total{reason=\"unknown_agent\"}", 1.0),
            ("turns_admitted_total{decision=\"rejected\"}", 1.0),
            ("dead_letters_total{reason=\"unknown_agent\"}", 1.0),
            // Three calls at once, two from the throttle queue, and the failed call. A retry is not debited.
            ("calls_admitted_total", 6.0),
            ("retries_total{reason=\"transient\"}", 1.0),
            ("promoted_total", 1.0),
            ("calls_total{outcome=\"ok\",tool=\"echo\"}", 5.0),
            ("calls_total{outcome=\"ok\",tool=\"fail\"}", 1.0),
            ("calls_total{outcome=\"denied\",tool=\"echo\"}", 0.0),
            ("turn_duration_seconds_count", 2.0),
            ("slots_busy", 0.0),
            ("slots", 16.0),
            ("redis_errors_total{verb=\"commit\"}", 0.0),
        ])
        .await;
    assert!(value(&text, "released_total").unwrap() >= 1.0, "{text}");
    assert!(value(&text, "schedule_to_start_seconds_count").unwrap() >= 4.0, "{text}");
    for verb in ["commit", "read", "backlog"] {
        assert!(value(&text, &format!("redis_commands_total{{verb=\"{verb}\"}}")).unwrap() > 0.0, "{verb}:\n{text}");
    }
    for line in text.lines().filter(|line| line.contains("=\"other\"")) {
        assert!(line.ends_with(" 0"), "a word that is on no list: {line}");
    }
    checked_by_promtool(&text);
    fleet.stop().await;
}

/// Also fails if promtool is not installed.
fn checked_by_promtool(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!(
            "promtool cannot be run ({error}). It is in Debian's package prometheus; .ci/prepare installs it as root"
        )
    });
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success() && said.trim().is_empty(), "promtool: {said}");
}
