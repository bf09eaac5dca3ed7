//! A store in memory, for development, tests, simulations and single machines. With a directory, `journal` persists the
//! effects that change the data.

mod clock;
mod counters;
mod effects;
pub mod faults;
mod frames;
mod guards;
mod history;
mod journal;
mod queries;
mod shard;
mod snapshot;
mod streams;
mod writes;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tickfleet_core::{CounterState, EntryId, Query, RecordKey, SetKey, StreamKey, Transaction, Value, Write};
use tickfleet_model::Durability;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use clock::{Clock, ManualClock, SystemClock};
pub use journal::FsyncPolicy;

use self::history::History;
use self::journal::{Journal, Opened, Position};
use self::shard::{Contents, Shard};
use super::inspect::{Entry, FollowRequest, QueueState, Range, ShardStats, StreamState};
use super::{BatchResult, Consumer, QueueCounts, Store, TakeRequest, TakenEntry, TrimBounds};
use crate::{Confirmed, StoreError};

#[derive(Debug, Clone)]
pub struct MemoryOptions {
    pub clock: Arc<dyn Clock>,
    pub lease_ms: i64,
    /// In bytes; 0 means unlimited. The bound never blocks a write: only [`Store::sample_memory`] uses it.
    pub bytes_max: u64,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), lease_ms: 10_000, bytes_max: 0 }
    }
}

#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    locked: Mutex<Locked>,
    clock: Arc<dyn Clock>,
    bytes_max: AtomicU64,
    enqueued: Notify,
    appended: Notify,
}

#[derive(Debug)]
struct Locked {
    shard: Shard,
    journal: Option<Journal>,
    history: Option<History>,
}

impl Locked {
    fn check(&self) -> Result<(), StoreError> {
        self.journal.as_ref().map_or(Ok(()), Journal::check)
    }

    fn persist(&mut self) -> Result<Option<Position>, StoreError> {
        let effects = self.shard.drain();
        let contents = &self.shard.contents;
        let position = match &mut self.journal {
            Some(journal) => journal.append(&effects, contents)?,
            None => None,
        };
        if let Some(history) = &mut self.history {
            history.push(contents.clock.last_ms, effects);
        }
        Ok(position)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl MemoryStore {
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        let shard = Shard::new(options.lease_ms);
        Self::of(Locked { shard, journal: None, history: None }, options)
    }

    /// Opening existing data counts as a restart, and begins a new epoch.
    pub fn open_dir(dir: &Path, policy: FsyncPolicy, options: MemoryOptions) -> Result<Self, StoreError> {
        let mut opened = Opened::read(dir)?;
        let shard = match opened.contents.take() {
            Some(contents) => {
                let mut shard = Shard::with(contents, options.lease_ms);
                shard.restart(options.clock.now_ms());
                shard
            }
            None => Shard::new(options.lease_ms),
        };
        let journal = opened.begin(dir, policy, &shard.contents)?;
        let mut locked = Locked { shard, journal: Some(journal), history: None };
        locked.shard.record_effects();
        Ok(Self::of(locked, options))
    }

    fn of(locked: Locked, options: MemoryOptions) -> Self {
        let MemoryOptions { clock, bytes_max, .. } = options;
        let shared = Shared {
            locked: Mutex::new(locked),
            clock,
            bytes_max: AtomicU64::new(bytes_max),
            enqueued: Notify::new(),
            appended: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes effect with the next sample. 0 means unlimited.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.shared.bytes_max.store(bytes, Ordering::SeqCst);
    }

    /// Begins a new epoch.
    pub async fn restart(&self) -> Result<(), StoreError> {
        self.change(Shard::restart).await
    }

    /// The caller must hold the lock. Otherwise, concurrent calls could apply their times in the wrong order.
    fn raw_ms(&self) -> i64 {
        self.shared.clock.now_ms()
    }

    /// Ignores poisoning: changes do not panic halfway, so the shard is still consistent.
    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.shared.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_contents<T>(&self, look: impl FnOnce(&Contents) -> T) -> Result<T, StoreError> {
        self.read_locked(|shard, _| look(&shard.contents))
    }

    /// `look` also gets the time of the store's clock (ms).
    fn read_locked<T>(&self, look: impl FnOnce(&Shard, i64) -> T) -> Result<T, StoreError> {
        let mut locked = self.lock();
        locked.check()?;
        let raw_ms = self.raw_ms();
        locked.shard.expire(raw_ms);
        Ok(look(&locked.shard, raw_ms))
    }

    async fn change<T>(&self, change: impl FnOnce(&mut Shard, i64) -> T + Send) -> Result<T, StoreError> {
        let (result, position) = {
            let mut locked = self.lock();
            locked.check()?;
            let result = change(&mut locked.shard, self.raw_ms());
            (result, locked.persist()?)
        };
        if let Some(position) = position {
            position.synced().await?;
        }
        Ok(result)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn read(&self, queries: &[Query]) -> Result<Vec<Value>, StoreError> {
        self.read_contents(|contents| queries.iter().map(|query| contents.read(query)).collect())
    }

    async fn commit(&self, batch: &[Transaction]) -> Result<BatchResult, StoreError> {
        let committed = self.change(|shard, raw_ms| shard.commit(raw_ms, batch)).await?;
        if committed.results.iter().flatten().any(|one| !one.entries.is_empty()) {
            self.shared.enqueued.notify_waiters();
        }
        let appends = |write: &Write| matches!(write, Write::Append { .. } | Write::Reply(..));
        if batch.iter().flat_map(|transaction| &transaction.writes).any(appends) {
            self.shared.appended.notify_waiters();
        }
        Ok(committed)
    }

    async fn commit_durably(
        &self,
        batch: &[Transaction],
        durability: Durability,
        at_most: Duration,
    ) -> Result<(BatchResult, Confirmed), StoreError> {
        let committed = self.commit(batch).await?;
        let position = self.lock().journal.as_ref().map(Journal::position);
        // Without a directory, nothing has to be confirmed: a crash ends the caller together with the data.
        let (Some(position), false) = (position, durability == Durability::None) else {
            return Ok((committed, Confirmed::Yes));
        };
        Ok(match tokio::time::timeout(at_most, position.synced()).await {
            Ok(synced) => {
                synced?;
                (committed, Confirmed::Yes)
            }
            Err(_) => (committed, Confirmed::NotInTime),
        })
    }

    async fn take(&self, take: &TakeRequest) -> Result<Vec<TakenEntry>, StoreError> {
        let deadline = Instant::now() + Duration::from_millis(take.wait_ms);
        loop {
            let enqueued = self.shared.enqueued.notified();
            tokio::pin!(enqueued);
            // Register first, so that an entry that is added after the check still wakes this call.
            enqueued.as_mut().enable();
            let taken = self.change(|shard, raw_ms| shard.take(raw_ms, take)).await?;
            if !taken.is_empty() || take.wait_ms == 0 {
                return Ok(taken);
            }
            if tokio::time::timeout_at(deadline, enqueued).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    async fn ensure_queues(&self, queues: &[StreamKey]) -> Result<(), StoreError> {
        self.change(|shard, _| queues.iter().for_each(|queue| shard.ensure_queue(queue))).await
    }

    async fn backlog(&self, queue: &StreamKey) -> Result<QueueCounts, StoreError> {
        self.read_contents(|contents| contents.backlog(queue))
    }

    async fn consumers(&self, queue: &StreamKey) -> Result<Vec<Consumer>, StoreError> {
        self.read_locked(|shard, raw_ms| shard.consumers(raw_ms, queue))
    }

    async fn remove_consumer(&self, queue: &StreamKey, consumer: &str) -> Result<bool, StoreError> {
        self.change(|shard, _| shard.remove_consumer(queue, consumer)).await
    }

    async fn trim(&self, log: &StreamKey, keep: TrimBounds) -> Result<u64, StoreError> {
        self.change(|shard, raw_ms| shard.trim(raw_ms, log, keep)).await
    }

    async fn sample_memory(&self) -> Result<(u64, u64), StoreError> {
        let bytes_max = self.shared.bytes_max.load(Ordering::SeqCst);
        let sample = |shard: &mut Shard, raw_ms| {
            shard.expire(raw_ms);
            shard.sample(bytes_max);
            (shard.contents.bytes, bytes_max)
        };
        self.change(sample).await
    }

    async fn stream_bytes(&self, stream: &StreamKey) -> Result<u64, StoreError> {
        self.read_contents(|contents| contents.stream_bytes(stream))
    }

    async fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Result<(Vec<RecordKey>, u64), StoreError> {
        self.read_contents(|contents| contents.scan(prefix, cursor, count))
    }

    async fn scan_counters(
        &self,
        limit: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, CounterState)>, u64), StoreError> {
        self.read_contents(|contents| contents.scan_counters(limit, cursor, count))
    }

    async fn scan_members(
        &self,
        set: &SetKey,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, u64)>, u64), StoreError> {
        self.read_contents(|contents| contents.scan_members(set, prefix, cursor, count))
    }

    async fn last(&self, set: &SetKey, skip: usize, count: usize) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.read_contents(|contents| contents.last(set, skip, count))
    }

    async fn rank(&self, set: &SetKey, member: &str) -> Result<Option<u64>, StoreError> {
        self.read_contents(|contents| contents.rank(set, member))
    }

    async fn entries(&self, stream: &StreamKey, range: &Range) -> Result<Vec<Entry>, StoreError> {
        self.read_contents(|contents| contents.range(stream, range))
    }

    async fn page(&self, stream: &StreamKey, range: &Range) -> Result<(Vec<Entry>, StreamState), StoreError> {
        self.read_contents(|contents| (contents.range(stream, range), contents.stream_state(stream)))
    }

    async fn follow(&self, follow: &FollowRequest) -> Result<Vec<Entry>, StoreError> {
        let deadline = Instant::now() + Duration::from_millis(follow.wait_ms);
        loop {
            let appended = self.shared.appended.notified();
            tokio::pin!(appended);
            // Register first, so that an entry that is appended after the read still wakes this call.
            appended.as_mut().enable();
            let found = self
                .read_contents(|contents| contents.entries_after(&follow.log, follow.after.as_ref(), follow.count))?;
            if !found.is_empty() || follow.wait_ms == 0 {
                return Ok(found);
            }
            if tokio::time::timeout_at(deadline, appended).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    async fn queue_states(&self, queues: &[StreamKey]) -> Result<Vec<QueueState>, StoreError> {
        self.read_contents(|contents| queues.iter().map(|queue| contents.queue_state(queue)).collect())
    }

    async fn holder(&self, queue: &StreamKey, entry: &EntryId) -> Result<Option<(Arc<str>, i64)>, StoreError> {
        self.read_locked(|shard, raw_ms| shard.holder(raw_ms, queue, entry))
    }

    async fn shard_stats(&self) -> Result<ShardStats, StoreError> {
        let memory_max = self.shared.bytes_max.load(Ordering::SeqCst);
        self.read_locked(|shard, raw_ms| shard.shard_stats(raw_ms, memory_max))
    }

    async fn drop_stream(&self, stream: &StreamKey) -> Result<(), StoreError> {
        self.change(|shard, _| shard.drop_stream(stream)).await
    }
}

#[cfg(test)]
mod tests;
