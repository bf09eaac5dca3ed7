//! Reads the workers of a fleet, their slots, and the number of unfinished slices. Limits on slots use these numbers.

use std::collections::BTreeMap;

use tickfleet_core::settings::drain::{self, DrainFlag};
use tickfleet_core::{Query, Stored};
use tickfleet_model::limits;
use tickfleet_model::policy::Pause;

use super::nodes::NodeView;
use super::{members, worker_queues};
use crate::{Store, StoreError, worker_of};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FleetLoad {
    /// Of workers with a lease.
    pub slots: u64,
    /// Slices that wait on queues or that workers have taken.
    pub in_flight: u64,
    /// The number of slices that workers have ever taken. `None` if unknown.
    pub read: Option<u64>,
    pub now_ms: i64,
}

#[derive(Debug, Clone, Default)]
pub struct ShardWorkers {
    /// Also workers with a lease that ended within the last five minutes.
    pub consumers: Vec<NodeView>,
    /// By the worker's name. Some of these workers may no longer exist.
    pub drained: BTreeMap<String, Pause>,
    pub now_ms: i64,
}

impl Store {
    pub async fn fleet_load(&self) -> Result<FleetLoad, StoreError> {
        let now_ms = self.now_ms().await?;
        let alive = self.nodes(now_ms).await?.into_iter().filter(|node| node.lease_left_ms > 0);
        let slots = alive.filter_map(|node| node.slots).map(|slots| slots.all as u64).sum();
        let states = self.seam().queue_states(&worker_queues()).await?;
        let in_flight = states.iter().map(|queue| queue.waiting + queue.held).sum();
        let read = states.iter().map(|queue| queue.added.saturating_sub(queue.waiting)).sum();
        Ok(FleetLoad { slots, in_flight, read: Some(read), now_ms })
    }

    pub async fn workers(&self) -> Result<ShardWorkers, StoreError> {
        let now_ms = self.now_ms().await?;
        let consumers = self.nodes(now_ms).await?.into_iter().filter(|node| worker_of(&node.name).is_some()).collect();
        let query = Query::First { set: drain::drained(), upto: None, count: limits::DRAINS_MAX + 1 };
        let names = members(Some(self.query(query).await?));
        let queries: Vec<Query> = names.iter().map(|(worker, _)| Query::Record(drain::key(worker))).collect();
        let found = self.values(&queries).await?;
        let note = |(worker, value): (&str, _)| {
            let stored: Result<Option<Stored<DrainFlag>>, _> = super::stored(&drain::key(worker), Some(value));
            match stored.map(|stored| stored.map(|stored| stored.value)) {
                Ok(Some(DrainFlag::Drained { note })) => Some((worker.to_owned(), note)),
                Ok(Some(DrainFlag::Lifted { .. }) | None) => None,
                // With an unreadable flag, the worker counts as drained.
                Err(_) => Some((worker.to_owned(), Pause::default())),
            }
        };
        let drained = names.iter().map(|(worker, _)| &**worker).zip(found).filter_map(note).collect();
        Ok(ShardWorkers { consumers, drained, now_ms })
    }
}
