//! Converts the contents of a shard into effects that rebuild them in an empty shard.

use std::sync::Arc;

use tickfleet_core::{CounterKey, StreamKey};

use super::effects::Effect;
use super::shard::Contents;
use super::streams::Stream;

impl Contents {
    pub fn write_effects<E>(&self, mut write: impl FnMut(Effect) -> Result<(), E>) -> Result<(), E> {
        let clock = self.clock;
        write(Effect::Clock { offset_ms: clock.offset_ms, last_ms: clock.last_ms })?;
        write(Effect::Epoch { number: self.epoch, began_ms: self.epoch_began_ms })?;
        write(Effect::Generations { policy: self.policy, settings: self.settings })?;
        write(Effect::Pressure { short: self.pressure })?;
        for (key, kept) in &self.records {
            for (name, value) in &kept.parts {
                write(Effect::Part { key: key.clone(), name: Arc::clone(name), value: value.clone() })?;
            }
            if let Some(text) = &kept.text {
                write(Effect::Record { key: key.clone(), text: text.clone(), expires_ms: kept.expires_ms })?;
            }
        }
        for (set, members) in &self.sets {
            for (score, member) in &members.order {
                write(Effect::Member { set: set.clone(), member: Arc::clone(member), score: *score })?;
            }
        }
        for (limit, counters) in &self.counters {
            for (name, counter) in counters {
                let key = CounterKey { limit: Arc::clone(limit), counter: Arc::clone(name) };
                write(Effect::Counter { key, counter: counter.clone() })?;
            }
        }
        for (inbox, number) in &self.numbers {
            write(Effect::Number { inbox: inbox.clone(), number: *number })?;
        }
        self.streams.iter().try_for_each(|(key, stream)| write_stream(key, stream, &mut write))
    }
}

fn write_stream<E>(key: &StreamKey, stream: &Stream, write: &mut impl FnMut(Effect) -> Result<(), E>) -> Result<(), E> {
    for (id, fields) in &stream.entries {
        write(Effect::Entry { stream: key.clone(), id: *id, fields: Arc::clone(fields) })?;
    }
    if let Some(group) = &stream.group {
        write(Effect::Queue { stream: key.clone() })?;
        for consumer in group.consumers.keys() {
            write(Effect::Consumer { stream: key.clone(), consumer: Arc::clone(consumer) })?;
        }
        for (id, consumer) in &group.holders {
            write(Effect::Taken { stream: key.clone(), id: *id, consumer: Arc::clone(consumer) })?;
        }
    }
    write(Effect::Added { stream: key.clone(), added: stream.added })?;
    let delivered = stream.group.as_ref().map(|group| group.delivered).unwrap_or_default();
    write(Effect::Reached { stream: key.clone(), last: stream.last, delivered })
}
