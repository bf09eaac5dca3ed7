//! A Redis Cluster: primaries that share the slots, and replicas.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use crate::network::{PortProxy, address_of};
use crate::{Network, RedisOptions, RedisServer, TlsFiles};

const SLOTS: u16 = 16_384;
/// The `cluster-node-timeout`. With a shorter time, a busy machine would cause failovers.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// For any expected event, such as a complete cluster or a failover.
const PATIENCE: Duration = Duration::from_secs(60);
/// The timeout of a command. A paused node does not respond.
const ANSWER: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);
/// If another process takes the port, another attempt follows.
const PORT_TRIES: usize = 5;

/// On ports of 127.0.0.1. The servers end when the cluster is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The initial primaries, then the first replica of each primary, then the second replica of each. With three
    /// primaries and one replica each, the replica of server 1 is server 4.
    pub servers: Vec<RedisServer>,
    primaries: usize,
    tls_ports: Vec<u16>,
    /// Set if the network can be cut. `announced` then has the port of each server's proxy.
    network: Option<Network>,
    announced: Vec<u16>,
}

#[derive(Debug, Clone)]
struct NodeLine {
    id: String,
    port: String,
    flags: String,
    slots: Vec<RangeInclusive<u16>>,
}

impl Cluster {
    /// Waits until every node reports a complete cluster. The detection of a dead primary needs at least three
    /// primaries.
    pub async fn start(primaries: usize, replicas: usize) -> Self {
        Self::start_of(primaries, replicas, &RedisOptions::default(), false).await
    }

    /// `options` are for each server. If `is_apart`, the servers communicate over a network that can be cut
    /// ([`Self::network`]).
    pub async fn start_of(primaries: usize, replicas: usize, options: &RedisOptions, is_apart: bool) -> Self {
        Self::start_as(primaries, replicas, options, None, is_apart.then(Network::new)).await
    }

    pub async fn start_apart(primaries: usize, replicas: usize, extra_args: &[&str]) -> Self {
        Self::start_of(primaries, replicas, &RedisOptions::with(extra_args), true).await
    }

    #[must_use]
    pub const fn network(&self) -> &Network {
        self.network.as_ref().expect("a cluster with a network that can be cut")
    }

    /// The nodes use TLS with each other and with clients. [`Self::holder`] does not work with a TLS cluster.
    pub async fn start_tls(primaries: usize, replicas: usize, files: &TlsFiles) -> Self {
        Self::start_as(primaries, replicas, &RedisOptions::default(), Some(files), None).await
    }

    async fn start_as(
        primaries: usize,
        replicas: usize,
        options: &RedisOptions,
        tls: Option<&TlsFiles>,
        mut network: Option<Network>,
    ) -> Self {
        let mut servers = Vec::new();
        let mut bus_ports = Vec::new();
        let mut tls_ports = Vec::new();
        let mut announced = Vec::new();
        for index in 0..primaries * (1 + replicas) {
            let mut own = options.clone();
            if let Some(files) = tls {
                let (arguments, port) = files.arguments().await;
                own.extra_args.extend(arguments.into_iter().chain(["--tls-cluster", "yes"].map(str::to_owned)));
                tls_ports.push(port);
            }
            let (server, bus_port) = match &mut network {
                None => node(own).await,
                Some(network) => {
                    let (server, port, bus_port) = node_apart(network, index, own).await;
                    announced.push(port);
                    (server, bus_port)
                }
            };
            servers.push(server);
            bus_ports.push(bus_port);
        }
        let cluster = Self { servers, primaries, tls_ports, network, announced };
        cluster.divide().await;
        for (index, bus_port) in bus_ports.iter().enumerate().skip(1) {
            let port = cluster.announced(index);
            cluster.cluster_command::<()>(0, &["MEET", "127.0.0.1", &port, &bus_port.to_string()]).await;
        }
        cluster.wait_until("all have met", |nodes, _| nodes.len() == cluster.servers.len()).await;
        for index in primaries..cluster.servers.len() {
            let primary = cluster.id((index - primaries) % primaries).await;
            // The replica rejects the command until it knows the primary.
            cluster.until_done(index, &["REPLICATE", &primary]).await;
        }
        let replicating = primaries * replicas;
        cluster
            .wait_until("the cluster is whole", |nodes, info| {
                let slaves = nodes.iter().filter(|node| node.flags.contains("slave")).count();
                info.contains("cluster_state:ok") && slaves == replicating
            })
            .await;
        for primary in 0..primaries {
            cluster.replicated(primary, replicas).await;
        }
        cluster
    }

    /// The seeds are the initial primaries, even if they are no longer primaries.
    #[must_use]
    pub fn url(&self) -> String {
        if !self.tls_ports.is_empty() {
            let seeds: Vec<String> = self.tls_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            return format!("rediss+cluster://{}", seeds[..self.primaries].join(","));
        }
        let seeds: Vec<String> = (0..self.primaries).map(|index| self.address(index)).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    #[must_use]
    pub fn address(&self, server: usize) -> String {
        format!("127.0.0.1:{}", self.port(server))
    }

    pub async fn slot(&self, key: &str) -> u16 {
        let asked = self.any_living().await;
        self.cluster_command(asked, &["KEYSLOT", key]).await
    }

    /// The holder according to most of the responding servers; `None` if no server reports a holder.
    pub async fn holder(&self, slot: u16) -> Option<usize> {
        let mut says = BTreeMap::new();
        for server in 0..self.servers.len() {
            let nodes = self.nodes(server).await.unwrap_or_default();
            let dead = |node: &NodeLine| node.flags.split(',').any(|flag| flag == "fail");
            let holder = nodes.into_iter().find(|node| !dead(node) && node.slots.iter().any(|s| s.contains(&slot)));
            if let Some(holder) = holder {
                *says.entry(holder.port).or_insert(0) += 1;
            }
        }
        let (port, _) = says.into_iter().max_by_key(|(_, count)| *count)?;
        let found = (0..self.servers.len()).find(|server| self.announced(*server) == port);
        Some(found.expect("the nodes name a server of theirs"))
    }

    /// Waits until most servers report a server other than `before`.
    pub async fn another_holder(&self, slot: u16, before: usize) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.holder(slot).await {
                Some(holder) if holder != before => return holder,
                _ if Instant::now() < deadline => sleep(STEP).await,
                found => panic!("slot {slot} was not taken over within {PATIENCE:?}: {found:?}"),
            }
        }
    }

    /// An initial primary and its replica are partners, even after a failover. Requires one replica per primary.
    #[must_use]
    pub const fn partner(&self, server: usize) -> usize {
        (server + self.primaries) % (2 * self.primaries)
    }

    /// A server other than `server` and its partner that holds a slot from the middle of another primary's initial
    /// range. `None` if the servers report no such holder.
    pub async fn elsewhere(&self, server: usize) -> Option<usize> {
        let part = SLOTS / u16::try_from(self.primaries).ok()?;
        for next in 1..self.primaries {
            let index = u16::try_from((server + next) % self.primaries).ok()?;
            if let Some(found) = self
                .holder(index * part + part / 2)
                .await
                .filter(|found| found % self.primaries != server % self.primaries)
            {
                return Some(found);
            }
        }
        None
    }

    /// All servers run during the failover.
    pub async fn fail_over_to(&self, server: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let info: Option<String> = self.command(server, &["INFO", "replication"]).await;
            if info.is_some_and(|info| info.contains("role:master")) {
                return;
            }
            assert!(Instant::now() < deadline, "server {server} did not take over within {PATIENCE:?}");
            // The server rejects the command while its link to the primary is down, or while a failover is in progress.
            let _: Option<String> = self.command(server, &["CLUSTER", "FAILOVER"]).await;
            sleep(STEP * 10).await;
        }
    }

    async fn command<T: redis::FromRedisValue>(&self, server: usize, words: &[&str]) -> Option<T> {
        let mut connection = crate::connect(&self.servers[server].url()).await.ok()?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.ok()
    }

    /// Waits until `server` rejects a write of `key` with the error code `word`, such as `CLUSTERDOWN`.
    pub async fn refuses(&self, server: usize, key: &str, word: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut connection = self.servers[server].connection().await;
            let set = redis::cmd("SET").arg(key).arg("").arg("PX").arg(1).to_owned();
            let said: redis::RedisResult<String> = set.query_async(&mut connection).await;
            if said.as_ref().is_err_and(|error| error.code() == Some(word)) {
                return;
            }
            assert!(Instant::now() < deadline, "server {server} asked to write {key}: {said:?}");
            sleep(STEP).await;
        }
    }

    /// From now on, `from` responds with `ASK` for keys that it does not have, and `to` accepts such keys from
    /// redirected clients.
    pub async fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let source = self.id(from).await;
        let target = self.id(to).await;
        self.cluster_command::<()>(to, &["SETSLOT", &slot, "IMPORTING", &source]).await;
        self.cluster_command::<()>(from, &["SETSLOT", &slot, "MIGRATING", &target]).await;
    }

    pub async fn keys_in(&self, slot: u16, server: usize) -> Vec<Vec<u8>> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("GETKEYSINSLOT").arg(slot).arg(1_000_000);
        command.query_async(&mut self.servers[server].connection().await).await.expect("the keys of a slot")
    }

    /// Moves keys of a migrating slot one by one, in the order of `keys`. Waits while the cluster is down.
    pub async fn move_keys(&self, keys: &[Vec<u8>], from: usize, to: usize) {
        let mut source = self.servers[from].connection().await;
        let port = self.port(to);
        for key in keys {
            let mut command = redis::cmd("MIGRATE");
            command.arg("127.0.0.1").arg(&port).arg(key.as_slice()).arg(0).arg(10_000);
            let deadline = Instant::now() + PATIENCE;
            let said: String = loop {
                match command.query_async(&mut source).await {
                    Ok(said) => break said,
                    // On an overloaded machine, primaries sometimes consider each other dead for a moment.
                    Err(error) if is_down(&error) && Instant::now() < deadline => sleep(STEP).await,
                    Err(error) => panic!("a key that moves: {error}"),
                }
            };
            // `NOKEY`: the key has expired or was removed.
            assert!(matches!(said.as_str(), "OK" | "NOKEY"), "{said}");
        }
    }

    /// `to` must have all keys of the slot. `to` gets the command first, so that the slot always has an owner.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let target = self.id(to).await;
        for server in [to, from] {
            self.cluster_command::<()>(server, &["SETSLOT", &slot, "NODE", &target]).await;
        }
    }

    /// Uses `MIGRATESLOTS` (Valkey 9). Returns false if the server does not support the command.
    pub async fn move_whole(&self, slot: u16, from: usize, to: usize) -> bool {
        let slot_text = slot.to_string();
        let target = self.id(to).await;
        let words = ["MIGRATESLOTS", "SLOTSRANGE", &slot_text, &slot_text, "NODE", &target];
        if self.try_cluster_command::<()>(from, &words).await.is_err() {
            return false;
        }
        self.another_holder(slot, from).await;
        true
    }

    /// Waits until `replicas` replicas have all of the primary's current data.
    pub async fn replicated(&self, primary: usize, replicas: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.following(primary).await < replicas {
            assert!(Instant::now() < deadline, "the replicas of server {primary} do not follow within {PATIENCE:?}");
            sleep(STEP).await;
        }
    }

    /// Counts only replicas that have the data from the beginning of this call.
    async fn following(&self, primary: usize) -> usize {
        let offsets = |info: &str| -> (u64, Vec<u64>) {
            let number = |text: &str| text.trim().parse().unwrap_or(0);
            let own = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).map_or(0, number);
            let replica = |line: &str| {
                let online = line.starts_with("slave") && line.contains("state=online");
                let offset = line.split(',').find_map(|field| field.strip_prefix("offset="))?;
                online.then(|| number(offset))
            };
            (own, info.lines().filter_map(replica).collect())
        };
        let mut connection = self.servers[primary].connection().await;
        let mut first = None;
        // Poll, because a replica reports its offset only once a second.
        for _ in 0..60 {
            let info: String =
                redis::cmd("INFO").arg("replication").query_async(&mut connection).await.expect("the primary answers");
            let (own, replicas) = offsets(&info);
            let wanted = *first.get_or_insert(own);
            let have = replicas.iter().filter(|offset| **offset >= wanted).count();
            if have > 0 && have == replicas.len() {
                return have;
            }
            sleep(STEP).await;
        }
        0
    }

    async fn divide(&self) {
        let count = usize::from(SLOTS);
        let primaries = self.primaries;
        for primary in 0..primaries {
            let first = primary * count / primaries;
            let last = (primary + 1) * count / primaries - 1;
            self.cluster_command::<()>(primary, &["ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await;
            // Each primary gets its own epoch. With equal epochs, the nodes would first have to resolve the conflict.
            self.cluster_command::<()>(primary, &["SET-CONFIG-EPOCH", &(primary + 1).to_string()]).await;
        }
    }

    /// `is` takes the node's list of nodes and its `CLUSTER INFO`, and must hold for every node.
    async fn wait_until(&self, what: &str, is: impl Fn(&[NodeLine], &str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        for server in 0..self.servers.len() {
            loop {
                let info: String = self.cluster_command(server, &["INFO"]).await;
                let nodes = self.nodes(server).await.unwrap_or_default();
                if is(&nodes, &info) {
                    break;
                }
                assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}; {info} {nodes:?}");
                sleep(STEP).await;
            }
        }
    }

    async fn until_done(&self, server: usize, words: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.try_cluster_command::<()>(server, words).await {
            assert!(Instant::now() < deadline, "CLUSTER {words:?}: {error}");
            sleep(STEP).await;
        }
    }

    async fn cluster_command<T: redis::FromRedisValue>(&self, server: usize, words: &[&str]) -> T {
        self.try_cluster_command(server, words).await.unwrap_or_else(|error| panic!("CLUSTER {words:?}: {error}"))
    }

    async fn try_cluster_command<T: redis::FromRedisValue>(
        &self,
        server: usize,
        words: &[&str],
    ) -> redis::RedisResult<T> {
        let mut connection: MultiplexedConnection = crate::connect(&self.servers[server].url()).await?;
        redis::cmd("CLUSTER").arg(words).query_async(&mut connection).await
    }

    async fn any_living(&self) -> usize {
        for server in 0..self.servers.len() {
            if self.try_cluster_command::<String>(server, &["INFO"]).await.is_ok() {
                return server;
            }
        }
        panic!("no server of the cluster answers");
    }

    async fn id(&self, server: usize) -> String {
        self.cluster_command(server, &["MYID"]).await
    }

    fn port(&self, server: usize) -> String {
        port_of(&self.servers[server])
    }

    fn announced(&self, server: usize) -> String {
        self.announced.get(server).map_or_else(|| self.port(server), ToString::to_string)
    }

    async fn nodes(&self, server: usize) -> Option<Vec<NodeLine>> {
        let text: String = timeout(ANSWER, self.try_cluster_command(server, &["NODES"])).await.ok()?.ok()?;
        let line = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let address = words.get(1)?.split('@').next()?;
            Some(NodeLine {
                id: (*words.first()?).to_owned(),
                port: address.rsplit(':').next()?.to_owned(),
                flags: (*words.get(2)?).to_owned(),
                slots: words.iter().skip(8).filter_map(|range| slots_of(range)).collect(),
            })
        };
        Some(text.lines().filter_map(line).filter(|node| !node.id.is_empty()).collect())
    }
}

/// Parses `0-5460` or `7`. `None` for a migrating slot (`[7->-…]`).
fn slots_of(range: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Also returns the port of the cluster bus. The default, the port plus 10,000, can exceed the highest valid port.
async fn node(options: RedisOptions) -> (RedisServer, u16) {
    let mut last = String::new();
    for _ in 0..PORT_TRIES {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let bus_port = free.local_addr().expect("its number").port();
        drop(free);
        let bus = bus_port.to_string();
        let silence = NODE_TIMEOUT.as_millis().to_string();
        let own = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", &silence];
        let pace = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
        // Allow a replica with old data to take over, and keep replicas with their primary.
        let lenient = ["--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"];
        let args = own.iter().chain(&pace).chain(&lenient).map(|arg| (*arg).to_owned());
        let extra_args = args.chain(options.extra_args.iter().cloned()).collect();
        match RedisServer::try_start_with(RedisOptions { tcp: true, extra_args, ..options.clone() }).await {
            Ok(server) => return (server, bus_port),
            Err(error) => last = error.to_string(),
        }
    }
    panic!("a test needs a node of a cluster: {last}");
}

/// Also returns the port and the bus port under which the other nodes know this node.
async fn node_apart(network: &mut Network, index: usize, options: RedisOptions) -> (RedisServer, u16, u16) {
    let door: PortProxy = network.door(index).await;
    let bus_door: PortProxy = network.door(index).await;
    let own = [
        ("--cluster-announce-ip", "127.0.0.1".to_owned()),
        ("--cluster-announce-port", door.port.to_string()),
        ("--cluster-announce-bus-port", bus_door.port.to_string()),
        ("--bind-source-addr", address_of(index).to_string()),
    ];
    let own = own.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    let extra_args = own.chain(options.extra_args.iter().cloned()).collect();
    let (server, bus_port) = node(RedisOptions { extra_args, ..options }).await;
    door.behind.set(port_of(&server).parse().expect("a port")).expect("a door of its own");
    bus_door.behind.set(bus_port).expect("a door of its own");
    (server, door.port, bus_door.port)
}

fn port_of(server: &RedisServer) -> String {
    server.url().trim_end_matches('/').rsplit(':').next().unwrap_or_default().to_owned()
}

/// Also true if the server forwards this error of another server.
fn is_down(error: &redis::RedisError) -> bool {
    error.code() == Some("CLUSTERDOWN") || error.detail().is_some_and(|detail| detail.contains("CLUSTERDOWN"))
}
