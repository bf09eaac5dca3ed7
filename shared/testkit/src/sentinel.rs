//! A primary, its replicas, and three sentinels that monitor them.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use tickfleet_ops::redis_server::{Listen, PrivateRedis, ServerOptions};

use crate::network::{PortProxy, address_of};
use crate::{Network, RedisOptions, RedisServer, TlsFiles, connect};

const NAME: &str = "fleet";
const SENTINELS: usize = 3;
const DOWN_AFTER: Duration = Duration::from_millis(1_000);
/// For any expected event, such as a replica or a failover.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);
/// Intervals of the sentinels in milliseconds, short so that tests do not wait. `TILT-TRIGGER` is long, so that
/// sentinels do not mistake a busy machine for a moved clock. Sentinels read `INFO` once a second, and do not promote a
/// replica if `INFO` is older than five times `PING-PERIOD`. Another sentinel must announce a promotion within four
/// times `PUBLISH-PERIOD`, which takes seconds on a busy machine.
const PACE: [&str; 14] = [
    "INFO-PERIOD",
    "200",
    "PUBLISH-PERIOD",
    "500",
    "PING-PERIOD",
    "600",
    "ASK-PERIOD",
    "200",
    "ELECTION-TIMEOUT",
    "3000",
    "TILT-TRIGGER",
    "20000",
    "DEFAULT-FAILOVER-TIMEOUT",
    "6000",
];

#[derive(Debug)]
pub struct SentinelSetup {
    pub servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
    speaks_tls: bool,
    /// Sentinels and clients use these ports.
    ports: Vec<String>,
    network: Option<Network>,
}

#[derive(Debug)]
struct Sentinel {
    // Declared before `_dir`, so that the server is dropped before its folder.
    server: PrivateRedis,
    port: String,
    _dir: TempDir,
}

impl SentinelSetup {
    /// Waits until the sentinels know all servers and each other.
    pub async fn start(replicas: usize) -> Self {
        Self::start_of(replicas, &RedisOptions::default(), false).await
    }

    /// `options` are for each server. If `is_apart`, servers and sentinels communicate over a network that can be cut
    /// ([`Self::network`]).
    pub async fn start_of(replicas: usize, options: &RedisOptions, is_apart: bool) -> Self {
        Self::start_as(replicas, options, None, is_apart.then(Network::new)).await
    }

    pub async fn start_apart(replicas: usize, extra_args: &[&str]) -> Self {
        Self::start_of(replicas, &RedisOptions::with(extra_args), true).await
    }

    /// In the network, the numbers of the sentinels follow those of the servers: with two servers, sentinel 0 has
    /// number 2.
    #[must_use]
    pub const fn network(&self) -> &Network {
        self.network.as_ref().expect("a trio with a network that can be cut")
    }

    #[must_use]
    pub const fn on_network(&self) -> usize {
        self.servers.len() + SENTINELS
    }

    /// Servers and sentinels use TLS with each other and with clients. [`Self::primary`] does not work with TLS.
    pub async fn start_tls(replicas: usize, files: &TlsFiles) -> Self {
        Self::start_as(replicas, &RedisOptions::default(), Some(files), None).await
    }

    async fn start_as(
        replicas: usize,
        options: &RedisOptions,
        tls: Option<&TlsFiles>,
        mut network: Option<Network>,
    ) -> Self {
        let mut servers = Vec::new();
        let mut ports = Vec::<String>::new();
        let mut sentinels = Vec::new();
        for index in 0..=replicas {
            let role = ports.first().map(|primary| ["--replicaof".to_owned(), "127.0.0.1".into(), primary.clone()]);
            let mut args: Vec<String> = role.into_iter().flatten().collect();
            args.extend(options.extra_args.iter().cloned());
            let door = door_of(network.as_mut(), index).await;
            if let Some(door) = &door {
                let announced =
                    ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", &door.port.to_string()];
                args.extend(announced.map(str::to_owned));
                args.extend(["--bind-source-addr".to_owned(), address_of(index).to_string()]);
            }
            let (server, port) = start(RedisOptions { extra_args: args, ..options.clone() }, tls).await;
            ports.push(behind(door, port));
            servers.push(server);
        }
        for index in 0..SENTINELS {
            let own = servers.len() + index;
            let door = door_of(network.as_mut(), own).await;
            sentinels.push(Sentinel::start(&ports[0], tls, door.map(|door| (own, door))).await);
        }
        let trio = Self { servers, sentinels, speaks_tls: tls.is_some(), ports, network };
        trio.until_known(replicas).await;
        trio
    }

    #[must_use]
    pub fn url(&self) -> String {
        self.url_by(0..SENTINELS)
    }

    #[must_use]
    pub fn url_by(&self, sentinels: std::ops::Range<usize>) -> String {
        let hosts: Vec<String> = self.sentinels[sentinels].iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        let scheme = if self.speaks_tls { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The port of the server, which the sentinels report.
    #[must_use]
    pub fn port(&self, server: usize) -> &str {
        &self.ports[server]
    }

    /// The primary according to a majority of the sentinels. `None` without a majority.
    pub async fn primary(&self) -> Option<usize> {
        let mut says = BTreeMap::new();
        for sentinel in &self.sentinels {
            let command = ["GET-MASTER-ADDR-BY-NAME", NAME];
            if let Some((_, port)) = sentinel.sentinel_command::<Option<(String, String)>>(&command).await.flatten() {
                *says.entry(port).or_insert(0) += 1;
            }
        }
        let (port, _) = says.into_iter().find(|(_, count)| *count > SENTINELS / 2)?;
        let found = self.ports.iter().position(|own| *own == port);
        Some(found.expect("the sentinels name a server of theirs"))
    }

    /// Waits until a majority of the sentinels names a primary other than `before`.
    pub async fn another_primary(&self, before: usize) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.primary().await {
                Some(primary) if primary != before => return primary,
                _ if Instant::now() < deadline => sleep(STEP).await,
                found => panic!("no failover within {PATIENCE:?}: {found:?}"),
            }
        }
    }

    /// Promotes a replica while all servers run. Requests the failover again if a sentinel considers the replica unfit,
    /// for example after a recent restart.
    pub async fn fail_over(&self) {
        let first = &self.sentinels[0];
        let names = || async {
            let named =
                first.sentinel_command::<Option<(String, String)>>(&["GET-MASTER-ADDR-BY-NAME", NAME]).await.flatten();
            named.map(|(_, port)| port)
        };
        let deadline = Instant::now() + PATIENCE;
        // After a cut network is joined, a sentinel takes a moment to learn the current primary.
        let before = loop {
            let named = names().await;
            let primary = self.primary().await;
            if named.as_deref() == primary.map(|primary| self.port(primary)) && named.is_some() {
                break named;
            }
            assert!(Instant::now() < deadline, "the sentinels name different primaries for {PATIENCE:?}");
            sleep(STEP).await;
        };
        loop {
            let state = first.sentinel_command::<BTreeMap<String, String>>(&["MASTER", NAME]).await.unwrap_or_default();
            // The sentinel names the new primary before it reports the end of its failover.
            if names().await != before {
                return;
            }
            assert!(Instant::now() < deadline, "no replica was promoted within {PATIENCE:?}");
            // A request during a failover could undo that failover.
            if state.get("flags").is_some_and(|flags| !flags.contains("failover_in_progress")) {
                let _: Option<()> = first.sentinel_command(&["FAILOVER", NAME]).await;
            }
            sleep(STEP).await;
        }
    }

    /// Waits until a majority of the sentinels names the server as the primary.
    pub async fn fail_over_to(&self, wanted: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.primary().await {
                Some(primary) if primary == wanted => return,
                Some(before) => {
                    self.fail_over().await;
                    // The sentinel that started the failover knows the new primary first. Wait until a majority knows
                    // it.
                    self.another_primary(before).await;
                }
                None => sleep(STEP).await,
            }
            assert!(Instant::now() < deadline, "server {wanted} is not the primary within {PATIENCE:?}");
        }
    }

    pub fn kill_sentinel(&mut self, index: usize) {
        self.sentinels[index].server.kill9().expect("kill a sentinel");
    }

    /// Data that is written to the primary from now on does not reach the replicas.
    pub async fn cut_replicas(&self, primary: usize) {
        self.servers[primary].cut_replicas().await;
    }

    async fn until_known(&self, replicas: usize) {
        let deadline = Instant::now() + PATIENCE;
        let wanted = [("num-slaves", replicas), ("num-other-sentinels", SENTINELS - 1)];
        for sentinel in &self.sentinels {
            loop {
                let says: BTreeMap<String, String> =
                    sentinel.sentinel_command(&["MASTER", NAME]).await.unwrap_or_default();
                if wanted.iter().all(|(field, count)| says.get(*field) == Some(&count.to_string())) {
                    break;
                }
                assert!(Instant::now() < deadline, "not known within {PATIENCE:?}: {says:?}");
                sleep(STEP).await;
            }
        }
        self.replicated(0, replicas).await;
    }

    /// Waits until `replicas` replicas have all of the primary's current data.
    pub async fn replicated(&self, primary: usize, replicas: usize) {
        let mut connection = self.servers[primary].connection().await;
        // If `WAIT` confirms this write, earlier writes of other connections are replicated too.
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("replicated").arg("").arg("PX").arg(1).ignore();
        pipe.cmd("WAIT").arg(replicas).arg(0);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let waited = timeout(PATIENCE, pipe.query_async::<(usize,)>(&mut connection)).await;
            match waited.expect("the replicas follow") {
                Ok(_) => return,
                // A primary with `min-replicas-to-write` rejects the write until it has a replica.
                Err(_) if Instant::now() < deadline => sleep(STEP).await,
                Err(error) => panic!("the primary answers: {error}"),
            }
        }
    }
}

impl Sentinel {
    /// `apart` has the sentinel's number and its proxy, if the network can be cut.
    async fn start(port: &str, tls: Option<&TlsFiles>, apart: Option<(usize, PortProxy)>) -> Self {
        let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().expect("a temporary folder for a sentinel");
        let config = dir.path().join("sentinel.conf");
        let quorum = SENTINELS / 2 + 1;
        let down_after = DOWN_AFTER.as_millis();
        let mut text = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} {quorum}\nsentinel down-after-milliseconds {NAME} {down_after}\n\
             sentinel failover-timeout {NAME} 6000\n"
        );
        if let Some((own, door)) = &apart {
            let port = door.port;
            let address = address_of(*own);
            text.push_str(&format!(
                "sentinel announce-ip 127.0.0.1\nsentinel announce-port {port}\nbind-source-addr {address}\n"
            ));
        }
        std::fs::write(&config, text).expect("write the sentinel's settings");
        let (mut extra_args, own_port) = match tls {
            Some(files) => files.arguments().await,
            None => (Vec::new(), 0),
        };
        extra_args.push("--sentinel".into());
        let options = ServerOptions {
            listen: Listen::Loopback(0),
            config: Some(config),
            extra_args,
            ..ServerOptions::new(dir.path())
        };
        let server = match PrivateRedis::start(options).await {
            Ok(server) => server,
            Err(error) => panic!("a test needs a sentinel: {error}"),
        };
        let port = if tls.is_some() { own_port.to_string() } else { port_of(&server.url()) };
        behind(apart.map(|(_, door)| door), port.clone());
        let sentinel = Self { server, port, _dir: dir };
        let pace: Vec<&str> = ["DEBUG"].into_iter().chain(PACE).collect();
        let () = sentinel.sentinel_command(&pace).await.expect("a sentinel that takes another pace");
        sentinel
    }

    async fn sentinel_command<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let mut connection: MultiplexedConnection = connect(&self.server.url()).await.ok()?;
        redis::cmd("SENTINEL").arg(words).query_async(&mut connection).await.ok()
    }
}

async fn door_of(network: Option<&mut Network>, own: usize) -> Option<PortProxy> {
    Some(network?.door(own).await)
}

/// The proxy forwards to `port`. Returns the proxy's port, or `port` without a proxy.
fn behind(door: Option<PortProxy>, port: String) -> String {
    let Some(door) = door else { return port };
    door.behind.set(port.parse().expect("a port")).expect("a door of its own");
    door.port.to_string()
}

async fn start(options: RedisOptions, tls: Option<&TlsFiles>) -> (RedisServer, String) {
    let mut extra_args = options.extra_args;
    extra_args.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"].map(str::to_owned));
    let mut own_port = None;
    if let Some(files) = tls {
        let (arguments, port) = files.arguments().await;
        extra_args.extend(arguments);
        own_port = Some(port.to_string());
    }
    let server = RedisServer::start_with(RedisOptions { tcp: true, extra_args, ..options }).await;
    let port = own_port.unwrap_or_else(|| port_of(&server.url()));
    (server, port)
}

fn port_of(url: &str) -> String {
    url.trim_end_matches('/').rsplit(':').next().unwrap_or_default().to_owned()
}
