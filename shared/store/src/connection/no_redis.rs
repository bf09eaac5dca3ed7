//! A shard without Redis: all commands to Redis fail.

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, RedisResult};

use super::dial::Dial;

#[derive(Debug)]
pub(crate) struct NoRedis;

#[async_trait]
impl Dial for NoRedis {
    async fn dial(&self, _config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        Err(RedisError::from((ErrorKind::InvalidClientConfig, "this fleet has no Redis: its state is in memory")))
    }

    fn address(&self) -> String {
        "memory".into()
    }
}
