//! Completes a plan with the versions, entries and times that the game knows.

use std::collections::HashMap;

use tickfleet_core::keys::timers;
use tickfleet_core::record::RecordText;
use tickfleet_core::{
    ConditionalDebit, CounterKey, CounterState, EntryId, Guard, Query, RecordKey, SetKey, StreamKey, TimerRule,
    Transaction, Value, Version, Window, Write,
};
use tickfleet_store::seam::{ShardState, Store};

use super::plan::{Belief, DebitDraft, Draft, GuardDraft, Pick, QueryDraft, WriteDraft};
use super::universe::{
    COUNTERS, LIMITS, LOGS, QUEUES, RECORDS, STREAMS, TIMERS, content, counter, fields, inbox, member, part, queue,
    record, set, stream,
};

#[derive(Default)]
pub struct StoreModel {
    pub shard: ShardState,
    pub enqueued: HashMap<StreamKey, Vec<EntryId>>,
    pub held: HashMap<StreamKey, Vec<EntryId>>,
    pub drawn: usize,
    versions: HashMap<RecordKey, Version>,
    counters: HashMap<CounterKey, CounterState>,
}

impl StoreModel {
    pub async fn refresh(&mut self, store: &dyn Store) {
        let records = (0..RECORDS.len()).map(record);
        let counters: Vec<_> =
            (0..LIMITS.len()).flat_map(|limit| (0..COUNTERS.len()).map(move |index| counter(limit, index))).collect();
        let mut queries: Vec<Query> = records.map(Query::Record).collect();
        queries.extend(counters.into_iter().map(Query::Counter));
        queries.extend((0..STREAMS).map(|index| Query::Entries { stream: stream(index), after: None, count: 10_000 }));
        let values = store.read(&queries).await.unwrap_or_default();
        self.versions.clear();
        self.counters.clear();
        for (query, value) in queries.into_iter().zip(values) {
            match (query, value) {
                (Query::Record(key), Value::Record(Some(stored))) => {
                    self.versions.insert(key, RecordText::parse(&stored).expect("a record's frame").version);
                }
                (Query::Counter(key), Value::Counter(Some(state))) => {
                    self.counters.insert(key, state);
                }
                (Query::Entries { stream, .. }, Value::Entries(entries)) if !entries.is_empty() => {
                    // The list keeps entries that were removed.
                    let known = self.enqueued.entry(stream).or_default();
                    known.extend(entries.into_iter().map(|(entry, _)| entry));
                    known.sort_by_key(number);
                    known.dedup();
                }
                _ => {}
            }
        }
    }

    pub fn end_of_window(&self, number: usize) -> Option<i64> {
        let ends = self.counters.values().map(|state| state.ends_ms);
        let mut ends: Vec<i64> = ends.filter(|end_ms| *end_ms > self.shard.now_ms).collect();
        ends.sort_unstable();
        ends.get(number.checked_rem(ends.len())?).copied()
    }

    fn ends_ms(&self, counter: &CounterKey) -> i64 {
        self.counters.get(counter).map_or(0, |state| state.ends_ms)
    }

    /// Later transactions assume that the earlier ones are committed.
    pub fn transactions(&mut self, drafts: &[Draft]) -> Vec<Transaction> {
        drafts.iter().map(|draft| self.transaction(draft)).collect()
    }

    fn transaction(&mut self, draft: &Draft) -> Transaction {
        self.drawn += 1;
        let mut transaction = Transaction::new(Version::new(format!("v{}", self.drawn)));
        transaction.stamped = draft.stamped;
        let mut guards: Vec<Guard> = draft.guards.iter().map(|guard| self.guard(guard)).collect();
        guards.sort_by_key(|guard| matches!(guard, Guard::Held(..)));
        transaction.guards = guards;
        transaction.writes = draft.writes.iter().map(|write| self.write(write)).collect();
        for write in &transaction.writes {
            match write {
                Write::Put { key, .. } => {
                    self.versions.insert(key.clone(), transaction.version.clone());
                    if draft.dedupe_record && transaction.dedupe_record.is_none() {
                        transaction.dedupe_record = Some(key.clone());
                    }
                }
                Write::Delete(key) => {
                    self.versions.remove(key);
                }
                _ => {}
            }
        }
        transaction
    }

    fn guard(&self, guard: &GuardDraft) -> Guard {
        let now = self.shard.now_ms;
        match guard {
            GuardDraft::Record(index, belief) => {
                let present = self.versions.get(&record(*index));
                let text = present.map_or("other", Version::as_str);
                let version = match (belief, present) {
                    (Belief::Absent, _) | (Belief::Right, None) => return Guard::Absent(record(*index)),
                    (Belief::Right, Some(version)) => version.clone(),
                    (Belief::Shorter, _) => Version::new(&text[..text.len() - 1]),
                    (Belief::Longer, _) => Version::new(format!("{text}0")),
                };
                Guard::Version(record(*index), version)
            }
            GuardDraft::Present(index) => Guard::Present(record(*index)),
            GuardDraft::Debit(debit) => Guard::Debit(self.debit(debit)),
            GuardDraft::Before(delta) => Guard::Before(now + delta),
            GuardDraft::Since(delta) => Guard::Since(now + delta),
            GuardDraft::Generation { policy, settings } => Guard::Generation {
                policy: self.shard.policy.saturating_add_signed(*policy),
                settings: self.shard.settings.saturating_add_signed(*settings),
            },
            GuardDraft::Epoch { number, lease_ms } => {
                Guard::Epoch { number: self.shard.epoch.saturating_add_signed(*number), lease_ms: *lease_ms }
            }
            GuardDraft::Within(index, max) => Guard::Within(stream(*index), *max),
            GuardDraft::Fits { set: index, member: of, max } => {
                Guard::Fits { set: set(*index).0, member: member(*of), max: *max }
            }
            GuardDraft::Member(index, of) => Guard::Member(set(*index).0, member(*of)),
            GuardDraft::First(index, of) => Guard::First(set(*index).0, member(*of)),
            GuardDraft::MemoryAvailable => Guard::MemoryAvailable,
            GuardDraft::Inbox { inbox: index, unread_max, inboxes_max } => {
                Guard::Inbox { inbox: inbox(*index), unread_max: *unread_max, inboxes_max: *inboxes_max }
            }
            GuardDraft::Unread(index, entry) => Guard::Unread(queue(*index), self.entry(&queue(*index), *entry)),
            GuardDraft::Held(index, entry) => {
                let queue = (*index..index + QUEUES.len())
                    .map(|index| queue(index % QUEUES.len()))
                    .find(|queue| matches!(entry, Pick::Held(back) if self.held.get(queue).is_some_and(|held| held.len() > *back)))
                    .unwrap_or_else(|| queue(*index));
                let entry = self.entry(&queue, *entry);
                Guard::Held(queue, entry)
            }
        }
    }

    fn debit(&self, draft: &DebitDraft) -> ConditionalDebit {
        let now = self.shard.now_ms;
        let window = |lengths: [i64; 3]| {
            let length = lengths[draft.length];
            let start = (now - draft.phase).div_euclid(length) * length + draft.phase + draft.shift * length;
            (start, start + length, length)
        };
        let window = match draft.kind {
            0 => {
                let (start_ms, end_ms, length_ms) = window([100, 250, 120_000]);
                Window::Fixed { start_ms, end_ms, length_ms }
            }
            1 => {
                let (start_ms, end_ms, _) = window([600, 500, 86_400_000]);
                Window::Day { start_ms, end_ms }
            }
            2 => Window::Rolling { length_ms: [160, 333, 5][draft.length] },
            3 => Window::Concurrency,
            _ => Window::Total,
        };
        ConditionalDebit {
            counter: counter(draft.limit, draft.counter),
            amount: draft.amount,
            max: draft.max,
            window,
            behind_queue: draft.behind_queue,
            shadow: draft.shadow,
            counters_max: draft.counters_max,
        }
    }

    fn write(&self, write: &WriteDraft) -> Write {
        match write {
            WriteDraft::Put { record: index, content: of, ttl_ms } => {
                Write::Put { key: record(*index), content: content(*of), ttl_ms: *ttl_ms }
            }
            WriteDraft::PutPart { record: index, part: name, content: of } => {
                Write::PutPart(record(*index), part(*name), content(*of))
            }
            WriteDraft::DeleteParts(index, parts) => {
                Write::DeleteParts(record(*index), parts.iter().map(|index| part(*index)).collect())
            }
            WriteDraft::Delete(index) => Write::Delete(record(*index)),
            WriteDraft::Enqueue(index, of) => Write::Enqueue(queue(*index), fields(*of)),
            WriteDraft::Remove(index, entry) => Write::Remove(queue(*index), self.entry(&queue(*index), *entry)),
            WriteDraft::DropQueue(index) => Write::DropQueue(queue(*index)),
            WriteDraft::Timer { timer, due, rule } => Write::Timer {
                name: TIMERS[*timer].into(),
                due_ms: self.shard.now_ms + due,
                rule: [TimerRule::Set, TimerRule::Earlier, TimerRule::Wake][*rule],
            },
            WriteDraft::ClearTimer(timer) => Write::ClearTimer(TIMERS[*timer].into()),
            WriteDraft::AddMember { set: index, member: of, score } => {
                let (set, queue_of) = set(*index);
                Write::AddMember { set, member: member(*of), score: *score, queue_of }
            }
            WriteDraft::RemoveMember { set: index, member: of } => {
                let (set, queue_of) = set(*index);
                Write::RemoveMember { set, member: member(*of), queue_of }
            }
            WriteDraft::Add { limit, counter: index, amount, window } => {
                let counter = counter(*limit, *index);
                let ends_ms = self.ends_ms(&counter);
                let ends_ms = [None, Some(ends_ms), Some(ends_ms + 20)][*window];
                Write::Add { counter, amount: *amount, ends_ms }
            }
            WriteDraft::Restart { limit, counter: index, amount, window } => {
                let counter = counter(*limit, *index);
                let ends_ms = self.ends_ms(&counter) + [0, 20][*window];
                Write::Restart { counter, amount: *amount, ends_ms }
            }
            WriteDraft::DeleteCounter { limit, counter: index } => Write::DeleteCounter(counter(*limit, *index)),
            WriteDraft::Append { log, fields: of, max_entries } => {
                Write::Append { log: StreamKey::new(LOGS[*log]), fields: fields(*of), max_entries: *max_entries }
            }
            WriteDraft::Reply { inbox: index, content: of } => Write::Reply(inbox(*index), content(*of)),
            WriteDraft::PolicyGeneration(delta) => {
                Write::PolicyGeneration(self.shard.policy.saturating_add_signed(*delta))
            }
            WriteDraft::SettingsGeneration(delta) => {
                Write::SettingsGeneration(self.shard.settings.saturating_add_signed(*delta))
            }
        }
    }

    pub fn query(&self, question: &QueryDraft) -> Query {
        let set_of = |index: &Option<usize>| index.map_or_else(timers, |index| set(index).0);
        match question {
            QueryDraft::Record(index) => Query::Record(record(*index)),
            QueryDraft::Parts(index, parts) => {
                Query::Parts(record(*index), parts.iter().map(|index| part(*index)).collect())
            }
            QueryDraft::AllParts(index) => Query::AllParts(record(*index)),
            QueryDraft::Counter(limit, index) => Query::Counter(counter(*limit, *index)),
            QueryDraft::First { set: index, upto, count } => {
                let now = if index.is_none() { self.shard.now_ms } else { 0 };
                let upto = upto.map(|upto| u64::try_from(now + upto).unwrap_or_default());
                Query::First { set: set_of(index), upto, count: *count }
            }
            QueryDraft::Score(Some(index), of) => Query::Score(set(*index).0, member(*of)),
            QueryDraft::Score(None, timer) => Query::Score(SetKey::new("timers"), TIMERS[*timer].into()),
            QueryDraft::Size(index) => Query::Size(set_of(index)),
            QueryDraft::Entry(index, entry) => Query::Entry(stream(*index), self.entry(&stream(*index), *entry)),
            QueryDraft::Holder(index, entry) => Query::Holder(queue(*index), self.entry(&queue(*index), *entry)),
            QueryDraft::Holds { queue: index, consumer, count } => Query::Holds {
                stream: queue(*index),
                consumer: super::universe::CONSUMERS[*consumer].into(),
                count: *count,
            },
            QueryDraft::Entries { stream: index, after, count } => Query::Entries {
                stream: stream(*index),
                after: after.map(|after| self.entry(&stream(*index), after)),
                count: *count,
            },
        }
    }

    /// If the game knows no matching entry, returns an entry that does not exist.
    pub fn entry(&self, stream: &StreamKey, pick: Pick) -> EntryId {
        let newest = |entries: &HashMap<StreamKey, Vec<EntryId>>, back: usize| {
            entries.get(stream).and_then(|entries| entries.iter().rev().nth(back)).cloned()
        };
        let found = match pick {
            Pick::Held(back) => newest(&self.held, back),
            Pick::Known(back) => newest(&self.enqueued, back),
            Pick::Foreign => None,
        };
        found.unwrap_or_else(|| EntryId::new("1600000000000-7"))
    }
}

pub fn number(entry: &EntryId) -> u128 {
    let (ms, sequence) = entry.as_str().split_once('-').expect("an entry's ID");
    ms.parse::<u128>().unwrap() << 64 | sequence.parse::<u128>().unwrap()
}
