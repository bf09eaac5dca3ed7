//! Opens connections to Redis: over the network, or in memory in a simulation.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};

/// Opens connections to one Redis server.
#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens a connection with the timeouts of `config`.
    ///
    /// # Errors
    /// The server cannot be reached in time, or refuses the login.
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection>;

    /// Host and port, or socket path. For sentinels or a cluster, the nodes that report the address. Never a password.
    fn address(&self) -> String;

    /// Address of the primary at the last search, or why the search failed. `None` if the address is fixed, or before
    /// the first search.
    fn primary(&self) -> Option<Result<String, String>> {
        None
    }

    /// Interval of checks whether the primary has changed; `None` if the address is fixed.
    fn looks_every(&self) -> Option<Duration> {
        None
    }

    /// Returns true if a server other than `from` is now reported as the primary, and confirms that it is.
    async fn has_moved(&self, _from: &str) -> bool {
        false
    }

    /// Returns the redirection if the slot is moving or has moved to another node of the cluster: its missing keys have
    /// moved and are not lost. `None` if the server has all keys that exist.
    async fn is_on_its_way(&self, _connection: &mut MultiplexedConnection) -> Option<RedisError> {
        None
    }

    /// The primary that each sentinel reports now; empty without sentinels.
    async fn sentinels(&self) -> Vec<SentinelReport> {
        Vec::new()
    }
}

/// The report of one sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelReport {
    /// Its host and port.
    pub sentinel: String,
    /// Host and port of the primary, or why the sentinel reports none.
    pub primary: Result<String, String>,
}
