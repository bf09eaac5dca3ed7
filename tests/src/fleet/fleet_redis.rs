//! The Redis of a fleet: one server, a server with Sentinels, or a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use tickfleet_testkit::{Cluster, RedisServer, SentinelSetup};

/// `single`, `sentinel` or `cluster`. Ignored by tests that pass a server.
const VARIABLE: &str = "TICKFLEET_TEST_REDIS";

pub struct FleetRedis {
    pub server: RedisServer,
    /// For schedulers and workers. `None` if they use the URL of `server`.
    pub url: Option<String>,
    pub around: OtherServers,
}

#[derive(Default)]
pub struct OtherServers {
    /// Replicas, or the other nodes of a cluster.
    pub servers: Vec<RedisServer>,
    _sentinels: Option<SentinelSetup>,
}

impl FleetRedis {
    pub fn of(server: RedisServer) -> Self {
        Self { server, url: None, around: OtherServers::default() }
    }

    #[allow(clippy::disallowed_methods, reason = "a switch for whoever runs the tests")]
    pub async fn wanted(namespace: &str) -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "single") => Self::of(RedisServer::start().await),
            Ok("sentinel") => {
                let mut trio = SentinelSetup::start(1).await;
                let url = trio.url();
                let mut servers = std::mem::take(&mut trio.servers);
                Self {
                    server: servers.remove(0),
                    url: Some(url),
                    around: OtherServers { servers, _sentinels: Some(trio) },
                }
            }
            Ok("cluster") => {
                let cluster = Cluster::start(3, 0).await;
                let holder = cluster.holder(cluster.slot(&format!("{{{namespace}:0}}:")).await).await.unwrap();
                let url = cluster.url();
                let mut servers = cluster.servers;
                Self {
                    server: servers.remove(holder),
                    url: Some(url),
                    around: OtherServers { servers, _sentinels: None },
                }
            }
            Ok(other) => panic!("{VARIABLE} is {other:?}, and not single, sentinel or cluster"),
        }
    }

    pub fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.server.url())
    }
}
