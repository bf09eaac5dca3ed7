use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use tickfleet_core::{CounterKey, RecordKey, SetKey, StreamKey};

use super::counters::{Counter, Moment};
use super::effects::Effect;
use super::streams::{Id, Stream};
use crate::seam::ShardState;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredRecord {
    /// `None` if the record has only parts.
    pub text: Option<Bytes>,
    pub parts: BTreeMap<Arc<str>, Bytes>,
    /// The last moment of the record's lifetime, by the store's clock.
    pub expires_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    pub scores: FxHashMap<Arc<str>, u64>,
    pub order: BTreeSet<(u64, Arc<str>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardClock {
    pub offset_ms: i64,
    pub last_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    pub records: FxHashMap<RecordKey, StoredRecord>,
    pub expiries: BTreeSet<(i64, RecordKey)>,
    pub sets: FxHashMap<SetKey, Members>,
    pub counters: FxHashMap<Arc<str>, FxHashMap<Arc<str>, Counter>>,
    pub streams: FxHashMap<StreamKey, Stream>,
    pub numbers: FxHashMap<StreamKey, u64>,
    pub clock: ShardClock,
    pub epoch: u64,
    /// In shard time; 0 for the first epoch.
    pub epoch_began_ms: i64,
    pub policy: u64,
    pub settings: u64,
    pub pressure: bool,
    pub bytes: u64,
}

#[derive(Debug, Clone)]
pub struct Shard {
    pub contents: Contents,
    pub lease_ms: i64,
    /// `None` if effects are not collected.
    tape: Option<Vec<Effect>>,
    taped_clock: ShardClock,
    pub seen: Seen,
}

/// Not persisted.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub started_ms: i64,
    pub steps: u64,
    pub step_ms: i64,
    pub takes: FxHashMap<(StreamKey, Arc<str>), i64>,
    pub taken: FxHashMap<(StreamKey, Id), i64>,
}

const CLOCK_TAPE_MS: i64 = 1_000;

impl Shard {
    pub fn new(lease_ms: i64) -> Self {
        Self::with(Contents { epoch: 1, ..Contents::default() }, lease_ms)
    }

    pub fn with(contents: Contents, lease_ms: i64) -> Self {
        let taped_clock = contents.clock;
        Self { contents, lease_ms, tape: None, taped_clock, seen: Seen::default() }
    }

    pub fn record_effects(&mut self) {
        self.tape.get_or_insert_default();
    }

    /// Adds the clock if there are other effects, if the offset has changed, or after `CLOCK_TAPE_MS`.
    pub fn drain(&mut self) -> Vec<Effect> {
        let Some(tape) = &mut self.tape else { return Vec::new() };
        let clock = self.contents.clock;
        let taped = self.taped_clock;
        let moved = clock.offset_ms != taped.offset_ms || clock.last_ms - taped.last_ms >= CLOCK_TAPE_MS;
        if clock != taped && (moved || !tape.is_empty()) {
            tape.push(Effect::Clock { offset_ms: clock.offset_ms, last_ms: clock.last_ms });
            self.taped_clock = clock;
        }
        std::mem::take(tape)
    }

    pub fn change(&mut self, effect: Effect) {
        if let Some(tape) = &mut self.tape {
            tape.push(effect.clone());
        }
        if let Effect::DropEntry { stream, id } = &effect
            && !self.seen.taken.is_empty()
        {
            self.seen.taken.remove(&(stream.clone(), *id));
        }
        self.contents.apply(effect);
    }

    /// Advances shard time with the store's clock. If the clock was set back, shard time stays the same.
    pub fn tick(&mut self, raw_ms: i64) -> i64 {
        let clock = &mut self.contents.clock;
        let advanced_ms = raw_ms.saturating_add(clock.offset_ms);
        if advanced_ms < clock.last_ms {
            clock.offset_ms += clock.last_ms - advanced_ms;
            (self.seen.steps, self.seen.step_ms) = (self.seen.steps + 1, clock.last_ms - advanced_ms);
        } else {
            clock.last_ms = advanced_ms;
        }
        clock.last_ms
    }

    pub fn expire(&mut self, raw_ms: i64) {
        while let Some((expires_ms, key)) = self.contents.expiries.first()
            && *expires_ms < raw_ms
        {
            let key = key.clone();
            self.change(Effect::DropRecord { key });
        }
    }

    pub fn restart(&mut self, raw_ms: i64) {
        self.seen.started_ms = raw_ms;
        let began_ms = self.tick(raw_ms);
        let number = self.contents.epoch + 1;
        self.change(Effect::Epoch { number, began_ms });
    }

    pub const fn moment(&self) -> Moment {
        Moment {
            now_ms: self.contents.clock.last_ms,
            epoch_began_ms: self.contents.epoch_began_ms,
            lease_ms: self.lease_ms,
        }
    }

    pub const fn state(&self) -> ShardState {
        let contents = &self.contents;
        ShardState {
            now_ms: contents.clock.last_ms,
            epoch: contents.epoch,
            epoch_began_ms: contents.epoch_began_ms,
            policy: contents.policy,
            settings: contents.settings,
            pressure: contents.pressure,
        }
    }
}

impl Contents {
    pub fn text(&self, key: &RecordKey) -> Option<&Bytes> {
        self.records.get(key)?.text.as_ref()
    }

    pub fn counter(&self, key: &CounterKey) -> Option<&Counter> {
        self.counters.get(&key.limit)?.get(&key.counter)
    }

    pub fn score(&self, set: &SetKey, member: &str) -> Option<u64> {
        self.sets.get(set)?.scores.get(member).copied()
    }

    pub fn size(&self, set: &SetKey) -> u64 {
        self.sets.get(set).map_or(0, |members| members.scores.len() as u64)
    }

    pub fn entries(&self, stream: &StreamKey) -> u64 {
        self.streams.get(stream).map_or(0, |stream| stream.entries.len() as u64)
    }

    pub fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Record { key, text, expires_ms } => self.put_record(key, text, expires_ms),
            Effect::DropRecord { key } => self.drop_record(&key),
            Effect::Part { key, name, value } => self.put_part(key, name, value),
            Effect::DropPart { key, name } => self.drop_part(&key, &name),
            Effect::Member { set, member, score } => self.put_member(set, member, score),
            Effect::DropMember { set, member } => self.drop_member(&set, &member),
            Effect::Counter { key, counter } => self.put_counter(key, counter),
            Effect::DropCounter { key } => self.drop_counter(&key),
            Effect::Number { inbox, number } => {
                self.numbers.insert(inbox, number);
            }
            Effect::Clock { offset_ms, last_ms } => self.clock = ShardClock { offset_ms, last_ms },
            Effect::Epoch { number, began_ms } => (self.epoch, self.epoch_began_ms) = (number, began_ms),
            Effect::Generations { policy, settings } => (self.policy, self.settings) = (policy, settings),
            Effect::Pressure { short } => self.pressure = short,
            Effect::Entry { .. }
            | Effect::DropEntry { .. }
            | Effect::Taken { .. }
            | Effect::Queue { .. }
            | Effect::Consumer { .. }
            | Effect::DropConsumer { .. }
            | Effect::Added { .. }
            | Effect::DropStream { .. }
            | Effect::Reached { .. } => self.apply_to_stream(effect),
        }
    }

    fn put_record(&mut self, key: RecordKey, text: Bytes, expires_ms: Option<i64>) {
        if let Some(kept) = self.records.get_mut(&key) {
            if kept.expires_ms != expires_ms {
                if let Some(old_ms) = kept.expires_ms {
                    self.expiries.remove(&(old_ms, key.clone()));
                }
                if let Some(new_ms) = expires_ms {
                    self.expiries.insert((new_ms, key));
                }
            }
            let before = kept.text.as_ref().map_or(0, Bytes::len);
            self.bytes = (self.bytes + text.len() as u64).saturating_sub(before as u64);
            (kept.text, kept.expires_ms) = (Some(text), expires_ms);
            return;
        }
        if let Some(new_ms) = expires_ms {
            self.expiries.insert((new_ms, key.clone()));
        }
        self.bytes += weight(key.as_str().len() + text.len());
        self.records.insert(key, StoredRecord { text: Some(text), parts: BTreeMap::new(), expires_ms });
    }

    fn drop_record(&mut self, key: &RecordKey) {
        let Some(kept) = self.records.remove(key) else { return };
        if let Some(expires_ms) = kept.expires_ms {
            self.expiries.remove(&(expires_ms, key.clone()));
        }
        let parts: u64 = kept.parts.iter().map(|(name, value)| weight(name.len() + value.len())).sum();
        let text = kept.text.as_ref().map_or(0, Bytes::len);
        self.bytes = self.bytes.saturating_sub(weight(key.as_str().len() + text) + parts);
    }

    fn put_part(&mut self, key: RecordKey, name: Arc<str>, value: Bytes) {
        let key_bytes = key.as_str().len();
        let kept = self.records.entry(key).or_insert_with(|| {
            self.bytes += weight(key_bytes);
            StoredRecord::default()
        });
        self.bytes += weight(name.len() + value.len());
        let name_bytes = name.len();
        if let Some(old) = kept.parts.insert(name, value) {
            self.bytes = self.bytes.saturating_sub(weight(name_bytes + old.len()));
        }
    }

    fn drop_part(&mut self, key: &RecordKey, name: &Arc<str>) {
        let Some(kept) = self.records.get_mut(key) else { return };
        if let Some(old) = kept.parts.remove(name) {
            self.bytes = self.bytes.saturating_sub(weight(name.len() + old.len()));
        }
        if kept.parts.is_empty() && kept.text.is_none() {
            self.drop_record(key);
        }
    }

    fn put_member(&mut self, set: SetKey, member: Arc<str>, score: u64) {
        let members = self.sets.entry(set).or_default();
        match members.scores.insert(Arc::clone(&member), score) {
            Some(old) if old == score => return,
            Some(old) => {
                members.order.remove(&(old, Arc::clone(&member)));
            }
            None => self.bytes += weight(member.len()),
        }
        members.order.insert((score, member));
    }

    fn drop_member(&mut self, set: &SetKey, member: &Arc<str>) {
        let Some(members) = self.sets.get_mut(set) else { return };
        if let Some(score) = members.scores.remove(member) {
            self.bytes = self.bytes.saturating_sub(weight(member.len()));
            members.order.remove(&(score, Arc::clone(member)));
        }
        if members.scores.is_empty() {
            self.sets.remove(set);
        }
    }

    fn put_counter(&mut self, key: CounterKey, counter: Counter) {
        let name_bytes = key.counter.len();
        if self.counters.entry(key.limit).or_default().insert(key.counter, counter).is_none() {
            self.bytes += weight(name_bytes);
        }
    }

    fn drop_counter(&mut self, key: &CounterKey) {
        let Some(counters) = self.counters.get_mut(&key.limit) else { return };
        if counters.remove(&key.counter).is_some() {
            self.bytes = self.bytes.saturating_sub(weight(key.counter.len()));
        }
        if counters.is_empty() {
            self.counters.remove(&key.limit);
        }
    }

    fn apply_to_stream(&mut self, effect: Effect) {
        match effect {
            Effect::Entry { stream, id, fields } => {
                self.bytes += entry_weight(&fields);
                let stream = self.streams.entry(stream).or_default();
                stream.last = stream.last.max(id);
                stream.added += 1;
                stream.entries.insert(id, fields);
            }
            Effect::DropEntry { stream, id } => {
                let fields = self.streams.get_mut(&stream).and_then(|stream| stream.remove(id));
                let weight = fields.map_or(0, |fields| entry_weight(&fields));
                self.bytes = self.bytes.saturating_sub(weight);
            }
            Effect::Taken { stream, id, consumer } => {
                self.streams.entry(stream).or_default().deliver(id, consumer);
            }
            Effect::Queue { stream } => {
                self.streams.entry(stream).or_default().group.get_or_insert_default();
            }
            Effect::Consumer { stream, consumer } => {
                let group = self.streams.entry(stream).or_default().group.get_or_insert_default();
                group.consumers.entry(consumer).or_default();
            }
            Effect::DropConsumer { stream, consumer } => {
                if let Some(group) = self.streams.get_mut(&stream).and_then(|stream| stream.group.as_mut()) {
                    group.consumers.remove(&consumer);
                }
            }
            Effect::Added { stream, added } => self.streams.entry(stream).or_default().added = added,
            Effect::DropStream { stream } => {
                self.numbers.remove(&stream);
                let entries = self.streams.remove(&stream).map(|stream| stream.entries).unwrap_or_default();
                let weight: u64 = entries.values().map(|fields| entry_weight(fields)).sum();
                self.bytes = self.bytes.saturating_sub(weight);
            }
            Effect::Reached { stream, last, delivered } => {
                let stream = self.streams.entry(stream).or_default();
                stream.last = stream.last.max(last);
                if let Some(group) = &mut stream.group {
                    group.delivered = group.delivered.max(delivered);
                }
            }
            _ => {}
        }
    }
}

/// The approximate memory of `bytes` of text, including maps, keys and allocations.
const fn weight(bytes: usize) -> u64 {
    bytes as u64 + 100
}

fn entry_weight(fields: &tickfleet_core::view::Fields) -> u64 {
    weight(fields.iter().map(|(name, value)| name.len() + value.len() + 40).sum())
}
