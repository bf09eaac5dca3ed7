//! The positions of processes that follow a log.

use tickfleet_core::audit::follow::{Follow, FollowResult};
use tickfleet_core::leases::Candidate;
use tickfleet_model::ConsumerId;

use crate::{Store, StoreError};

#[derive(Debug, Clone, Copy)]
pub struct Follower<'a> {
    /// Two processes never follow the log under one name at the same time.
    pub name: &'a str,
    pub process: &'a ConsumerId,
    /// Counts from the last checkpoint. During the lease, no other process follows the log under this name.
    pub lease_ms: u64,
}

impl Follower<'_> {
    pub(crate) fn lease_ms(&self) -> i64 {
        i64::try_from(self.lease_ms).unwrap_or(i64::MAX)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkpoint {
    /// The position is stored, and the process has the lease.
    Done { now_ms: i64 },
    /// The stored position differs. Nothing was written.
    Stale {
        now_ms: i64,
        /// Empty at the start.
        position: String,
    },
    /// Another process has the lease.
    Held,
}

impl Store {
    /// Moves the position from `before` to `after`. If both are equal, only takes the lease.
    pub async fn checkpoint(
        &self,
        follower: Follower<'_>,
        before: &str,
        after: &str,
    ) -> Result<Checkpoint, StoreError> {
        let candidate = Candidate { process: follower.process.clone(), lease_ms: follower.lease_ms() };
        let name = follower.name.to_owned();
        let before = before.to_owned();
        let after = after.to_owned();
        let result = self.decide(Follow { name, candidate, before, after }).await?.result;
        let now_ms = self.state().now_ms;
        Ok(match result {
            FollowResult::Done => Checkpoint::Done { now_ms },
            FollowResult::Stale { position } => Checkpoint::Stale { now_ms, position },
            FollowResult::Held => Checkpoint::Held,
        })
    }
}
