//! Defines the kinds of Redis that a fleet can use, and the faults of each kind.

use std::path::PathBuf;
use std::time::Duration;

use tickfleet_model::TenantId;
use tickfleet_model::ids::shard_of;
use tickfleet_testkit::{Clocks, Cluster, Network, RedisOptions, RedisServer, SentinelSetup};
use tokio::time::{Instant, sleep};

use super::parts::Proxy;
use super::{PAST_THE_LEASE, PATIENCE};

const FAULTS: [&str; 11] = [
    "kill a worker",
    "kill a scheduler",
    "stop a worker past its lease",
    "stop a scheduler past its lease",
    "restart a process in order",
    "kill Redis",
    "stop Redis",
    "SCRIPT FLUSH",
    "CLIENT KILL",
    "delete keys",
    "change the configuration",
];
const OF_ONE: [&str; 4] = ["cut the wire", "slow the wire", "half-open wire", "memory full"];
const OF_PAIRS: [&str; 3] = ["fail over", "kill a primary whose replica lags", "stop a primary until it is replaced"];
const OF_CLUSTERS: [&str; 1] = ["move a slot"];
const OF_NETWORKS: [&str; 3] =
    ["a primary that clients alone reach", "a replica cut from its primary", "all nodes apart"];
const OF_NETWORKS_OF_CLUSTERS: [&str; 1] = ["a primary and its replica that clients alone reach"];
const OF_CLOCKS: [&str; 2] = ["step Redis' clock", "step a process' clock"];
const OF_NETWORKS_OF_SENTINELS: [&str; 1] = ["a primary and a sentinel cut from the others"];
const SHARDS: u32 = 4;
/// The witness reads the append-only files, which keep a killed server's writes. No test crashes the machine, so no
/// fsync is needed.
const WITNESSED: [&str; 6] = ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"];

/// The variable lists faults, separated by commas. If the variable is empty, all faults are wanted.
#[allow(clippy::disallowed_methods, reason = "whoever runs it by hand says which faults")]
fn wanted(mut faults: Vec<&'static str>) -> Vec<&'static str> {
    let named = std::env::var("TICKFLEET_CHAOS_FAULTS").unwrap_or_default();
    if !named.is_empty() {
        faults.retain(|fault| named.split(',').any(|name| name.trim() == *fault));
        assert!(!faults.is_empty(), "this target has none of the faults {named:?}");
    }
    faults
}

pub enum RedisKind {
    One(Box<RedisServer>, Proxy),
    Sentinels(Box<SentinelSetup>),
    Cluster(Box<Cluster>),
}

pub struct ShardTenant {
    pub tenant: String,
    shard: u32,
    slot: u16,
}

pub struct ChaosTarget {
    pub kind: RedisKind,
    pub homes: Vec<ShardTenant>,
    pub aim: usize,
    is_cuttable: bool,
    pub clocks: Option<Clocks>,
}

impl ChaosTarget {
    pub async fn one() -> Self {
        let clocks = Clocks::new().await;
        let program = clocks.as_ref().map(Clocks::server);
        let options = RedisOptions {
            appendonly: true,
            tcp: true,
            program,
            ..RedisOptions::with(&["--auto-aof-rewrite-percentage", "0"])
        };
        let server = RedisServer::start_with(options).await;
        let proxy = Proxy::before(server.url().trim_start_matches("redis://").trim_end_matches('/').to_owned()).await;
        Self { clocks, ..Self::of(RedisKind::One(Box::new(server), proxy)) }
    }

    pub async fn sentinels() -> Self {
        let is_cuttable = Self::can_be_cut().await;
        let clocks = Clocks::new().await;
        let trio = SentinelSetup::start_of(1, &Self::witnessed(clocks.as_ref()), is_cuttable).await;
        Self { is_cuttable, clocks, ..Self::of(RedisKind::Sentinels(Box::new(trio))) }
    }

    fn witnessed(clocks: Option<&Clocks>) -> RedisOptions {
        RedisOptions { program: clocks.map(Clocks::server), ..RedisOptions::with(&WITNESSED) }
    }

    async fn can_be_cut() -> bool {
        let is_possible = Network::is_possible().await;
        if !is_possible {
            eprintln!(
                "the network between the nodes is left whole: servers cannot call from addresses of their own here"
            );
        }
        is_possible
    }

    fn of(kind: RedisKind) -> Self {
        let homes = vec![ShardTenant { tenant: "demo".into(), shard: 0, slot: 0 }];
        Self { kind, homes, aim: 0, is_cuttable: false, clocks: None }
    }

    pub async fn cluster() -> Self {
        let is_cuttable = Self::can_be_cut().await;
        let clocks = Clocks::new().await;
        let cluster = Cluster::start_of(3, 1, &Self::witnessed(clocks.as_ref()), is_cuttable).await;
        let mut homes = Vec::new();
        for shard in 0..SHARDS {
            let lives_here = |name: &String| shard_of(&TenantId::new(name.as_str()).unwrap(), SHARDS) == shard;
            let tenant = (0..).map(|n| format!("demo{n}")).find(lives_here).unwrap();
            homes.push(ShardTenant { tenant, shard, slot: cluster.slot(&format!("{{tickfleet:{shard}}}:")).await });
        }
        Self { homes, is_cuttable, clocks, ..Self::of(RedisKind::Cluster(Box::new(cluster))) }
    }

    pub fn url(&self) -> String {
        match &self.kind {
            RedisKind::One(_, proxy) => format!("redis://{}", proxy.address),
            RedisKind::Sentinels(trio) => trio.url(),
            RedisKind::Cluster(cluster) => cluster.url(),
        }
    }

    pub fn shards(&self) -> u32 {
        if let RedisKind::Cluster(_) = self.kind { SHARDS } else { 1 }
    }

    /// True if losing a primary can lose acknowledged writes.
    pub fn forgets(&self) -> bool {
        !matches!(self.kind, RedisKind::One(..))
    }

    pub fn faults(&self) -> Vec<&'static str> {
        let (of_target, of_networks): (&[&[_]], &[&[_]]) = match self.kind {
            RedisKind::One(..) => (&[&OF_ONE], &[]),
            RedisKind::Sentinels(_) => (&[&OF_PAIRS], &[&OF_NETWORKS, &OF_NETWORKS_OF_SENTINELS]),
            RedisKind::Cluster(_) => (&[&OF_PAIRS, &OF_CLUSTERS], &[&OF_NETWORKS, &OF_NETWORKS_OF_CLUSTERS]),
        };
        let mut faults = [&FAULTS[..], &of_target.concat()].concat();
        faults.extend(of_networks.concat().into_iter().filter(|_| self.is_cuttable));
        faults.extend(OF_CLOCKS.into_iter().filter(|_| self.clocks.is_some()));
        wanted(faults)
    }

    pub fn key(&self, name: &str) -> String {
        format!("{{tickfleet:{}}}:{name}", self.homes[self.aim].shard)
    }

    pub fn folders(&self) -> Vec<PathBuf> {
        let servers = match &self.kind {
            RedisKind::One(server, _) => std::slice::from_ref(&**server),
            RedisKind::Sentinels(trio) => &trio.servers,
            RedisKind::Cluster(cluster) => &cluster.servers,
        };
        servers.iter().map(|server| server.dir().to_owned()).collect()
    }

    pub async fn primary(&self) -> usize {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let named = match &self.kind {
                RedisKind::One(..) => Some(0),
                RedisKind::Sentinels(trio) => trio.primary().await,
                RedisKind::Cluster(cluster) => cluster.holder(self.homes[self.aim].slot).await,
            };
            if let Some(primary) = named {
                return primary;
            }
            // The deadline above bounds the loop.
            sleep(Duration::from_millis(50)).await;
        }
        panic!("no primary within {PATIENCE:?}");
    }

    fn partner(&self, server: usize) -> usize {
        match &self.kind {
            RedisKind::One(..) => server,
            RedisKind::Sentinels(_) => 1 - server,
            RedisKind::Cluster(cluster) => cluster.partner(server),
        }
    }

    pub fn server(&mut self, index: usize) -> &mut RedisServer {
        match &mut self.kind {
            RedisKind::One(server, _) => server,
            RedisKind::Sentinels(trio) => &mut trio.servers[index],
            RedisKind::Cluster(cluster) => &mut cluster.servers[index],
        }
    }

    /// Bypasses the proxy. `None` if a fault makes the command fail.
    pub async fn ask(&mut self, words: &[&str]) -> Option<redis::Value> {
        let primary = self.primary().await;
        let mut connection = self.server(primary).connection().await;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.ok()
    }

    pub async fn text(&mut self, words: &[&str]) -> String {
        self.ask(words).await.and_then(|value| redis::from_redis_value(value).ok()).unwrap_or_default()
    }

    async fn replaced(&self, before: usize) {
        match &self.kind {
            RedisKind::One(..) => {}
            RedisKind::Sentinels(trio) => drop(trio.another_primary(before).await),
            RedisKind::Cluster(cluster) => drop(cluster.another_holder(self.homes[self.aim].slot, before).await),
        }
    }

    /// Kills the primary. A single server is restarted. With `lags`, the replica is first disconnected for this time,
    /// so that writes are lost.
    pub async fn kill(&mut self, lags: Option<Duration>) {
        let primary = self.primary().await;
        if let Some(lags) = lags {
            self.server(primary).cut_replicas().await;
            // Writes during this sleep do not reach the replica.
            sleep(lags).await;
        }
        self.server(primary).kill9();
        if let RedisKind::One(server, _) = &mut self.kind {
            // Redis is unavailable during this sleep.
            sleep(Duration::from_millis(300)).await;
            server.restart().await;
            return;
        }
        self.replaced(primary).await;
        self.server(primary).restart().await;
        self.followed().await;
    }

    /// The old primary executes the commands that it received while stopped, until it detects its replacement.
    pub async fn stop_until_replaced(&mut self) {
        let primary = self.primary().await;
        self.server(primary).pause();
        self.replaced(primary).await;
        self.server(primary).resume();
        self.followed().await;
    }

    /// The cut outlasts the nodes' timeouts. Clients use an isolated primary until it rejects their writes.
    pub async fn part(&mut self, how: &str) {
        let primary = self.primary().await;
        let partner = self.partner(primary);
        let Some((network, all)) = self.network() else { return };
        match how {
            "a replica cut from its primary" => network.part(primary, partner),
            "a primary and its replica that clients alone reach" => network.isolate(&[primary, partner], all),
            "a primary that clients alone reach" => network.isolate(&[primary], all),
            // Index 2 is the first Sentinel in the list that every client uses.
            "a primary and a sentinel cut from the others" => network.isolate(&[primary, 2], all),
            _ => (0..all).for_each(|one| network.isolate(&[one], all)),
        }
        match (how, &self.kind) {
            ("a primary that clients alone reach" | "a primary and a sentinel cut from the others", _) => {
                self.replaced(primary).await;
                self.refuses(primary).await;
            }
            ("a primary and its replica that clients alone reach" | "all nodes apart", RedisKind::Cluster(_)) => {
                self.refuses(primary).await;
            }
            // The primary does not change, so no event ends this wait.
            _ => sleep(PAST_THE_LEASE).await,
        }
        if let Some((network, _)) = self.network() {
            network.join();
        }
        self.followed().await;
    }

    fn network(&self) -> Option<(&Network, usize)> {
        match &self.kind {
            RedisKind::One(..) => None,
            RedisKind::Sentinels(trio) => Some((trio.network(), trio.on_network())),
            RedisKind::Cluster(cluster) => Some((cluster.network(), cluster.servers.len())),
        }
    }

    /// Waits until the isolated primary rejects writes. Behind Sentinels, it never does, so the wait has a fixed
    /// length.
    async fn refuses(&self, primary: usize) {
        let RedisKind::Cluster(cluster) = &self.kind else {
            // Both primaries accept writes during this sleep.
            sleep(PAST_THE_LEASE).await;
            return;
        };
        let began = Instant::now();
        cluster.refuses(primary, &self.key("nobody"), "CLUSTERDOWN").await;
        eprintln!("server {primary} refuses writes {} ms later", began.elapsed().as_millis());
    }

    pub async fn fail_over(&mut self) {
        let before = self.primary().await;
        let partner = self.partner(before);
        match &self.kind {
            RedisKind::One(..) => return,
            RedisKind::Sentinels(trio) => trio.fail_over().await,
            RedisKind::Cluster(cluster) => cluster.fail_over_to(partner).await,
        }
        self.replaced(before).await;
        self.followed().await;
    }

    pub async fn move_slot(&self) {
        let from = self.primary().await;
        let RedisKind::Cluster(cluster) = &self.kind else { return };
        let (slot, Some(to)) = (self.homes[self.aim].slot, cluster.elsewhere(from).await) else { return };
        cluster.begin_to_move(slot, from, to).await;
        loop {
            let keys = cluster.keys_in(slot, from).await;
            if keys.is_empty() {
                break;
            }
            for part in keys.chunks(keys.len().div_ceil(8)) {
                cluster.move_keys(part, from, to).await;
                // Turns arrive in each state of the move.
                sleep(Duration::from_millis(40)).await;
            }
        }
        cluster.end_move(slot, from, to).await;
        // Waits until all nodes know the move. Until then, some nodes redirect clients twice.
        cluster.another_holder(slot, from).await;
    }

    /// The primary may change once more during the wait.
    pub async fn followed(&mut self) {
        if let RedisKind::One(..) = self.kind {
            return;
        }
        let until = Instant::now() + PATIENCE;
        while !self.text(&["INFO", "replication"]).await.contains("state=online") {
            assert!(Instant::now() < until, "no replica within {PATIENCE:?}");
            // The assertion above bounds the loop.
            sleep(Duration::from_millis(50)).await;
        }
    }
}
