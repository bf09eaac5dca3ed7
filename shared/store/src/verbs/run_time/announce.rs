//! The policy in force, and its announcement, see [`tickfleet_core::settings::policy`].

use tickfleet_core::settings::policy::{self, Announce, Announcement, Policies};
use tickfleet_model::ConsumerId;

use crate::{Store, StoreError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnounceResult {
    InForce {
        generation: u64,
    },
    /// The policy was in force before, and a scheduler decides by a newer policy.
    Older {
        generation: u64,
        /// True if all schedulers that decide by the policy in force have stopped sending heartbeats, but may still
        /// run.
        silent: bool,
    },
}

impl Store {
    /// Returns the digest of the policy in force. Returns `None` before the first announcement.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn policy_in_force(&self) -> Result<Option<String>, StoreError> {
        let policies = self.policies().await?;
        Ok(policies.map(|policies| policies.in_force).filter(|digest| !digest.is_empty()))
    }

    /// Returns the generation of a policy, or its last generation if the policy is not in force any more. Returns
    /// `None` if the policy was never in force.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn generation_of(&self, digest: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.policies().await?.and_then(|policies| policies.known.get(digest).copied()))
    }

    async fn policies(&self) -> Result<Option<Policies>, StoreError> {
        Ok(self.record_of::<Policies>(&policy::key()).await?.map(|stored| stored.value))
    }

    /// Announces that `scheduler` decides by the policy with this digest. A new policy takes effect at once. An older
    /// policy takes effect only if no scheduler decides by the policy in force. If `take` is true, schedulers that have
    /// stopped sending heartbeats do not count. If `scheduler` is `None`, no process is recorded as deciding by the
    /// policy.
    ///
    /// # Errors
    /// [`StoreError::Shards`] if the data was written with another number of shards.
    pub async fn announce(
        &self,
        digest: &str,
        scheduler: Option<&ConsumerId>,
        take: bool,
    ) -> Result<AnnounceResult, StoreError> {
        let shards = self.options().shards;
        let digest = digest.to_owned();
        let scheduler = scheduler.cloned();
        match self.decide(Announce { digest, shards, scheduler, ignore_silent: take }).await?.result {
            Announcement::InForce { generation } => Ok(AnnounceResult::InForce { generation }),
            Announcement::Older { generation, silent } => Ok(AnnounceResult::Older { generation, silent }),
            Announcement::OtherShards { stored } => {
                Err(StoreError::Shards { ours: shards, stored: stored.to_string() })
            }
        }
    }
}
