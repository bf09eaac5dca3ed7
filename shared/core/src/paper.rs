//! An in-memory store for tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::decision::{Context, Decision, Receipt, Step};
use crate::record::{Record, RecordText, Stored};
use crate::transaction::{
    Committed, ConditionalDebit, Conflict, CounterKey, CounterState, EntryId, Guard, RecordKey, SetKey, StreamKey,
    TimerRule, Transaction, Version, Write,
};
use crate::view::{Fields, Query, READS_MAX, Undecided, Value, View};

#[derive(Debug, Clone, Default)]
pub struct Paper {
    pub now_ms: i64,
    pub policy: u64,
    pub settings: u64,
    pub pressure: bool,
    pub records: HashMap<RecordKey, Bytes>,
    pub expire: HashMap<RecordKey, i64>,
    pub parts: HashMap<RecordKey, BTreeMap<Arc<str>, Bytes>>,
    pub sets: HashMap<SetKey, BTreeMap<Arc<str>, u64>>,
    pub counters: BTreeMap<CounterKey, CounterState>,
    pub timers: BTreeMap<Arc<str>, i64>,
    pub logs: HashMap<StreamKey, Vec<(EntryId, Fields)>>,
    versions: u64,
}

impl Paper {
    pub fn at(now_ms: i64) -> Self {
        Self { now_ms, ..Self::default() }
    }

    pub fn record<T: Record>(&self, key: &RecordKey) -> Option<T> {
        self.records.get(key).map(|stored| Stored::<T>::read(stored).unwrap().value)
    }

    pub fn log(&self, key: &StreamKey) -> &[(EntryId, Fields)] {
        self.logs.get(key).map_or(&[], Vec::as_slice)
    }

    pub fn set(&self, key: &SetKey) -> Vec<&str> {
        self.sets.get(key).map(|set| set.keys().map(|member| &**member).collect()).unwrap_or_default()
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

    pub fn context(&mut self) -> Context {
        self.versions += 1;
        let version = Version::new(format!("v{}", self.versions));
        Context {
            now_ms: self.now_ms,
            epoch: 1,
            epoch_began_ms: 0,
            pressure: self.pressure,
            version,
            conflicts: Vec::new(),
        }
    }

    pub fn decide<D: Decision>(&mut self, decision: &D) -> Step<D::Output> {
        let context = self.context();
        self.decide_in(decision, &mut View::default(), &context)
    }

    fn decide_in<D: Decision>(&self, decision: &D, view: &mut View, context: &Context) -> Step<D::Output> {
        for query in decision.reads() {
            let value = self.answer(&query);
            view.insert(query, value);
        }
        for _ in 0..=READS_MAX {
            match decision.decide(view, context) {
                Ok(step) => return step,
                Err(Undecided::Missing(queries)) => {
                    for query in queries {
                        let value = self.answer(&query);
                        view.insert(query, value);
                    }
                }
                Err(Undecided::Unreadable { key, why }) => panic!("{key} is not readable: {why}"),
            }
        }
        panic!("the decision reads more than {READS_MAX} times")
    }

    pub fn run<D: Decision>(&mut self, decision: &D) -> Receipt<D::Output> {
        let step = self.decide(decision);
        self.finish(decision, step)
    }

    pub fn result<D: Decision>(&mut self, decision: &D) -> D::Output {
        self.run(decision).result
    }

    pub fn finish<D: Decision>(&mut self, decision: &D, mut step: Step<D::Output>) -> Receipt<D::Output> {
        let mut view = View::default();
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
            let mut context = self.context();
            context.conflicts = conflicts.clone();
            step = self.decide_in(decision, &mut view, &context);
        }
        panic!("the decision conflicted 16 times: {conflicts:?}")
    }

    pub fn commit(&mut self, transaction: &Transaction) -> Result<Committed, Conflict> {
        if let Some(dedupe_record) = &transaction.dedupe_record
            && self.version(dedupe_record).as_ref() == Some(&transaction.version)
        {
            return Ok(self.committed(true));
        }
        for guard in &transaction.guards {
            self.check(guard)?;
        }
        for guard in &transaction.guards {
            if let Guard::Debit(debit) = guard {
                let counter = self.shared(debit);
                self.counters.entry(counter).or_default().used += debit.amount;
            }
        }
        for write in &transaction.writes {
            self.apply(write, &transaction.version);
        }
        Ok(self.committed(false))
    }

    fn committed(&self, was_committed: bool) -> Committed {
        Committed { now_ms: self.now_ms, was_committed, entries: Vec::new(), shadowed: Vec::new() }
    }

    fn version(&self, key: &RecordKey) -> Option<Version> {
        self.records.get(key).map(|stored| RecordText::parse(stored).unwrap().version)
    }

    fn shared(&self, debit: &ConditionalDebit) -> CounterKey {
        let count = self.counters.keys().filter(|key| key.limit == debit.counter.limit).count() as u64;
        if self.counters.contains_key(&debit.counter) || count < debit.counters_max {
            return debit.counter.clone();
        }
        CounterKey::new(&debit.counter.limit, ConditionalDebit::OTHERS)
    }

    fn check(&self, guard: &Guard) -> Result<(), Conflict> {
        let record = |key: &RecordKey| Conflict::Record { key: key.clone(), stored: self.records.get(key).cloned() };
        let set = |key: &SetKey| self.sets.get(key).cloned().unwrap_or_default();
        let time = Conflict::Time { now_ms: self.now_ms };
        let (holds, conflict) = match guard {
            Guard::Version(key, version) => (self.version(key).as_ref() == Some(version), record(key)),
            Guard::Absent(key) => (!self.records.contains_key(key), record(key)),
            Guard::Present(key) => (self.records.contains_key(key), record(key)),
            Guard::Before(at) => (self.now_ms < *at, time),
            Guard::Since(at) => (self.now_ms >= *at, time),
            Guard::MemoryAvailable => (!self.pressure, Conflict::Pressure),
            Guard::Fits { set: key, member, max } => {
                let set = set(key);
                (set.contains_key(member) || (set.len() as u64) < *max, Conflict::Full)
            }
            Guard::Member(key, member) => (set(key).contains_key(member), Conflict::NoMember),
            Guard::Within(stream, max) => ((self.log(stream).len() as u64) < *max, Conflict::Full),
            Guard::Debit(debit) => {
                let state = self.counters.get(&debit.counter).copied().unwrap_or_default();
                let has_ended = state.ends_ms > 0 && state.ends_ms <= self.now_ms;
                let used = if has_ended { 0 } else { state.used };
                let waits = debit.behind_queue && state.queued;
                (
                    !waits && used + debit.amount <= debit.max,
                    Conflict::LimitReached { counter: debit.counter.clone(), state },
                )
            }
            other => panic!("not on paper: {other:?}"),
        };
        if holds { Ok(()) } else { Err(conflict) }
    }

    fn mark_queue(&mut self, set: &SetKey, queue_of: Option<CounterKey>) {
        let Some(counter) = queue_of else { return };
        let queued = !self.set(set).is_empty();
        if queued || self.counters.contains_key(&counter) {
            self.counters.entry(counter).or_default().queued = queued;
        }
    }

    fn delete(&mut self, key: &RecordKey) {
        self.records.remove(key);
        self.parts.remove(key);
        self.expire.remove(key);
    }

    fn apply(&mut self, write: &Write, version: &Version) {
        match write.clone() {
            Write::Put { key, content, ttl_ms } => {
                match ttl_ms {
                    Some(ttl_ms) => self.expire.insert(key.clone(), self.now_ms + ttl_ms),
                    None => self.expire.remove(&key),
                };
                self.records.insert(key, RecordText::render(version, None, &[], &content));
            }
            Write::PutPart(key, name, content) => {
                self.parts.entry(key).or_default().insert(name, content);
            }
            Write::DeleteParts(key, names) => {
                self.parts.entry(key).or_default().retain(|name, _| !names.contains(name));
            }
            Write::Delete(key) => self.delete(&key),
            Write::Enqueue(stream, fields) | Write::Append { log: stream, fields, .. } => {
                let log = self.logs.entry(stream).or_default();
                log.push((EntryId::new(format!("{}-{}", self.now_ms, log.len())), fields));
            }
            Write::Remove(stream, entry) => {
                self.logs.entry(stream).or_default().retain(|(id, _)| *id != entry);
            }
            Write::DropQueue(queue) => drop(self.logs.remove(&queue)),
            Write::Timer { name, due_ms, rule } => {
                let known = self.timers.get(&name);
                let earlier = self.timers.get(&name).is_none_or(|due| due_ms < *due);
                if rule == TimerRule::Set || earlier && (rule == TimerRule::Earlier || known.is_some()) {
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
            Write::PolicyGeneration(generation) => self.policy = generation,
            Write::SettingsGeneration(generation) => self.settings = generation,
            other @ Write::Reply(..) => panic!("not on paper: {other:?}"),
        }
    }

    fn answer(&self, query: &Query) -> Value {
        let parts = |key: &RecordKey| self.parts.get(key).cloned().unwrap_or_default();
        match query {
            Query::Record(key) => Value::Record(self.records.get(key).cloned()),
            Query::Parts(key, names) => {
                let parts = parts(key);
                Value::Parts(names.iter().map(|name| parts.get(name).cloned()).collect())
            }
            Query::AllParts(key) => Value::AllParts(parts(key).into_iter().collect()),
            Query::Counter(counter) => Value::Counter(self.counters.get(counter).copied()),
            Query::First { set, upto, count } => {
                let mut members: Vec<(Arc<str>, u64)> =
                    self.sets.get(set).cloned().unwrap_or_default().into_iter().collect();
                members.retain(|(_, score)| upto.is_none_or(|upto| *score <= upto));
                members.sort_by_key(|(member, score)| (*score, member.clone()));
                members.truncate(*count);
                Value::Members(members)
            }
            Query::Score(set, member) if *set == crate::keys::timers() => {
                Value::Score(self.timers.get(member).map(|due_ms| due_ms.unsigned_abs()))
            }
            Query::Score(set, member) => Value::Score(self.sets.get(set).and_then(|set| set.get(member)).copied()),
            Query::Size(set) => Value::Size(self.sets.get(set).map_or(0, BTreeMap::len) as u64),
            Query::Entry(stream, entry) => {
                Value::Entry(self.log(stream).iter().find(|(id, _)| id == entry).map(|(_, fields)| fields.clone()))
            }
            Query::Entries { stream, after, count } => {
                let entries = self.log(stream).iter();
                let skip = after.as_ref().map_or(0, |after| {
                    self.log(stream).iter().position(|(entry, _)| entry == after).map_or(0, |at| at + 1)
                });
                Value::Entries(entries.skip(skip).take(*count).cloned().collect())
            }
            Query::Holder(..) => Value::Holder(None),
            other => panic!("not on paper: {other:?}"),
        }
    }
}
