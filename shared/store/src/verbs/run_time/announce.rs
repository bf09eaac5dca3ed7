//! The policy in force: which it is, and who says so.

use crate::connection::question::Question;
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::ConsumerId;

/// The outcome of announcing a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// It is the one in force.
    InForce {
        /// Its generation.
        generation: u64,
    },
    /// It was in force once, and a scheduler decides by a newer one.
    Older {
        /// The generation in force.
        generation: u64,
        /// True where the schedulers with the one in force have only fallen silent: they did not leave.
        silent: bool,
    },
}

impl Store {
    /// Digest of the policy in force; none before one was announced.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn policy_in_force(&self) -> Result<Option<String>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.key("meta")).arg("policy").to_owned();
        self.connection.query(Question::Policy, &command).await
    }

    /// The generation that a policy has, or had when it was in force last; none where it never was.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn generation_of(&self, digest: &str) -> Result<Option<u64>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.key("policies")).arg(format!("g:{digest}")).to_owned();
        self.connection.query(Question::Policy, &command).await
    }

    /// Says that `scheduler` decides by the policy with this digest. A new one becomes the one in force, an older one
    /// only where no scheduler decides by the one in force any more. `take` says that those which fell silent need not
    /// be waited for. Without a scheduler's name nobody is noted as deciding by it.
    ///
    /// # Errors
    /// [`StoreError::Shards`] where the data was written with another number of shards.
    pub async fn announce(
        &self,
        digest: &str,
        scheduler: Option<&ConsumerId>,
        take: bool,
    ) -> Result<Announced, StoreError> {
        let mut args = self.args();
        args.text(digest).show(self.options.shards).text(scheduler.map_or("", |s| s.as_str()));
        args.text(if take { "1" } else { "" });
        let mut reply = self.ask(Verb::Announce, args).await?;
        let word = reply.text()?;
        if word == "SHARDS" {
            return Err(StoreError::Shards { ours: self.options.shards, stored: reply.text()? });
        }
        let generation = reply.number()?.unsigned_abs();
        Ok(match word.as_str() {
            "OLDER" => Announced::Older { generation, silent: reply.text()? == "silent" },
            _ => Announced::InForce { generation },
        })
    }
}
