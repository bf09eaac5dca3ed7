//! Upkeep of streams and memory, and listings. Most of it runs without commits.

use std::sync::Arc;

use redis::{Cmd, Value, cmd, pipe};
use tickfleet_core::{CounterState, RecordKey, StreamKey};

use super::RedisStore;
use super::encode::{encode_idle, encode_pressure, encode_queues, field_before, hash_of};
use super::read::list;
use super::reply::{bytes, counter_state};
use super::take::{field, held_by_group};
use crate::connection::command::RedisCommand;
use crate::reads::memory_usage::memory_of;
use crate::script::reply::{into_text, number_of};
use crate::seam::{Consumer, GROUP, QueueCounts, TrimBounds};
use crate::{StoreError, entry_number};

impl RedisStore {
    pub(super) async fn make_queues(&self, queues: &[StreamKey]) -> Result<(), StoreError> {
        if queues.is_empty() {
            return Ok(());
        }
        self.commit_encoded(&encode_queues(&self.prefix, queues)).await?;
        Ok(())
    }

    /// In the order of `queues`. Acknowledged entries are removed, so each entry that no consumer holds is waiting.
    pub(super) async fn backlogs(&self, queues: &[StreamKey]) -> Result<Vec<QueueCounts>, StoreError> {
        let mut ask = pipe();
        for queue in queues {
            ask.cmd("XLEN").arg(self.key(queue));
            ask.cmd("XINFO").arg("GROUPS").arg(self.key(queue));
        }
        let mut answers = self.connection.replies(RedisCommand::Backlog, &ask).await?.into_iter();
        let mut next = || answers.next().and_then(Result::ok).unwrap_or(Value::Nil);
        let backlog = |_| {
            let length = next();
            let held = held_by_group(next());
            let length = number_of(&length).and_then(|length| u64::try_from(length).ok()).unwrap_or_default();
            QueueCounts { waiting: length.saturating_sub(held), held }
        };
        Ok(queues.iter().map(backlog).collect())
    }

    pub(super) async fn consumers_of(&self, queue: &StreamKey) -> Result<Vec<Consumer>, StoreError> {
        let mut ask = pipe();
        ask.cmd("XINFO").arg("CONSUMERS").arg(self.key(queue)).arg(GROUP);
        // The list is empty if the stream or group does not exist.
        let reply = self.connection.replies(RedisCommand::Held, &ask).await?.pop().and_then(Result::ok);
        let consumer = |about: Vec<Value>| {
            let held = field(&about, "pending").as_ref().and_then(number_of)?;
            let name = field(&about, "name").and_then(into_text)?;
            let idle_ms = field(&about, "idle").as_ref().and_then(number_of).unwrap_or(0);
            Some(Consumer { name: name.into(), held: u64::try_from(held).ok()?, idle_ms })
        };
        let mut consumers: Vec<Consumer> =
            list(reply.unwrap_or(Value::Nil)).into_iter().map(list).filter_map(consumer).collect();
        consumers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(consumers)
    }

    /// Atomic on the server. Otherwise, entries that the consumer takes just before its removal would be lost.
    pub(super) async fn remove_idle(&self, queue: &StreamKey, consumer: &str) -> Result<bool, StoreError> {
        let batch = self.commit_encoded(&encode_idle(&self.prefix, queue, consumer)).await?;
        Ok(batch.results.first().is_some_and(Result::is_ok))
    }

    pub(super) async fn trim_log(&self, log: &StreamKey, keep: TrimBounds) -> Result<u64, StoreError> {
        let key = self.key(log);
        let mut trim = pipe();
        if keep.age_ms > 0 {
            let (seconds, micros): (i64, i64) = self.connection.query(RedisCommand::Now, &cmd("TIME")).await?;
            let oldest_ms = (seconds * 1_000 + micros / 1_000 - keep.age_ms).max(0);
            trim.cmd("XTRIM").arg(&key).arg("MINID").arg(oldest_ms);
        }
        if let Some(read) = keep.read_through
            && self.newest(&key).await? >= read
        {
            let next = read.saturating_add(1);
            trim.cmd("XTRIM").arg(&key).arg("MINID").arg(format!("{}-{}", next >> 64, next & u128::from(u64::MAX)));
        }
        if keep.entries > 0 {
            trim.cmd("XTRIM").arg(&key).arg("MAXLEN").arg(keep.entries);
        }
        if trim.is_empty() {
            return Ok(0);
        }
        let went: Vec<u64> = self.connection.pipeline(RedisCommand::Housekeep, &trim).await?;
        Ok(went.into_iter().sum())
    }

    /// The newest ID that the stream has ever had. If a reader's position is later, the server has lost entries.
    async fn newest(&self, key: &str) -> Result<u128, StoreError> {
        let mut ask = pipe();
        ask.cmd("XINFO").arg("STREAM").arg(key);
        let reply = self.connection.replies(RedisCommand::Housekeep, &ask).await?.pop().and_then(Result::ok);
        let newest = field(&list(reply.unwrap_or(Value::Nil)), "last-generated-id").and_then(into_text);
        Ok(newest.as_deref().and_then(entry_number).unwrap_or_default())
    }

    /// Every group has acknowledged all entries up to this ID. Reads the groups before their pending entries. Entries
    /// that a group takes in between do no harm, because they have higher IDs.
    pub(super) async fn acknowledged_by_groups(&self, log: &StreamKey) -> Result<Option<u128>, StoreError> {
        let key = self.key(log);
        let mut ask = pipe();
        ask.cmd("XINFO").arg("GROUPS").arg(&key);
        // An error means that the stream does not exist, because the inbox has no replies.
        let reply = self.connection.replies(RedisCommand::Housekeep, &ask).await?.pop().and_then(Result::ok);
        let groups: Vec<Vec<Value>> = list(reply.unwrap_or(Value::Nil)).into_iter().map(list).collect();
        if groups.is_empty() {
            return Ok(None);
        }
        let mut ask = pipe();
        for group in &groups {
            ask.cmd("XPENDING").arg(&key).arg(field(group, "name").and_then(into_text)).arg("-").arg("+").arg(1);
        }
        let pending = self.connection.replies(RedisCommand::Housekeep, &ask).await?;
        let upto = groups.iter().zip(pending).map(|(group, pending)| {
            let read = field(group, "last-delivered-id").and_then(into_text);
            let held = list(list(pending.ok()?).into_iter().next().unwrap_or(Value::Nil)).into_iter().next();
            match held.and_then(into_text) {
                Some(first) => Some(entry_number(&first)?.saturating_sub(1)),
                None => entry_number(&read?),
            }
        });
        Ok(Some(upto.map(Option::unwrap_or_default).min().unwrap_or_default()))
    }

    pub(super) async fn sample(&self) -> Result<(u64, u64), StoreError> {
        let memory = memory_of(&self.connection.query(RedisCommand::Probe, cmd("INFO").arg("memory")).await?);
        self.commit_encoded(&encode_pressure(memory.is_nearly_full())).await?;
        Ok((memory.used, memory.max))
    }

    /// An estimate: Redis samples a few of the stream's nodes.
    pub(super) async fn bytes_of(&self, stream: &StreamKey) -> Result<u64, StoreError> {
        let mut usage = cmd("MEMORY");
        usage.arg("USAGE").arg(self.key(stream)).arg("SAMPLES").arg(5);
        let bytes: Option<u64> = self.connection.query(RedisCommand::Probe, &usage).await?;
        Ok(bytes.unwrap_or_default())
    }

    pub(super) async fn scan_records(
        &self,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<RecordKey>, u64), StoreError> {
        let pattern = escaped(&format!("{}{prefix}", self.prefix)) + "*";
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count.max(1)).arg("TYPE").arg("string");
        let (next, keys): (u64, Vec<String>) = self.connection.query(RedisCommand::Sweep, &scan).await?;
        let keys = keys.iter().filter_map(|key| key.strip_prefix(&*self.prefix)).map(RecordKey::new).collect();
        Ok((keys, next))
    }

    pub(super) async fn scan_limit(
        &self,
        limit: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, CounterState)>, u64), StoreError> {
        let before = field_before(limit).concat();
        let mut scan: Cmd = cmd("HSCAN");
        scan.arg(format!("{}counters:{}", self.prefix, hash_of(limit))).arg(cursor);
        scan.arg("MATCH").arg(escaped(&before) + "*").arg("COUNT").arg(count.max(1));
        let (next, values): (u64, Vec<Value>) = self.connection.query(RedisCommand::Sweep, &scan).await?;
        let mut values = values.into_iter();
        let mut counters = Vec::new();
        while let (Some(name), Some(value)) = (values.next(), values.next()) {
            let state = bytes(value).as_deref().and_then(counter_state);
            let name = into_text(name).and_then(|name| name.strip_prefix(&before).map(Arc::from));
            counters.extend(name.zip(state));
        }
        Ok((counters, next))
    }
}

pub(super) fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}
