//! Schedulers and workers, as described by their heartbeats.

use tickfleet_core::workers::{self, Consumer, Role};
use tickfleet_core::{Query, Stored};

use super::members;
use crate::{Store, StoreError};

pub use tickfleet_core::workers::Slots;

const CONSUMERS_MAX: usize = 10_000;
const GONE_MS_MAX: i64 = 300_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// `s-…` for a scheduler, `w-…` for a worker.
    pub name: String,
    pub heartbeat_age_ms: Option<i64>,
    /// Negative after the end of the lease.
    pub lease_left_ms: i64,
    pub slots: Option<Slots>,
    pub drained: bool,
}

impl NodeView {
    fn of(name: &str, consumer: &Consumer, now_ms: i64) -> Self {
        let slots = match consumer.role {
            Role::Scheduler => None,
            Role::Worker { slots, .. } => Some(slots).filter(|slots| slots.all > 0),
        };
        Self {
            name: name.to_owned(),
            heartbeat_age_ms: Some((now_ms - consumer.heartbeat_ms).max(0)),
            lease_left_ms: consumer.lease_ends_ms - now_ms,
            slots,
            drained: consumer.drained,
        }
    }
}

impl Store {
    /// Consumers that have sent a heartbeat and not signed off, by name. Unreadable records are omitted.
    pub(crate) async fn consumer_records(&self) -> Result<Vec<(String, Consumer)>, StoreError> {
        let sets = [workers::consumers(), workers::silent()];
        let queries = sets.map(|set| Query::First { set, upto: None, count: CONSUMERS_MAX });
        let found = self.values(&queries).await?;
        let mut names: Vec<String> =
            found.flat_map(|value| members(Some(value))).map(|(name, _)| name.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        let queries: Vec<Query> = names.iter().map(|name| Query::Record(workers::key(name))).collect();
        let found = self.values(&queries).await?;
        let read = |(name, value): (String, _)| {
            let stored: Option<Stored<Consumer>> = super::stored(&workers::key(&name), Some(value)).ok()?;
            Some((name, stored?.value))
        };
        Ok(names.into_iter().zip(found).filter_map(read).collect())
    }

    /// By name. Omits a node if its lease ended more than five minutes ago.
    pub async fn nodes(&self, now_ms: i64) -> Result<Vec<NodeView>, StoreError> {
        Ok(nodes(&self.consumer_records().await?, now_ms))
    }
}

pub(crate) fn nodes(consumers: &[(String, Consumer)], now_ms: i64) -> Vec<NodeView> {
    let nodes = consumers.iter().map(|(name, consumer)| NodeView::of(name, consumer, now_ms));
    nodes.filter(|node| node.lease_left_ms > -GONE_MS_MAX).collect()
}
