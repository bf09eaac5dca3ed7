//! Compares a cluster of several primaries with one primary that has the same shards, in turns per second of Redis' CPU
//! time. Benchmark machines have too few cores to compare throughput.
//!
//! Turns cost less in larger batches, and a busy primary gets larger batches. Each shard therefore receives a fixed
//! number of turns at once. When all of them have replies, the shard receives the next batch.
//!
//! The primaries are loaded one after the other, each for a second or two. Three primaries under load on two cores
//! would evict each other's data from the CPU caches.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tickfleet_model::TenantId;
use tickfleet_model::ids::shard_of;
use tickfleet_ops::redis_server::{Listen, PrivateRedis, ServerOptions};

use super::BenchArgs;
use super::load::{message, now, ok_of, percentile, words};
use super::nodes::{Fleet, Shape};
use super::server::{Cpu, NAMESPACE, Server};

/// The minimum that docs/operate/size-a-fleet.md recommends.
const SHARDS_A_PRIMARY: u32 = 4;
const SLOTS: u32 = 16_384;
const SPAN: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);
const AGREED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Spread {
    shards: u32,
    round: u64,
    one: Side,
    several: Side,
    /// Turns per second of CPU time of the busiest primary, relative to the single primary.
    ratio: f64,
    ratios: Vec<f64>,
}

#[derive(Debug, Clone, Serialize)]
struct Side {
    /// CPU time (µs) without idle load, divided by the number of turns of all primaries.
    primaries_us_per_turn: Vec<f64>,
    /// The load without turns: processes poll every shard for due work.
    primaries_idle_ms_per_s: Vec<f64>,
    /// If both sides have equally large batches, this number is equal on both sides.
    scripts_per_turn: f64,
    /// The cores of this machine limit this rate.
    turns_per_s: f64,
    /// Turns per second at which the busiest primary would use a whole core.
    turns_per_s_of_cpu: f64,
    not_ok: u64,
}

impl Spread {
    pub(crate) fn text(&self) -> String {
        let ratios: Vec<String> = self.ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        format!(
            "{} shards on one primary, and on {}; {} turns at once for each shard\n\n{}{}ratio        {:.2} ({})\n",
            self.shards,
            self.several.primaries_us_per_turn.len(),
            self.round,
            self.one.text("one"),
            self.several.text("several"),
            self.ratio,
            ratios.join(", "),
        )
    }
}

impl Side {
    fn text(&self, what: &str) -> String {
        let list = |figures: &[f64]| figures.iter().map(|one| format!("{one:.1}")).collect::<Vec<_>>().join(" + ");
        let failed = if self.not_ok > 0 { format!(", {} turns failed", self.not_ok) } else { String::new() };
        format!(
            "{what:12} {} µs/turn of each primary, {:.2} scripts/turn, idle {} ms/s: {:.0} turns/s of its CPU time ({:.0} on this \
             machine{failed})\n",
            list(&self.primaries_us_per_turn),
            self.scripts_per_turn,
            list(&self.primaries_idle_ms_per_s),
            self.turns_per_s_of_cpu,
            self.turns_per_s,
        )
    }
}

pub(super) async fn run(args: &BenchArgs, primaries: usize, mut say: impl FnMut(&str)) -> Result<Spread> {
    let shards = args.shards.unwrap_or(SHARDS_A_PRIMARY * u32::try_from(primaries)?);
    ensure!(primaries >= 2 && shards as usize >= primaries, "at least two primaries, with a shard each");
    say("starting one primary, and several");
    let mut one = Running::start(args, "one", 1, shards).await.context("one primary")?;
    let mut several = Running::start(args, "several", primaries, shards).await.context("several primaries")?;
    for side in [&mut one, &mut several] {
        side.load.run(Duration::from_secs(1), None).await.context("warming up")?;
    }
    for number in 0..args.seconds.div_ceil(SPAN.as_secs()).max(3) {
        say(&format!("measuring both, time {}", number + 1));
        one.measure(&mut several, args.at_once).await?;
        several.measure(&mut one, args.at_once).await?;
    }
    let ratios = one.spans.iter().zip(&several.spans).map(|(one_span, several_span)| {
        several.fills(&several.us_per_turn(several_span)) / one.fills(&one.us_per_turn(one_span))
    });
    let ratios = ratios.collect();
    let one = one.ended().await;
    let several = several.ended().await;
    let ratio = several.turns_per_s_of_cpu / one.turns_per_s_of_cpu;
    Ok(Spread { shards, round: args.round, one, several, ratio, ratios })
}

struct Running {
    cluster: Cluster,
    fleet: Fleet,
    load: Load,
    /// Idle load (ms per second) of each primary while the other side is loaded.
    idle: Vec<Vec<f64>>,
    spans: Vec<Span>,
}

#[derive(Debug)]
struct Span {
    turns: u64,
    seconds: f64,
    us: Vec<f64>,
    scripts: f64,
    not_ok: u64,
    parts: f64,
}

impl Span {
    /// In `other`, only `primary` was loaded. Scales `other` as if each primary had handled the mean number of turns.
    fn and(mut self, other: Self, primary: usize) -> Self {
        let mean = self.turns as f64 / self.parts;
        self.us[primary] = other.us[primary] * mean / other.turns.max(1) as f64;
        self.turns = (mean * (self.parts + 1.0)).round() as u64;
        self.scripts += other.scripts * mean / other.turns.max(1) as f64;
        self.not_ok += other.not_ok;
        self.parts += 1.0;
        self
    }
}

impl Running {
    async fn start(args: &BenchArgs, name: &'static str, primaries: usize, shards: u32) -> Result<Self> {
        let cluster = Cluster::start(name, primaries, shards).await.context("starting a cluster")?;
        let slots = args.slots.max(usize::try_from(args.round * u64::from(shards))?);
        let shape = Shape { name, slots, shards, tenants: tenants(shards)?, ..Shape::of(args, args.agents())? };
        let server = Server::of_cluster(cluster.url(), cluster.urls[cluster.nodes_of_shards[0]].clone());
        let fleet = Fleet::start(&server, &shape).await.context("starting the fleet")?;
        let load = Load::connect(args, &cluster, &shape.tenants).await?;
        Ok(Self { cluster, fleet, load, idle: Vec::new(), spans: Vec::new() })
    }

    async fn measure(&mut self, idle: &mut Self, at_once: bool) -> Result<()> {
        let primaries = self.cluster.urls.len();
        let mut all: Option<Span> = None;
        for only in if at_once { vec![None] } else { (0..primaries).map(Some).collect() } {
            let span = self.measure_once(idle, only).await?;
            all = Some(match (all, only) {
                (Some(all), Some(primary)) => all.and(span, primary),
                _ => span,
            });
        }
        self.spans.extend(all);
        Ok(())
    }

    /// Loads the primary with the index `only`, or all primaries for `None`.
    async fn measure_once(&self, idle: &mut Self, only: Option<usize>) -> Result<Span> {
        let before = self.cluster.cpu().await?;
        let idle_before = idle.cluster.cpu().await?;
        let scripts = self.cluster.scripts().await?;
        let started = now();
        let (turns, not_ok) = self.load.run(SPAN, only).await?;
        let seconds = started.elapsed().as_secs_f64();
        let after = self.cluster.cpu().await?;
        let idle_after = idle.cluster.cpu().await?;
        let us = |after: Vec<Cpu>, before: Vec<Cpu>| {
            after.into_iter().zip(before).map(|(after, before)| (after - before).seconds * 1e6).collect::<Vec<f64>>()
        };
        let scripts = self.cluster.scripts().await? - scripts;
        idle.idle.push(us(idle_after, idle_before).into_iter().map(|us| us / 1e3 / seconds).collect());
        Ok(Span { turns, seconds, us: us(after, before), scripts, not_ok, parts: 1.0 })
    }

    fn idle_ms(&self) -> Vec<f64> {
        let primaries = 0..self.cluster.urls.len();
        primaries.map(|primary| median(self.idle.iter().filter_map(|idle| idle.get(primary).copied()))).collect()
    }

    fn us_per_turn(&self, span: &Span) -> Vec<f64> {
        // All primaries were loaded for the same time, so the same idle time is subtracted from each.
        let busy = span.us.iter().zip(self.idle_ms()).map(|(us, idle_ms)| us - idle_ms * 1e3 * span.seconds);
        busy.map(|us| us / span.turns.max(1) as f64).collect()
    }

    fn fills(&self, us_per_turn: &[f64]) -> f64 {
        let fills = us_per_turn.iter().zip(self.idle_ms()).map(|(us, idle_ms)| (1e6 - idle_ms * 1e3) / us);
        fills.fold(f64::INFINITY, f64::min)
    }

    async fn ended(self) -> Side {
        let each: Vec<Vec<f64>> = self.spans.iter().map(|span| self.us_per_turn(span)).collect();
        let of_primary = |primary: usize| median(each.iter().filter_map(|us| us.get(primary).copied()));
        let primaries_us_per_turn: Vec<f64> = (0..self.cluster.urls.len()).map(of_primary).collect();
        let side = Side {
            turns_per_s_of_cpu: self.fills(&primaries_us_per_turn),
            primaries_us_per_turn,
            primaries_idle_ms_per_s: self.idle_ms(),
            scripts_per_turn: median(self.spans.iter().map(|span| span.scripts / span.turns.max(1) as f64)),
            turns_per_s: median(self.spans.iter().map(|span| span.turns as f64 / span.parts / span.seconds)),
            not_ok: self.spans.iter().map(|span| span.not_ok).sum(),
        };
        self.fleet.stop().await;
        side
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    percentile(&mut values.collect::<Vec<_>>(), 0.5)
}

fn tenants(shards: u32) -> Result<Vec<String>> {
    let mut found: Vec<Option<String>> = vec![None; shards as usize];
    for number in 0..1_000 * u64::from(shards) {
        let name = format!("bench{number}");
        let shard = shard_of(&TenantId::new(&name)?, shards) as usize;
        found[shard].get_or_insert(name);
    }
    found.into_iter().collect::<Option<Vec<_>>>().context("a shard has no tenant")
}

struct Cluster {
    servers: Vec<PrivateRedis>,
    urls: Vec<String>,
    /// Indexes of primaries, by shard.
    nodes_of_shards: Vec<usize>,
    dir: PathBuf,
}

impl Cluster {
    async fn start(name: &str, primaries: usize, shards: u32) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tickfleet-bench-{name}-{}", std::process::id()));
        let mut servers = Vec::new();
        let mut urls = Vec::new();
        let mut buses = Vec::new();
        for node in 0..primaries {
            let bus = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
            let extra_args = ["--cluster-enabled", "yes", "--cluster-port", &bus].map(str::to_owned).into();
            let options = ServerOptions {
                listen: Listen::Loopback(0),
                extra_args,
                ..ServerOptions::new(dir.join(node.to_string()))
            };
            let server = PrivateRedis::start(options).await.context("starting a private Redis")?;
            urls.push(server.url());
            servers.push(server);
            buses.push(bus);
        }
        let mut cluster = Self { servers, urls, nodes_of_shards: vec![0; shards as usize], dir };
        cluster.share(&buses).await?;
        Ok(cluster)
    }

    async fn share(&mut self, buses: &[String]) -> Result<()> {
        let mut first = self.connection(0).await?;
        let mut slots = Vec::new();
        for shard in 0..self.nodes_of_shards.len() {
            let key = format!("{{{NAMESPACE}:{shard}}}:");
            let slot: u32 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut first).await?;
            slots.push((slot, shard));
        }
        slots.sort_unstable();
        let nodes = self.servers.len();
        let mut from = 0;
        for node in 0..nodes {
            let begin = node * slots.len() / nodes;
            let end = (node + 1) * slots.len() / nodes;
            for (_, shard) in &slots[begin..end] {
                self.nodes_of_shards[*shard] = node;
            }
            let upto = if node + 1 == nodes { SLOTS } else { slots[end].0 };
            let mut connection = self.connection(node).await?;
            let mut add = redis::cmd("CLUSTER");
            add.arg("ADDSLOTSRANGE").arg(from).arg(upto - 1).query_async::<()>(&mut connection).await?;
            let mut epoch = redis::cmd("CLUSTER");
            epoch.arg("SET-CONFIG-EPOCH").arg(node + 1).query_async::<()>(&mut connection).await?;
            from = upto;
        }
        for (node, bus) in buses.iter().enumerate().skip(1) {
            let port = self.urls[node].trim_end_matches('/').rsplit(':').next().unwrap_or_default();
            let mut meet = redis::cmd("CLUSTER");
            meet.arg("MEET").arg("127.0.0.1").arg(port).arg(bus).query_async::<()>(&mut first).await?;
        }
        self.agreed().await
    }

    async fn agreed(&self) -> Result<()> {
        let began = now();
        for node in 0..self.servers.len() {
            let mut connection = self.connection(node).await?;
            loop {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await?;
                let known = format!("cluster_known_nodes:{}\r", self.servers.len());
                if info.contains("cluster_state:ok") && info.contains(&known) {
                    break;
                }
                ensure!(began.elapsed() < AGREED_WITHIN, "the nodes do not agree:\n{info}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    fn url(&self) -> String {
        let hosts: Vec<&str> =
            self.urls.iter().map(|url| url.trim_start_matches("redis://").trim_end_matches('/')).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    async fn connection(&self, node: usize) -> Result<MultiplexedConnection> {
        Server::of_cluster(String::new(), self.urls[node].clone()).connection().await
    }

    async fn scripts(&self) -> Result<f64> {
        let mut ran = 0.0;
        for url in &self.urls {
            ran += Server::of_cluster(String::new(), url.clone()).scripts().await?.calls();
        }
        Ok(ran)
    }

    async fn cpu(&self) -> Result<Vec<Cpu>> {
        let mut used = Vec::new();
        for url in &self.urls {
            used.push(Server::of_cluster(String::new(), url.clone()).cpu().await?);
        }
        Ok(used)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            drop(server.kill9());
        }
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

struct Load {
    shards: Vec<Shard>,
    agents: u64,
    tool: (&'static str, usize),
    padding: usize,
    round: u64,
    next: AtomicU64,
}

struct Shard {
    node: usize,
    prefix: String,
    tenant: String,
    producer: MultiplexedConnection,
    reader: MultiplexedConnection,
    last: tokio::sync::Mutex<String>,
}

type Read = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;

impl Load {
    async fn connect(args: &BenchArgs, cluster: &Cluster, tenants: &[String]) -> Result<Self> {
        let tool = (args.tool_kind.tool(), args.calls_per_turn);
        let bare = message("bench", "a12345", 1_000_000, tool, "").len();
        let mut shards = Vec::new();
        for (shard, tenant) in tenants.iter().enumerate() {
            let node = cluster.nodes_of_shards[shard];
            shards.push(Shard {
                node,
                prefix: format!("{{{NAMESPACE}:{shard}}}:"),
                tenant: tenant.clone(),
                producer: cluster.connection(node).await?,
                reader: cluster.connection(node).await?,
                last: tokio::sync::Mutex::new("0".into()),
            });
        }
        let padding = args.payload_bytes.saturating_sub(bare) / args.calls_per_turn.max(1);
        Ok(Self {
            shards,
            agents: args.agents() as u64,
            tool,
            padding,
            round: args.round.max(1),
            next: AtomicU64::new(0),
        })
    }

    async fn run(&self, duration: Duration, only: Option<usize>) -> Result<(u64, u64)> {
        let these = self.shards.iter().filter(|shard| only.is_none_or(|only| shard.node == only));
        let all = these.map(|shard| self.of(shard, duration));
        let ended = futures::future::try_join_all(all).await?;
        Ok(ended.into_iter().fold((0, 0), |(turns, failed), (more, of_them)| (turns + more, failed + of_them)))
    }

    async fn of(&self, shard: &Shard, duration: Duration) -> Result<(u64, u64)> {
        let mut sent = 0;
        let mut got = 0;
        let mut failed = 0;
        let started = now();
        while started.elapsed() < duration {
            self.submit(shard).await?;
            sent += self.round;
            while got < sent {
                let (replies, of_them) = shard.read().await?;
                (got, failed) = (got + replies, failed + of_them);
            }
        }
        Ok((got, failed))
    }

    async fn submit(&self, shard: &Shard) -> Result<()> {
        let mut pipe = redis::pipe();
        // In one transaction, so that a process that waits for the first turn reads all turns of the round.
        pipe.atomic();
        for _ in 0..self.round {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let agent = format!("a{}", turn % self.agents);
            let text = message(&shard.tenant, &agent, turn, self.tool, &words(turn, self.padding));
            pipe.cmd("XADD").arg(format!("{}turns", shard.prefix)).arg("*").arg("turn").arg(text).ignore();
        }
        Ok(pipe.query_async::<()>(&mut shard.producer.clone()).await?)
    }
}

impl Shard {
    async fn read(&self) -> Result<(u64, u64)> {
        let inbox = format!("{}replies:{}:bench", self.prefix, self.tenant);
        let mut last = self.last.lock().await;
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(500).arg("BLOCK").arg(u64::try_from(PATIENCE.as_millis())?);
        command.arg("STREAMS").arg(&inbox).arg(&*last);
        let found: Read = command.query_async(&mut self.reader.clone()).await.context("reading replies")?;
        let entries: Vec<_> = found.into_iter().flatten().flat_map(|(_, entries)| entries).collect();
        let (newest, _) = entries.last().with_context(|| format!("no reply came for {} s", PATIENCE.as_secs()))?;
        last.clone_from(newest);
        let trim = redis::cmd("XTRIM").arg(&inbox).arg("MINID").arg("~").arg(&*last).to_owned();
        trim.query_async::<()>(&mut self.producer.clone()).await?;
        let failed = entries.iter().filter(|(_, fields)| !ok_of(fields)).count();
        Ok((entries.len() as u64, failed as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_gets_its_own_tenant() {
        let tenants = tenants(12).unwrap();
        let shards: Vec<u32> = tenants.iter().map(|name| shard_of(&TenantId::new(name).unwrap(), 12)).collect();
        assert_eq!(shards, (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn separately_loaded_primaries_are_scaled_to_equal_turns() {
        let span = |turns: u64, us: [f64; 2], scripts: f64| Span {
            turns,
            seconds: 2.0,
            us: us.to_vec(),
            scripts,
            not_ok: 1,
            parts: 1.0,
        };
        // The second primary had half as many turns, at twice the cost each. Its CPU time during the first primary's
        // load is ignored.
        let both = span(1_000, [30_000.0, 7.0], 100.0).and(span(500, [9.0, 30_000.0], 50.0), 1);
        assert_eq!((both.turns, both.not_ok, both.us, both.scripts), (2_000, 2, vec![30_000.0, 60_000.0], 200.0));
    }
}
