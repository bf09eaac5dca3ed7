//! Measures the latency that a gateway adds. The routes are plain Redis, `POST /v1/turns?wait=…`, and MCP's
//! `tools/call`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use tickfleet_gateway::NewKey;
use tokio::process::Child;

use super::BenchArgs;
use super::load::{Load, now, percentile, words};
use super::nodes::{Fleet, Shape, free_addresses, process};
use super::server::Server;

/// Each round measures all routes, so that other load on the machine affects all of them.
const ROUNDS: u64 = 5;
const PATIENCE: Duration = Duration::from_secs(30);

/// The routes that are compared with Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Route {
    /// The gateway's HTTP API and its MCP server.
    Gateway,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
struct RouteLatency {
    name: &'static str,
    turns: usize,
    p50: f64,
    p99: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Via {
    rate: u64,
    ways: Vec<RouteLatency>,
}

pub(super) async fn run(args: &BenchArgs, mut say: impl FnMut(&str)) -> Result<Via> {
    let server = Server::start(args.aof).await?;
    let fleet = Fleet::start(&server, &Shape::of(args)?).await.context("starting the fleet")?;
    let gateway = Gateway::start(&args.program()?, &server, &fleet).await.context("starting a gateway")?;
    let load = Load::connect(&server, args).await?;
    load.warm_up().await.context("warming up")?;
    let round = Duration::from_secs((args.steady_seconds / ROUNDS).max(1));
    let mut latencies: [Vec<f64>; 3] = Default::default();
    for number in 1..=ROUNDS {
        say(&format!("round {number} of {ROUNDS}"));
        latencies[0].extend(load.latencies(args.rate, round).await.context("over Redis")?);
        for (way, path) in [(1, Path::Turns), (2, Path::Mcp)] {
            latencies[way].extend(gateway.latencies(path, args, round).await.context("over the gateway")?);
        }
    }
    drop(gateway);
    fleet.stop().await;
    let names = ["Redis", "POST /v1/turns", "MCP tools/call"];
    let ways = names.into_iter().zip(latencies).map(|(name, mut of)| RouteLatency {
        name,
        turns: of.len(),
        p50: percentile(&mut of, 0.5),
        p99: percentile(&mut of, 0.99),
    });
    Ok(Via { rate: args.rate, ways: ways.collect() })
}

#[derive(Debug, Clone, Copy)]
enum Path {
    Turns,
    Mcp,
}

struct Gateway {
    _child: Child,
    _keys: tempfile::NamedTempFile,
    address: SocketAddr,
    client: reqwest::Client,
    key: String,
}

impl Gateway {
    async fn start(program: &std::path::Path, server: &Server, fleet: &Fleet) -> Result<Self> {
        let key = NewKey::random()?;
        let keys = tempfile::NamedTempFile::with_suffix(".yaml").context("a file of keys")?;
        let verbs = "verbs: [submit, read, cancel]";
        let row = format!("- {{id: bench, sha256: {}, tenant: bench, agents: ['*'], {verbs}}}\n", key.sha256);
        std::fs::write(keys.path(), row)?;
        let address = free_addresses(1)?[0];
        let more = ["--address".into(), address.to_string(), "--keys".into(), keys.path().display().to_string()];
        let child = process(program, "gateway", &more, address, fleet.dir(), server)?;
        let client = reqwest::Client::builder().timeout(PATIENCE).build()?;
        let gateway = Self { _child: child, _keys: keys, address, client, key: key.secret };
        for _ in 0..600 {
            if gateway.client.get(gateway.url("v1/openapi.json")).send().await.is_ok() {
                return Ok(gateway);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("it did not answer within 30 s")
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    async fn call(&self, path: Path, agent: &str, tool: &str, text: &str) -> Result<()> {
        let arguments = json!({"text": text});
        let request = match path {
            Path::Turns => {
                let turn = json!({"agent": agent, "calls": [{"id": "call_0", "name": tool, "arguments": arguments}]});
                self.client.post(self.url("v1/turns?wait=30")).json(&turn)
            }
            Path::Mcp => {
                let params = json!({"name": tool, "arguments": arguments});
                let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
                let request = self.client.post(self.url(&format!("v1/agents/{agent}/mcp"))).json(&call);
                request
                    .header("accept", "application/json, text/event-stream")
                    .header("mcp-protocol-version", "2025-11-25")
            }
        };
        let answer = request.bearer_auth(&self.key).send().await?;
        let status = answer.status();
        let said = answer.text().await?;
        let ok = said.contains("\"success\":true") || said.contains("\"isError\":false");
        ensure!(status.as_u16() == 200 && ok, "answered with {status}: {said}");
        Ok(())
    }

    async fn latencies(&self, path: Path, args: &BenchArgs, duration: Duration) -> Result<Vec<f64>> {
        let total = args.rate * duration.as_secs();
        let agents = args.agents as u64;
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(args.rate.max(1)).unwrap_or(1));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        let tool = args.tool_kind.tool();
        let found = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let failed = Arc::new(parking_lot::Mutex::new(None));
        let calls = futures::stream::unfold((0, ticks), |(number, mut ticks)| async move {
            if number == total {
                return None;
            }
            ticks.tick().await;
            Some((number, (number + 1, ticks)))
        });
        futures::StreamExt::for_each_concurrent(calls, None, |number| {
            let found = Arc::clone(&found);
            let failed = Arc::clone(&failed);
            async move {
                let agent = format!("a{}", number % agents);
                let text = words(number, args.payload_bytes / 2);
                let began = now();
                match self.call(path, &agent, tool, &text).await {
                    Ok(()) => found.lock().push(began.elapsed().as_secs_f64() * 1_000.0),
                    Err(error) => *failed.lock() = Some(error),
                }
            }
        })
        .await;
        if let Some(error) = failed.lock().take() {
            return Err(error);
        }
        let found = std::mem::take(&mut *found.lock());
        Ok(found)
    }
}

impl Via {
    pub(crate) fn text(&self) -> String {
        let mut text =
            format!("{} turns a second, one call each\n\nlatency                p50         p99\n", self.rate);
        let first = self.ways.first().cloned().unwrap_or_default();
        for way in &self.ways {
            text += &format!("{:17} {:>6.2} ms   {:>6.2} ms", way.name, way.p50, way.p99);
            if way.name != first.name {
                text += &format!("   {:+.2} ms  {:+.2} ms", way.p50 - first.p50, way.p99 - first.p99);
            }
            text += "\n";
        }
        text
    }
}
