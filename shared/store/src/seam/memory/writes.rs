//! Applies commits: checks the guards, applies their changes, then applies the writes in order.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::record::{Debited, RecordText};
use tickfleet_core::view::Fields;
use tickfleet_core::{
    Committed, ConditionalDebit, Conflict, CounterKey, EntryId, InboxKey, SetKey, StreamKey, TimerRule, Transaction,
    Write, keys,
};

use super::counters::Counter;
use super::effects::Effect;
use super::guards::{GuardEffects, inbox_stream, inboxes, is_version};
use super::shard::Shard;
use super::streams::{Id, Stream};
use crate::seam::{BatchResult, TakeRequest, TakenEntry, TrimBounds};

struct Applying<'a> {
    transaction: &'a Transaction,
    raw_ms: i64,
    debited: Vec<Debited>,
    entries: Vec<EntryId>,
}

impl Shard {
    pub fn commit(&mut self, raw_ms: i64, batch: &[Transaction]) -> BatchResult {
        self.tick(raw_ms);
        self.expire(raw_ms);
        let results = batch.iter().map(|transaction| self.commit_one(raw_ms, transaction)).collect();
        BatchResult { shard: self.state(), results }
    }

    fn commit_one(&mut self, raw_ms: i64, transaction: &Transaction) -> Result<Committed, Conflict> {
        let now_ms = self.contents.clock.last_ms;
        let dedupe_record =
            transaction.dedupe_record.as_ref().and_then(|dedupe_record| self.contents.text(dedupe_record));
        if dedupe_record.is_some_and(|text| is_version(text, &transaction.version)) {
            return Ok(Committed { now_ms, was_committed: true, entries: Vec::new(), shadowed: Vec::new() });
        }
        let passed = self.check(&transaction.guards)?;
        let GuardEffects { counters, debited, shadowed, held, inboxes } = passed;
        for (key, counter) in counters {
            self.change(Effect::Counter { key, counter });
        }
        for (stream, id) in held {
            self.change(Effect::DropEntry { stream, id });
        }
        for inbox in inboxes {
            self.use_inbox(&inbox);
        }
        let mut applying = Applying { transaction, raw_ms, debited, entries: Vec::new() };
        for write in &transaction.writes {
            self.write(write, &mut applying);
        }
        Ok(Committed { now_ms, was_committed: false, entries: applying.entries, shadowed })
    }

    fn write(&mut self, write: &Write, applying: &mut Applying<'_>) {
        match write {
            Write::Put { key, content, ttl_ms } => {
                let debits: &[Debited] = if applying.transaction.stamped { &applying.debited } else { &[] };
                let text = RecordText::render(&applying.transaction.version, applying.entries.last(), debits, content);
                let expires_ms = ttl_ms.map(|ttl_ms| applying.raw_ms.saturating_add(ttl_ms));
                self.change(Effect::Record { key: key.clone(), text, expires_ms });
            }
            Write::PutPart(key, name, value) => {
                self.change(Effect::Part { key: key.clone(), name: Arc::clone(name), value: value.clone() });
            }
            Write::DeleteParts(key, names) => {
                for name in names {
                    self.change(Effect::DropPart { key: key.clone(), name: Arc::clone(name) });
                }
            }
            Write::Delete(key) => self.change(Effect::DropRecord { key: key.clone() }),
            Write::Enqueue(queue, fields) => self.enqueue(queue, fields, applying),
            Write::Remove(queue, entry) => {
                if let Some(id) = Id::parse(entry) {
                    self.change(Effect::DropEntry { stream: queue.clone(), id });
                }
            }
            Write::DropQueue(queue) => self.drop_stream(queue),
            Write::Timer { name, due_ms, rule } => self.arm(name, *due_ms, *rule),
            Write::ClearTimer(name) => {
                self.change(Effect::DropMember { set: keys::timers(), member: Arc::clone(name) });
            }
            Write::AddMember { set, member, score, queue_of } => {
                self.change(Effect::Member { set: set.clone(), member: Arc::clone(member), score: *score });
                self.mark_queue(set, queue_of.as_ref());
            }
            Write::RemoveMember { set, member, queue_of } => {
                self.change(Effect::DropMember { set: set.clone(), member: Arc::clone(member) });
                self.mark_queue(set, queue_of.as_ref());
            }
            Write::Add { counter, amount, ends_ms } => self.add(counter, *amount, *ends_ms),
            Write::Restart { counter, amount, ends_ms } => self.restart_window(counter, *amount, *ends_ms),
            Write::DeleteCounter(key) => self.change(Effect::DropCounter { key: key.clone() }),
            Write::Append { log, fields, max_entries } => {
                self.append(log, Arc::new(fields.clone()), applying.raw_ms);
                self.keep_newest(log, *max_entries);
            }
            Write::Reply(inbox, message) => self.reply(inbox, message, applying.raw_ms),
            Write::PolicyGeneration(policy) => {
                self.change(Effect::Generations { policy: *policy, settings: self.contents.settings });
            }
            Write::SettingsGeneration(settings) => {
                self.change(Effect::Generations { policy: self.contents.policy, settings: *settings });
            }
        }
    }

    fn append(&mut self, stream: &StreamKey, fields: Arc<Fields>, raw_ms: i64) -> Id {
        let id = self
            .contents
            .streams
            .get(stream)
            .map_or_else(|| Stream::default().next_id(raw_ms), |stream| stream.next_id(raw_ms));
        self.change(Effect::Entry { stream: stream.clone(), id, fields });
        id
    }

    fn enqueue(&mut self, queue: &StreamKey, fields: &Fields, applying: &mut Applying<'_>) {
        self.ensure_queue(queue);
        let mut fields = fields.clone();
        if applying.transaction.stamped {
            let stamp = Bytes::from(Debited::render_all(&applying.debited));
            fields.insert(0, (tickfleet_core::turn::slice::fields::DEBITED.into(), stamp));
        }
        let id = self.append(queue, Arc::new(fields), applying.raw_ms);
        applying.entries.push(id.entry());
    }

    pub fn ensure_queue(&mut self, queue: &StreamKey) {
        if self.contents.streams.get(queue).is_none_or(|stream| stream.group.is_none()) {
            self.change(Effect::Queue { stream: queue.clone() });
        }
    }

    fn arm(&mut self, name: &Arc<str>, due_ms: i64, rule: TimerRule) {
        let set = keys::timers();
        let score = u64::try_from(due_ms).unwrap_or(0);
        let present = self.contents.score(&set, name);
        let arms = match rule {
            TimerRule::Set => true,
            TimerRule::Earlier => present.is_none_or(|due| score < due),
            TimerRule::Wake => present.is_some_and(|due| score < due),
        };
        if arms {
            self.change(Effect::Member { set, member: Arc::clone(name), score });
        }
    }

    /// The counter that a debit for `key` used: the counter with this key, or the limit's shared counter.
    fn effective_counter(&self, key: &CounterKey) -> CounterKey {
        if self.contents.counter(key).is_some() {
            return key.clone();
        }
        let others = CounterKey { limit: Arc::clone(&key.limit), counter: ConditionalDebit::OTHERS.into() };
        if self.contents.counter(&others).is_some() { others } else { key.clone() }
    }

    fn mark_queue(&mut self, set: &SetKey, queue_of: Option<&CounterKey>) {
        let Some(key) = queue_of.map(|key| self.effective_counter(key)) else { return };
        let queued = self.contents.size(set) > 0;
        let present = self.contents.counter(&key);
        if present.map_or(!queued, |counter| counter.state.queued == queued) {
            return;
        }
        let mut counter = present.cloned().unwrap_or_default();
        counter.state.queued = queued;
        self.change(Effect::Counter { key, counter });
    }

    fn add(&mut self, key: &CounterKey, amount: i64, ends_ms: Option<i64>) {
        let key = self.effective_counter(key);
        let present = self.contents.counter(&key);
        if present.is_none() && ends_ms.is_some() {
            return;
        }
        let mut counter: Counter = present.cloned().unwrap_or_default();
        counter.add(amount, ends_ms);
        if present != Some(&counter) {
            self.change(Effect::Counter { key, counter });
        }
    }

    fn restart_window(&mut self, key: &CounterKey, amount: u64, ends_ms: i64) {
        let key = self.effective_counter(key);
        let now_ms = self.contents.clock.last_ms;
        let Some(mut counter) = self.contents.counter(&key).cloned() else { return };
        if counter.restart(amount, ends_ms, now_ms) {
            self.change(Effect::Counter { key, counter });
        }
    }

    fn use_inbox(&mut self, inbox: &InboxKey) {
        let score = u64::try_from(self.contents.clock.last_ms).unwrap_or(0);
        self.change(Effect::Member { set: inboxes(&inbox.tenant), member: Arc::clone(&inbox.inbox), score });
    }

    fn reply(&mut self, inbox: &InboxKey, message: &Bytes, raw_ms: i64) {
        let stream = inbox_stream(inbox);
        let number = self.contents.numbers.get(&stream).copied().unwrap_or(0) + 1;
        self.change(Effect::Number { inbox: stream.clone(), number });
        let seq = Bytes::from(number.to_string());
        let fields: Fields = vec![("reply".into(), message.clone()), ("seq".into(), seq)];
        self.append(&stream, Arc::new(fields), raw_ms);
        self.use_inbox(inbox);
    }

    fn keep_newest(&mut self, log: &StreamKey, entries: u64) -> u64 {
        let over = if entries == 0 { 0 } else { self.contents.entries(log).saturating_sub(entries) };
        self.drop_oldest(log, over)
    }

    fn drop_oldest(&mut self, stream: &StreamKey, count: u64) -> u64 {
        for _ in 0..count {
            let oldest = self.contents.streams.get(stream).and_then(|stream| stream.entries.first_key_value());
            let Some((&id, _)) = oldest else { break };
            self.change(Effect::DropEntry { stream: stream.clone(), id });
        }
        count
    }

    pub fn trim(&mut self, raw_ms: i64, log: &StreamKey, keep: TrimBounds) -> u64 {
        let Some(stream) = self.contents.streams.get(log) else { return 0 };
        let oldest_ms = if keep.age_ms > 0 { u64::try_from(raw_ms - keep.age_ms).unwrap_or(0) } else { 0 };
        let beyond = if keep.entries > 0 { (stream.entries.len() as u64).saturating_sub(keep.entries) } else { 0 };
        let read_through = keep.read_through.filter(|upto| *upto <= stream.last.packed());
        let is_old = |id: &Id| id.ms < oldest_ms || read_through.is_some_and(|upto| id.packed() <= upto);
        let old = stream.entries.keys().take_while(|id| is_old(id)).count() as u64;
        self.drop_oldest(log, old.max(beyond))
    }

    pub fn take(&mut self, raw_ms: i64, take: &TakeRequest) -> Vec<TakenEntry> {
        let mut taken = Vec::new();
        for queue in &take.queues {
            self.ensure_queue(queue);
            self.seen.takes.insert((queue.clone(), Arc::clone(&take.consumer)), raw_ms);
            let Some(stream) = self.contents.streams.get(queue) else { continue };
            let unread = stream.unread().take(take.count - taken.len());
            let entries: Vec<(Id, Arc<Fields>)> = unread.map(|(id, fields)| (*id, Arc::clone(fields))).collect();
            for (id, fields) in entries {
                self.seen.taken.insert((queue.clone(), id), raw_ms);
                self.change(Effect::Taken { stream: queue.clone(), id, consumer: Arc::clone(&take.consumer) });
                taken.push(TakenEntry { queue: queue.clone(), entry: id.entry(), fields: (*fields).clone() });
            }
            if taken.len() >= take.count {
                break;
            }
        }
        taken
    }

    /// Keeps a consumer with entries, and returns false.
    pub fn remove_consumer(&mut self, queue: &StreamKey, consumer: &str) -> bool {
        self.seen.takes.remove(&(queue.clone(), Arc::from(consumer)));
        let group = self.contents.streams.get(queue).and_then(|stream| stream.group.as_ref());
        let Some((name, held)) = group.and_then(|group| group.consumers.get_key_value(consumer)) else { return true };
        if !held.is_empty() {
            return false;
        }
        let consumer = Arc::clone(name);
        self.change(Effect::DropConsumer { stream: queue.clone(), consumer });
        true
    }

    pub fn drop_stream(&mut self, stream: &StreamKey) {
        if self.contents.streams.contains_key(stream) || self.contents.numbers.contains_key(stream) {
            let Self { contents, seen, .. } = self;
            for id in contents.streams.get(stream).into_iter().flat_map(|stream| stream.entries.keys()) {
                seen.taken.remove(&(stream.clone(), *id));
            }
            seen.takes.retain(|(of, _), _| of != stream);
            self.change(Effect::DropStream { stream: stream.clone() });
        }
    }

    /// Memory is short if at least 80 % of `bytes_max` are in use. 0 means unlimited.
    pub fn sample(&mut self, bytes_max: u64) {
        let short = bytes_max > 0 && self.contents.bytes.saturating_mul(10) >= bytes_max.saturating_mul(8);
        if short != self.contents.pressure {
            self.change(Effect::Pressure { short });
        }
    }
}
