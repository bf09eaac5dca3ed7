//! Answers to the queries of decisions, and pages of records and counters.

use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use rustc_hash::FxHasher;
use tickfleet_core::view::Fields;
use tickfleet_core::{CounterState, EntryId, Query, RecordKey, SetKey, StreamKey, Value};

use super::shard::Contents;
use super::streams::Id;
use crate::seam::{Backlog, Consumer};

/// Members of a page and the cursor of the next page, as in [`crate::seam::Store::scan`].
pub type Page<T> = (Vec<T>, u64);

impl Contents {
    /// Answers a query.
    pub fn answer(&self, query: &Query) -> Value {
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
            Query::Place(set, member) => Value::Place(self.place(set, member)),
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
        let within = members.take_while(|(place, _)| upto.is_none_or(|upto| *place <= upto));
        within.take(count).map(|(place, member)| (Arc::clone(member), *place)).collect()
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

    fn entries_after(&self, stream: &StreamKey, after: Option<&EntryId>, count: usize) -> Vec<(EntryId, Fields)> {
        let begin = match after {
            Some(after) => Id::parse(after).map_or(Bound::Unbounded, Bound::Excluded),
            None => Bound::Unbounded,
        };
        let Some(stream) = self.streams.get(stream) else { return Vec::new() };
        let entries = stream.entries.range((begin, Bound::Unbounded)).take(count);
        entries.map(|(id, fields)| (id.entry(), (**fields).clone())).collect()
    }

    /// The number of waiting and held entries of a queue.
    pub fn backlog(&self, queue: &StreamKey) -> Backlog {
        let Some(stream) = self.streams.get(queue) else { return Backlog::default() };
        let held = stream.group.as_ref().map_or(0, |group| group.holders.len() as u64);
        // An acknowledged entry is removed, so each entry is either waiting or held.
        Backlog { waiting: (stream.entries.len() as u64).saturating_sub(held), held }
    }

    /// About how many bytes a stream takes.
    pub fn stream_bytes(&self, stream: &StreamKey) -> u64 {
        let entries = self.streams.get(stream).into_iter().flat_map(|stream| stream.entries.values());
        entries.flat_map(|fields| fields.iter()).map(|(name, value)| (name.len() + value.len()) as u64).sum()
    }

    /// The consumers of a queue, by name.
    pub fn consumers(&self, queue: &StreamKey) -> Vec<Consumer> {
        let group = self.streams.get(queue).and_then(|stream| stream.group.as_ref());
        let consumers = group.into_iter().flat_map(|group| &group.consumers);
        consumers.map(|(name, held)| Consumer { name: Arc::clone(name), held: held.len() as u64 }).collect()
    }

    /// A page of records.
    pub fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Page<RecordKey> {
        let records = self.records.iter().filter(|(key, kept)| kept.text.is_some() && key.as_str().starts_with(prefix));
        page(records.map(|(key, _)| (key.as_str(), key)), cursor, count, |(_, key)| key.clone())
    }

    /// A page of a limit's counters.
    pub fn scan_counters(&self, limit: &str, cursor: u64, count: usize) -> Page<(Arc<str>, CounterState)> {
        let counters = self.counters.get(limit).into_iter().flatten();
        page(counters.map(|(name, counter)| (&**name, (name, counter))), cursor, count, |(_, (name, counter))| {
            (Arc::clone(name), counter.state)
        })
    }
}

/// A page of items, ordered by the hash of the name. The order is stable while items are added and removed: an item that
/// exists throughout is on exactly one page. The cursor is the hash of the last item.
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

/// A nonzero hash, because cursor 0 begins and ends a scan.
fn hash(name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    name.hash(&mut hasher);
    hasher.finish().max(1)
}
