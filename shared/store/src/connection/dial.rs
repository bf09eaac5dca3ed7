//! Where connections to Redis come from: the network, or, in a simulation, memory.

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

    /// Host and port, or socket path; or who is asked for them. Never a password.
    fn address(&self) -> String;

    /// Where the primary was found last, or why it was not; none where nobody is asked for it, or nobody was yet.
    fn primary(&self) -> Option<Result<String, String>> {
        None
    }

    /// How often to look whether the primary is still the same; none where nobody is asked for it.
    fn looks_every(&self) -> Option<Duration> {
        None
    }

    /// Whether those who are asked for the primary name another one now than this, which they are right about.
    async fn has_moved(&self, _from: &str) -> bool {
        false
    }

    /// What the server behind `connection` says of the slot of a cluster that is no longer, or not only, there: its keys are
    /// gone from there and not lost. None where the keys are all that there are.
    async fn is_on_its_way(&self, _connection: &mut MultiplexedConnection) -> Option<RedisError> {
        None
    }

    /// What each of those who are asked for the primary says now; nobody, where the address is the primary's own.
    async fn sentinels(&self) -> Vec<SentinelSays> {
        Vec::new()
    }
}

/// The answer of one sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelSays {
    /// Its host and port.
    pub sentinel: String,
    /// Host and port of the primary, or why it names none.
    pub primary: Result<String, String>,
}
