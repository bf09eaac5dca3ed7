//! An in-memory store for tests.

#![allow(unreachable_pub, dead_code, clippy::unwrap_used, reason = "a test fails by panicking")]

mod turns;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::decision::{Context, Decision, Receipt, Step};
use crate::keys::TurnName;
use crate::record::{Debited, Record, RecordText, Stored};
use crate::transaction::{
    Committed, ConditionalDebit, Conflict, CounterKey, CounterState, EntryId, Guard, RecordKey, SetKey, StreamKey,
    TimerRule, Transaction, Version, Write,
};
use crate::turn::{Slice, Turn};
use crate::view::{Fields, Query, READS_MAX, Undecided, Value, View};

pub use turns::{admitted, call, head, named};

#[derive(Debug, Clone, Default)]
pub struct Queue {
    pub entries: BTreeMap<u64, Fields>,
    pub held: BTreeMap<u64, Arc<str>>,
    pub read: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Trial {
    pub now_ms: i64,
    pub epoch: u64,
    pub epoch_began_ms: i64,
    pub policy: u64,
    pub settings: u64,
    pub pressure: bool,
    pub records: HashMap<RecordKey, Bytes>,
    pub expire: HashMap<RecordKey, i64>,
    pub parts: HashMap<RecordKey, BTreeMap<Arc<str>, Bytes>>,
    pub sets: HashMap<SetKey, BTreeMap<Arc<str>, u64>>,
    pub counters: BTreeMap<CounterKey, CounterState>,
    pub timers: BTreeMap<Arc<str>, i64>,
    pub queues: HashMap<StreamKey, Queue>,
    pub inboxes: BTreeMap<String, Vec<Bytes>>,
    pub inboxes_are_full: bool,
    next: u64,
}

fn number(entry: &EntryId) -> u64 {
    entry.as_str().split_once('-').unwrap().1.parse().unwrap()
}

fn entry(number: u64) -> EntryId {
    EntryId::new(format!("1-{number}"))
}

impl Trial {
    pub fn at(now_ms: i64) -> Self {
        Self { now_ms, epoch: 1, next: 1, ..Self::default() }
    }

    pub fn stored<T: Record>(&self, key: &RecordKey) -> Option<Stored<T>> {
        self.records.get(key).map(|stored| Stored::read(stored).unwrap())
    }

    pub fn record<T: Record>(&self, key: &RecordKey) -> Option<T> {
        self.stored(key).map(|stored| stored.value)
    }

    pub fn log(&self, key: &StreamKey) -> Vec<(EntryId, Fields)> {
        let entries = self.queues.get(key).into_iter().flat_map(|queue| &queue.entries);
        entries.map(|(number, fields)| (entry(*number), fields.clone())).collect()
    }

    pub fn pass(&mut self, ms: i64) {
        self.now_ms += ms;
        let now_ms = self.now_ms;
        let over: Vec<RecordKey> =
            self.expire.iter().filter(|(_, ends)| **ends <= now_ms).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.delete(&key);
        }
    }

    fn delete(&mut self, key: &RecordKey) {
        self.records.remove(key);
        self.parts.remove(key);
        self.expire.remove(key);
    }

    pub fn turn(&self, name: &TurnName) -> Option<Stored<Turn>> {
        self.stored(&name.record())
    }

    pub fn used(&self, counter: &CounterKey) -> u64 {
        self.counters.get(counter).map_or(0, |state| state.used)
    }

    pub fn members(&self, set: &SetKey) -> Vec<String> {
        self.sets.get(set).into_iter().flat_map(BTreeMap::keys).map(|member| (**member).to_owned()).collect()
    }

    pub fn put<T: Record>(&mut self, key: &RecordKey, value: &T) {
        let mut transaction = Transaction::new(self.draw());
        transaction.put(key, value);
        self.commit(&transaction).unwrap();
    }

    pub fn draw(&mut self) -> Version {
        self.next += 1;
        Version::new(format!("v{}", self.next))
    }

    pub fn enqueue(&mut self, queue: &StreamKey, fields: Fields) -> EntryId {
        self.next += 1;
        self.queues.entry(queue.clone()).or_default().entries.insert(self.next, fields);
        entry(self.next)
    }

    pub fn take(&mut self, queue: &StreamKey, consumer: &str, count: usize) -> Vec<(EntryId, Fields)> {
        let queue = self.queues.entry(queue.clone()).or_default();
        let new: Vec<_> = queue.entries.range(queue.read + 1..).take(count).map(|(k, v)| (*k, v.clone())).collect();
        for (number, _) in &new {
            queue.read = *number;
            queue.held.insert(*number, consumer.into());
        }
        new.into_iter().map(|(number, fields)| (entry(number), fields)).collect()
    }

    pub fn slices(&mut self, queue: &StreamKey, consumer: &str, count: usize) -> Vec<Slice> {
        let taken = self.take(queue, consumer, count);
        taken.into_iter().map(|(entry, fields)| Slice::read(queue.clone(), entry, &fields).unwrap()).collect()
    }

    pub fn holds(&self, queue: &StreamKey, consumer: &str) -> Vec<EntryId> {
        let held = self.queues.get(queue).into_iter().flat_map(|queue| &queue.held);
        held.filter(|(_, holder)| &***holder == consumer).map(|(number, _)| entry(*number)).collect()
    }

    pub fn fields(&self, queue: &StreamKey, entry: &EntryId) -> Option<Fields> {
        self.queues.get(queue)?.entries.get(&number(entry)).cloned()
    }

    pub fn context(&mut self) -> Context {
        let version = self.draw();
        let epoch = self.epoch;
        let epoch_began_ms = self.epoch_began_ms;
        Context { now_ms: self.now_ms, epoch, epoch_began_ms, pressure: self.pressure, version, conflicts: Vec::new() }
    }

    pub fn run<D: Decision>(&mut self, decision: &D) -> D::Output {
        self.run_with(decision, &mut View::default())
    }

    pub fn run_with<D: Decision>(&mut self, decision: &D, view: &mut View) -> D::Output {
        self.read_hints(decision, view);
        let context = self.context();
        let step = self.decide(decision, view, &context);
        self.finish_with(decision, view, step).result
    }

    fn read_hints<D: Decision>(&self, decision: &D, view: &mut View) {
        for query in decision.reads() {
            if view.get(&query).is_err() {
                view.insert(query.clone(), self.answer(&query));
            }
        }
    }

    /// The decision without its commit.
    pub fn step<D: Decision>(&mut self, decision: &D) -> Step<D::Output> {
        let context = self.context();
        let mut view = View::default();
        self.read_hints(decision, &mut view);
        self.decide(decision, &mut view, &context)
    }

    pub fn receipt<D: Decision>(&mut self, decision: &D) -> Receipt<D::Output> {
        let step = self.step(decision);
        self.finish(decision, step)
    }

    pub fn finish<D: Decision>(&mut self, decision: &D, step: Step<D::Output>) -> Receipt<D::Output> {
        let mut view = View::default();
        self.finish_with(decision, &mut view, step)
    }

    fn finish_with<D: Decision>(
        &mut self,
        decision: &D,
        view: &mut View,
        mut step: Step<D::Output>,
    ) -> Receipt<D::Output> {
        let mut conflicts = Vec::new();
        for _ in 0..16 {
            let (transaction, result) = match step {
                Step::Return(result) => return Receipt { result, committed: None },
                Step::Commit(transaction, result) => (transaction, result),
            };
            match self.commit(&transaction) {
                Ok(committed) => return Receipt { result, committed: Some(committed) },
                Err(conflict) => {
                    view.learn(&conflict);
                    conflicts.push(conflict);
                }
            }
            let context = Context { conflicts: conflicts.clone(), ..self.context() };
            step = self.decide(decision, view, &context);
        }
        panic!("the decision conflicts forever: {conflicts:?}")
    }

    pub fn decide<D: Decision>(&self, decision: &D, view: &mut View, context: &Context) -> Step<D::Output> {
        for _ in 0..=READS_MAX {
            match decision.decide(view, context) {
                Ok(step) => return step,
                Err(Undecided::Missing(queries)) => {
                    for query in queries {
                        view.insert(query.clone(), self.answer(&query));
                    }
                }
                Err(Undecided::Unreadable { key, why }) => panic!("{key}: {why}"),
            }
        }
        panic!("the decision reads more than {READS_MAX} times")
    }

    pub fn commit(&mut self, transaction: &Transaction) -> Result<Committed, Conflict> {
        let committed =
            |was_committed| Committed { now_ms: self.now_ms, was_committed, entries: Vec::new(), shadowed: Vec::new() };
        if let Some(stored) = transaction.dedupe_record.as_ref().and_then(|key| self.records.get(key))
            && RecordText::parse(stored).unwrap().version == transaction.version
        {
            return Ok(committed(true));
        }
        let committed = committed(false);
        let before = self.counters.clone();
        for guard in &transaction.guards {
            if let Err(conflict) = self.check(guard) {
                self.counters = before;
                return Err(conflict);
            }
        }
        for guard in &transaction.guards {
            if let Guard::Held(queue, entry) = guard {
                self.drop_entry(queue, entry);
            }
        }
        let mut enqueued = None;
        let version = &transaction.version;
        let debits: Vec<Debited> = transaction
            .guards
            .iter()
            .filter_map(|guard| match guard {
                Guard::Debit(debit) if transaction.stamped => {
                    let state = self.counters.get(&debit.counter)?;
                    Some(Debited { used: state.used, ends_ms: state.ends_ms, began_ms: state.began_ms })
                }
                _ => None,
            })
            .collect();
        for write in &transaction.writes {
            self.apply(write, version, &debits, &mut enqueued);
        }
        Ok(committed)
    }

    fn drop_entry(&mut self, queue: &StreamKey, entry: &EntryId) {
        let queue = self.queues.entry(queue.clone()).or_default();
        queue.held.remove(&number(entry));
        queue.entries.remove(&number(entry));
    }

    fn check(&mut self, guard: &Guard) -> Result<(), Conflict> {
        let record = |key: &RecordKey| Conflict::Record { key: key.clone(), stored: self.records.get(key).cloned() };
        let version = |key: &RecordKey| self.records.get(key).map(|stored| RecordText::parse(stored).unwrap().version);
        let has = |set: &SetKey, member: &str| self.sets.get(set).is_some_and(|set| set.contains_key(member));
        let size = |set: &SetKey| self.sets.get(set).map_or(0, BTreeMap::len) as u64;
        let queue = |key: &StreamKey| self.queues.get(key);
        let (holds, conflict) = match guard {
            Guard::Version(key, wanted) => (version(key).as_ref() == Some(wanted), record(key)),
            Guard::Absent(key) => (!self.records.contains_key(key), record(key)),
            Guard::Present(key) => (self.records.contains_key(key), record(key)),
            Guard::Before(at) => (self.now_ms < *at, Conflict::Time { now_ms: self.now_ms }),
            Guard::Since(at) => (self.now_ms >= *at, Conflict::Time { now_ms: self.now_ms }),
            Guard::MemoryAvailable => (!self.pressure, Conflict::Pressure),
            Guard::Fits { set, member, max } => (has(set, member) || size(set) < *max, Conflict::Full),
            Guard::First(set, member) => {
                let members = self.sets.get(set).into_iter().flatten();
                let first = members.min_by_key(|(member, score)| (**score, (*member).clone()));
                (first.is_some_and(|(first, _)| first == member), Conflict::NoMember)
            }
            Guard::Member(set, member) => (has(set, member), Conflict::NoMember),
            Guard::Within(stream, max) => {
                (queue(stream).map_or(0, |queue| queue.entries.len() as u64) < *max, Conflict::Full)
            }
            Guard::Inbox { .. } => (!self.inboxes_are_full, Conflict::InboxFull),
            Guard::Epoch { number, lease_ms } => {
                let long = self.epoch_began_ms == 0 || self.now_ms >= self.epoch_began_ms + lease_ms;
                let conflict = Conflict::Epoch { number: self.epoch, began_ms: self.epoch_began_ms };
                (*number == self.epoch && long, conflict)
            }
            Guard::Unread(key, entry) => {
                let number = number(entry);
                let unread = queue(key).is_some_and(|queue| number > queue.read && queue.entries.contains_key(&number));
                (unread, Conflict::Read)
            }
            Guard::Held(key, entry) => {
                (queue(key).is_some_and(|queue| queue.held.contains_key(&number(entry))), Conflict::NotHeld)
            }
            Guard::Debit(debit) => return self.debit(debit),
            Guard::Generation { .. } => panic!("not in trials"),
        };
        if holds { Ok(()) } else { Err(conflict) }
    }

    fn debit(&mut self, debit: &ConditionalDebit) -> Result<(), Conflict> {
        let counter = self.shared(debit);
        let now_ms = self.now_ms;
        let state = self.counters.entry(counter).or_default();
        if state.ends_ms > 0 && state.ends_ms <= now_ms {
            state.used = 0;
        }
        let waits = debit.behind_queue && state.queued;
        if (waits || state.used + debit.amount > debit.max) && !debit.shadow {
            return Err(Conflict::LimitReached { counter: debit.counter.clone(), state: *state });
        }
        state.used += debit.amount;
        match debit.window {
            crate::Window::Fixed { end_ms, .. } | crate::Window::Day { end_ms, .. } => state.ends_ms = end_ms,
            _ => {}
        }
        Ok(())
    }

    fn shared(&self, debit: &ConditionalDebit) -> CounterKey {
        let count = self.counters.keys().filter(|key| key.limit == debit.counter.limit).count() as u64;
        if self.counters.contains_key(&debit.counter) || count < debit.counters_max {
            return debit.counter.clone();
        }
        CounterKey::new(&debit.counter.limit, ConditionalDebit::OTHERS)
    }

    fn mark_queue(&mut self, set: &SetKey, queue_of: Option<CounterKey>) {
        let Some(counter) = queue_of else { return };
        let queued = self.sets.get(set).is_some_and(|members| !members.is_empty());
        if queued || self.counters.contains_key(&counter) {
            self.counters.entry(counter).or_default().queued = queued;
        }
    }

    fn apply(&mut self, write: &Write, version: &Version, debits: &[Debited], enqueued: &mut Option<EntryId>) {
        match write.clone() {
            Write::Put { key, content, ttl_ms } => {
                match ttl_ms {
                    Some(ttl_ms) => self.expire.insert(key.clone(), self.now_ms + ttl_ms),
                    None => self.expire.remove(&key),
                };
                self.records.insert(key, RecordText::render(version, enqueued.as_ref(), debits, &content));
            }
            Write::PutPart(key, name, content) => {
                self.parts.entry(key).or_default().insert(name, content);
            }
            Write::DeleteParts(key, names) => {
                self.parts.entry(key).or_default().retain(|name, _| !names.contains(name));
            }
            Write::Delete(key) => self.delete(&key),
            Write::Enqueue(stream, fields) => *enqueued = Some(self.enqueue(&stream, fields)),
            Write::Append { log, fields, .. } => {
                self.enqueue(&log, fields);
            }
            Write::Remove(stream, entry) => self.drop_entry(&stream, &entry),
            Write::DropQueue(queue) => drop(self.queues.remove(&queue)),
            Write::Timer { name, due_ms, rule } => {
                let known = self.timers.get(&name).copied();
                let sets = match rule {
                    TimerRule::Set => true,
                    TimerRule::Earlier => known.is_none_or(|known| due_ms < known),
                    TimerRule::Wake => known.is_some_and(|known| due_ms < known),
                };
                if sets {
                    self.timers.insert(name, due_ms);
                }
            }
            Write::ClearTimer(name) => drop(self.timers.remove(&name)),
            Write::AddMember { set, member, score, queue_of } => {
                self.sets.entry(set.clone()).or_default().insert(member, score);
                self.mark_queue(&set, queue_of);
            }
            Write::RemoveMember { set, member, queue_of } => {
                self.sets.entry(set.clone()).or_default().remove(&member);
                self.mark_queue(&set, queue_of);
            }
            Write::Add { counter, ends_ms: Some(_), .. } if !self.counters.contains_key(&counter) => {}
            Write::Add { counter, amount, ends_ms } => {
                if ends_ms.is_none() {
                    self.counters.entry(counter.clone()).or_default();
                }
                if let Some(state) = self.counters.get_mut(&counter)
                    && ends_ms.is_none_or(|ends_ms| state.ends_ms == ends_ms)
                {
                    state.used = state.used.saturating_add_signed(amount);
                }
            }
            Write::Restart { counter, amount, ends_ms } => {
                let found = self.counters.get_mut(&counter).filter(|state| state.ends_ms == ends_ms);
                if let Some(state) = found {
                    state.used = state.used.saturating_sub(amount);
                    state.began_ms = self.now_ms;
                }
            }
            Write::DeleteCounter(counter) => drop(self.counters.remove(&counter)),
            Write::Reply(inbox, text) => {
                self.inboxes.entry(format!("{}:{}", inbox.tenant, inbox.inbox)).or_default().push(text);
            }
            Write::PolicyGeneration(generation) => self.policy = generation,
            Write::SettingsGeneration(generation) => self.settings = generation,
        }
    }

    pub fn answer(&self, query: &Query) -> Value {
        match query {
            Query::Record(key) => Value::Record(self.records.get(key).cloned()),
            Query::Parts(key, names) => {
                let parts = self.parts.get(key);
                Value::Parts(names.iter().map(|name| parts?.get(name).cloned()).collect())
            }
            Query::AllParts(key) => {
                Value::AllParts(self.parts.get(key).cloned().unwrap_or_default().into_iter().collect())
            }
            Query::Counter(counter) => Value::Counter(self.counters.get(counter).copied()),
            Query::First { set, upto, count } => {
                let set = self.sets.get(set).cloned().unwrap_or_default();
                let mut members: Vec<(Arc<str>, u64)> =
                    set.into_iter().filter(|(_, score)| upto.is_none_or(|upto| *score <= upto)).collect();
                members.sort_by_key(|(member, score)| (*score, member.clone()));
                members.truncate(*count);
                Value::Members(members)
            }
            Query::Score(set, member) if *set == crate::keys::timers() => {
                Value::Score(self.timers.get(member).map(|due_ms| due_ms.unsigned_abs()))
            }
            Query::Score(set, member) => Value::Score(self.sets.get(set).and_then(|set| set.get(member)).copied()),
            Query::Size(set) => Value::Size(self.sets.get(set).map_or(0, BTreeMap::len) as u64),
            Query::Entry(stream, entry) => Value::Entry(self.fields(stream, entry)),
            Query::Holder(stream, entry) => {
                Value::Holder(self.queues.get(stream).and_then(|queue| queue.held.get(&number(entry))).cloned())
            }
            Query::Holds { stream, consumer, count } => {
                Value::Holds(self.holds(stream, consumer).into_iter().take(*count).collect())
            }
            Query::Entries { stream, after, count } => {
                let mut entries = self.log(stream);
                entries.retain(|(entry, _)| after.as_ref().is_none_or(|after| number(entry) > number(after)));
                entries.truncate(*count);
                Value::Entries(entries)
            }
        }
    }
}
