//! The leasing of slices by a worker: it leases as many as it has room for, and starts them.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::retry_until::Waiting;
use tickfleet_model::{ConsumerId, Priorities, Priority, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Backoff, Entry, Queue, Reader, Returned, SliceEntry, Store, StoreError, TurnName};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Common;
use crate::calls::turn::Pipeline;
use crate::claims::Claims;
use crate::held::{HeldSlices, Hold};
use crate::lane::{Lane, Room};
use crate::lease::{LOST_MAX, Quiet};
use crate::lease_clock::{LeaseClock, STEP};
use crate::outbox::Outbox;

/// One lease in so many begins with the least urgent work, so that it never starves.
const STARVATION_GUARD: u64 = 16;

/// How often a drained worker looks whether it was resumed: memory alone is asked.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Leases slices and gives them to the pipeline.
pub(crate) struct Leasing {
    store: Store,
    /// The `ready` streams that it leases from.
    priorities: Priorities,
    /// The time for which a drain waits for running calls.
    drain: Duration,
    lease_clock: Arc<LeaseClock>,
    claims: Arc<Claims>,
    slices: Arc<HeldSlices>,
    quiet: Arc<Quiet>,
    outbox: Arc<Outbox>,
    pipeline: Arc<Pipeline>,
    metrics: Arc<Metrics>,
    progress: Progress,
}

impl Leasing {
    /// Leases from the streams of `priorities`, for `pipeline`.
    pub(crate) fn new(
        common: &Common,
        priorities: Priorities,
        drain: Duration,
        claims: &Arc<Claims>,
        slices: &Arc<HeldSlices>,
        outbox: &Arc<Outbox>,
        pipeline: &Arc<Pipeline>,
    ) -> Self {
        Self {
            store: common.store.clone(),
            priorities,
            drain,
            lease_clock: common.lease_clock.clone(),
            claims: claims.clone(),
            slices: slices.clone(),
            quiet: common.quiet.clone(),
            outbox: outbox.clone(),
            pipeline: pipeline.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
        }
    }

    /// Leases slices until `stop`: suspects into their own lane, all others into theirs.
    pub(crate) async fn leases(
        self: &Arc<Self>,
        consumer: &ConsumerId,
        stop: &CancellationToken,
        tracker: &TaskTracker,
        suspects: bool,
    ) {
        let block = Duration::from_millis(self.store.options().lease_ms.unsigned_abs() / limits::BLOCK_FRACTION);
        let (name, lane) = (if suspects { "lease_suspects" } else { "lease" }, self.slices.lane(suspects));
        let handle = self.progress.register(name, block * 4 + self.drain + Duration::from_secs(60));
        let of: fn(Priority) -> Queue = if suspects { Queue::Suspect } else { Queue::Ready };
        let mut leasing = LaneReader {
            reader: self.store.reader(consumer, block),
            queues: self.priorities.as_slice().iter().copied().map(of).collect(),
            round: 0,
            backlog: true,
        };
        let mut backoff = Backoff::default();
        while !stop.is_cancelled() {
            let room = tokio::select! {
                () = stop.cancelled() => break,
                room = lane.room() => room,
                // All slots are busy for long: that is no standstill of this loop.
                () = tokio::time::sleep(block) => {
                    handle.advanced();
                    continue;
                }
            };
            // Rule 12: what is read without a lease could only be handed back, again and again.
            if self.lease_clock.is_lost() {
                handle.advanced();
                stop.pause(STEP).await;
                continue;
            }
            // What it has asked for already, it takes; then nothing until it is resumed.
            if self.quiet.is_drained() {
                handle.advanced();
                let _ = stop.run_until_cancelled(tokio::time::sleep(LOOK_AGAIN)).await;
                continue;
            }
            let leased = tokio::select! {
                // The reader's connection is dropped with its future. What Redis has delivered to it by then, the drain hands
                // back.
                () = stop.cancelled() => break,
                leased = self.lease(&mut leasing, room.len()) => leased,
            };
            match leased {
                Ok(entries) => {
                    backoff.reset();
                    self.start(lane, entries, room, tracker);
                }
                Err(error) => {
                    self.not_leased(&error).await;
                    stop.pause(backoff.pause()).await;
                }
            }
            handle.advanced();
        }
        handle.finished();
    }

    /// Nothing could be leased: if the streams are gone, they are made anew.
    async fn not_leased(&self, error: &StoreError) {
        let StoreError::StateLost(what) = error else {
            tracing::warn!(%error, "failed to lease work; retrying");
            return;
        };
        self.metrics.state_lost();
        self.claims.doubt();
        tracing::error!(what, "streams of the shard are missing; recreating them and their slices from turn records");
        if let Err(error) = self.store.ensure_groups().await {
            tracing::warn!(%error, "failed to recreate the streams of the shard");
        }
    }

    /// Leases up to about `free` slices. After trouble with the connection, what was delivered and never arrived is
    /// handed back first.
    async fn lease(&self, leasing: &mut LaneReader, free: usize) -> Result<Vec<(Queue, Entry)>, StoreError> {
        if leasing.reader.is_fresh() {
            for queue in leasing.queues.clone() {
                for entry in leasing.reader.mine(&queue.to_string(), LOST_MAX).await? {
                    match SliceEntry::parse(queue.clone(), &entry) {
                        Ok(slice) if !self.slices.holds(&slice) => self.outbox.hand_back(&slice, Returned::Stray).await,
                        Ok(_) => {}
                        Err(problem) => self.put_aside(&queue, &entry, &problem).await,
                    }
                }
            }
        }
        leasing.next(free).await
    }

    /// Starts what was leased. Permits that are left over are given back.
    fn start(self: &Arc<Self>, lane: &Lane, entries: Vec<(Queue, Entry)>, mut room: Vec<Room>, tracker: &TaskTracker) {
        for (queue, entry) in entries {
            let suspect = matches!(queue, Queue::Suspect(_));
            match SliceEntry::parse(queue.clone(), &entry) {
                // A group that was made anew may give out once more what is held.
                Ok(slice) if self.slices.holds(&slice) => {}
                // A reap of an older build has put it here; handing it back puts it where it belongs.
                Ok(slice) if slice.crashes > 0 && !suspect => self.return_at_once(slice, tracker),
                Ok(slice) => match room.pop() {
                    Some((slot, held)) => {
                        let hold = self.hold(&slice);
                        drop(tracker.spawn(Arc::clone(&self.pipeline).slice(slice, hold, lane.take(slot), held)));
                    }
                    // Others may have a free lane for it.
                    None if suspect => self.return_at_once(slice, tracker),
                    None => {
                        let hold = self.hold(&slice);
                        drop(tracker.spawn(self.clone().wait_for_slot(slice, hold)));
                    }
                },
                Err(problem) => {
                    let this = self.clone();
                    drop(tracker.spawn(async move { this.put_aside(&queue, &entry, &problem).await }));
                }
            }
        }
    }

    /// An entry that this build cannot read: a later build's, which a worker of that build reads when it is offered
    /// again, or a foreign writer's, which goes to the dead letters.
    async fn put_aside(&self, queue: &Queue, entry: &Entry, problem: &str) {
        tracing::error!(entry = entry.id, problem, "cannot read an entry of a ready stream");
        let named = entry.field("t").and_then(|name| std::str::from_utf8(name).ok()).and_then(TurnName::parse);
        match named {
            Some(name) => self.outbox.return_slice(name, queue, &entry.id, Returned::Unread).await,
            None => {
                if let Err(error) = self.store.put_aside(queue, &entry.id, problem).await {
                    tracing::warn!(%error, "entry stays with this worker until its lease ends");
                }
            }
        }
    }

    /// More came than was asked for (each stream may give a few): it waits like any other.
    async fn wait_for_slot(self: Arc<Self>, slice: SliceEntry, hold: Hold) {
        let lane = self.slices.lane(false);
        if let Some((slot, held)) = lane.room_for_one().await {
            Arc::clone(&self.pipeline).slice(slice, hold, lane.take(slot), held).await;
        }
    }

    fn hold(&self, slice: &SliceEntry) -> Hold {
        self.slices.hold(slice, self.lease_clock.term())
    }

    fn return_at_once(self: &Arc<Self>, slice: SliceEntry, tracker: &TaskTracker) {
        let this = Arc::clone(self);
        drop(tracker.spawn(async move { this.outbox.hand_back(&slice, Returned::Unsent).await }));
    }
}

/// Reads one lane's streams, one priority at a time while there is a backlog.
struct LaneReader {
    reader: Reader,
    /// The queues that the lane serves, most urgent first; never empty.
    queues: Vec<Queue>,
    round: u64,
    /// True if the last read took all that it asked for: then priorities matter.
    backlog: bool,
}

impl LaneReader {
    async fn next(&mut self, free: usize) -> Result<Vec<(Queue, Entry)>, StoreError> {
        if self.backlog {
            let found = self.sweep(free).await?;
            self.backlog = found.len() >= free;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        // Nothing waits: block on all of them. COUNT is per stream, so each may give its share only.
        let streams: Vec<String> = self.queues.iter().map(Queue::to_string).collect();
        let share = (free / streams.len().max(1)).max(1);
        let found = self.reader.wait(&streams, share).await?;
        self.backlog = found.len() >= share;
        Ok(found.into_iter().filter_map(|(index, entry)| Some((self.queues.get(index)?.clone(), entry))).collect())
    }

    /// Takes from the most urgent stream first, and now and then from the least urgent.
    async fn sweep(&mut self, free: usize) -> Result<Vec<(Queue, Entry)>, StoreError> {
        self.round += 1;
        let mut order = self.queues.clone();
        if self.round.is_multiple_of(STARVATION_GUARD) {
            order.reverse();
        }
        let mut found = Vec::new();
        for queue in order {
            let left = free - found.len();
            if left == 0 {
                break;
            }
            let entries = self.reader.take(&queue.to_string(), left).await?;
            found.extend(entries.into_iter().map(|entry| (queue.clone(), entry)));
        }
        Ok(found)
    }
}
