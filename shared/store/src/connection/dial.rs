//! The source of connections to Redis: the network, or memory in a simulation.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};

/// Makes connections to one Redis server.
#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync {
    /// A new connection with the timeouts of `config`.
    ///
    /// # Errors
    /// The server cannot be reached in time, or refuses the login.
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection>;

    /// Host and port, or socket path, or the nodes that report them. Never a password.
    fn address(&self) -> String;

    /// Address of the primary at the last search, or why it was not found. `None` if the address is fixed, or before
    /// the first search.
    fn primary(&self) -> Option<Result<String, String>> {
        None
    }

    /// Interval of checks whether the primary has changed; `None` if the address is fixed.
    fn looks_every(&self) -> Option<Duration> {
        None
    }

    /// Returns true if another server than `from` is now reported as the primary, and confirms it.
    async fn has_moved(&self, _from: &str) -> bool {
        false
    }

    /// The redirection for a slot that is moving, or has moved, to another node of the cluster: its missing keys have
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
    /// Host and port of the primary, or why it reports none.
    pub primary: Result<String, String>,
}
