//! Answers the queries of decisions, and returns pages of records and counters.

use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use rustc_hash::FxHasher;
use tickfleet_core::view::Fields;
use tickfleet_core::{CounterState, EntryId, Query, RecordKey, SetKey, StreamKey, Value};

use super::shard::{Contents, Shard};
use super::streams::Id;
use crate::seam::inspect::{Entry, QueueState, Range, ShardStats, StreamState};
use crate::seam::{Consumer, QueueCounts, ShardState};

/// The number is the cursor of the next page.
pub type Page<T> = (Vec<T>, u64);

impl Contents {
    pub fn read(&self, query: &Query) -> Value {
        match query {
            Query::Record(key) => Value::Record(self.text(key).cloned()),
            Query::Parts(key, names) => {
                let kept = self.records.get(key);
                Value::Parts(names.iter().map(|name| kept?.parts.get(name).cloned()).collect())
            }
            Query::AllParts(key) => {
                let parts = self.records.get(key).into_iter().flat_map(|kept| &kept.parts);
                Value::AllParts(parts.map(|(name, value)| (Arc::clone(name), value.clone())).collect())
            }
            Query::Counter(key) => Value::Counter(self.counter(key).map(|counter| counter.state)),
            Query::First { set, upto, count } => Value::Members(self.first(set, *upto, *count)),
            Query::Score(set, member) => Value::Score(self.score(set, member)),
            Query::Size(set) => Value::Size(self.size(set)),
            Query::Entry(stream, entry) => Value::Entry(self.entry(stream, entry)),
            Query::Holder(stream, entry) => Value::Holder(self.holder(stream, entry)),
            Query::Holds { stream, consumer, count } => Value::Holds(self.holds(stream, consumer, *count)),
            Query::Entries { stream, after, count } => {
                Value::Entries(self.entries_after(stream, after.as_ref(), *count))
            }
        }
    }

    fn first(&self, set: &SetKey, upto: Option<u64>, count: usize) -> Vec<(Arc<str>, u64)> {
        let members = self.sets.get(set).into_iter().flat_map(|members| &members.order);
        let within = members.take_while(|(score, _)| upto.is_none_or(|upto| *score <= upto));
        within.take(count).map(|(score, member)| (Arc::clone(member), *score)).collect()
    }

    fn entry(&self, stream: &StreamKey, entry: &EntryId) -> Option<Fields> {
        let fields = self.streams.get(stream)?.entries.get(&Id::parse(entry)?)?;
        Some((**fields).clone())
    }

    fn holder(&self, stream: &StreamKey, entry: &EntryId) -> Option<Arc<str>> {
        self.streams.get(stream)?.holder(Id::parse(entry)?).cloned()
    }

    fn holds(&self, stream: &StreamKey, consumer: &str, count: usize) -> Vec<EntryId> {
        let group = self.streams.get(stream).and_then(|stream| stream.group.as_ref());
        let held = group.and_then(|group| group.consumers.get(consumer));
        held.into_iter().flatten().take(count).map(|id| id.entry()).collect()
    }

    pub fn entries_after(&self, stream: &StreamKey, after: Option<&EntryId>, count: usize) -> Vec<(EntryId, Fields)> {
        let begin = match after {
            Some(after) => Id::parse(after).map_or(Bound::Unbounded, Bound::Excluded),
            None => Bound::Unbounded,
        };
        let Some(stream) = self.streams.get(stream) else { return Vec::new() };
        let entries = stream.entries.range((begin, Bound::Unbounded)).take(count);
        entries.map(|(id, fields)| (id.entry(), (**fields).clone())).collect()
    }

    pub fn backlog(&self, queue: &StreamKey) -> QueueCounts {
        let Some(stream) = self.streams.get(queue) else { return QueueCounts::default() };
        let held = stream.group.as_ref().map_or(0, |group| group.holders.len() as u64);
        // Acknowledged entries are removed, so each entry is waiting or held.
        QueueCounts { waiting: (stream.entries.len() as u64).saturating_sub(held), held }
    }

    pub fn stream_bytes(&self, stream: &StreamKey) -> u64 {
        let entries = self.streams.get(stream).into_iter().flat_map(|stream| stream.entries.values());
        entries.flat_map(|fields| fields.iter()).map(|(name, value)| (name.len() + value.len()) as u64).sum()
    }

    pub fn range(&self, stream: &StreamKey, range: &Range) -> Vec<Entry> {
        // A range with an unreadable ID is empty.
        let bound = |bound: &Bound<EntryId>| match bound {
            Bound::Included(entry) => Id::parse(entry).map(Bound::Included),
            Bound::Excluded(entry) => Id::parse(entry).map(Bound::Excluded),
            Bound::Unbounded => Some(Bound::Unbounded),
        };
        let (Some(stream), Some(from), Some(upto)) = (self.streams.get(stream), bound(&range.from), bound(&range.upto))
        else {
            return Vec::new();
        };
        if is_empty(from, upto) {
            return Vec::new();
        }
        let entries = stream.entries.range((from, upto));
        let render = |(id, fields): (&Id, &Arc<Fields>)| (id.entry(), (**fields).clone());
        if range.newest_first {
            entries.rev().take(range.count).map(render).collect()
        } else {
            entries.take(range.count).map(render).collect()
        }
    }

    pub fn stream_state(&self, stream: &StreamKey) -> StreamState {
        let Some(stream) = self.streams.get(stream) else { return StreamState::default() };
        StreamState {
            added: stream.added,
            length: stream.entries.len() as u64,
            first: stream.entries.keys().next().map(|id| id.entry()),
            last: (stream.last != Id::default()).then(|| stream.last.entry()),
        }
    }

    pub fn queue_state(&self, queue: &StreamKey) -> QueueState {
        let QueueCounts { waiting, held } = self.backlog(queue);
        let Some(stream) = self.streams.get(queue) else { return QueueState::default() };
        QueueState {
            waiting,
            held,
            oldest_waiting: stream.unread().next().map(|(id, _)| id.entry()),
            oldest_held: stream.group.iter().flat_map(|group| group.holders.keys()).next().map(|id| id.entry()),
            added: stream.added,
        }
    }

    pub fn last(&self, set: &SetKey, skip: usize, count: usize) -> Vec<(Arc<str>, u64)> {
        let members = self.sets.get(set).into_iter().flat_map(|members| members.order.iter().rev());
        members.skip(skip).take(count).map(|(score, member)| (Arc::clone(member), *score)).collect()
    }

    pub fn rank(&self, set: &SetKey, member: &str) -> Option<u64> {
        let members = self.sets.get(set)?;
        let score = *members.scores.get(member)?;
        Some(members.order.range(..(score, Arc::from(member))).count() as u64)
    }

    pub fn scan_members(&self, set: &SetKey, prefix: &str, cursor: u64, count: usize) -> Page<(Arc<str>, u64)> {
        let members = self.sets.get(set).into_iter().flat_map(|members| &members.scores);
        let members = members.filter(|(member, _)| member.starts_with(prefix));
        page(members.map(|(member, score)| (&**member, (member, *score))), cursor, count, |(_, (member, score))| {
            (Arc::clone(member), score)
        })
    }

    pub fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Page<RecordKey> {
        let records = self.records.iter().filter(|(key, kept)| kept.text.is_some() && key.as_str().starts_with(prefix));
        page(records.map(|(key, _)| (key.as_str(), key)), cursor, count, |(_, key)| key.clone())
    }

    pub fn scan_counters(&self, limit: &str, cursor: u64, count: usize) -> Page<(Arc<str>, CounterState)> {
        let counters = self.counters.get(limit).into_iter().flatten();
        page(counters.map(|(name, counter)| (&**name, (name, counter))), cursor, count, |(_, (name, counter))| {
            (Arc::clone(name), counter.state)
        })
    }
}

impl Shard {
    pub fn consumers(&self, raw_ms: i64, queue: &StreamKey) -> Vec<Consumer> {
        let group = self.contents.streams.get(queue).and_then(|stream| stream.group.as_ref());
        let consumers = group.into_iter().flat_map(|group| &group.consumers);
        let idle_ms = |name: &Arc<str>| {
            let last = self.seen.takes.get(&(queue.clone(), Arc::clone(name))).copied();
            (raw_ms - last.unwrap_or(self.seen.started_ms)).max(0)
        };
        let consumer = |name: &Arc<str>, held: u64| Consumer { name: Arc::clone(name), held, idle_ms: idle_ms(name) };
        consumers.map(|(name, held)| consumer(name, held.len() as u64)).collect()
    }

    /// The consumer that holds the entry, and the time since the take (ms). After a restart of the store, the time
    /// counts from this restart.
    pub fn holder(&self, raw_ms: i64, queue: &StreamKey, entry: &EntryId) -> Option<(Arc<str>, i64)> {
        let holder = self.contents.holder(queue, entry)?;
        let taken = Id::parse(entry).and_then(|id| self.seen.taken.get(&(queue.clone(), id)).copied());
        Some((holder, (raw_ms - taken.unwrap_or(self.seen.started_ms)).max(0)))
    }

    pub fn shard_stats(&self, raw_ms: i64, memory_max: u64) -> ShardStats {
        let state = self.state();
        let clock = self.contents.clock;
        ShardStats {
            shard: ShardState { now_ms: (raw_ms + clock.offset_ms).max(clock.last_ms), ..state },
            clock_ms: raw_ms,
            offset_ms: clock.offset_ms,
            steps: self.seen.steps,
            step_ms: self.seen.step_ms,
            memory_bytes: self.contents.bytes,
            memory_max,
        }
    }
}

/// True if no ID is between the bounds. A range query on a map would panic for such bounds.
fn is_empty(from: Bound<Id>, upto: Bound<Id>) -> bool {
    match (from, upto) {
        (Bound::Included(from), Bound::Included(upto)) => from > upto,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(upto) | Bound::Excluded(upto)) => from >= upto,
        _ => false,
    }
}

/// Sorted by the hash of the name, so that an item that exists throughout a scan is on exactly one page. The cursor is
/// the hash of the last item.
fn page<'a, I: Copy, T>(
    items: impl Iterator<Item = (&'a str, I)>,
    cursor: u64,
    count: usize,
    render: impl Fn((&'a str, I)) -> T,
) -> Page<T> {
    let mut rest: Vec<(u64, (&str, I))> =
        items.map(|item| (hash(item.0), item)).filter(|(hash, _)| *hash > cursor).collect();
    rest.sort_unstable_by_key(|(hash, (name, _))| (*hash, *name));
    let mut next = 0;
    if let Some((last, _)) = rest.get(count.max(1) - 1).copied() {
        let upto = rest.partition_point(|(hash, _)| *hash <= last);
        if upto < rest.len() {
            rest.truncate(upto);
            next = last;
        }
    }
    (rest.into_iter().map(|(_, item)| render(item)).collect(), next)
}

/// Never 0, because cursor 0 means the start or the end of a scan.
fn hash(name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    name.hash(&mut hasher);
    hasher.finish().max(1)
}
