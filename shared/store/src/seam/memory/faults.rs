//! A store in memory that fails like a real store. The faults depend only on a seed and the order of calls.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tickfleet_core::{CounterState, EntryId, Query, RecordKey, SetKey, StreamKey, Transaction, Value};
use tickfleet_model::Durability;
use tokio::sync::watch;

use super::history::History;
use super::shard::Shard;
use super::{MemoryOptions, MemoryStore};
use crate::seam::inspect::{Entry, FollowRequest, QueueState, Range, ShardStats, StreamState};
use crate::seam::{BatchResult, Consumer, QueueCounts, Store, TakeRequest, TakenEntry, TrimBounds};
use crate::{Confirmed, StoreError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Before a call is applied, and again before its reply is returned.
    pub latency_ms: RangeInclusive<u64>,
    /// These calls are not applied.
    pub refused_per_mille: u64,
    /// These calls are applied but return no reply.
    pub unanswered_per_mille: u64,
}

impl Default for Faults {
    fn default() -> Self {
        Self { latency_ms: 0..=0, refused_per_mille: 0, unanswered_per_mille: 0 }
    }
}

struct CallFaults {
    before_ms: u64,
    after_ms: u64,
    refused: bool,
    unanswered: bool,
}

/// Clones share the shard and one connection.
#[derive(Debug, Clone)]
pub struct FaultyStore {
    store: MemoryStore,
    severed: watch::Sender<bool>,
    lease_ms: i64,
    history_ms: i64,
    state: Arc<Mutex<FaultState>>,
}

#[derive(Debug)]
struct FaultState {
    faults: Faults,
    chance: SplitMix64,
}

#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    const fn draw(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        if below == 0 { 0 } else { mixed % below }
    }
}

impl FaultyStore {
    /// [`Self::lose`] can lose the writes of at most the last `history_ms`.
    #[must_use]
    pub fn new(options: MemoryOptions, seed: u64, history_ms: i64) -> Self {
        let lease_ms = options.lease_ms;
        let store = MemoryStore::new(options);
        {
            let mut kept = store.lock();
            kept.shard.record_effects();
            kept.history = Some(History::new(kept.shard.contents.clone(), history_ms));
        }
        let state = FaultState { faults: Faults::default(), chance: SplitMix64(seed) };
        Self { store, severed: watch::Sender::new(false), lease_ms, history_ms, state: Arc::new(Mutex::new(state)) }
    }

    #[must_use]
    pub fn connect(&self) -> Self {
        Self { severed: watch::Sender::new(false), ..self.clone() }
    }

    pub fn sever(&self) {
        self.severed.send_replace(true);
    }

    #[must_use]
    pub const fn inner(&self) -> &MemoryStore {
        &self.store
    }

    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Simulates a crash, or a failover to a lagging replica. A new epoch begins. IDs of lost entries may be reused.
    pub fn lose(&self, lost_ms: i64) {
        let mut kept = self.store.lock();
        let raw_ms = self.store.raw_ms();
        let now_ms = kept.shard.tick(raw_ms);
        let Some(history) = &kept.history else { return };
        let mut shard = Shard::with(history.contents_at(now_ms.saturating_sub(lost_ms)), self.lease_ms);
        shard.record_effects();
        shard.restart(raw_ms);
        shard.drain();
        kept.history = Some(History::new(shard.contents.clone(), self.history_ms));
        kept.shard = shard;
    }

    pub fn set_memory_short(&self, short: bool) {
        self.store.set_bytes_max(u64::from(short));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_faults(&self) -> CallFaults {
        let mut state = self.state();
        let FaultState { faults, chance } = &mut *state;
        let (least, span) =
            (*faults.latency_ms.start(), faults.latency_ms.end().saturating_sub(*faults.latency_ms.start()));
        CallFaults {
            before_ms: least + chance.draw(span + 1),
            after_ms: least + chance.draw(span + 1),
            refused: chance.draw(1000) < faults.refused_per_mille,
            unanswered: chance.draw(1000) < faults.unanswered_per_mille,
        }
    }

    async fn call<T: Send>(&self, call: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        let mut severed = self.severed.subscribe();
        tokio::select! {
            biased;
            () = async { drop(severed.wait_for(|severed| *severed).await) } => std::future::pending().await,
            answer = self.connected(call) => answer,
        }
    }

    async fn connected<T: Send>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let faults = self.next_faults();
        pause(faults.before_ms).await;
        if faults.refused {
            return Err(StoreError::Unanswered("the connection was refused"));
        }
        let answer = call.await?;
        pause(faults.after_ms).await;
        if faults.unanswered { Err(StoreError::Unanswered("the connection broke")) } else { Ok(answer) }
    }
}

async fn pause(ms: u64) {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn read(&self, queries: &[Query]) -> Result<Vec<Value>, StoreError> {
        self.call(self.store.read(queries)).await
    }

    async fn commit(&self, batch: &[Transaction]) -> Result<BatchResult, StoreError> {
        self.call(self.store.commit(batch)).await
    }

    async fn commit_durably(
        &self,
        batch: &[Transaction],
        durability: Durability,
        at_most: Duration,
    ) -> Result<(BatchResult, Confirmed), StoreError> {
        self.call(self.store.commit_durably(batch, durability, at_most)).await
    }

    async fn take(&self, take: &TakeRequest) -> Result<Vec<TakenEntry>, StoreError> {
        self.call(self.store.take(take)).await
    }

    async fn ensure_queues(&self, queues: &[StreamKey]) -> Result<(), StoreError> {
        self.call(self.store.ensure_queues(queues)).await
    }

    async fn backlog(&self, queue: &StreamKey) -> Result<QueueCounts, StoreError> {
        self.call(self.store.backlog(queue)).await
    }

    async fn consumers(&self, queue: &StreamKey) -> Result<Vec<Consumer>, StoreError> {
        self.call(self.store.consumers(queue)).await
    }

    async fn remove_consumer(&self, queue: &StreamKey, consumer: &str) -> Result<bool, StoreError> {
        self.call(self.store.remove_consumer(queue, consumer)).await
    }

    async fn trim(&self, log: &StreamKey, keep: TrimBounds) -> Result<u64, StoreError> {
        self.call(self.store.trim(log, keep)).await
    }

    async fn sample_memory(&self) -> Result<(u64, u64), StoreError> {
        self.call(self.store.sample_memory()).await
    }

    async fn stream_bytes(&self, stream: &StreamKey) -> Result<u64, StoreError> {
        self.call(self.store.stream_bytes(stream)).await
    }

    async fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Result<(Vec<RecordKey>, u64), StoreError> {
        self.call(self.store.scan(prefix, cursor, count)).await
    }

    async fn scan_counters(
        &self,
        limit: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, CounterState)>, u64), StoreError> {
        self.call(self.store.scan_counters(limit, cursor, count)).await
    }

    async fn scan_members(
        &self,
        set: &SetKey,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, u64)>, u64), StoreError> {
        self.call(self.store.scan_members(set, prefix, cursor, count)).await
    }

    async fn last(&self, set: &SetKey, skip: usize, count: usize) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.call(self.store.last(set, skip, count)).await
    }

    async fn rank(&self, set: &SetKey, member: &str) -> Result<Option<u64>, StoreError> {
        self.call(self.store.rank(set, member)).await
    }

    async fn entries(&self, stream: &StreamKey, range: &Range) -> Result<Vec<Entry>, StoreError> {
        self.call(self.store.entries(stream, range)).await
    }

    async fn page(&self, stream: &StreamKey, range: &Range) -> Result<(Vec<Entry>, StreamState), StoreError> {
        self.call(self.store.page(stream, range)).await
    }

    async fn follow(&self, follow: &FollowRequest) -> Result<Vec<Entry>, StoreError> {
        self.call(self.store.follow(follow)).await
    }

    async fn queue_states(&self, queues: &[StreamKey]) -> Result<Vec<QueueState>, StoreError> {
        self.call(self.store.queue_states(queues)).await
    }

    async fn holder(&self, queue: &StreamKey, entry: &EntryId) -> Result<Option<(Arc<str>, i64)>, StoreError> {
        self.call(self.store.holder(queue, entry)).await
    }

    async fn shard_stats(&self) -> Result<ShardStats, StoreError> {
        self.call(self.store.shard_stats()).await
    }

    async fn drop_stream(&self, stream: &StreamKey) -> Result<(), StoreError> {
        self.call(self.store.drop_stream(stream)).await
    }
}
