//! What a fleet's Redis is: one server, or one that sentinels watch, or a node of a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use tickfleet_testkit::{Cluster, RedisServer, Trio};

/// Has every fleet that brings no server of its own run on another kind: `single`, `sentinel` or `cluster`.
const VARIABLE: &str = "TICKFLEET_TEST_REDIS";

/// The server that has the keys of the fleet's one shard, and what stands around it.
pub struct Place {
    /// That server.
    pub server: RedisServer,
    /// How schedulers and workers reach it, where that is not its own URL.
    pub url: Option<String>,
    /// What stands around it.
    pub around: Around,
}

/// What stands around a fleet's server, and ends with the fleet.
#[derive(Default)]
pub struct Around {
    /// Replicas, or the other nodes.
    pub servers: Vec<RedisServer>,
    _sentinels: Option<Trio>,
}

impl Place {
    /// One server.
    pub fn of(server: RedisServer) -> Self {
        Self { server, url: None, around: Around::default() }
    }

    /// What the environment asks for; one server by default.
    #[allow(clippy::disallowed_methods, reason = "a switch for whoever runs the tests")]
    pub async fn wanted(namespace: &str) -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "single") => Self::of(RedisServer::start().await),
            Ok("sentinel") => {
                let mut trio = Trio::start(1).await;
                let (url, mut servers) = (trio.url(), std::mem::take(&mut trio.servers));
                Self { server: servers.remove(0), url: Some(url), around: Around { servers, _sentinels: Some(trio) } }
            }
            Ok("cluster") => {
                let cluster = Cluster::start(3, 0).await;
                let holder = cluster.holder(cluster.slot(&format!("{{{namespace}:0}}:")).await).await.unwrap();
                let (url, mut servers) = (cluster.url(), cluster.servers);
                Self { server: servers.remove(holder), url: Some(url), around: Around { servers, _sentinels: None } }
            }
            Ok(other) => panic!("{VARIABLE} is {other:?}, and not single, sentinel or cluster"),
        }
    }

    /// How schedulers and workers reach it.
    pub fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.server.url())
    }
}
