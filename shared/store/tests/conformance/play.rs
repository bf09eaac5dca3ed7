use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::ops::Bound;

use async_trait::async_trait;
use bytes::Bytes;
use tickfleet_core::keys::timers;
use tickfleet_core::{Committed, Conflict, Guard, Query, RecordKey, Transaction, Version, Write};
use tickfleet_store::StoreError;
use tickfleet_store::seam::inspect::{FollowRequest, Range};
use tickfleet_store::seam::{BatchResult, Consumer, ShardState, Store, TakeRequest, TrimBounds};

use super::plan::{Age, MemoryLevel, Pick, ReadUpto, Step};
use super::resolve::{StoreModel, number};
use super::universe::{
    CONSUMERS, COUNTERS, LIMITS, PREFIXES, QUEUES, RECORDS, SETS, STREAMS, counter, queue, record, set, stream,
};

#[async_trait(?Send)]
pub trait Subject {
    fn store(&self) -> &dyn Store;
    async fn set_clock(&mut self, now_ms: i64);
    /// The store keeps its contents.
    async fn restart(&mut self);
    /// Sets the maximum memory so that the sample finds this level, and removes the maximum after the sample.
    async fn sample_memory(&mut self, memory: MemoryLevel) -> Result<(), StoreError>;
}

pub type Differs = String;

pub struct Table<'a, A, B> {
    pub first: &'a mut A,
    pub second: &'a mut B,
    clock_ms: i64,
    known: StoreModel,
    /// The stores number their epochs differently, so only the counts are compared.
    second_epoch: u64,
    batches: Vec<Vec<Transaction>>,
    pub seen: Seen,
}

#[derive(Debug, Default)]
pub struct Seen(BTreeMap<String, usize>);

impl Seen {
    fn count(&mut self, kind: &str, of: &impl Debug) {
        let text = format!("{of:?}");
        let name = text.trim_matches('"').split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        *self.0.entry(format!("{kind} {name}")).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    pub fn of(&self, what: &str) -> usize {
        self.0.get(what).copied().unwrap_or_default()
    }
}

macro_rules! both {
    ($table:expr, $what:expr, $store:ident => $call:expr) => {{
        let first = {
            let $store = $table.first.store();
            $call.await
        };
        let second = {
            let $store = $table.second.store();
            $call.await
        };
        match (first, second) {
            (Ok(first), Ok(second)) if first == second => first,
            (first, second) => return Err(format!("{}\n   first: {first:?}\n  second: {second:?}", $what)),
        }
    }};
}

impl<'a, A: Subject, B: Subject> Table<'a, A, B> {
    pub fn new(first: &'a mut A, second: &'a mut B, clock_ms: i64) -> Self {
        let known = StoreModel::default();
        let batches = Vec::new();
        Self { first, second, clock_ms, known, second_epoch: 0, batches, seen: Seen::default() }
    }

    pub async fn play(&mut self, steps: &[Step]) -> Result<(), Differs> {
        let queues: Vec<_> = (0..QUEUES.len()).map(queue).collect();
        both!(self, "ensure_queues", store => store.ensure_queues(&queues[..2]));
        // Ballast, so that a sample can report that memory is short.
        let mut ballast = Transaction::new(Version::new("ballast"));
        ballast.write(Write::Put { key: RecordKey::new("ballast"), content: Bytes::from_static(b"1{}"), ttl_ms: None });
        self.commit(vec![ballast]).await?;
        for (index, step) in steps.iter().enumerate() {
            self.step(step).await.map_err(|differs| format!("step {index}: {differs}"))?;
            self.compare_contents().await.map_err(|differs| format!("after step {index}: {differs}"))?;
        }
        self.compare_lists().await.map_err(|differs| format!("at the end: {differs}"))?;
        // Lets all lifetimes and windows end.
        for ahead in [50, 500, 10_000] {
            self.clock(ahead).await?;
            self.compare_contents().await.map_err(|differs| format!("{ahead} ms after the end: {differs}"))?;
        }
        self.compare_lists().await.map_err(|differs| format!("after all lifetimes: {differs}"))
    }

    async fn step(&mut self, step: &Step) -> Result<(), Differs> {
        match step {
            Step::Commit(drafts) => {
                self.known.refresh(self.first.store()).await;
                let batch = self.known.transactions(drafts);
                self.commit(batch).await
            }
            Step::Repeat(back) => match self.batches.iter().rev().nth(*back).cloned() {
                Some(batch) => self.commit(batch).await,
                None => Ok(()),
            },
            Step::Take { consumer, queues, count } => self.take(*consumer, queues, *count).await,
            Step::Read(questions) => {
                self.known.refresh(self.first.store()).await;
                let queries: Vec<Query> = questions.iter().map(|question| self.known.query(question)).collect();
                self.read(&queries).await
            }
            Step::Clock(by_ms) => self.clock(*by_ms).await,
            Step::ClockToEnd(number) => {
                self.known.refresh(self.first.store()).await;
                let left_ms = self.known.end_of_window(*number).map_or(0, |end_ms| end_ms - self.known.shard.now_ms);
                self.clock(left_ms / 2 * 2).await
            }
            Step::Restart => {
                self.first.restart().await;
                self.second.restart().await;
                self.commit(Vec::new()).await
            }
            Step::Sample(memory) => {
                let first = self.first.sample_memory(*memory).await;
                let second = self.second.sample_memory(*memory).await;
                if first.is_err() || second.is_err() {
                    return Err(format!("sample_memory\n   first: {first:?}\n  second: {second:?}"));
                }
                self.commit(Vec::new()).await
            }
            Step::Trim { stream: index, age, entries, read_through } => {
                self.known.refresh(self.first.store()).await;
                let log = stream(*index);
                let age_ms = age.map_or(0, |age| match age {
                    Age::Ms(age_ms) => age_ms,
                    Age::OfEntry(back, more_ms) => {
                        let entry = number(&self.known.entry(&log, Pick::Known(back)));
                        (self.clock_ms - i64::try_from(entry >> 64).unwrap() + more_ms).max(0)
                    }
                });
                let read_through = read_through.map(|upto| match upto {
                    ReadUpto::Entry(pick) => number(&self.known.entry(&log, pick)),
                    ReadUpto::Lost => u128::from(self.clock_ms.unsigned_abs() + 1_000) << 64,
                });
                let keep = TrimBounds { age_ms, entries: *entries, read_through };
                both!(self, format!("trim {log} {keep:?}"), store => store.trim(&log, keep));
                Ok(())
            }
            Step::Backlog => self.compare_queues().await,
            Step::RemoveConsumer { queue: index, consumer } => {
                both!(self, "remove_consumer", store => store.remove_consumer(&queue(*index), CONSUMERS[*consumer]));
                Ok(())
            }
            Step::Ensure(queues) => {
                let queues: Vec<_> = queues.iter().map(|index| queue(*index)).collect();
                both!(self, "ensure_queues", store => store.ensure_queues(&queues));
                Ok(())
            }
            Step::Scan { prefix, count } => self.scan(PREFIXES[*prefix], *count).await,
            Step::ScanCounters { limit, count } => self.scan_counters(LIMITS[*limit], *count).await,
        }
    }

    async fn clock(&mut self, by_ms: i64) -> Result<(), Differs> {
        self.clock_ms += by_ms;
        self.first.set_clock(self.clock_ms).await;
        self.second.set_clock(self.clock_ms).await;
        // A scan removes expired records, so that they do not reappear if the clock steps back.
        self.scan("", 100).await?;
        self.commit(Vec::new()).await
    }

    async fn commit(&mut self, batch: Vec<Transaction>) -> Result<(), Differs> {
        let first = self.first.store().commit(&batch).await;
        let second = self.second.store().commit(&with_epoch(&batch, self.second_epoch)).await;
        let answer = match (&first, &second) {
            (Ok(first), Ok(second)) if comparable(first) == comparable(second) => first,
            _ => return Err(format!("commit {batch:#?}\n   first: {first:?}\n  second: {second:?}")),
        };
        self.known.shard = answer.shard;
        self.second_epoch = second.map_or(0, |second| second.shard.epoch);
        for (transaction, result) in batch.iter().zip(&answer.results) {
            self.learn(transaction, result);
        }
        if !batch.is_empty() {
            self.batches.push(batch);
        }
        Ok(())
    }

    fn learn(&mut self, transaction: &Transaction, result: &Result<Committed, Conflict>) {
        match result {
            Ok(committed) if committed.was_committed => self.seen.count("is", &"repeated"),
            Ok(committed) => {
                self.seen.count("is", &"committed");
                transaction.guards.iter().for_each(|guard| self.seen.count("held", guard));
                transaction.writes.iter().for_each(|write| self.seen.count("wrote", write));
                committed.shadowed.iter().for_each(|_| self.seen.count("is", &"shadowed"));
            }
            Err(conflict) => {
                self.seen.count("is", &"refused");
                self.seen.count("conflict", conflict);
            }
        }
        for guard in transaction.guards.iter().filter(|_| result.is_ok()) {
            if let Guard::Held(queue, entry) = guard
                && let Some(held) = self.known.held.get_mut(queue)
                && held.len() > 2
            {
                // Some acknowledged entries stay in `held`, so that the game tries to acknowledge them again.
                held.retain(|other| other != entry);
            }
        }
    }

    async fn take(&mut self, consumer: usize, queues: &[usize], count: usize) -> Result<(), Differs> {
        let mut queues: Vec<_> = queues.iter().map(|index| queue(*index)).collect();
        let mut listed = HashSet::new();
        queues.retain(|queue| listed.insert(queue.clone()));
        let take = TakeRequest { consumer: CONSUMERS[consumer].into(), queues, count, wait_ms: 0 };
        let taken = both!(self, format!("{take:?}"), store => store.take(&take));
        for taken in taken {
            self.seen.count("is", &"taken");
            self.known.held.entry(taken.queue).or_default().push(taken.entry);
        }
        Ok(())
    }

    async fn read(&mut self, queries: &[Query]) -> Result<(), Differs> {
        let first = self.first.store().read(queries).await;
        let second = self.second.store().read(queries).await;
        let (Ok(first), Ok(second)) = (&first, &second) else {
            return Err(format!("{queries:?}\n   first: {first:?}\n  second: {second:?}"));
        };
        let differing = (0..queries.len()).find(|index| first.get(*index) != second.get(*index));
        if let Some(index) = differing {
            let first = first.get(index);
            let second = second.get(index);
            return Err(format!("{:?}\n   first: {first:?}\n  second: {second:?}", queries[index]));
        }
        Ok(())
    }

    async fn scan(&mut self, prefix: &str, count: usize) -> Result<(), Differs> {
        both!(self, format!("scan {prefix:?}"), store => async {
            let mut found = Vec::new();
            let mut cursor = 0;
            loop {
                let (page, next) = store.scan(prefix, cursor, count).await?;
                found.extend(page);
                cursor = next;
                if cursor == 0 { break; }
            }
            found.sort();
            Ok::<_, StoreError>(found)
        });
        Ok(())
    }

    async fn scan_counters(&mut self, limit: &str, count: usize) -> Result<(), Differs> {
        both!(self, format!("scan_counters {limit}"), store => async {
            let mut found = Vec::new();
            let mut cursor = 0;
            loop {
                let (page, next) = store.scan_counters(limit, cursor, count).await?;
                found.extend(page);
                cursor = next;
                if cursor == 0 { break; }
            }
            found.sort_by(|one, other| one.0.cmp(&other.0));
            Ok::<_, StoreError>(found)
        });
        Ok(())
    }

    async fn compare_queues(&mut self) -> Result<(), Differs> {
        for queue in (0..QUEUES.len()).map(queue) {
            both!(self, format!("backlog of {queue}"), store => store.backlog(&queue));
            both!(self, format!("consumers of {queue}"), store => async {
                // Stores may omit a consumer without entries. Idle times are not compared, because on Redis a read
                // without result does not end the idle time.
                let held = store.consumers(&queue).await?.into_iter().filter(|one| one.held > 0);
                Ok::<_, StoreError>(held.map(|one| Consumer { idle_ms: 0, ..one }).collect::<Vec<Consumer>>())
            });
            both!(self, format!("state of {queue}"), store => store.queue_states(std::slice::from_ref(&queue)));
            both!(self, format!("holder in {queue}"), store => async {
                let Some(held) = store.queue_states(std::slice::from_ref(&queue)).await?.remove(0).oldest_held else {
                    return Ok(None);
                };
                Ok::<_, StoreError>(store.holder(&queue, &held).await?.map(|(consumer, _)| consumer))
            });
        }
        Ok(())
    }

    async fn compare_contents(&mut self) -> Result<(), Differs> {
        let mut queries = Vec::new();
        for key in (0..RECORDS.len()).map(record) {
            queries.extend([Query::Record(key.clone()), Query::AllParts(key)]);
        }
        for limit in 0..LIMITS.len() {
            queries.extend((0..COUNTERS.len()).map(|index| Query::Counter(counter(limit, index))));
        }
        for set in (0..SETS).map(|index| set(index).0).chain([timers()]) {
            queries.extend([Query::First { set: set.clone(), upto: None, count: 10_000 }, Query::Size(set)]);
        }
        for index in 0..STREAMS {
            let stream = stream(index);
            if index < QUEUES.len() {
                for consumer in CONSUMERS {
                    queries.push(Query::Holds { stream: stream.clone(), consumer: consumer.into(), count: 10_000 });
                }
            }
            queries.push(Query::Entries { stream, after: None, count: 10_000 });
        }
        self.read(&queries).await
    }

    async fn compare_lists(&mut self) -> Result<(), Differs> {
        self.compare_queues().await?;
        for limit in LIMITS {
            self.scan_counters(limit, 100).await?;
        }
        self.compare_sets().await?;
        self.compare_streams().await?;
        both!(self, "vital signs".to_owned(), store => async {
            let shard_stats = store.shard_stats().await?;
            Ok::<_, StoreError>((comparable_shard(shard_stats.shard), shard_stats.clock_ms, shard_stats.offset_ms))
        });
        self.scan("", 3).await
    }

    async fn compare_sets(&mut self) -> Result<(), Differs> {
        for set in (0..SETS).map(|index| set(index).0).chain([timers()]) {
            both!(self, format!("last of {set}"), store => store.last(&set, 1, 3));
            both!(self, format!("ranks in {set}"), store => async {
                let mut ranks = Vec::new();
                for (member, _) in store.last(&set, 0, 100).await? {
                    ranks.push(store.rank(&set, &member).await?);
                }
                ranks.push(store.rank(&set, "no member").await?);
                Ok::<_, StoreError>(ranks)
            });
            both!(self, format!("scan of {set}"), store => async {
                let mut found = Vec::new();
                let mut cursor = 0;
                loop {
                    let (page, next) = store.scan_members(&set, "", cursor, 2).await?;
                    found.extend(page);
                    cursor = next;
                    if cursor == 0 { break; }
                }
                found.sort();
                found.dedup();
                Ok::<_, StoreError>(found)
            });
        }
        Ok(())
    }

    async fn compare_streams(&mut self) -> Result<(), Differs> {
        for stream in (0..STREAMS).map(stream) {
            let (_, state) = both!(self, format!("page of {stream}"), store => store.page(&stream, &Range::newest(2)));
            let mut ranges = vec![Range::oldest(2), Range::newest(100)];
            for entry in state.first.into_iter().chain(state.last) {
                ranges.push(Range { from: Bound::Included(entry.clone()), ..Range::newest(2) });
                ranges.push(Range { upto: Bound::Excluded(entry.clone()), ..Range::newest(2) });
                let log = stream.clone();
                let follow = FollowRequest { log, after: Some(entry.clone()), count: 2, wait_ms: 0 };
                both!(self, format!("{follow:?}"), store => store.follow(&follow));
                ranges.push(Range::after(entry, 2));
            }
            for range in ranges {
                both!(self, format!("{stream} {range:?}"), store => store.entries(&stream, &range));
            }
        }
        Ok(())
    }
}

/// Removes texts of errors and numbers of epochs, which can differ between the stores.
fn comparable(batch: &BatchResult) -> BatchResult {
    let mut batch = batch.clone();
    batch.shard = comparable_shard(batch.shard);
    for result in &mut batch.results {
        match result {
            Err(Conflict::Failed { message }) => message.clear(),
            Err(Conflict::Epoch { number, .. }) => *number = count_of(*number),
            _ => {}
        }
    }
    batch
}

fn comparable_shard(shard: ShardState) -> ShardState {
    ShardState { epoch: count_of(shard.epoch), ..shard }
}

/// On Redis, the count of epochs is in the upper bits, and the lower bits are a time.
fn count_of(epoch: u64) -> u64 {
    if epoch >> 32 == 0 { epoch } else { epoch >> 32 }
}

/// Guards of the current epoch get the store's number of the epoch.
fn with_epoch(batch: &[Transaction], epoch: u64) -> Vec<Transaction> {
    let mut batch = batch.to_vec();
    for guard in batch.iter_mut().flat_map(|transaction| &mut transaction.guards) {
        if let Guard::Epoch { number, .. } = guard
            && *number == count_of(epoch)
        {
            *number = epoch;
        }
    }
    batch
}
