//! A primary, its replicas, and three sentinels that watch over them.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use tickfleet_ops::redis_server::{Listen, PrivateRedis, ServerOptions};

use crate::network::{Door, address_of};
use crate::{Network, RedisOptions, RedisServer, TlsFiles, connect};

/// What the sentinels call the primary.
const NAME: &str = "fleet";
/// Sentinels; most of them must agree on a failover.
const SENTINELS: usize = 3;
/// After so much silence a sentinel takes a server for dead.
const DOWN_AFTER: Duration = Duration::from_millis(1_000);
/// The longest wait for what must come: a replica, a failover.
const PATIENCE: Duration = Duration::from_secs(60);
/// Wait between two looks.
const STEP: Duration = Duration::from_millis(20);
/// Sentinels ask and tell each other often, so that tests need not wait for it; a busy machine does not make them
/// believe that the clock was moved. Of a replica whose primary is down they hear once a second (`INFO`), whatever is set
/// here, and promote none of which they have heard for longer than five times the pause between two `PING`: were that a
/// second, too, one that answers a moment late would be unfit, and they try again twice a `failover-timeout` later. Who sees
/// a server promoted makes it a replica again unless a sentinel has told of it within four times the pause between two
/// `PUBLISH`: a busy machine needs seconds for that.
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

/// The servers and the sentinels, all on ports of 127.0.0.1. They end with it.
#[derive(Debug)]
pub struct Trio {
    /// The primary of the beginning, and its replicas.
    pub servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
    speaks_tls: bool,
    /// Where sentinels and clients reach each server.
    ports: Vec<String>,
    /// What is between all of them, if it can be cut.
    network: Option<Network>,
}

#[derive(Debug)]
struct Sentinel {
    // Dropped before its folder.
    server: PrivateRedis,
    /// Where clients reach it.
    port: String,
    _dir: TempDir,
}

impl Trio {
    /// Starts a primary with so many replicas, and waits until the sentinels know all of them and each other.
    ///
    /// # Panics
    /// One of them does not start, or does not find the others.
    pub async fn start(replicas: usize) -> Self {
        Self::start_of(replicas, &RedisOptions::default(), false).await
    }

    /// As [`Self::start`], with more arguments and another program for each server, and with a network between servers and
    /// sentinels that can be cut ([`Self::network`]) or without.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_of(replicas: usize, options: &RedisOptions, is_apart: bool) -> Self {
        Self::start_as(replicas, options, None, is_apart.then(Network::new)).await
    }

    /// As [`Self::start_of`], with a network.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_apart(replicas: usize, extra_args: &[&str]) -> Self {
        Self::start_of(replicas, &RedisOptions::with(extra_args), true).await
    }

    /// What is between the servers and the sentinels of [`Self::start_apart`], which have the numbers behind theirs: of two
    /// servers, sentinel 0 is 2.
    ///
    /// # Panics
    /// It was started otherwise.
    #[must_use]
    pub const fn network(&self) -> &Network {
        self.network.as_ref().expect("a trio with a network that can be cut")
    }

    /// How many servers and sentinels there are on the network.
    #[must_use]
    pub const fn on_network(&self) -> usize {
        self.servers.len() + SENTINELS
    }

    /// As [`Self::start`], where all speak TLS, with each other and with clients. [`Self::primary`] knows nothing of such.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_tls(replicas: usize, files: &TlsFiles) -> Self {
        Self::start_as(replicas, &RedisOptions::default(), Some(files), None).await
    }

    async fn start_as(
        replicas: usize,
        options: &RedisOptions,
        tls: Option<&TlsFiles>,
        mut network: Option<Network>,
    ) -> Self {
        let (mut servers, mut ports, mut sentinels) = (Vec::new(), Vec::<String>::new(), Vec::new());
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

    /// The URL of the primary, whichever server that is.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_by(0..SENTINELS)
    }

    /// The URL of the primary for somebody who knows these sentinels alone.
    #[must_use]
    pub fn url_by(&self, sentinels: std::ops::Range<usize>) -> String {
        let hosts: Vec<String> = self.sentinels[sentinels].iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        let scheme = if self.speaks_tls { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The port at which sentinels name this server.
    #[must_use]
    pub fn port(&self, server: usize) -> &str {
        &self.ports[server]
    }

    /// Which server the sentinels say is the primary, if most of them say the same.
    ///
    /// # Panics
    /// They name none of the servers.
    pub async fn primary(&self) -> Option<usize> {
        let mut says = BTreeMap::new();
        for sentinel in &self.sentinels {
            let command = ["GET-MASTER-ADDR-BY-NAME", NAME];
            if let Some((_, port)) = sentinel.told::<Option<(String, String)>>(&command).await.flatten() {
                *says.entry(port).or_insert(0) += 1;
            }
        }
        let (port, _) = says.into_iter().find(|(_, count)| *count > SENTINELS / 2)?;
        let found = self.ports.iter().position(|own| *own == port);
        Some(found.expect("the sentinels name a server of theirs"))
    }

    /// Waits until most sentinels name another primary than `before`, and answers which.
    ///
    /// # Panics
    /// There is none in time.
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

    /// Has a replica promoted while all servers live. A sentinel gives up where it finds the replica unfit, as one is that
    /// has just come back: then it is asked again.
    ///
    /// # Panics
    /// None is promoted in time.
    pub async fn fail_over(&self) {
        let first = &self.sentinels[0];
        let names = || async {
            let named = first.told::<Option<(String, String)>>(&["GET-MASTER-ADDR-BY-NAME", NAME]).await.flatten();
            named.map(|(_, port)| port)
        };
        let deadline = Instant::now() + PATIENCE;
        // One that was cut off hears a moment later who the primary is.
        let before = loop {
            let (named, primary) = (names().await, self.primary().await);
            if named.as_deref() == primary.map(|primary| self.port(primary)) && named.is_some() {
                break named;
            }
            assert!(Instant::now() < deadline, "the sentinels name different primaries for {PATIENCE:?}");
            sleep(STEP).await;
        };
        loop {
            let state = first.told::<BTreeMap<String, String>>(&["MASTER", NAME]).await.unwrap_or_default();
            // It names the new one before it says that its failover is over.
            if names().await != before {
                return;
            }
            assert!(Instant::now() < deadline, "no replica was promoted within {PATIENCE:?}");
            // Asked while it is at it, it might turn back what it has just done.
            if state.get("flags").is_some_and(|flags| !flags.contains("failover_in_progress")) {
                let _: Option<()> = first.told(&["FAILOVER", NAME]).await;
            }
            sleep(STEP).await;
        }
    }

    /// Has the server `wanted` promoted while all live, and waits until most sentinels name it.
    ///
    /// # Panics
    /// It is not in time.
    pub async fn fail_over_to(&self, wanted: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.primary().await {
                Some(primary) if primary == wanted => return,
                Some(before) => {
                    self.fail_over().await;
                    // The one that was asked knows it first.
                    self.another_primary(before).await;
                }
                None => sleep(STEP).await,
            }
            assert!(Instant::now() < deadline, "server {wanted} is not the primary within {PATIENCE:?}");
        }
    }

    /// Kills this sentinel.
    ///
    /// # Panics
    /// The system refuses.
    pub fn kill_sentinel(&mut self, index: usize) {
        self.sentinels[index].server.kill9().expect("kill a sentinel");
    }

    /// Has the server `primary` lose its replicas, which do not come back until they are let in again: what is written to it
    /// now, nobody else has.
    ///
    /// # Panics
    /// The primary does not answer.
    pub async fn cut_replicas(&self, primary: usize) {
        self.servers[primary].cut_replicas().await;
    }

    async fn until_known(&self, replicas: usize) {
        let deadline = Instant::now() + PATIENCE;
        let wanted = [("num-slaves", replicas), ("num-other-sentinels", SENTINELS - 1)];
        for sentinel in &self.sentinels {
            loop {
                let says: BTreeMap<String, String> = sentinel.told(&["MASTER", NAME]).await.unwrap_or_default();
                if wanted.iter().all(|(field, count)| says.get(*field) == Some(&count.to_string())) {
                    break;
                }
                assert!(Instant::now() < deadline, "not known within {PATIENCE:?}: {says:?}");
                sleep(STEP).await;
            }
        }
        self.replicated(0, replicas).await;
    }

    /// Waits until so many replicas have all that the server `primary` has now.
    ///
    /// # Panics
    /// They do not in time.
    pub async fn replicated(&self, primary: usize, replicas: usize) {
        let mut connection = self.servers[primary].connection().await;
        // A replica has what was written before a write of this connection, too.
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("replicated").arg("").arg("PX").arg(1).ignore();
        pipe.cmd("WAIT").arg(replicas).arg(0);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let waited = timeout(PATIENCE, pipe.query_async::<(usize,)>(&mut connection)).await;
            match waited.expect("the replicas follow") {
                Ok(_) => return,
                // A primary that wants replicas has none yet.
                Err(_) if Instant::now() < deadline => sleep(STEP).await,
                Err(error) => panic!("the primary answers: {error}"),
            }
        }
    }
}

impl Sentinel {
    /// Watches over the primary at this port. On a network it is reached through a door, and has a number there.
    async fn start(port: &str, tls: Option<&TlsFiles>, apart: Option<(usize, Door)>) -> Self {
        let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().expect("a temporary folder for a sentinel");
        let config = dir.path().join("sentinel.conf");
        let quorum = SENTINELS / 2 + 1;
        let down_after = DOWN_AFTER.as_millis();
        let mut text = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} {quorum}\nsentinel down-after-milliseconds {NAME} {down_after}\n\
             sentinel failover-timeout {NAME} 6000\n"
        );
        if let Some((own, door)) = &apart {
            let (port, address) = (door.port, address_of(*own));
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
        let () = sentinel.told(&pace).await.expect("a sentinel that takes another pace");
        sentinel
    }

    /// The answer to `SENTINEL …`; none where it does not answer.
    async fn told<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let mut connection: MultiplexedConnection = connect(&self.server.url()).await.ok()?;
        redis::cmd("SENTINEL").arg(words).query_async(&mut connection).await.ok()
    }
}

/// A door before this one of servers and sentinels, if there is a network between them.
async fn door_of(network: Option<&mut Network>, own: usize) -> Option<Door> {
    Some(network?.door(own).await)
}

/// The port at which others reach whoever listens at this one.
fn behind(door: Option<Door>, port: String) -> String {
    let Some(door) = door else { return port };
    door.behind.set(port.parse().expect("a port")).expect("a door of its own");
    door.port.to_string()
}

/// A server, and the port at which it listens.
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
