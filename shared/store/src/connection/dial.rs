//! Opens connections to Redis: over the network, or in memory in a simulation.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};

#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection>;

    /// Host and port, or the socket path; for sentinels or a cluster, the nodes to ask. Never contains a password.
    fn address(&self) -> String;

    /// The primary at the last search, or why the search failed. `None` if the address is fixed, or before the first
    /// search has ended.
    fn primary(&self) -> Option<Result<String, String>> {
        None
    }

    /// Interval between checks of whether the primary has changed. `None` if the address is fixed.
    fn check_interval(&self) -> Option<Duration> {
        None
    }

    /// True if sentinels or nodes report a server other than `from` as the primary, and that server confirms that it is
    /// the primary.
    async fn has_moved(&self, _from: &str) -> bool {
        false
    }

    /// Returns the redirection if the slot is moving or has moved to another node. Keys that are missing here are then
    /// on the other node, and are not lost.
    async fn migration_redirect(&self, _connection: &mut MultiplexedConnection) -> Option<RedisError> {
        None
    }

    /// The primary that each sentinel reports now.
    async fn sentinels(&self) -> Vec<SentinelReport> {
        Vec::new()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelReport {
    /// Host and port.
    pub sentinel: String,
    /// Host and port of the primary, or why the sentinel reports none.
    pub primary: Result<String, String>,
}
