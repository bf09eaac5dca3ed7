//! A server that is no longer a primary still replies to reads, so commands for primaries first check the role.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use super::error::is_of_this_connection;
use crate::script::reply::text_of;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    Primary,
    Other(String),
    /// The user may not run the command `ROLE`, or the server does not have it.
    Unreported,
}

pub(super) async fn role(connection: &mut MultiplexedConnection) -> RedisResult<Role> {
    match redis::cmd("ROLE").query_async::<Vec<Value>>(connection).await {
        Ok(fields) => Ok(match fields.first().and_then(text_of).as_deref() {
            Some("master") => Role::Primary,
            Some(other) => Role::Other(other.to_owned()),
            None => Role::Unreported,
        }),
        Err(error) if is_of_this_connection(&error) => Err(error),
        Err(_) => Ok(Role::Unreported),
    }
}
