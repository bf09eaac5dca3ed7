//! A store that yields to other actors at every await, and passes each committed transaction to the oracle.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tickfleet_core::{CounterState, EntryId, Query, RecordKey, SetKey, StreamKey, Transaction, Value};
use tickfleet_model::Durability;
use tickfleet_store::seam::inspect::{Entry, FollowRequest, QueueState, Range, ShardStats, StreamState};
use tickfleet_store::seam::{BatchResult, Consumer, QueueCounts, Store, TakeRequest, TakenEntry, TrimBounds};
use tickfleet_store::{Confirmed, StoreError};

use crate::executor::yield_now;
use crate::oracle::Oracle;

pub struct Watched<S> {
    pub inner: S,
    pub oracle: Arc<Mutex<Oracle>>,
}

#[async_trait]
impl<S: Store> Store for Watched<S> {
    async fn read(&self, queries: &[Query]) -> Result<Vec<Value>, StoreError> {
        yield_now().await;
        let values = self.inner.read(queries).await;
        yield_now().await;
        values
    }

    async fn commit(&self, batch: &[Transaction]) -> Result<BatchResult, StoreError> {
        yield_now().await;
        let answer = self.inner.commit(batch).await;
        if answer.is_err() {
            self.oracle.lock().unwrap().unseen += 1;
        }
        if let Ok(answer) = &answer {
            let mut oracle = self.oracle.lock().unwrap();
            for (transaction, result) in batch.iter().zip(&answer.results) {
                oracle.commits += 1;
                match result {
                    Ok(committed) if !committed.was_committed => oracle.see(transaction, committed),
                    Ok(_) => {}
                    Err(_) => oracle.conflicts += 1,
                }
            }
        }
        yield_now().await;
        answer
    }

    async fn commit_durably(
        &self,
        batch: &[Transaction],
        _: Durability,
        _: Duration,
    ) -> Result<(BatchResult, Confirmed), StoreError> {
        Ok((self.commit(batch).await?, Confirmed::Yes))
    }

    async fn take(&self, take: &TakeRequest) -> Result<Vec<TakenEntry>, StoreError> {
        yield_now().await;
        let taken = self.inner.take(&TakeRequest { wait_ms: 0, ..take.clone() }).await;
        yield_now().await;
        taken
    }

    async fn ensure_queues(&self, queues: &[StreamKey]) -> Result<(), StoreError> {
        self.inner.ensure_queues(queues).await
    }

    async fn backlog(&self, queue: &StreamKey) -> Result<QueueCounts, StoreError> {
        self.inner.backlog(queue).await
    }

    async fn consumers(&self, queue: &StreamKey) -> Result<Vec<Consumer>, StoreError> {
        yield_now().await;
        self.inner.consumers(queue).await
    }

    async fn remove_consumer(&self, queue: &StreamKey, consumer: &str) -> Result<bool, StoreError> {
        yield_now().await;
        self.inner.remove_consumer(queue, consumer).await
    }

    async fn trim(&self, log: &StreamKey, keep: TrimBounds) -> Result<u64, StoreError> {
        self.inner.trim(log, keep).await
    }

    async fn sample_memory(&self) -> Result<(u64, u64), StoreError> {
        self.inner.sample_memory().await
    }

    async fn stream_bytes(&self, stream: &StreamKey) -> Result<u64, StoreError> {
        self.inner.stream_bytes(stream).await
    }

    async fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Result<(Vec<RecordKey>, u64), StoreError> {
        self.inner.scan(prefix, cursor, count).await
    }

    async fn scan_counters(
        &self,
        limit: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, CounterState)>, u64), StoreError> {
        self.inner.scan_counters(limit, cursor, count).await
    }

    async fn scan_members(
        &self,
        set: &SetKey,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, u64)>, u64), StoreError> {
        self.inner.scan_members(set, prefix, cursor, count).await
    }

    async fn last(&self, set: &SetKey, skip: usize, count: usize) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.inner.last(set, skip, count).await
    }

    async fn rank(&self, set: &SetKey, member: &str) -> Result<Option<u64>, StoreError> {
        self.inner.rank(set, member).await
    }

    async fn entries(&self, stream: &StreamKey, range: &Range) -> Result<Vec<Entry>, StoreError> {
        self.inner.entries(stream, range).await
    }

    async fn page(&self, stream: &StreamKey, range: &Range) -> Result<(Vec<Entry>, StreamState), StoreError> {
        self.inner.page(stream, range).await
    }

    async fn follow(&self, follow: &FollowRequest) -> Result<Vec<Entry>, StoreError> {
        self.inner.follow(follow).await
    }

    async fn queue_states(&self, queues: &[StreamKey]) -> Result<Vec<QueueState>, StoreError> {
        self.inner.queue_states(queues).await
    }

    async fn holder(&self, queue: &StreamKey, entry: &EntryId) -> Result<Option<(Arc<str>, i64)>, StoreError> {
        self.inner.holder(queue, entry).await
    }

    async fn shard_stats(&self) -> Result<ShardStats, StoreError> {
        self.inner.shard_stats().await
    }

    async fn drop_stream(&self, stream: &StreamKey) -> Result<(), StoreError> {
        self.inner.drop_stream(stream).await
    }
}
