//! Chains of seals are lengthened.

use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::ConsumerId;

/// A seal that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealRow {
    /// The tenant; empty for entries of none.
    pub tenant: String,
    /// The head of its chain with it, as text.
    pub head: String,
    /// What it says, JSON.
    pub body: String,
    /// The signature.
    pub signature: String,
}

/// Who seals.
#[derive(Debug, Clone, Copy)]
pub struct Sealer<'a> {
    /// Its name.
    pub name: &'a ConsumerId,
    /// How long nobody else seals after it has done so last, ms.
    pub lease_ms: u64,
    /// What its key is called.
    pub key_id: &'a str,
    /// The public half of the key.
    pub public_key: &'a str,
}

/// The answer to a sealer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealReply {
    /// It is done, or the lease is taken; this is the state now.
    Done {
        /// Shard time, ms.
        now_ms: i64,
        /// How far the shard is sealed.
        state: String,
    },
    /// Somebody has sealed meanwhile: nothing was written.
    Stale {
        /// Shard time, ms.
        now_ms: i64,
        /// How far the shard is sealed.
        state: String,
    },
    /// Another has the lease.
    Held,
    /// Another key has this id.
    OtherKey,
}

impl Store {
    /// Writes seals, if the shard is sealed as far as `state` says and nobody else has the lease; then `after` is what it
    /// says. With `after` as `state` it only takes the lease.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn seal(
        &self,
        sealer: Sealer<'_>,
        state: &str,
        after: &str,
        seals: &[SealRow],
    ) -> Result<SealReply, StoreError> {
        let mut args = self.args();
        args.text(sealer.name.as_str()).show(sealer.lease_ms).text(state).text(after);
        args.text(sealer.key_id).text(sealer.public_key).show(seals.len());
        for seal in seals {
            args.text(seal.tenant.as_str()).text(seal.head.as_str());
            args.text(seal.body.as_str()).text(seal.signature.as_str());
        }
        let mut reply = self.ask(Verb::Seal, args).await?;
        let word = reply.text()?;
        match word.as_str() {
            "HELD" => Ok(SealReply::Held),
            "KEY" => Ok(SealReply::OtherKey),
            "STALE" => Ok(SealReply::Stale { now_ms: reply.number()?, state: reply.text()? }),
            "OK" => Ok(SealReply::Done { now_ms: reply.number()?, state: reply.text()? }),
            _ => Err(StoreError::Reply { verb: Verb::Seal.as_str(), found: word }),
        }
    }
}
