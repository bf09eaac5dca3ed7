//! The role that a server reports: a demoted primary answers reads like any other server.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use super::error::is_of_this_connection;
use crate::script::reply::text_of;

/// The role that a server reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// It accepts writes.
    Primary,
    /// A replica or a sentinel, which accept no writes; its own word.
    Other(String),
    /// Unknown: the user may not ask, or the server does not have the command.
    Unreported,
}

/// Asks the server of `connection` for its role.
///
/// # Errors
/// The connection is broken, or has lost its login.
pub(super) async fn role(connection: &mut MultiplexedConnection) -> RedisResult<Role> {
    match redis::cmd("ROLE").query_async::<Vec<Value>>(connection).await {
        Ok(said) => Ok(match said.first().and_then(text_of).as_deref() {
            Some("master") => Role::Primary,
            Some(other) => Role::Other(other.to_owned()),
            None => Role::Unreported,
        }),
        Err(error) if is_of_this_connection(&error) => Err(error),
        Err(_) => Ok(Role::Unreported),
    }
}
