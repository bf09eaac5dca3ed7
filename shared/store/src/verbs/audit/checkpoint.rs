//! Whoever follows a stream for others keeps how far it has come.

use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::ConsumerId;

/// Who follows.
#[derive(Debug, Clone, Copy)]
pub struct Follower<'a> {
    /// What its position is kept under: one of a name at a time goes on.
    pub name: &'a str,
    /// The process.
    pub process: &'a ConsumerId,
    /// How long nobody else goes on after it has said so last, ms.
    pub lease_ms: u64,
}

/// The answer to a follower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkpoint {
    /// It is kept, or the lease is taken.
    Done {
        /// Shard time, ms.
        now_ms: i64,
    },
    /// The position is another one: nothing was written.
    Stale {
        /// Shard time, ms.
        now_ms: i64,
        /// The position; empty where there was none yet.
        position: String,
    },
    /// Another has the lease.
    Held,
}

impl Store {
    /// Keeps `after` as the follower's position, if it stands at `before` and nobody else has the lease. With `before` as
    /// `after` it only takes the lease.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn checkpoint(
        &self,
        follower: Follower<'_>,
        before: &str,
        after: &str,
    ) -> Result<Checkpoint, StoreError> {
        let mut args = self.args();
        args.text(follower.name).text(follower.process.as_str()).show(follower.lease_ms).text(before).text(after);
        let mut reply = self.ask(Verb::Checkpoint, args).await?;
        let word = reply.text()?;
        match word.as_str() {
            "HELD" => Ok(Checkpoint::Held),
            "STALE" => Ok(Checkpoint::Stale { now_ms: reply.number()?, position: reply.text()? }),
            "OK" => Ok(Checkpoint::Done { now_ms: reply.number()? }),
            _ => Err(StoreError::Reply { verb: Verb::Checkpoint.as_str(), found: word }),
        }
    }
}
