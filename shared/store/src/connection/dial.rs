//! Opens connections to Redis: over the network, or in memory in a simulation.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};

#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync {
    /// # Errors
    /// The server cannot be reached in time, or refuses the login.
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection>;

    /// Returns the host and port, or the socket path. For sentinels or a cluster, returns the addresses of the nodes to
    /// ask. The result never contains a password.
    fn address(&self) -> String;

    /// Returns the primary's address at the last search, or why the search failed. `None` if the address is fixed, or
    /// before the first search has ended.
    fn primary(&self) -> Option<Result<String, String>> {
        None
    }

    /// Returns the interval between checks of whether the primary has changed. `None` if the address is fixed.
    fn check_interval(&self) -> Option<Duration> {
        None
    }

    /// Returns true if sentinels or nodes now report a server other than `from` as the primary. The reported server
    /// must also confirm that it is the primary.
    async fn has_moved(&self, _from: &str) -> bool {
        false
    }

    /// Returns the redirection if the slot is moving or has moved to another node of the cluster. Then keys that are
    /// missing here are on the other node, and are not lost. Returns `None` if this server has all keys of the slot.
    async fn migration_redirect(&self, _connection: &mut MultiplexedConnection) -> Option<RedisError> {
        None
    }

    /// Returns the primary that each sentinel reports now; empty without sentinels.
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
