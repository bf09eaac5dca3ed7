//! A real Prometheus must accept the rules, and the query of every panel must find data.

use std::path::Path;

use regex::Regex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::fleet::{Fleet, enqueue, turn, work};
use super::{NAMESPACE, PATIENCE, PAUSE, chart};
use crate::support::binary::tickfleet;
use crate::support::prometheus::{Prometheus, Target};

/// Panels that are empty while the fleet has no problems, with the reason.
const EMPTY_WHEN_WELL: [(&str, &str); 3] = [
    ("Outcome unknown by tool", "shows only tools that had one"),
    ("Errors by verb", "shows only verbs that failed"),
    ("Firing alerts", "none does"),
];

/// The first limit makes turns wait, the second rejects calls, and the third only counts.
const LIMITS: &str = "limits: {
  echoes: {match: {agents: [kelly]}, max: 15, every: 10s},
  guesses: {match: {agents: [archy]}, per: [tool], max: 10, every: 10s, on_reach: reject},
  all: {per: [tenant], max: 10, every: 10s, mode: shadow},
}";

/// The tool that needs a sandbox makes workers check the sandbox support of their machine.
const TOOLS: &str = concat!(
    include_str!("../../../../../config/tools.yaml"),
    "\n  count:\n    description: Counts.\n    effect: read\n    shell: {level: basic, command: [wc]}\n\
     \x20   input_schema: {type: object, additionalProperties: false}\n"
);

fn settings(key: &Path) -> String {
    let key = key.display();
    format!("worker: {{breaker_failures: 3, breaker_cooldown: 2s}}\nseal: {{key: 'file:{key}', every: 100ms}}\n")
}

const PERMISSIONS: &str = concat!(
    include_str!("../../../../../config/permissions.yaml"),
    "\n  echo: {everyone: true, rules: [{require: agent.name != 'kelly', mode: shadow}]}\n\
     \x20 sleep: {everyone: true, rules: [{name: awake, require: args.ms > 9}]}\n\
     \x20 fail: {everyone: true}\n  fail_once: {everyone: true}\n"
);

struct Query {
    dashboard: String,
    panel: String,
    text: String,
}

impl Query {
    fn may_be_empty(&self) -> bool {
        EMPTY_WHEN_WELL.iter().any(|(panel, _)| *panel == self.panel)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_finds_data_for_every_panel() {
    let secrets = tempfile::tempdir().unwrap();
    let key = secrets.path().join("seal.key");
    tickfleet(&["audit", "key", "--new", key.to_str().unwrap()]).exits(0);
    let settings = settings(&key);
    let files = [
        ("tickfleet.yaml", settings.as_str()),
        ("limits.yaml", LIMITS),
        ("tools.yaml", TOOLS),
        ("permissions.yaml", PERMISSIONS),
    ];
    let fleet = Fleet::under(&files, 6).await;
    let agents = tokio::spawn(agents(fleet.redis.url()));
    let exporter = fleet.command(&["audit", "export", "--follow", "--to", "stdout"]);
    let mut targets = fleet.targets();
    targets.push(Target { job: "exporter", port: exporter.port() });
    let (gateway, port) = fleet.gateway(secrets.path());
    targets.push(Target { job: "gateway", port: gateway.port() });
    let callers = tokio::spawn(callers(port));
    let prometheus = Prometheus::start(NAMESPACE, &targets, &chart("rules")).await;
    every_panel_finds_its_data(&prometheus).await;
    every_rule_is_evaluated(&prometheus).await;
    agents.abort();
    callers.abort();
}

async fn callers(port: u16) {
    loop {
        for path in ["/v1/openapi.json", "/v1/tasks"] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
        // The callers have the same pace as the agents.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

async fn agents(redis: String) {
    let mut connection = tickfleet_testkit::connect(&redis).await.unwrap();
    for round in 0.. {
        let nap = turn("atlas", &[("sleep", json!({"ms": 1}))]);
        // This tool always fails, so its breaker opens, admits one trial call, and opens again.
        let away = turn("dwight", &[("fail_once", json!({"outcomes": ["transient_not_executed"]}))]);
        enqueue(&mut connection, &[work(round), vec![nap, away]].concat()).await.unwrap();
        // Half a CPU core can handle this pace of the agents.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

fn queries() -> Vec<Query> {
    let mut found = Vec::new();
    for file in chart("dashboards").read_dir().unwrap().map(|file| file.unwrap().path()) {
        let Some("json") = file.extension().and_then(|e| e.to_str()) else { continue };
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let text = target["expr"].as_str().unwrap();
                let text = text.replace("$namespace", ".*").replace("$job", ".*").replace("$__rate_interval", "1m");
                assert!(!text.contains('$'), "{text}");
                let panel = panel["title"].as_str().unwrap().to_owned();
                found.push(Query { dashboard: dashboard["title"].to_string(), panel, text });
            }
        }
    }
    assert!(found.len() > 60, "{} queries", found.len());
    found
}

async fn every_panel_finds_its_data(prometheus: &Prometheus) {
    let queries = queries();
    let mut empty: Vec<&Query> = queries.iter().filter(|query| !query.may_be_empty()).collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut still = Vec::new();
        for query in empty {
            if prometheus.query(&query.text).await.is_empty() {
                still.push(query);
            }
        }
        empty = still;
        if empty.is_empty() {
            break;
        }
        let reported = |query: &&Query| format!("\n{}: {}: {}", query.dashboard, query.panel, query.text);
        assert!(Instant::now() < deadline, "these find nothing:{}", empty.iter().map(reported).collect::<String>());
        // Rates need two scrapes, and some work takes a tick, so the queries are repeated.
        tokio::time::sleep(PAUSE).await;
    }
    // A panel that may be empty must still query an existing metric.
    let metric = Regex::new(r"\btickfleet_[a-z_]+").unwrap();
    for query in queries.iter().filter(|query| query.may_be_empty()) {
        for name in metric.find_iter(&query.text).map(|name| name.as_str()) {
            assert!(!prometheus.query(name).await.is_empty(), "{}: no process exports {name}", query.panel);
        }
    }
    for (title, _) in EMPTY_WHEN_WELL {
        assert!(queries.iter().any(|query| query.panel == title), "no panel is called {title:?}");
    }
}

async fn every_rule_is_evaluated(prometheus: &Prometheus) {
    let evaluated = async |prometheus: &Prometheus| {
        let rules = prometheus.rules().await;
        let health: Vec<&Value> = rules.iter().map(|rule| &rule["health"]).collect();
        assert!(health.len() > 40 && health.iter().all(|health| **health != "err"), "{rules:?}");
        health.iter().all(|health| **health == "ok")
    };
    prometheus.until(PATIENCE, "every rule has been evaluated", evaluated).await;
}
