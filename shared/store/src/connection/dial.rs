//! Opens connections to Redis: over the network, or in memory in a simulation.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};

#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection>;

    /// Never contains a password. For sentinels or a cluster, the addresses of the nodes to ask.
    fn address(&self) -> String;

    /// The primary at the last search, or why the search failed. `None` for a fixed address, or before the first search
    /// ends.
    fn primary(&self) -> Option<Result<String, String>> {
        None
    }

    fn check_interval(&self) -> Option<Duration> {
        None
    }

    /// True if a server other than `from` is reported, and confirms that it is the primary.
    async fn has_moved(&self, _from: &str) -> bool {
        false
    }

    /// Set if the slot is moving or has moved to another node. Keys that are missing on this node are then on the other
    /// node.
    async fn migration_redirect(&self, _connection: &mut MultiplexedConnection) -> Option<RedisError> {
        None
    }

    async fn sentinels(&self) -> Vec<SentinelReport> {
        Vec::new()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelReport {
    /// Host and port.
    pub sentinel: String,
    /// The error says why the sentinel reports none.
    pub primary: Result<String, String>,
}
