//! The policy in force, and its announcement, see [`tickfleet_core::settings::policy`].

use tickfleet_core::settings::policy::{self, Announce, Announcement, Policies};
use tickfleet_model::ConsumerId;

use crate::{Store, StoreError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnounceResult {
    InForce {
        generation: u64,
    },
    /// The policy was in force before, and a scheduler uses a newer one.
    Older {
        generation: u64,
        /// True if the schedulers of the policy in force have stopped sending heartbeats, but may still run.
        silent: bool,
    },
}

impl Store {
    /// `None` before the first announcement.
    pub async fn policy_in_force(&self) -> Result<Option<String>, StoreError> {
        let policies = self.policies().await?;
        Ok(policies.map(|policies| policies.in_force).filter(|digest| !digest.is_empty()))
    }

    /// The generation with which the policy last came into force. `None` if this never happened, or if it is no longer
    /// stored.
    pub async fn generation_of(&self, digest: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.policies().await?.and_then(|policies| policies.known.get(digest).copied()))
    }

    async fn policies(&self) -> Result<Option<Policies>, StoreError> {
        Ok(self.record_of::<Policies>(&policy::key()).await?.map(|stored| stored.value))
    }

    /// An older policy takes effect only if no scheduler uses the policy in force. With `take`, schedulers that have
    /// stopped sending heartbeats do not count. Without `scheduler`, no process is recorded as a user of the policy.
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
