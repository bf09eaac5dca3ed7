//! Counts waiting turns, slices and other items, for metrics and `doctor`.

use tickfleet_core::call::approval;
use tickfleet_core::keys::{self, limits};
use tickfleet_core::turn::Turn;
use tickfleet_core::{CounterKey, Query, SetKey, Stored, StreamKey};
use tickfleet_model::TenantId;

use super::{age, counter, members, queues, score_ms, size};
use crate::reads::memory_usage::MemoryUsage;
use crate::seam::inspect::{QueueState, Range, ShardStats};
use crate::{Store, StoreError, TurnName};

const TENANTS_MAX: usize = 1_000;
/// The number of timers whose throttle queues are the sample for the age of waiting turns.
const TIMERS_SAMPLED: usize = 256;

/// Ages of entries are by the store's clock, which gives the IDs of entries.
#[derive(Debug, Clone, Default)]
pub struct ShardBacklog {
    /// Turns without a decision of a scheduler. Includes turns that a scheduler has taken.
    pub inbound: u64,
    pub tasks: u64,
    /// Unread slices, and turns that wait for their tenant's share of the slots. More slots would let them start.
    pub ready: u64,
    /// Slices for redelivery after a crash of the worker. Each worker runs at most one such slice at once.
    pub suspect: u64,
    pub running: u64,
    pub delayed: u64,
    pub approval: u64,
    /// Other turns of the requested tenants that no worker can run yet: in throttle queues, or until the lease after a
    /// restart ends.
    pub parked: u64,
    pub timers: u64,
    pub dead: u64,
    pub audit: u64,
    /// The age of the oldest inbound turn or task message without a decision.
    pub oldest_inbound_ms: i64,
    pub oldest_ready_ms: i64,
    pub oldest_suspect_ms: i64,
    /// The time since the dispatch of the oldest slice that a worker has taken.
    pub oldest_pending_ms: i64,
    /// The time since the admission of the oldest turn in a sample of throttle queues.
    pub oldest_parked_ms: i64,
    pub oldest_delayed_ms: i64,
    pub oldest_approval_ms: i64,
    pub oldest_dead_ms: i64,
    /// How late the oldest due timer is.
    pub late_ms: i64,
    pub now_ms: i64,
    pub memory: MemoryUsage,
    pub pressure: bool,
}

impl Store {
    /// Throttled turns are counted only for `tenants`. Turns in the queues of the limits `shares` count as ready,
    /// because these limits divide the slots between tenants.
    pub async fn backlog(&self, tenants: &[TenantId], shares: &[&str]) -> Result<ShardBacklog, StoreError> {
        let shard_stats = self.seam().shard_stats().await?;
        let mut backlog = ShardBacklog {
            now_ms: shard_stats.shard.now_ms,
            pressure: shard_stats.shard.pressure,
            memory: MemoryUsage { used: shard_stats.memory_bytes, max: shard_stats.memory_max },
            ..ShardBacklog::default()
        };
        self.add_sets(&mut backlog).await?;
        let (_, audit) = self.seam().page(&keys::audit(), &Range::oldest(1)).await?;
        let (oldest_dead, dead) = self.seam().page(&keys::dead(), &Range::oldest(1)).await?;
        backlog.audit = audit.length;
        backlog.dead = dead.length;
        backlog.oldest_dead_ms = age(oldest_dead.first().map(|(id, _)| id), shard_stats.clock_ms);
        let queues = queues();
        let states = self.seam().queue_states(&queues).await?;
        queues.iter().zip(&states).for_each(|(queue, state)| add_queue(&mut backlog, queue, state, &shard_stats));
        let (waiting, turns_for_slots, for_slots) = self.count_waiting_turns(tenants, shares).await?;
        backlog.parked = waiting.saturating_sub(backlog.delayed + backlog.approval + turns_for_slots);
        backlog.ready += turns_for_slots;
        let oldest_ms = self.oldest_in(&for_slots).await?.map_or(0, |since_ms| backlog.now_ms - since_ms);
        backlog.oldest_ready_ms = backlog.oldest_ready_ms.max(oldest_ms);
        let sample = self.sampled_queues(&for_slots).await?;
        backlog.oldest_parked_ms = self.oldest_in(&sample).await?.map_or(0, |since_ms| backlog.now_ms - since_ms);
        Ok(backlog)
    }

    async fn add_sets(&self, backlog: &mut ShardBacklog) -> Result<(), StoreError> {
        let sets = [keys::timers(), keys::parked(), approval::waiting()];
        let query = |set: SetKey| [Query::Size(set.clone()), Query::First { set, upto: None, count: 1 }];
        let mut found = self.values(&sets.map(query).concat()).await?;
        let now_ms = backlog.now_ms;
        let mut next = || {
            let count = size(found.next());
            let first = members(found.next());
            (count, first.first().map_or(0, |(_, score)| (now_ms - score_ms(*score)).max(0)))
        };
        (backlog.timers, backlog.late_ms) = next();
        (backlog.delayed, backlog.oldest_delayed_ms) = next();
        (backlog.approval, backlog.oldest_approval_ms) = next();
        Ok(())
    }

    /// Also counts the turns in the throttle queues of `shares`, and returns these queues.
    async fn count_waiting_turns(
        &self,
        tenants: &[TenantId],
        shares: &[&str],
    ) -> Result<(u64, u64, Vec<SetKey>), StoreError> {
        let mut waiting = 0;
        let mut turns_for_slots = 0;
        let mut for_slots = Vec::new();
        for some in tenants.chunks(TENANTS_MAX) {
            let mut queries = Vec::new();
            for tenant in some {
                let counter = |limit: &str| CounterKey::new(limit, tenant.as_str());
                queries.extend([limits::UNFINISHED, limits::IN_FLIGHT].map(|limit| Query::Counter(counter(limit))));
                queries.extend(shares.iter().map(|share| Query::Size(keys::throttle_queue(&counter(share)))));
            }
            let mut found = self.values(&queries).await?;
            for tenant in some {
                let unfinished = counter(found.next()).used;
                let in_flight = counter(found.next()).used;
                waiting += unfinished.saturating_sub(in_flight);
                for share in shares {
                    let turns = size(found.next());
                    if turns > 0 {
                        turns_for_slots += turns;
                        for_slots.push(keys::throttle_queue(&CounterKey::new(share, tenant.as_str())));
                    }
                }
            }
        }
        Ok((waiting, turns_for_slots, for_slots))
    }

    async fn sampled_queues(&self, for_slots: &[SetKey]) -> Result<Vec<SetKey>, StoreError> {
        let timers = Query::First { set: keys::timers(), upto: None, count: TIMERS_SAMPLED };
        let found = self.values(&[timers]).await?.flat_map(|value| members(Some(value)));
        // The timer of a throttle queue has the same name as the queue.
        let queues = found.filter(|(timer, _)| timer.starts_with("throttle:")).map(|(timer, _)| SetKey::new(timer));
        Ok(queues.filter(|queue| !for_slots.contains(queue)).collect())
    }

    /// In shard time (ms).
    async fn oldest_in(&self, queues: &[SetKey]) -> Result<Option<i64>, StoreError> {
        let mut oldest: Option<i64> = None;
        for some in queues.chunks(TENANTS_MAX) {
            let first = |set: &SetKey| Query::First { set: set.clone(), upto: None, count: 1 };
            let found = self.values(&some.iter().map(first).collect::<Vec<_>>()).await?;
            let turns = found.flat_map(|value| members(Some(value))).filter_map(|(name, _)| TurnName::parse(&name));
            let records: Vec<_> = turns.map(|name| name.record()).collect();
            let queries: Vec<Query> = records.iter().map(|record| Query::Record(record.clone())).collect();
            let found = self.values(&queries).await?;
            // Skip turns that were dispatched in the meantime: they are not waiting.
            let since = records.iter().zip(found).filter_map(|(record, value)| {
                let stored: Option<Stored<Turn>> = super::stored(record, Some(value)).ok()?;
                Some(stored?.value.admitted_ms)
            });
            oldest = oldest.into_iter().chain(since).min();
        }
        Ok(oldest)
    }
}

fn add_queue(backlog: &mut ShardBacklog, queue: &StreamKey, state: &QueueState, shard_stats: &ShardStats) {
    let waiting_ms = age(state.oldest_waiting.as_ref(), shard_stats.clock_ms);
    let held_ms = age(state.oldest_held.as_ref(), shard_stats.clock_ms);
    if *queue == keys::turns() || *queue == keys::tasks() {
        let count = if *queue == keys::turns() { &mut backlog.inbound } else { &mut backlog.tasks };
        *count += state.waiting + state.held;
        backlog.oldest_inbound_ms = backlog.oldest_inbound_ms.max(waiting_ms).max(held_ms);
        return;
    }
    let (count, oldest_ms) = if queue.as_str().starts_with("ready:suspect:") {
        (&mut backlog.suspect, &mut backlog.oldest_suspect_ms)
    } else {
        (&mut backlog.ready, &mut backlog.oldest_ready_ms)
    };
    *count += state.waiting;
    *oldest_ms = (*oldest_ms).max(waiting_ms);
    backlog.running += state.held;
    backlog.oldest_pending_ms = backlog.oldest_pending_ms.max(held_ms);
}
