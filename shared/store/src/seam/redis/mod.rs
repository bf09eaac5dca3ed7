//! The store on Redis, 7.0 or later. Commits call one Redis function, `commit.lua`. Reads are plain commands in one
//! pipeline.
//!
//! All keys of a shard begin with its prefix, which is their hash tag:
//!
//! | Key | Content |
//! |---|---|
//! | `<record>` | string: `<version> <entry> <debits> <content>`; `<debits>`: the counters after the debits |
//! | `parts:<record>` | hash: parts of the record by name |
//! | `counters:<limit>` | hash: counters by name, four doubles each, and pairs of doubles if the counter is rolling |
//! | `counters:_` | hash: the same for limits that every fleet has, such as `_tick`; counters by `<limit>:<counter>` |
//! | `<set>`, `timers`, `inboxes:<tenant>` | sorted set: members with their scores |
//! | `<stream>` | stream; a queue has the consumer group `workers` |
//! | `replies:<tenant>:<inbox>` | stream: fields `reply` and `seq` |
//! | `seqs:<tenant>` | hash: number of the last reply by inbox |
//! | `meta` | hash: clock, restart epoch, generations, memory flag |
//!
//! The library's name includes a digest of its text, so several versions coexist during a rolling upgrade. If the
//! server refuses `fcall` or `function|load`, or lacks memory, the text of the library runs as a script.

mod encode;
mod inspect;
mod read;
mod reply;
mod take;
mod upkeep;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use tickfleet_core::{Conflict, CounterState, EntryId, Query, RecordKey, SetKey, StreamKey, Transaction, Value};
use tickfleet_model::Durability;

use super::inspect::{Entry, FollowRequest, QueueState, Range, ShardStats, StreamState};
use super::{BatchResult, Consumer, QueueCounts, Store, TakeRequest, TakenEntry, TrimBounds};
use crate::connection::Connection;
use crate::connection::command::RedisCommand;
use crate::connection::confirm::{Confirmed, Confirming};
use crate::connection::dial::Dial;
use crate::connection::refusal::is_right_missing;
use crate::connection::url::target_of;
use crate::script::Function;
use crate::{Keys, Observer, StoreError};
pub(crate) use encode::CALLED;
use encode::{Encoded, encode};
pub(crate) use reply::COMMIT;

pub(crate) const COMMIT_SOURCE: &str = include_str!("commit.lua");

static FUNCTION: LazyLock<Function> = LazyLock::new(|| Function::new(COMMIT, COMMIT_SOURCE));

pub(crate) fn function() -> &'static Function {
    &FUNCTION
}

pub struct RedisStore {
    connection: Connection,
    prefix: Arc<str>,
    lease_ms: i64,
    /// The restart epoch of the last commit; 0 before the first commit. From this epoch, a server without data
    /// recognizes that it has lost its data.
    epoch: AtomicU64,
    idle: take::Idle,
    /// False if the last take found less than a full share in each queue. The next take then blocks on all queues at
    /// once.
    has_backlog: AtomicBool,
    /// One for each kind of durability, because each wait blocks its connection.
    confirming: [Confirming; 2],
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedisStore({} at {:?})", self.prefix, self.connection)
    }
}

impl RedisStore {
    /// For `lease_ms` after a restart of the server, no permit of [`tickfleet_core::Window::Concurrency`] is granted.
    pub fn open(url: &str, shard: u32, namespace: &str, lease_ms: i64) -> Result<Self, StoreError> {
        let dial = target_of(url)?.dial(Some(Keys::new(namespace, shard).prefix()));
        Ok(Self::over(dial, shard, namespace, lease_ms))
    }

    #[must_use]
    pub fn over(dial: Arc<dyn Dial>, shard: u32, namespace: &str, lease_ms: i64) -> Self {
        Self::on(Connection::over(dial), Keys::new(namespace, shard).prefix(), lease_ms)
    }

    pub(crate) fn on(connection: Connection, prefix: &str, lease_ms: i64) -> Self {
        Self {
            connection,
            prefix: prefix.into(),
            lease_ms,
            epoch: AtomicU64::new(0),
            idle: take::Idle::default(),
            has_backlog: AtomicBool::new(true),
            confirming: Default::default(),
        }
    }

    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.connection = self.connection.observed_by(observer);
        self
    }

    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn key(&self, stream: &StreamKey) -> String {
        format!("{}{stream}", self.prefix)
    }

    async fn commit_encoded(&self, encoded: &Encoded) -> Result<BatchResult, StoreError> {
        let reply = self.connection.run_function(&FUNCTION, self.arguments(encoded)).await?;
        self.read_reply(encoded, reply)
    }

    fn read_reply(&self, encoded: &Encoded, reply: redis::Value) -> Result<BatchResult, StoreError> {
        let batch = reply::read(&self.prefix, encoded, reply)?;
        self.epoch.store(batch.shard.epoch, Ordering::Release);
        // Return an error instead of a conflict if the Redis user lacks a permission. Once an operator grants the
        // permission, the commit can succeed.
        let refused = batch.results.iter().find_map(|result| match result {
            Err(Conflict::Failed { message }) if is_right_missing(message) => Some(message.clone()),
            _ => None,
        });
        refused.map_or(Ok(batch), |message| Err(StoreError::Refused(message)))
    }

    fn arguments<'a>(&'a self, encoded: &'a Encoded) -> impl Fn(&mut redis::Cmd, &str) + 'a {
        |command, run_id| {
            command.arg(1).arg(&*self.prefix).arg(run_id).arg(self.lease_ms);
            command.arg(self.epoch.load(Ordering::Acquire));
            for argument in encoded.arguments.iter() {
                command.arg(argument);
            }
        }
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn read(&self, queries: &[Query]) -> Result<Vec<Value>, StoreError> {
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for query in queries {
            pipe.add_command(read::command(&self.prefix, query));
        }
        let answers = self.connection.replies(RedisCommand::Read, &pipe).await?;
        Ok(queries.iter().zip(answers).map(|(query, reply)| read::answer(query, reply)).collect())
    }

    async fn commit(&self, batch: &[Transaction]) -> Result<BatchResult, StoreError> {
        self.commit_encoded(&encode(&self.prefix, batch)).await
    }

    async fn commit_durably(
        &self,
        batch: &[Transaction],
        durability: Durability,
        at_most: Duration,
    ) -> Result<(BatchResult, Confirmed), StoreError> {
        let confirming = match durability {
            Durability::None => return Ok((self.commit(batch).await?, Confirmed::Yes)),
            Durability::Disk => &self.confirming[0],
            Durability::Replica => &self.confirming[1],
        };
        let encoded = encode(&self.prefix, batch);
        let function = (&*FUNCTION, self.arguments(&encoded));
        let read = |reply| {
            let batch = self.read_reply(&encoded, reply)?;
            let has_written = batch.results.iter().any(Result::is_ok);
            Ok((batch, has_written))
        };
        self.connection.run_function_confirmed(confirming, function, (durability, at_most), read).await
    }

    async fn take(&self, take: &TakeRequest) -> Result<Vec<TakenEntry>, StoreError> {
        self.take_entries(take).await
    }

    async fn ensure_queues(&self, queues: &[StreamKey]) -> Result<(), StoreError> {
        self.make_queues(queues).await
    }

    async fn backlog(&self, queue: &StreamKey) -> Result<QueueCounts, StoreError> {
        Ok(self.backlogs(std::slice::from_ref(queue)).await?.pop().unwrap_or_default())
    }

    async fn consumers(&self, queue: &StreamKey) -> Result<Vec<Consumer>, StoreError> {
        self.consumers_of(queue).await
    }

    async fn remove_consumer(&self, queue: &StreamKey, consumer: &str) -> Result<bool, StoreError> {
        self.remove_idle(queue, consumer).await
    }

    async fn acknowledged(&self, log: &StreamKey) -> Result<Option<u128>, StoreError> {
        self.acknowledged_by_groups(log).await
    }

    async fn trim(&self, log: &StreamKey, keep: TrimBounds) -> Result<u64, StoreError> {
        self.trim_log(log, keep).await
    }

    async fn sample_memory(&self) -> Result<(u64, u64), StoreError> {
        self.sample().await
    }

    async fn stream_bytes(&self, stream: &StreamKey) -> Result<u64, StoreError> {
        self.bytes_of(stream).await
    }

    async fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Result<(Vec<RecordKey>, u64), StoreError> {
        self.scan_records(prefix, cursor, count).await
    }

    async fn scan_counters(
        &self,
        limit: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, CounterState)>, u64), StoreError> {
        self.scan_limit(limit, cursor, count).await
    }

    async fn scan_members(
        &self,
        set: &SetKey,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, u64)>, u64), StoreError> {
        self.scan_set(set, prefix, cursor, count).await
    }

    async fn last(&self, set: &SetKey, skip: usize, count: usize) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.last_of(set, skip, count).await
    }

    async fn rank(&self, set: &SetKey, member: &str) -> Result<Option<u64>, StoreError> {
        self.rank_of(set, member).await
    }

    async fn entries(&self, stream: &StreamKey, range: &Range) -> Result<Vec<Entry>, StoreError> {
        self.range_of(stream, range).await
    }

    async fn page(&self, stream: &StreamKey, range: &Range) -> Result<(Vec<Entry>, StreamState), StoreError> {
        self.page_of(stream, range).await
    }

    async fn follow(&self, follow: &FollowRequest) -> Result<Vec<Entry>, StoreError> {
        self.follow_log(follow).await
    }

    async fn queue_states(&self, queues: &[StreamKey]) -> Result<Vec<QueueState>, StoreError> {
        self.states_of(queues).await
    }

    async fn holder(&self, queue: &StreamKey, entry: &EntryId) -> Result<Option<(Arc<str>, i64)>, StoreError> {
        self.holder_of(queue, entry).await
    }

    async fn shard_stats(&self) -> Result<ShardStats, StoreError> {
        self.read_shard_stats().await
    }

    async fn drop_stream(&self, stream: &StreamKey) -> Result<(), StoreError> {
        self.remove_stream(stream).await
    }
}
