//! A small connection pool for occasional commands: the CLI, checks, administration. Each use of a pooled connection
//! costs an extra round trip.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed;
use deadpool_redis::{Metrics, PoolError, Runtime};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisError, RedisResult};

use super::cluster::{ClusterView, slot_of};
use super::dial::{Dial, SentinelReport};
use super::error::is_of_this_connection;
use super::role::{Role, role};
use super::url::{Target, target_of};
use crate::{Keys, StoreError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Includes the search for the primary.
const GET_TIMEOUT: Duration = Duration::from_secs(10);
const RECYCLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Administrative commands may scan much data.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Manager {
    dial: Arc<dyn Dial>,
}

struct PooledConnection {
    connection: MultiplexedConnection,
    primary: Option<String>,
}

impl managed::Manager for Manager {
    type Type = PooledConnection;
    type Error = RedisError;

    async fn create(&self) -> RedisResult<PooledConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let connection = self.dial.dial(config).await?;
        Ok(PooledConnection { connection, primary: self.dial.primary().and_then(Result::ok) })
    }

    async fn recycle(&self, pooled: &mut PooledConnection, _: &Metrics) -> managed::RecycleResult<RedisError> {
        // Ask other nodes about the primary: a replaced primary knows nothing of its replacement until they notify it.
        if let Some(primary) = &pooled.primary
            && self.dial.has_moved(primary).await
        {
            return Err(managed::RecycleError::message("another server is the primary"));
        }
        // Check the role, because a server that is no longer a primary still replies to PING and reads.
        match role(&mut pooled.connection).await? {
            Role::Other(role) => Err(managed::RecycleError::message(format!("the server has become a {role}"))),
            Role::Primary | Role::Unreported => Ok(()),
        }
    }
}

/// Connections are opened on demand, and checked before each use. Clones are cheap.
#[derive(Clone)]
pub struct Pool {
    pool: managed::Pool<Manager>,
    dial: Arc<dyn Dial>,
    target: Arc<Target>,
    slots: Arc<Mutex<HashMap<u16, Self>>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.address())
    }
}

impl Pool {
    pub fn open(url: &str, size: usize) -> Result<Self, StoreError> {
        let target = target_of(url)?;
        let dial = target.dial(None);
        Ok(Self { pool: pool_of(&dial, size)?, dial, target: Arc::new(target), slots: Arc::default() })
    }

    pub fn at(&self, keys: &Keys) -> Result<Self, StoreError> {
        if matches!(*self.target, Target::One(_)) {
            return Ok(self.clone());
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slot_of(keys.prefix());
        if let Some(pool) = slots.get(&slot) {
            return Ok(pool.clone());
        }
        let dial = self.target.dial(Some(keys.prefix()));
        let pool = pool_of(&dial, self.pool.status().max_size)?;
        let found = Self { pool, dial, target: Arc::clone(&self.target), slots: Arc::default() };
        slots.insert(slot, found.clone());
        Ok(found)
    }

    pub async fn cluster(&self, keys: &[Keys]) -> Option<ClusterView> {
        let Target::Cluster(cluster) = &*self.target else { return None };
        let prefixes: Vec<String> = keys.iter().map(|keys| keys.prefix().to_owned()).collect();
        Some(cluster.view(&prefixes).await)
    }

    #[must_use]
    pub fn address(&self) -> String {
        self.dial.address()
    }

    pub async fn sentinels(&self) -> Vec<SentinelReport> {
        self.dial.sentinels().await
    }

    pub(crate) async fn query<T: FromRedisValue>(
        &self,
        what: &'static str,
        command: &redis::Cmd,
    ) -> Result<T, StoreError> {
        let mut connection = self.get().await?;
        let answer = command.query_async(&mut connection.connection).await;
        answer.map_err(|source| failed(connection, what, source))
    }

    pub(crate) async fn pipeline<T: FromRedisValue>(
        &self,
        what: &'static str,
        pipe: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let mut connection = self.get().await?;
        let answer = pipe.query_async(&mut connection.connection).await;
        answer.map_err(|source| failed(connection, what, source))
    }

    async fn get(&self) -> Result<managed::Object<Manager>, StoreError> {
        self.pool.get().await.map_err(|error| {
            let source = match error {
                PoolError::Backend(source) => source,
                other => io_error(&other.to_string()),
            };
            StoreError::Connect { address: self.address(), source }
        })
    }
}

fn pool_of(dial: &Arc<dyn Dial>, size: usize) -> Result<managed::Pool<Manager>, StoreError> {
    managed::Pool::builder(Manager { dial: Arc::clone(dial) })
        .max_size(size.max(1))
        .wait_timeout(Some(GET_TIMEOUT))
        .create_timeout(Some(GET_TIMEOUT))
        .recycle_timeout(Some(RECYCLE_TIMEOUT))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| StoreError::Connect { address: dial.address(), source: io_error(&error.to_string()) })
}

fn failed(connection: managed::Object<Manager>, what: &'static str, source: RedisError) -> StoreError {
    if is_of_this_connection(&source) {
        drop(managed::Object::take(connection));
    }
    StoreError::verb(what, source)
}

fn io_error(what: &str) -> RedisError {
    RedisError::from(std::io::Error::new(std::io::ErrorKind::TimedOut, what.to_owned()))
}
