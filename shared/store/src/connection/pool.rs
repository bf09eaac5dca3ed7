//! A few pooled connections for occasional commands: the CLI, checks, administration. Hot paths have the store's
//! own multiplexed connection, since every checkout here costs a round trip of its own.

use std::time::Duration;

use deadpool_redis::{Manager, PoolError, Runtime};
use redis::{AsyncConnectionConfig, FromRedisValue, RedisError};

use crate::StoreError;

/// Longest wait for a connection, made or free.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for an answer: what an administrator asks may look at much.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that are made when first asked for, kept, and checked before each use. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    pool: deadpool_redis::Pool,
    address: String,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.address)
    }
}

impl Pool {
    /// A pool of at most `size` connections to `url`; none is made yet.
    ///
    /// # Errors
    /// [`StoreError::Url`] where the URL cannot be read.
    pub fn open(url: &str, size: usize) -> Result<Self, StoreError> {
        let client = redis::Client::open(url).map_err(StoreError::Url)?;
        let address = client.get_connection_info().addr().to_string();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let manager = Manager::new_with_config(url, config).map_err(StoreError::Url)?;
        let pool = deadpool_redis::Pool::builder(manager)
            .max_size(size.max(1))
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Connect { address: address.clone(), source: io_error(&error.to_string()) })?;
        Ok(Self { pool, address })
    }

    /// Host and port, or socket path. Never a password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Runs one command. `what` names it in errors.
    ///
    /// # Errors
    /// [`StoreError::Connect`] where no connection is to be had, [`StoreError::Verb`] where the command fails.
    pub(crate) async fn query<T: FromRedisValue>(
        &self,
        what: &'static str,
        command: &redis::Cmd,
    ) -> Result<T, StoreError> {
        let mut connection = self.get().await?;
        command.query_async(&mut connection).await.map_err(|source| StoreError::verb(what, source))
    }

    /// Runs a pipeline in one round trip. `what` names it in errors.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub(crate) async fn pipeline<T: FromRedisValue>(
        &self,
        what: &'static str,
        pipe: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let mut connection = self.get().await?;
        pipe.query_async(&mut connection).await.map_err(|source| StoreError::verb(what, source))
    }

    async fn get(&self) -> Result<deadpool_redis::Connection, StoreError> {
        self.pool.get().await.map_err(|error| {
            let source = match error {
                PoolError::Backend(source) => source,
                other => io_error(&other.to_string()),
            };
            StoreError::Connect { address: self.address.clone(), source }
        })
    }
}

fn io_error(what: &str) -> RedisError {
    RedisError::from(std::io::Error::new(std::io::ErrorKind::TimedOut, what.to_owned()))
}
