//! Takes slices from the queues up to the number of free slots, and starts them. A take is one request for slices.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tickfleet_core::recovery::reap::HeldEntry;
use tickfleet_core::recovery::regroup::{SuspectCapacity, TakenSuspect, choose};
use tickfleet_core::turn::{RequeueReason, Slice};
use tickfleet_core::{StreamKey, keys};
use tickfleet_engine::retry_until::RetryWait;
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_model::{ConsumerId, Priorities, Priority, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::seam::{TakeRequest, TakenEntry};
use tickfleet_store::{Backoff, Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Common;
use crate::calls::turn::Pipeline;
use crate::decision_queues::DecisionQueues;
use crate::held_slices::{HeldSlices, SliceLease};
use crate::journal::WorkerJournal;
use crate::lease::WorkerDrainFlag;
use crate::lease_clock::{LeaseClock, STEP};
use crate::slot_pool::{SlotPermits, SuspectGroup};
use crate::strays::{StrayScope, Strays};

/// One of this many takes begins with the least urgent queue, so that this queue never starves.
const STARVATION_GUARD: u64 = 16;

/// How often a drained worker checks whether it was resumed. A check reads only memory.
const RECHECK_AFTER: Duration = Duration::from_millis(100);

pub(crate) struct Leasing {
    store: Store,
    priorities: Priorities,
    drain: Duration,
    lease_clock: Arc<LeaseClock>,
    journal: Arc<WorkerJournal>,
    slices: Arc<HeldSlices>,
    drain_flag: Arc<WorkerDrainFlag>,
    strays: Arc<Strays>,
    decisions: Arc<DecisionQueues>,
    pipeline: Arc<Pipeline>,
    suspects: SuspectSemaphore,
    metrics: Arc<Metrics>,
    progress: Progress,
    now: CancellationToken,
}

pub(crate) struct LeasingParts {
    pub(crate) journal: Arc<WorkerJournal>,
    pub(crate) slices: Arc<HeldSlices>,
    pub(crate) strays: Arc<Strays>,
    pub(crate) decisions: Arc<DecisionQueues>,
    pub(crate) pipeline: Arc<Pipeline>,
}

impl Leasing {
    pub(crate) fn new(common: &Common, priorities: Priorities, drain: Duration, parts: LeasingParts) -> Self {
        let LeasingParts { journal, slices, strays, decisions, pipeline } = parts;
        Self {
            store: common.store.clone(),
            priorities,
            drain,
            lease_clock: common.lease_clock.clone(),
            journal,
            slices,
            drain_flag: common.drain_flag.clone(),
            strays,
            decisions,
            pipeline,
            suspects: common.suspects.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            now: common.now.clone(),
        }
    }

    pub(crate) async fn take_slices(
        self: &Arc<Self>,
        consumer: &ConsumerId,
        stop: &CancellationToken,
        tracker: &TaskTracker,
        suspects: bool,
    ) {
        let block_ms = self.store.options().lease_ms.unsigned_abs() / limits::BLOCK_FRACTION;
        let block = Duration::from_millis(block_ms);
        let name = if suspects { "lease_suspects" } else { "lease" };
        let pool = self.slices.pool(suspects);
        let handle = self.progress.register(name, block * 4 + self.drain + Duration::from_secs(60));
        let of: fn(Priority) -> StreamKey = if suspects { keys::suspect } else { keys::ready };
        let mut reader = QueueReader {
            consumer: consumer.clone(),
            queues: self.priorities.as_slice().iter().copied().map(of).collect(),
            wait_ms: block_ms,
            round: 0,
            failed: false,
        };
        let mut backoff = Backoff::default();
        while !stop.is_cancelled() {
            let free = tokio::select! {
                () = stop.cancelled() => break,
                free = pool.wait_for_free_slots() => free,
                // All slots are busy. The loop itself is not stuck.
                () = tokio::time::sleep(block) => {
                    handle.advanced();
                    continue;
                }
            };
            // Invariant 12: without a lease, slices could only be returned. Epoch 0 means that the worker has not
            // reported to a restarted store yet.
            if self.lease_clock.is_lost() || self.journal.epoch() == 0 {
                handle.advanced();
                stop.pause(STEP).await;
                continue;
            }
            // A drained worker takes no slices. A take in progress completes first.
            if self.drain_flag.is_drained() {
                handle.advanced();
                let _ = stop.run_until_cancelled(tokio::time::sleep(RECHECK_AFTER)).await;
                continue;
            }
            // Read the epoch before the take: a restart in between may lose the record of the take.
            let epoch = self.journal.epoch();
            let count = if suspects { 1 } else { free };
            let taken = tokio::select! {
                // If a take is dropped, the drain returns the entries that the store has delivered.
                () = stop.cancelled() => break,
                taken = self.take(&mut reader, count) => taken,
            };
            match taken {
                Ok(taken) => {
                    backoff.reset();
                    if suspects {
                        self.start_group(consumer, taken, epoch, tracker);
                    } else {
                        self.start(taken, epoch, tracker);
                    }
                }
                Err(error) => {
                    self.handle_failed_take(&error).await;
                    stop.pause(backoff.pause()).await;
                }
            }
            handle.advanced();
        }
        handle.finished();
    }

    async fn handle_failed_take(&self, error: &StoreError) {
        let StoreError::StateLost(what) = error else {
            tracing::warn!(%error, "failed to lease work; retrying");
            return;
        };
        self.metrics.state_lost();
        self.journal.mark_unreported();
        tracing::error!(what, "streams of the shard are missing; recreating them and their slices from turn records");
        if let Err(error) = self.store.ensure_groups().await {
            tracing::warn!(%error, "failed to recreate the streams of the shard");
        }
    }

    /// A failed take may have delivered entries that did not arrive, so these are returned first.
    async fn take(&self, reader: &mut QueueReader, count: usize) -> Result<Vec<TakenEntry>, StoreError> {
        if reader.failed {
            self.strays.return_entries(&reader.consumer, &reader.queues, StrayScope::All).await?;
            reader.failed = false;
        }
        let taken = self.store.seam().take(&reader.next(count)).await;
        reader.failed = taken.is_err();
        taken
    }

    fn start(self: &Arc<Self>, taken: Vec<TakenEntry>, epoch: u64, tracker: &TaskTracker) {
        let pool = self.slices.pool(false);
        for entry in taken {
            let Some(slice) = self.slice_of(entry, tracker) else { continue };
            let lease = self.hold_slice(&slice, epoch);
            match pool.try_reserve() {
                Some((slot, held)) => {
                    drop(tracker.spawn(Arc::clone(&self.pipeline).run_slice(slice, lease, pool.begin(slot), held)));
                }
                None => drop(tracker.spawn(Arc::clone(self).wait_for_slot(slice, lease))),
            }
        }
    }

    /// `None` if the worker already holds the slice, or cannot read the entry.
    fn slice_of(self: &Arc<Self>, taken: TakenEntry, tracker: &TaskTracker) -> Option<Slice> {
        match Slice::read(taken.queue.clone(), taken.entry.clone(), &taken.fields) {
            // A restarted store may have lost the take of this entry and deliver it again.
            Ok(slice) if self.slices.contains(&slice.name, &slice.entry) => None,
            Ok(slice) => Some(slice),
            Err(problem) => {
                let this = Arc::clone(self);
                let problem = problem.to_string();
                let entry = HeldEntry { queue: taken.queue, entry: taken.entry, fields: taken.fields };
                drop(tracker.spawn(async move { this.strays.return_unreadable(&entry, &problem).await }));
                None
            }
        }
    }

    /// Waits for a slot. All slots may be busy: the store can deliver more slices than requested, and suspects take
    /// slots too.
    async fn wait_for_slot(self: Arc<Self>, slice: Slice, lease: SliceLease) {
        let pool = self.slices.pool(false);
        let room = tokio::select! {
            room = pool.reserve() => room,
            () = self.now.cancelled() => None,
        };
        match room {
            Some((slot, held)) => Arc::clone(&self.pipeline).run_slice(slice, lease, pool.begin(slot), held).await,
            None => self.release(slice).await,
        }
    }

    fn hold_slice(&self, slice: &Slice, epoch: u64) -> SliceLease {
        self.slices.add(slice, self.lease_clock.term(), epoch)
    }

    async fn release(&self, slice: Slice) {
        let name = slice.name.clone();
        let entry = slice.entry.clone();
        self.decisions.requeue(slice, RequeueReason::Unsent { nonce: None }).await;
        self.slices.remove(&name, &entry);
    }
}

/// Suspects are slices that were redelivered after a crash. They run in groups, see [`tickfleet_core::recovery`].
impl Leasing {
    fn start_group(self: &Arc<Self>, consumer: &ConsumerId, taken: Vec<TakenEntry>, epoch: u64, tracker: &TaskTracker) {
        let mut slices = taken.into_iter().filter_map(|entry| self.slice_of(entry, tracker));
        let Some(first) = slices.next() else { return };
        let others: Vec<Slice> = slices.collect();
        let lease = self.hold_slice(&first, epoch);
        // Only this loop takes the slot for suspects, so the slot is free.
        let room = self.slices.pool(true).try_reserve();
        let this = Arc::clone(self);
        let consumer = consumer.clone();
        let inner = tracker.clone();
        drop(tracker.spawn(async move {
            for other in others {
                this.release(other).await;
            }
            match room {
                Some(room) => this.run_group(&consumer, (first, lease), room, epoch, &inner).await,
                None => this.release(first).await,
            }
        }));
    }

    /// Waits until the process runs no other group of suspects.
    async fn run_group(
        self: &Arc<Self>,
        consumer: &ConsumerId,
        first: (Slice, SliceLease),
        (slot, held): SlotPermits,
        epoch: u64,
        tracker: &TaskTracker,
    ) {
        let group = self.take_group(consumer, first, epoch, tracker).await;
        let look = tokio::select! {
            look = self.suspects.acquire() => look,
            // Other workers can carry out the released slices at once.
            () = self.now.cancelled() => {
                join_all(group.into_iter().map(|(slice, _)| self.release(slice))).await;
                return;
            }
        };
        let suspects = self.slices.pool(true);
        let pool = self.slices.pool(false);
        let right = Arc::new(SuspectGroup::new(slot, look));
        let mut first_held = Some(held);
        let mut runs = Vec::new();
        for (slice, lease) in group {
            let room = match first_held.take() {
                Some(held) => Some((suspects.begin_first(&right), held)),
                None => pool.try_reserve().map(|(slot, held)| (pool.begin(slot).of_group(&right), held)),
            };
            match room {
                Some((slot, held)) => runs.push((slice, lease, slot, held)),
                // Regular slices have taken the slot meanwhile.
                None => self.release(slice).await,
            }
        }
        drop(right);
        // Mark all slices before any call runs, so that another crash counts against exactly these slices.
        let marked = runs.into_iter().map(|(slice, lease, slot, held)| async move {
            let name = slice.name.clone();
            let entry = slice.entry.clone();
            let started = self.pipeline.mark_started(slice).await;
            if started.is_none() {
                self.slices.remove(&name, &entry);
            }
            started.map(|slice| (slice, lease, slot, held))
        });
        for (slice, lease, slot, held) in join_all(marked).await.into_iter().flatten() {
            drop(tracker.spawn(Arc::clone(&self.pipeline).run_slice(slice, lease, slot, held)));
        }
    }

    async fn take_group(
        self: &Arc<Self>,
        consumer: &ConsumerId,
        first: (Slice, SliceLease),
        epoch: u64,
        tracker: &TaskTracker,
    ) -> Vec<(Slice, SliceLease)> {
        let more = group_max(&first.0).saturating_sub(1);
        let mut group = vec![first];
        if more > 0 {
            let queues = group.iter().map(|(slice, _)| slice.queue.clone()).collect();
            let take = TakeRequest { consumer: consumer.as_str().into(), queues, count: more, wait_ms: 0 };
            match self.store.seam().take(&take).await {
                Ok(taken) => {
                    let slices = taken.into_iter().filter_map(|entry| self.slice_of(entry, tracker));
                    group.extend(slices.map(|slice| (slice.clone(), self.hold_slice(&slice, epoch))));
                }
                Err(error) => tracing::warn!(%error, "failed to take the rest of a group of suspects"),
            }
        }
        let taken: Vec<TakenSuspect<'_>> = group
            .iter()
            .map(|(slice, _)| TakenSuspect {
                tenant: &slice.name.tenant,
                group_max: u32::try_from(group_max(slice)).unwrap_or(u32::MAX),
            })
            .collect();
        let room = SuspectCapacity { slots: 1 + self.slices.pool(false).free(), tenant_slots: usize::MAX };
        let chosen = choose(&taken, room);
        let mut runs = Vec::new();
        let mut released = Vec::new();
        for (at, one) in group.into_iter().enumerate() {
            if chosen.contains(&at) { runs.push(one) } else { released.push(self.release(one.0)) }
        }
        join_all(released).await;
        runs
    }
}

/// The maximum size of the suspect's group, including the suspect itself.
fn group_max(slice: &Slice) -> usize {
    slice.turn.suspect.map_or(1, |suspect| usize::try_from(suspect.group_max).unwrap_or(1))
}

struct QueueReader {
    consumer: ConsumerId,
    /// Most urgent first; never empty.
    queues: Vec<StreamKey>,
    wait_ms: u64,
    round: u64,
    /// After a failed take, the store may have delivered entries that have not arrived.
    failed: bool,
}

impl QueueReader {
    fn next(&mut self, count: usize) -> TakeRequest {
        self.round += 1;
        let mut queues = self.queues.clone();
        if self.round.is_multiple_of(STARVATION_GUARD) {
            queues.reverse();
        }
        TakeRequest { consumer: self.consumer.as_str().into(), queues, count, wait_ms: self.wait_ms }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_least_urgent_queue_is_occasionally_read_first() {
        let queues = vec![keys::ready(Priority::Urgent), keys::ready(Priority::Low)];
        let consumer = ConsumerId::new("w-1").unwrap();
        let mut reader = QueueReader { consumer, queues: queues.clone(), wait_ms: 5, round: 0, failed: false };
        let firsts: Vec<StreamKey> = (0..32).map(|_| reader.next(3).queues[0].clone()).collect();
        assert_eq!(firsts.iter().filter(|first| **first == queues[1]).count(), 2);
        assert_eq!(firsts[0], queues[0]);
    }
}
