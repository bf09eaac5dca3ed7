//! Heartbeats, and what they are told.

use crate::keys::TurnName;
use crate::records::node::Slots;
use crate::records::shard::is_set;
use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::ConsumerId;
use tickfleet_model::policy::Pause;

/// The facts that a consumer learns when it renews its lease.
#[derive(Debug, Clone)]
pub struct Beat {
    /// Shard time, ms.
    pub now_ms: i64,
    /// When the present epoch began (Redis restarted), ms; 0 in the first.
    pub epoch_ms: i64,
    /// Generation of the policy in force.
    pub policy_generation: u64,
    /// True if Redis' memory is nearly full.
    pub pressure: bool,
    /// The number of times that Redis' clock stepped back, and by how much the last time, ms.
    pub clock_steps: (u64, i64),
    /// The name that Redis gives itself: another name is another process, which may know less.
    pub run_id: String,
    /// Until when calls may be marked as begun by somebody who Redis has forgotten, ms; 0 where there never was one.
    pub marks_ms: i64,
    /// Who has the worker take no new work, and why; none where nobody does.
    pub drained: Option<Pause>,
    /// Turns that the consumer holds and should stop.
    pub cancelled: Vec<TurnName>,
}

/// Who drained a worker, and why. What cannot be read is a drain all the same: somebody wanted it.
pub(crate) fn noted(note: &str) -> Pause {
    serde_json::from_str(note).unwrap_or_default()
}

impl Store {
    /// Renews the consumer's lease. Beat first, then read (rule 12).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn beat(&self, consumer: &ConsumerId) -> Result<Beat, StoreError> {
        self.beat_for(consumer, self.options.lease_ms, None).await
    }

    /// As [`Self::beat`], and says how many of its slots are busy and by which policy it decides (the beginning of the
    /// digest), for those who look on. Nothing decides by it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn beat_with(&self, consumer: &ConsumerId, slots: Slots, policy: &str) -> Result<Beat, StoreError> {
        self.beat_for(consumer, self.options.lease_ms, Some((slots, policy))).await
    }

    /// Says that the consumer is gone, so that nobody waits for its lease to end.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn leave(&self, consumer: &ConsumerId) -> Result<(), StoreError> {
        self.beat_for(consumer, 0, None).await.map(drop)
    }

    async fn beat_for(
        &self,
        consumer: &ConsumerId,
        lease_ms: i64,
        says: Option<(Slots, &str)>,
    ) -> Result<Beat, StoreError> {
        let mut args = self.args();
        args.show(consumer).show(lease_ms);
        if let Some((Slots { busy, all }, policy)) = says {
            args.show(format_args!("{busy} {all} {policy}"));
        }
        let mut reply = self.ask(Verb::Beat, args).await?;
        Ok(Beat {
            now_ms: reply.number()?,
            epoch_ms: reply.number()?,
            policy_generation: reply.number()?.unsigned_abs(),
            pressure: is_set(&reply.text()?),
            clock_steps: (reply.number()?.unsigned_abs(), reply.number()?),
            run_id: reply.text()?,
            marks_ms: reply.number()?,
            drained: Some(reply.text()?).filter(|note| !note.is_empty()).map(|note| noted(&note)),
            cancelled: reply.rest().iter().filter_map(text_of).filter_map(|t| TurnName::parse(&t)).collect(),
        })
    }
}
