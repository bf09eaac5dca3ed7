//! Where connections to Redis come from: the network, or, in a simulation, memory.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};

use super::error::StoreError;

/// Makes connections to one Redis server.
#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync {
    /// A new connection with the timeouts of `config`.
    ///
    /// # Errors
    /// The server cannot be reached in time, or refuses the login.
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection>;

    /// Host and port, or socket path. Never a password.
    fn address(&self) -> String;
}

/// What makes connections to `url`. Nothing is connected to yet.
///
/// # Errors
/// [`StoreError::Url`] where the URL cannot be read.
pub(super) fn to(url: &str) -> Result<Arc<dyn Dial>, StoreError> {
    Ok(Arc::new(redis::Client::open(url).map_err(StoreError::Url)?))
}

#[async_trait]
impl Dial for redis::Client {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        self.get_multiplexed_async_connection_with_config(&config).await
    }

    fn address(&self) -> String {
        self.get_connection_info().addr().to_string()
    }
}
