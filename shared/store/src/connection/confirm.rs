//! What was written is waited for until it would survive: on the primary's disk, or in a replica's memory.
//!
//! `WAIT` and `WAITAOF` count what was written on their own connection, and whatever stands behind one waits for it: so
//! what is to be confirmed is written on a connection that nothing else uses. Replication is one stream, so what anybody
//! had written to this server before is confirmed with it.

use std::time::Duration;

use redis::Value;
use tickfleet_model::Durability;
use tokio::sync::Mutex;

use super::question::Question;
use super::{Connection, Live, is_of_this_connection};
use crate::StoreError;
use crate::script::Function;

/// Whether what was written would survive.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Confirmed {
    /// It would.
    Yes,
    /// Nobody has said so in time.
    NotInTime,
    /// The server cannot tell, or does not let us ask; in its words.
    CannotTell(String),
}

/// A connection for what is waited for; made when first used.
#[derive(Debug, Default)]
pub(crate) struct Confirming {
    /// With the moves of the primary that were known when it was made.
    kept: Mutex<Option<(Live, u64)>>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Live")
    }
}

impl Connection {
    /// Runs a function on the connection of `confirming`, and waits `at_most` until what it wrote would survive. `read` reads
    /// its reply, and says whether it wrote anything.
    ///
    /// # Errors
    /// As those of a function. What it wrote may be there, and is not confirmed: it may be repeated.
    pub(crate) async fn run_function_confirmed<T>(
        &self,
        confirming: &Confirming,
        (function, arguments): (&Function, impl Fn(&mut redis::Cmd, &str)),
        (durability, at_most): (Durability, Duration),
        read: impl FnOnce(Value) -> Result<(T, bool), StoreError>,
    ) -> Result<(T, Confirmed), StoreError> {
        let mut kept = confirming.kept.lock().await;
        // While an answer is awaited the connection belongs to the future: one that was given up is not used again.
        let live = match kept.take().filter(|(_, moves)| *moves == self.moves()) {
            Some(live) => live,
            None => {
                let (moves, connection) = (self.moves(), Box::pin(self.dedicated(at_most)).await?);
                (Live::new(connection), moves)
            }
        };
        // A user of Redis who may not ask carries on without.
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

    async fn confirm(&self, live: &Live, durability: Durability, at_most: Duration) -> Result<Confirmed, StoreError> {
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
                    self.heard_by_a_reader(&error).await;
                    Err(StoreError::verb(Question::Confirm.as_str(), error))
                }
                // It has no such command, has no append-only file, or forbids the question.
                Err(error) => Ok(Confirmed::CannotTell(error.to_string())),
            }
        };
        self.observe(Question::Confirm.as_str(), false, ask).await
    }
}

/// The number of servers that have it: of `WAITAOF`, the first of two.
fn count(answer: &Value) -> i64 {
    match answer {
        Value::Int(count) => *count,
        Value::Array(counts) => counts.first().map_or(0, count),
        _ => 0,
    }
}
