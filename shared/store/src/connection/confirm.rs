//! Waits until writes are on the primary's disk or in a replica's memory. `WAIT` and `WAITAOF` cover the writes of one
//! connection, and block its later commands. So these writes use a separate connection.

use std::time::Duration;

use redis::Value;
use tickfleet_model::Durability;
use tokio::sync::Mutex;

use super::command::RedisCommand;
use super::{Connection, OpenConnection, is_of_this_connection};
use crate::StoreError;
use crate::script::Function;

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Confirmed {
    Yes,
    NotInTime,
    /// The text is the server's message.
    CannotTell(String),
}

#[derive(Debug, Default)]
pub(crate) struct Confirming {
    /// The number is the value of `Connection::moves` when the connection was opened.
    kept: Mutex<Option<(OpenConnection, u64)>>,
}

impl std::fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenConnection")
    }
}

impl Connection {
    /// `read` also returns true if the function wrote anything. After an error, the writes may have happened, but are
    /// not confirmed. The caller may repeat the call.
    pub(crate) async fn run_function_confirmed<T>(
        &self,
        confirming: &Confirming,
        (function, arguments): (&Function, impl Fn(&mut redis::Cmd, &str)),
        (durability, at_most): (Durability, Duration),
        read: impl FnOnce(Value) -> Result<(T, bool), StoreError>,
    ) -> Result<(T, Confirmed), StoreError> {
        let mut kept = confirming.kept.lock().await;
        // During a command, this future owns the connection. If the future is dropped, the connection is dropped, too.
        let live = match kept.take().filter(|(_, moves)| *moves == self.moves()) {
            Some(live) => live,
            None => {
                let moves = self.moves();
                let connection = Box::pin(self.dedicated(at_most)).await?;
                (OpenConnection::new(connection), moves)
            }
        };
        // If the Redis user lacks the permission to read the run ID, continue without the ID.
        let run_id = live.0.run_id().await.unwrap_or_default().to_owned();
        let run = self.call(&live.0, function, |command| arguments(command, &run_id));
        let (reply, has_written) = read(self.observe(function.script.verb, true, run).await?)?;
        let confirmed = match has_written {
            true => self.confirm(&live.0, durability, at_most).await?,
            false => Confirmed::Yes,
        };
        *kept = Some(live);
        Ok((reply, confirmed))
    }

    async fn confirm(
        &self,
        live: &OpenConnection,
        durability: Durability,
        at_most: Duration,
    ) -> Result<Confirmed, StoreError> {
        let within_ms = u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX).max(1);
        let command = match durability {
            Durability::None => return Ok(Confirmed::Yes),
            Durability::Disk => redis::cmd("WAITAOF").arg(1).arg(0).arg(within_ms).to_owned(),
            Durability::Replica => redis::cmd("WAIT").arg(1).arg(within_ms).to_owned(),
        };
        let ask = async {
            match command.query_async::<Value>(&mut live.connection.clone()).await {
                Ok(answer) if count(&answer) > 0 => Ok(Confirmed::Yes),
                Ok(_) => Ok(Confirmed::NotInTime),
                Err(error) if is_of_this_connection(&error) => {
                    self.handle_reader_error(&error).await;
                    Err(StoreError::verb(RedisCommand::Confirm.as_str(), error))
                }
                Err(error) => Ok(Confirmed::CannotTell(error.to_string())),
            }
        };
        self.observe(RedisCommand::Confirm.as_str(), false, ask).await
    }
}

/// `WAITAOF` replies with two numbers. The first is for the primary's disk.
fn count(answer: &Value) -> i64 {
    match answer {
        Value::Int(count) => *count,
        Value::Array(counts) => counts.first().map_or(0, count),
        _ => 0,
    }
}
