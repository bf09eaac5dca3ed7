//! What a fleet's Redis may be, and the faults that it can have. Another kind of it is another variant.

use std::time::Duration;

use tickfleet_testkit::{RedisOptions, RedisServer, Trio};
use tokio::time::{Instant, sleep};

use super::PATIENCE;
use super::parts::Proxy;

/// The faults of both targets; the others follow.
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
const OF_SENTINELS: [&str; 2] = ["fail over", "kill a primary whose replica lags"];

/// What the fleet's Redis is.
pub enum Target {
    One(Box<RedisServer>, Proxy),
    Sentinels(Trio),
}

impl Target {
    pub async fn one() -> Self {
        let extra_args = ["--auto-aof-rewrite-percentage", "0"].map(String::from).into();
        let options = RedisOptions { appendonly: true, tcp: true, extra_args, ..RedisOptions::default() };
        let server = RedisServer::start_with(options).await;
        let proxy = Proxy::before(server.url().trim_start_matches("redis://").trim_end_matches('/').to_owned()).await;
        Self::One(Box::new(server), proxy)
    }

    pub fn url(&self) -> String {
        match self {
            Self::One(_, proxy) => format!("redis://{}", proxy.address),
            Self::Sentinels(trio) => trio.url(),
        }
    }

    pub fn faults(&self) -> Vec<&'static str> {
        match self {
            Self::One(..) => [&FAULTS[..], &OF_ONE].concat(),
            Self::Sentinels(_) => [&FAULTS[..], &OF_SENTINELS].concat(),
        }
    }

    /// The server that is the primary now.
    pub async fn primary(&self) -> usize {
        let Self::Sentinels(trio) = self else { return 0 };
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(primary) = trio.primary().await {
                return primary;
            }
            // Sentinels tell nobody; bounded above.
            sleep(Duration::from_millis(50)).await;
        }
        panic!("no primary within {PATIENCE:?}");
    }

    pub fn server(&mut self, index: usize) -> &mut RedisServer {
        match self {
            Self::One(server, _) => server,
            Self::Sentinels(trio) => &mut trio.servers[index],
        }
    }

    /// A command past the proxy; what a server in trouble answers to it is its own affair.
    pub async fn ask(&mut self, words: &[&str]) -> Option<redis::Value> {
        let primary = self.primary().await;
        let mut connection = self.server(primary).connection().await;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.ok()
    }

    pub async fn text(&mut self, words: &[&str]) -> String {
        self.ask(words).await.and_then(|value| redis::from_redis_value(value).ok()).unwrap_or_default()
    }

    /// Kills the primary, with what its replica has not yet heard where `lag`, and starts it again.
    pub async fn kill(&mut self, lag: bool) {
        let primary = self.primary().await;
        if lag {
            self.server(1 - primary).pause();
            // So much is written meanwhile.
            sleep(Duration::from_millis(500)).await;
        }
        self.server(primary).kill9();
        match self {
            Self::One(server, _) => {
                // It stays away for a moment.
                sleep(Duration::from_millis(300)).await;
                server.restart().await;
            }
            Self::Sentinels(trio) => {
                if lag {
                    trio.servers[1 - primary].resume();
                }
                trio.another_primary(primary).await;
                trio.servers[primary].restart().await;
                self.followed().await;
            }
        }
    }

    /// Waits until whichever server is the primary has its replica beside it: sentinels may change their mind once more.
    pub async fn followed(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.text(&["INFO", "replication"]).await.contains("state=online") {
            assert!(Instant::now() < until, "no replica within {PATIENCE:?}");
            // Nobody tells; bounded above.
            sleep(Duration::from_millis(50)).await;
        }
    }
}
