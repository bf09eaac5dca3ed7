//! Leasing and draining: how slices come to a worker, and how it goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tickfleet_engine::retry_until::{Attempt, Waiting, retry_until};
use tickfleet_model::{ConsumerId, Priority, limits};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::{Backoff, Entry, Queue, Reader, Returned, SliceEntry, Slots, StoreError, TurnName};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Lane, Lease, Worker};

/// One lease in so many begins with the least urgent work, so that it never starves.
const STARVATION_GUARD: u64 = 16;
/// Own pending entries looked at after trouble with the connection: more than a worker can hold.
const LOST_MAX: usize = 10_000;

impl Worker {
    /// Runs until `shutdown` drains; while Redis is away it waits and comes back by itself. Returns when the last
    /// slice is settled or handed back, or when the drain time is over.
    ///
    /// # Errors
    /// [`StoreError::Shards`] where the data was written with another number of shards.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) -> Result<(), StoreError> {
        let tracker = TaskTracker::new();
        let mut left = None;
        let mut lists = None;
        while !shutdown.draining.is_cancelled() {
            let prepared = retry_until(&shutdown.draining, || async {
                match self.prepare().await {
                    Ok(consumer) => Attempt::Done(Ok(consumer)),
                    Err(error @ StoreError::Shards { .. }) => Attempt::Done(Err(error)),
                    Err(error) => {
                        tracing::warn!(%error, "the shard is not ready; trying again");
                        Attempt::Failed
                    }
                }
            });
            let Some(consumer) = prepared.await.transpose()? else { break };
            // They are made of what was set at run time, too.
            let write = || tokio::spawn(Arc::clone(&self).tool_lists(shutdown.draining.clone()));
            lists.get_or_insert_with(write);
            self.incarnation(&consumer, &shutdown.draining, &tracker).await;
            left = Some(consumer);
        }
        self.drain(&shutdown, &tracker, left.as_ref()).await;
        Ok(())
    }

    /// Groups, first heartbeat, and what was set at run time, before anything is read (rules 12 and 17).
    async fn prepare(&self) -> Result<ConsumerId, StoreError> {
        self.store.ensure_groups().await?;
        let consumer = tickfleet_store::incarnation("w", &self.options.name);
        self.lease_clock.forget();
        self.beat(&consumer).await?;
        Ok(consumer)
    }

    /// One heartbeat, with what it brings: time, tenants, turns that were cancelled.
    async fn beat(&self, consumer: &ConsumerId) -> Result<(), StoreError> {
        let sent = self.lease_clock.sending();
        let slots = Slots { busy: self.busy(), all: self.options.slots };
        let beat = self.store.beat_with(consumer, slots, self.configs.load().active.short_digest()).await?;
        self.clock.set(beat.now_ms);
        self.cancel_running(&beat.cancelled);
        self.marks_ms.store(beat.marks_ms, Ordering::Relaxed);
        self.assert_after(&beat).await?;
        self.lease_clock.confirm(sent);
        self.active.refresh(&self.store).await?;
        if let Some(generation) = self.configs.refresh(&self.store, &self.active).await? {
            self.metrics.config_in_force(self.configs.load().active.short_digest(), generation);
        }
        Ok(())
    }

    /// Reads what was set at run time where there is news, for a slice whose tenant nobody here knows.
    pub(crate) async fn hear_of_new_tenants(&self) -> Result<(), StoreError> {
        if self.active.refresh_where_news(&self.store).await? {
            self.configs.refresh(&self.store, &self.active).await?;
        }
        Ok(())
    }

    /// Redis tells of a cancel once: it is acted on before anything else can fail.
    fn cancel_running(&self, cancelled: &[TurnName]) {
        let running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for turn in cancelled {
            if let Some(held) = running.get(turn) {
                tracing::info!(%turn, "the turn is cancelled while it runs");
                held.lease.cancel.cancel();
            }
        }
    }

    async fn incarnation(self: &Arc<Self>, consumer: &ConsumerId, draining: &CancellationToken, tracker: &TaskTracker) {
        let stop = draining.child_token();
        let beats = tokio::spawn({
            let (this, consumer, stop, tracker) = (self.clone(), consumer.clone(), stop.clone(), tracker.clone());
            async move { this.beats(&consumer, &stop, &tracker).await }
        });
        tokio::join!(self.leases(consumer, &stop, tracker, false), self.leases(consumer, &stop, tracker, true));
        // While draining, the lease is renewed until the last slice is done; a lost one has ended its beats by itself.
        if !draining.is_cancelled()
            && let Err(error) = beats.await
        {
            tracing::error!(%error, "the heartbeat ended by a bug");
        }
    }

    /// Beats until the lease is lost, or until draining is done: running calls need their lease while they end.
    async fn beats(&self, consumer: &ConsumerId, stop: &CancellationToken, tracker: &TaskTracker) {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let every = lease / u32::try_from(limits::BEATS_PER_LEASE).unwrap_or(4);
        let handle = self.progress.register("beat", lease * 3 + Duration::from_secs(30));
        let mut rounds = 0;
        loop {
            tokio::time::sleep(every).await;
            if stop.is_cancelled() && tracker.is_empty() {
                handle.finished();
                return;
            }
            if let Err(error) = self.beat(consumer).await {
                tracing::warn!(%error, "no heartbeat");
            }
            rounds += 1;
            if u64::is_multiple_of(rounds, limits::BEATS_PER_LEASE) {
                self.return_strays(consumer, lease).await;
            }
            handle.advanced();
            if self.lease_clock.is_lost() {
                self.metrics.lease_lost("worker");
                tracing::warn!("a lease passed without a heartbeat; starting over under a new name");
                stop.cancel();
                handle.finished();
                return;
            }
        }
    }

    /// Rule 12: hands back what Redis says that we hold and memory does not know: nobody would take it from a
    /// consumer that lives.
    async fn return_strays(&self, consumer: &ConsumerId, lease: Duration) {
        match self.store.held_since(consumer, lease, LOST_MAX).await {
            Ok(held) => {
                for slice in held.iter().filter(|slice| !self.holds(slice)) {
                    tracing::warn!(turn = %slice.name, "a slice was leased and nobody carries it out; handing it back");
                    self.hand_back(slice, Returned::Stray).await;
                }
            }
            Err(error) => tracing::debug!(%error, "what is held could not be compared"),
        }
    }

    /// Leases slices until `stop`: suspects into their own lane, all others into theirs.
    async fn leases(
        self: &Arc<Self>,
        consumer: &ConsumerId,
        stop: &CancellationToken,
        tracker: &TaskTracker,
        suspects: bool,
    ) {
        let block = Duration::from_millis(self.store.options().lease_ms.unsigned_abs() / limits::BLOCK_FRACTION);
        let (name, lane) = if suspects { ("lease_suspects", &self.suspects) } else { ("lease", &self.lane) };
        let handle = self.progress.register(name, block * 4 + self.options.drain + Duration::from_secs(60));
        let of: fn(Priority) -> Queue = if suspects { Queue::Suspect } else { Queue::Ready };
        let mut leasing = Leasing {
            reader: self.store.reader(consumer, block),
            queues: self.options.priorities.as_slice().iter().copied().map(of).collect(),
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
            let leased = tokio::select! {
                // The reader's connection is dropped with its future: nothing is delivered to nobody.
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

    /// Nothing could be leased: where the streams are gone, they are made anew.
    async fn not_leased(&self, error: &StoreError) {
        let StoreError::StateLost(what) = error else {
            tracing::warn!(%error, "could not lease; trying again");
            return;
        };
        self.metrics.state_lost();
        self.claims.doubt();
        tracing::error!(
            what,
            "the streams of the shard are gone; they are made anew, and slices from the records of their turns"
        );
        if let Err(error) = self.store.ensure_groups().await {
            tracing::warn!(%error, "they could not be made anew");
        }
    }

    /// Leases up to about `free` slices. After trouble with the connection, what was delivered and never arrived is
    /// handed back first.
    async fn lease(&self, leasing: &mut Leasing, free: usize) -> Result<Vec<(Queue, Entry)>, StoreError> {
        if leasing.reader.is_fresh() {
            for queue in leasing.queues.clone() {
                for entry in leasing.reader.mine(&queue.to_string(), LOST_MAX).await? {
                    match SliceEntry::parse(queue.clone(), &entry) {
                        Ok(slice) if !self.holds(&slice) => self.hand_back(&slice, Returned::Stray).await,
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
                // A reap of an older build has put it here; handing it back puts it where it belongs.
                Ok(slice) if slice.crashes > 0 && !suspect => self.return_at_once(slice, tracker),
                Ok(slice) => match room.pop() {
                    Some((slot, held)) => {
                        let lease = self.hold(&slice);
                        drop(tracker.spawn(self.clone().slice(slice, lease, lane.take(slot), held)));
                    }
                    // Others may have a free lane for it.
                    None if suspect => self.return_at_once(slice, tracker),
                    None => {
                        let lease = self.hold(&slice);
                        drop(tracker.spawn(self.clone().wait_for_slot(slice, lease)));
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
        tracing::error!(entry = entry.id, problem, "an entry of a ready stream cannot be read");
        let named = entry.field("t").and_then(|name| std::str::from_utf8(name).ok()).and_then(TurnName::parse);
        match named {
            Some(name) => self.return_slice(name, queue, &entry.id, Returned::Unread).await,
            None => {
                if let Err(error) = self.store.put_aside(queue, &entry.id, problem).await {
                    tracing::warn!(%error, "it stays with this worker until its lease ends");
                }
            }
        }
    }

    /// More came than was asked for (each stream may give a few): it waits like any other.
    async fn wait_for_slot(self: Arc<Self>, slice: SliceEntry, lease: Lease) {
        let permits = (self.lane.slots.clone().acquire_owned().await, self.lane.held.clone().acquire_owned().await);
        if let (Ok(slot), Ok(held)) = permits {
            let slot = self.lane.take(slot);
            self.slice(slice, lease, slot, held).await;
        }
    }

    fn return_at_once(self: &Arc<Self>, slice: SliceEntry, tracker: &TaskTracker) {
        let this = Arc::clone(self);
        drop(tracker.spawn(async move { this.hand_back(&slice, Returned::Unsent).await }));
    }

    /// Two phases: running calls end in their own time; then they are told to stop, and hand back what is left.
    async fn drain(&self, shutdown: &Shutdown, tracker: &TaskTracker, consumer: Option<&ConsumerId>) {
        tracker.close();
        if !tracker.is_empty() {
            tracing::info!(slices = tracker.len(), "draining");
        }
        tokio::select! {
            () = tracker.wait() => {}
            () = shutdown.now.cancelled() => {}
            () = tokio::time::sleep(self.options.drain) => tracing::warn!(slices = tracker.len(), "the drain time is over"),
        }
        self.now.cancel();
        // What must stop still hands back and settles; Redis' answer is awaited for a moment.
        if tokio::time::timeout(Duration::from_secs(3), tracker.wait()).await.is_err() {
            tracing::error!(
                slices = tracker.len(),
                "slices are left behind; others take them over when the lease ends"
            );
            return;
        }
        if let Some(consumer) = consumer
            && let Err(error) = self.store.leave(consumer).await
        {
            tracing::debug!(%error, "the lease will end by itself");
        }
    }
}

/// Room for one slice: its slot, and its share of what may be held unsettled.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Lane {
    /// Waits for a free slot and takes all that are free. Dropped before it answers, it has taken none.
    async fn room(&self) -> Vec<Room> {
        let mut room = Vec::new();
        let first = (self.slots.clone().acquire_owned().await, self.held.clone().acquire_owned().await);
        if let (Ok(slot), Ok(held)) = first {
            room.push((slot, held));
        }
        while let Ok(slot) = self.slots.clone().try_acquire_owned() {
            let Ok(held) = self.held.clone().try_acquire_owned() else { break };
            room.push((slot, held));
        }
        room
    }
}

/// Reads one lane's streams, one priority at a time while there is a backlog.
struct Leasing {
    reader: Reader,
    /// What the lane serves, most urgent first; never empty.
    queues: Vec<Queue>,
    round: u64,
    /// Whether the last read took all that it asked for: then priorities matter.
    backlog: bool,
}

impl Leasing {
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
