//! The seam: the interface between decisions and a store. Two stores implement it: [`memory`] and [`redis`].
//! `tests/conformance.rs` runs random transactions on both, and compares results and contents.

pub mod inspect;
pub mod memory;
pub mod redis;
pub mod socket;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tickfleet_core::view::{Fields, READS_MAX, Undecided};
use tickfleet_core::{
    Committed, Conflict, Context, Decision, EntryId, Query, Receipt, RecordKey, SetKey, Step, StreamKey, Transaction,
    Value, Version, View,
};
use tickfleet_model::Durability;

use crate::Confirmed;
use crate::StoreError;
use inspect::{Entry, FollowRequest, QueueState, Range, ShardStats, StreamState};

pub const GROUP: &str = "workers";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShardState {
    /// Shard time.
    pub now_ms: i64,
    pub epoch: u64,
    /// In shard time; 0 for the first epoch.
    pub epoch_began_ms: i64,
    pub policy: u64,
    pub settings: u64,
    pub pressure: bool,
}

impl ShardState {
    #[must_use]
    pub const fn context(&self, version: Version) -> Context {
        Context {
            now_ms: self.now_ms,
            epoch: self.epoch,
            epoch_began_ms: self.epoch_began_ms,
            pressure: self.pressure,
            version,
            conflicts: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchResult {
    pub shard: ShardState,
    /// In the order of the transactions.
    pub results: Vec<Result<Committed, Conflict>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TakeRequest {
    pub consumer: Arc<str>,
    pub queues: Vec<StreamKey>,
    /// Over all queues.
    pub count: usize,
    /// For the first entry; 0 does not wait.
    pub wait_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenEntry {
    pub queue: StreamKey,
    pub entry: EntryId,
    pub fields: Fields,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueCounts {
    pub waiting: u64,
    /// Taken, but not acknowledged.
    pub held: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    pub name: Arc<str>,
    pub held: u64,
    /// Since the consumer's last take. A store in memory does not know takes before its start, and counts from the
    /// start instead.
    pub idle_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrimBounds {
    /// By the store's clock; 0 means unlimited.
    pub age_ms: i64,
    /// The oldest entries are removed first; 0 means unlimited.
    pub entries: u64,
    /// Removes entries up to this ID (`<ms> << 64 | <sequence>`), which the readers have confirmed. If the stream has
    /// never reached this ID, the store has lost entries. Then nothing is removed, because the readers have not read
    /// the present entries.
    pub read_through: Option<u128>,
}

#[async_trait]
pub trait Store: Send + Sync {
    /// In order, in one round trip. Reads are not isolated from each other, but the guards of a later commit detect
    /// changes.
    async fn read(&self, queries: &[Query]) -> Result<Vec<Value>, StoreError>;

    /// One round trip. Each transaction is atomic, and sees the earlier transactions of the batch.
    ///
    /// After an error, the outcome is unknown, and the caller may commit the batch again. A transaction with a dedupe
    /// record then has the result [`Committed::was_committed`] if it was committed before.
    async fn commit(&self, batch: &[Transaction]) -> Result<BatchResult, StoreError>;

    /// Also waits up to `at_most` until this batch and all earlier commits have the requested durability.
    async fn commit_durably(
        &self,
        batch: &[Transaction],
        durability: Durability,
        at_most: Duration,
    ) -> Result<(BatchResult, Confirmed), StoreError>;

    /// The consumer holds the entries until a transaction acknowledges them.
    async fn take(&self, take: &TakeRequest) -> Result<Vec<TakenEntry>, StoreError>;

    /// Also advances shard time.
    async fn shard(&self) -> Result<ShardState, StoreError> {
        Ok(self.commit(&[]).await?.shard)
    }

    async fn ensure_queues(&self, queues: &[StreamKey]) -> Result<(), StoreError>;

    async fn backlog(&self, queue: &StreamKey) -> Result<QueueCounts, StoreError>;

    /// By name. Consumers without entries may be omitted.
    async fn consumers(&self, queue: &StreamKey) -> Result<Vec<Consumer>, StoreError>;

    /// False if the consumer holds entries, true if it was removed or does not exist.
    async fn remove_consumer(&self, queue: &StreamKey, consumer: &str) -> Result<bool, StoreError>;

    async fn trim(&self, log: &StreamKey, keep: TrimBounds) -> Result<u64, StoreError>;

    /// Every consumer group of the inbox has acknowledged every entry up to this ID, in the format of
    /// [`TrimBounds::read_through`]. `None` if the inbox has no groups.
    async fn acknowledged(&self, _log: &StreamKey) -> Result<Option<u128>, StoreError> {
        Ok(None)
    }

    /// Sets the flag that [`tickfleet_core::Guard::MemoryAvailable`] checks. Returns the bytes in use and the bytes
    /// allowed (0 means unlimited).
    async fn sample_memory(&self) -> Result<(u64, u64), StoreError>;

    async fn stream_bytes(&self, stream: &StreamKey) -> Result<u64, StoreError>;

    /// About `count` records, and the cursor of the next page. Cursor 0 begins a scan, and a returned 0 ends it.
    async fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Result<(Vec<RecordKey>, u64), StoreError>;

    /// Cursors and `count` work as in [`Self::scan`].
    async fn scan_counters(
        &self,
        limit: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, tickfleet_core::CounterState)>, u64), StoreError>;

    /// Cursors and `count` work as in [`Self::scan`].
    async fn scan_members(
        &self,
        set: &SetKey,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, u64)>, u64), StoreError>;

    async fn last(&self, set: &SetKey, skip: usize, count: usize) -> Result<Vec<(Arc<str>, u64)>, StoreError>;

    /// `None` if `member` is not in the set.
    async fn rank(&self, set: &SetKey, member: &str) -> Result<Option<u64>, StoreError>;

    async fn entries(&self, stream: &StreamKey, range: &Range) -> Result<Vec<Entry>, StoreError>;

    /// The entries and the counts are from the same moment.
    async fn page(&self, stream: &StreamKey, range: &Range) -> Result<(Vec<Entry>, StreamState), StoreError>;

    /// Waits for new entries. The entries stay in the stream.
    async fn follow(&self, follow: &FollowRequest) -> Result<Vec<Entry>, StoreError>;

    async fn queue_states(&self, queues: &[StreamKey]) -> Result<Vec<QueueState>, StoreError>;

    /// The consumer that holds the entry, and for how long (ms). A store in memory does not know takes before its
    /// start, and counts from the start instead.
    async fn holder(&self, queue: &StreamKey, entry: &EntryId) -> Result<Option<(Arc<str>, i64)>, StoreError>;

    async fn shard_stats(&self) -> Result<ShardStats, StoreError>;

    /// Also removes the group. For an inbox, also removes the number of its last reply.
    async fn drop_stream(&self, stream: &StreamKey) -> Result<(), StoreError>;
}

/// Versions are globally unique, because each process uses a random prefix.
#[derive(Debug)]
pub struct Versions {
    prefix: String,
    next: AtomicU64,
}

impl Versions {
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), next: AtomicU64::new(1) }
    }

    pub fn draw(&self) -> Version {
        Version::new(format!("{}{:x}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Only the decision that needs the record fails.
    #[error("record {key} cannot be read: {why}")]
    Unreadable { key: RecordKey, why: tickfleet_core::record::Unreadable },
    #[error("the store refused the transaction: {0}")]
    Failed(String),
    /// The number of conflicts or reads.
    #[error("no result after {0} conflicts or reads")]
    Contended(usize),
}

/// The maximum number of conflicts, without those with changed records.
const CONFLICTS_MAX: usize = 16;
/// The maximum number of conflicts with changed records. Each of them means that another decision was committed, and
/// many processes can write the same record.
const RECORD_CONFLICTS_MAX: usize = 1_024;
/// The maximum number of further reads of an unreadable record.
const REREADS_MAX: usize = 3;

/// A decision in progress, without its type: all decisions share one copy of the loop's code.
trait Attempt: Send {
    /// Returns the transaction to commit. `None` if the decision ended without a commit.
    fn decide(&mut self, view: &View, context: &Context) -> Result<Option<Transaction>, Undecided>;

    fn committed(&mut self, committed: Committed);

    fn failed(&mut self, error: RunError);
}

struct DecisionAttempt<'a, D: Decision> {
    decision: &'a D,
    output: Option<D::Output>,
    result: Option<Result<Receipt<D::Output>, RunError>>,
}

impl<D: Decision> Attempt for DecisionAttempt<'_, D> {
    fn decide(&mut self, view: &View, context: &Context) -> Result<Option<Transaction>, Undecided> {
        Ok(match self.decision.decide(view, context)? {
            Step::Commit(transaction, output) => {
                self.output = Some(output);
                Some(transaction)
            }
            Step::Return(result) => {
                self.result = Some(Ok(Receipt { result, committed: None }));
                None
            }
        })
    }

    fn committed(&mut self, committed: Committed) {
        let receipt = |result| Ok(Receipt { result, committed: Some(committed) });
        self.result = self.output.take().map(receipt);
    }

    fn failed(&mut self, error: RunError) {
        self.result = Some(Err(error));
    }
}

/// The attempts of a batch of decisions.
struct Batch<'a, D: Decision>(Vec<DecisionAttempt<'a, D>>);

impl<'a, D: Decision> Batch<'a, D> {
    fn of(decisions: &'a [D]) -> Self {
        Self(decisions.iter().map(|decision| DecisionAttempt { decision, output: None, result: None }).collect())
    }

    fn attempts(&mut self) -> Vec<&mut dyn Attempt> {
        self.0.iter_mut().map(|attempt| attempt as &mut dyn Attempt).collect()
    }

    fn results(self) -> Results<D> {
        self.0.into_iter().filter_map(|attempt| attempt.result).collect()
    }
}

type Results<D> = Vec<Result<Receipt<<D as Decision>::Output>, RunError>>;

/// In each round, all reads are one round trip, and all commits are one round trip. Results are in the order of the
/// decisions. After an error, the caller may run the same decisions again.
pub async fn run<D: Decision>(
    store: &dyn Store,
    versions: &Versions,
    shard: ShardState,
    decisions: &[D],
) -> Result<(ShardState, Results<D>), StoreError> {
    let mut view = View::default();
    let hinted: HashSet<Query> = decisions.iter().flat_map(Decision::reads).collect();
    read_into(store, &mut view, hinted).await?;
    run_with(store, versions, shard, &mut view, decisions).await
}

/// Starts with a view that the caller has filled, for example with a record that it has just written.
pub async fn run_with<D: Decision>(
    store: &dyn Store,
    versions: &Versions,
    shard: ShardState,
    view: &mut View,
    decisions: &[D],
) -> Result<(ShardState, Results<D>), StoreError> {
    let mut batch = Batch::of(decisions);
    let (shard, _) = run_attempts(store, versions, shard, view, batch.attempts(), None).await?;
    Ok((shard, batch.results()))
}

/// Commits are durable: see [`Store::commit_durably`].
pub async fn run_durably<D: Decision>(
    store: &dyn Store,
    versions: &Versions,
    shard: ShardState,
    (view, decisions): (&mut View, &[D]),
    durably: (Durability, Duration),
) -> Result<(ShardState, Results<D>, Confirmed), StoreError> {
    let mut batch = Batch::of(decisions);
    let (shard, confirmed) = run_attempts(store, versions, shard, view, batch.attempts(), Some(durably)).await?;
    Ok((shard, batch.results(), confirmed))
}

struct Pending<'a> {
    attempt: &'a mut dyn Attempt,
    context: Context,
    conflicts: usize,
    /// Conflicts with a changed record, among `conflicts`.
    overtaken: usize,
    rereads: usize,
    has_ended: bool,
}

impl Pending<'_> {
    fn fail(&mut self, error: RunError) {
        self.attempt.failed(error);
        self.has_ended = true;
    }

    fn conflict(&mut self, conflict: Conflict) {
        self.conflicts += 1;
        self.overtaken += usize::from(matches!(conflict, Conflict::Record { .. }));
        let is_contended = self.conflicts - self.overtaken >= CONFLICTS_MAX || self.overtaken >= RECORD_CONFLICTS_MAX;
        if let Conflict::Failed { message } = conflict {
            self.fail(RunError::Failed(message));
        } else if is_contended {
            self.fail(RunError::Contended(self.conflicts));
        } else {
            self.context.conflicts.retain(|earlier| !is_of_same_record(earlier, &conflict));
            self.context.conflicts.push(conflict);
        }
    }
}

async fn run_attempts(
    store: &dyn Store,
    versions: &Versions,
    mut shard: ShardState,
    view: &mut View,
    attempts: Vec<&mut dyn Attempt>,
    durably: Option<(Durability, Duration)>,
) -> Result<(ShardState, Confirmed), StoreError> {
    let mut confirmed = Confirmed::Yes;
    let start = |attempt| Pending {
        attempt,
        context: shard.context(versions.draw()),
        conflicts: 0,
        overtaken: 0,
        rereads: 0,
        has_ended: false,
    };
    let mut pending: Vec<Pending<'_>> = attempts.into_iter().map(start).collect();
    loop {
        let (indexes, transactions) = decide_all(store, view, &mut pending).await?;
        if indexes.is_empty() {
            return Ok((shard, confirmed));
        }
        let batch = match durably {
            None => store.commit(&transactions).await?,
            Some((durability, at_most)) => {
                let (batch, is_confirmed) = store.commit_durably(&transactions, durability, at_most).await?;
                if batch.results.iter().any(Result::is_ok) {
                    confirmed = is_confirmed;
                }
                batch
            }
        };
        shard = batch.shard;
        for ((index, transaction), result) in indexes.into_iter().zip(&transactions).zip(batch.results) {
            let Some(item) = pending.get_mut(index) else { continue };
            match result {
                Ok(committed) => {
                    view.apply_transaction(transaction);
                    item.attempt.committed(committed);
                    item.has_ended = true;
                }
                Err(conflict) => {
                    view.learn(&conflict);
                    item.conflict(conflict);
                }
            }
        }
        for item in pending.iter_mut().filter(|item| !item.has_ended) {
            // A version identifies one content, and the next attempt may write different content.
            item.context.version = versions.draw();
            item.context.now_ms = shard.now_ms;
            item.context.epoch = shard.epoch;
            item.context.epoch_began_ms = shard.epoch_began_ms;
        }
    }
}

fn is_of_same_record(one: &Conflict, other: &Conflict) -> bool {
    match (one, other) {
        (Conflict::Record { key: one, .. }, Conflict::Record { key: other, .. }) => one == other,
        _ => false,
    }
}

/// Returns the transactions, with the indexes of their decisions.
async fn decide_all(
    store: &dyn Store,
    view: &mut View,
    pending: &mut [Pending<'_>],
) -> Result<(Vec<usize>, Vec<Transaction>), StoreError> {
    for reads in 0..=READS_MAX {
        let mut decided = (Vec::new(), Vec::new());
        let mut missing = HashSet::new();
        for (index, item) in pending.iter_mut().enumerate().filter(|(_, item)| !item.has_ended) {
            match item.attempt.decide(view, &item.context) {
                Ok(Some(transaction)) => {
                    decided.0.push(index);
                    decided.1.push(transaction);
                }
                Ok(None) => item.has_ended = true,
                Err(Undecided::Missing(_)) if reads == READS_MAX => item.fail(RunError::Contended(READS_MAX)),
                Err(Undecided::Missing(queries)) => missing.extend(queries),
                Err(Undecided::Unreadable { key, why }) if item.rereads >= REREADS_MAX || reads == READS_MAX => {
                    item.fail(RunError::Unreadable { key, why });
                }
                // The record may have changed between its own read and the reads of its parts.
                Err(Undecided::Unreadable { key, .. }) => {
                    item.rereads += 1;
                    view.forget(&key);
                    missing.insert(Query::Record(key));
                }
            }
        }
        if missing.is_empty() {
            return Ok(decided);
        }
        read_into(store, view, missing).await?;
    }
    Ok(Default::default())
}

async fn read_into(store: &dyn Store, view: &mut View, queries: HashSet<Query>) -> Result<(), StoreError> {
    if queries.is_empty() {
        return Ok(());
    }
    let queries: Vec<Query> = queries.into_iter().collect();
    let values = store.read(&queries).await?;
    for (query, value) in queries.into_iter().zip(values) {
        view.insert(query, value);
    }
    Ok(())
}
