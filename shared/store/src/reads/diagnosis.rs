//! Reads the settings, processes and failures of a shard, for `doctor` and `explain`.

use std::collections::HashMap;

use tickfleet_core::settings::policy::{self, Policies};
use tickfleet_core::settings::{self, Setting};
use tickfleet_core::turn::end::{GivenId, GivenState};
use tickfleet_core::turn::submit::Inbound;
use tickfleet_core::{EntryId, Query, Stored, StreamKey, Value};

use super::{entry_ms, field, queues};
use crate::seam::inspect::Entry;
use crate::{Store, StoreError, TurnName};

#[derive(Debug, Clone, Default)]
pub struct ShardFacts {
    /// Shard time.
    pub now_ms: i64,
    pub used: bool,
    pub policy_generation: u64,
    pub policy_digest: String,
    /// The number of shards when this shard's data was written.
    pub shards: Option<u32>,
    /// Shard time minus the store's clock.
    pub offset_ms: i64,
    /// How often the store's clock was set back, and by how many milliseconds the last time.
    pub steps: (u64, i64),
    pub pressure: bool,
    /// The processes that have sent a heartbeat and have not signed off. The number is the end of the lease in shard
    /// time (ms).
    pub beats: HashMap<String, i64>,
    /// A prefix of the digest of each process's policy.
    pub policies: HashMap<String, String>,
    pub tools_off: Vec<String>,
    pub consumers: Vec<ConsumerFacts>,
}

impl ShardFacts {
    #[must_use]
    pub fn is_new(&self) -> bool {
        !self.used && self.beats.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerFacts {
    pub stream: String,
    pub name: String,
    /// Entries that the consumer has taken and not acknowledged.
    pub pending: u64,
    pub idle_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: String,
    pub at_ms: i64,
    pub from: String,
    pub entry: String,
    /// A word that stays the same across versions.
    pub reason: String,
    pub tenant: String,
    pub raw: String,
}

impl Store {
    pub async fn shard_count(&self) -> Result<Option<u32>, StoreError> {
        Ok(self.record_of::<Policies>(&policy::key()).await?.map(|stored| stored.value.shards))
    }

    pub async fn facts(&self) -> Result<ShardFacts, StoreError> {
        let shard_stats = self.seam().shard_stats().await?;
        let stored: Option<Stored<Policies>> = self.record_of(&policy::key()).await?;
        let policies = stored.map(|stored| stored.value);
        let consumers = self.consumer_records().await?;
        let mut facts = ShardFacts {
            now_ms: shard_stats.shard.now_ms,
            used: policies.is_some(),
            policy_generation: policies.as_ref().map_or(0, |policies| policies.generation),
            shards: policies.as_ref().map(|policies| policies.shards),
            policy_digest: policies.map(|policies| policies.in_force).unwrap_or_default(),
            offset_ms: shard_stats.offset_ms,
            steps: (shard_stats.steps, shard_stats.step_ms),
            pressure: shard_stats.shard.pressure,
            beats: consumers.iter().map(|(name, consumer)| (name.clone(), consumer.lease_ends_ms)).collect(),
            policies: consumers
                .into_iter()
                .map(|(name, consumer)| (name, consumer.policy))
                .filter(|(_, policy)| !policy.is_empty())
                .collect(),
            tools_off: self.tools_off().await?,
            consumers: Vec::new(),
        };
        for queue in queues() {
            facts.consumers.extend(self.consumers_of(&queue).await?);
        }
        Ok(facts)
    }

    async fn tools_off(&self) -> Result<Vec<String>, StoreError> {
        let Value::AllParts(parts) = self.query(Query::AllParts(settings::key())).await? else { return Ok(Vec::new()) };
        let off = |(part, _): &(std::sync::Arc<str>, _)| match Setting::parse(part) {
            Some(Setting::ToolOff(tool)) => Some(tool),
            _ => None,
        };
        Ok(parts.iter().filter_map(off).collect())
    }

    async fn consumers_of(&self, queue: &StreamKey) -> Result<Vec<ConsumerFacts>, StoreError> {
        let consumers = self.seam().consumers(queue).await?;
        let consumer = |one: crate::seam::Consumer| ConsumerFacts {
            stream: queue.to_string(),
            name: one.name.to_string(),
            pending: one.held,
            idle_ms: one.idle_ms,
        };
        Ok(consumers.into_iter().map(consumer).collect())
    }

    pub async fn runtimes(&self, queue: &str) -> Result<Vec<ConsumerFacts>, StoreError> {
        self.consumers_of(&StreamKey::new(queue)).await
    }

    /// True if the entry is still in the stream, so no scheduler has decided it.
    pub async fn is_inbound(&self, from: Inbound, entry: &str) -> Result<bool, StoreError> {
        if entry_ms(entry).is_none() {
            return Ok(false);
        }
        let found = self.query(Query::Entry(from.stream(), EntryId::new(entry))).await?;
        Ok(matches!(found, Value::Entry(Some(_))))
    }

    pub async fn remembered(&self, name: &TurnName) -> Result<Option<GivenState>, StoreError> {
        Ok(self.record_of::<GivenId>(&name.given()).await?.map(|given| given.value.state))
    }
}

pub(crate) fn dead_letter((id, fields): &Entry) -> DeadLetter {
    DeadLetter {
        id: id.to_string(),
        at_ms: entry_ms(id.as_str()).unwrap_or(0),
        from: field(fields, "from"),
        entry: field(fields, "entry"),
        reason: field(fields, "reason"),
        tenant: field(fields, "tenant"),
        raw: field(fields, "raw"),
    }
}
