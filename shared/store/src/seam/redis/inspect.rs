//! Reads pages of streams, counts of queues, and the state of the server, with plain commands.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, InfoDict, RedisResult, Value, cmd, pipe};
use tickfleet_core::{EntryId, SetKey, StreamKey};

use super::RedisStore;
use super::read::{entries, list, members};
use super::reply::shard_stats;
use super::take::{field, held_by_group};
use super::upkeep::escaped;
use crate::StoreError;
use crate::connection::command::RedisCommand;
use crate::reads::memory_usage::memory_of;
use crate::script::reply::{into_text, number_of};
use crate::seam::GROUP;
use crate::seam::inspect::{Entry, FollowRequest, QueueState, Range, ShardStats, StreamState};

/// The first attempt usually succeeds, because a server seldom runs another client's command between pipelined
/// commands.
const PAGE_READS_MAX: usize = 16;

impl RedisStore {
    pub(super) async fn scan_set(
        &self,
        set: &SetKey,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, u64)>, u64), StoreError> {
        let mut scan = cmd("ZSCAN");
        scan.arg(format!("{}{set}", self.prefix)).arg(cursor);
        scan.arg("MATCH").arg(escaped(prefix) + "*").arg("COUNT").arg(count.max(1));
        let (next, found): (u64, Value) = self.connection.query(RedisCommand::Look, &scan).await?;
        Ok((members(found), next))
    }

    pub(super) async fn last_of(
        &self,
        set: &SetKey,
        skip: usize,
        count: usize,
    ) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut range = cmd("ZRANGE");
        range.arg(format!("{}{set}", self.prefix)).arg(skip).arg(skip.saturating_add(count - 1));
        range.arg("REV").arg("WITHSCORES");
        Ok(members(self.connection.query(RedisCommand::Look, &range).await?))
    }

    pub(super) async fn rank_of(&self, set: &SetKey, member: &str) -> Result<Option<u64>, StoreError> {
        let mut rank = cmd("ZRANK");
        rank.arg(format!("{}{set}", self.prefix)).arg(member);
        self.connection.query(RedisCommand::Look, &rank).await
    }

    fn range(&self, stream: &StreamKey, range: &Range) -> Cmd {
        let bound = |bound: &Bound<EntryId>, open: &str| match bound {
            Bound::Included(entry) => entry.to_string(),
            Bound::Excluded(entry) => format!("({entry}"),
            Bound::Unbounded => open.to_owned(),
        };
        let from = bound(&range.from, "-");
        let upto = bound(&range.upto, "+");
        let mut command = cmd(if range.newest_first { "XREVRANGE" } else { "XRANGE" });
        command.arg(self.key(stream));
        let (first, second) = if range.newest_first { (upto, from) } else { (from, upto) };
        command.arg(first).arg(second).arg("COUNT").arg(range.count).to_owned()
    }

    pub(super) async fn range_of(&self, stream: &StreamKey, range: &Range) -> Result<Vec<Entry>, StoreError> {
        if range.count == 0 {
            return Ok(Vec::new());
        }
        Ok(entries(self.connection.query(RedisCommand::AuditLog, &self.range(stream, range)).await?))
    }

    /// Repeats the reads until the counts before and after the entries are equal. MULTI would prevent changes in
    /// between, but Redis refuses MULTI when memory is full.
    pub(super) async fn page_of(
        &self,
        stream: &StreamKey,
        range: &Range,
    ) -> Result<(Vec<Entry>, StreamState), StoreError> {
        let mut ask = pipe();
        ask.cmd("XINFO").arg("STREAM").arg(self.key(stream));
        ask.add_command(self.range(stream, range));
        ask.cmd("XINFO").arg("STREAM").arg(self.key(stream));
        for _ in 0..PAGE_READS_MAX {
            let mut answers = self.connection.replies(RedisCommand::AuditLog, &ask).await?.into_iter();
            let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
            let before = next();
            let found = next();
            let after = next();
            let error = |source| StoreError::verb(RedisCommand::AuditLog.as_str(), source);
            let found = found.map_err(error)?;
            let before = state_or_none(before).map_err(error)?;
            let after = state_or_none(after).map_err(error)?;
            if before == after {
                return Ok((entries(found), after));
            }
        }
        let found = format!("{stream} changed during each of {PAGE_READS_MAX} reads");
        Err(StoreError::Reply { verb: RedisCommand::AuditLog.as_str(), found })
    }

    pub(super) async fn follow_log(&self, follow: &FollowRequest) -> Result<Vec<Entry>, StoreError> {
        if follow.count == 0 {
            return Ok(Vec::new());
        }
        let after = follow.after.as_ref().map_or("0-0", EntryId::as_str);
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(follow.count);
        if follow.wait_ms > 0 {
            command.arg("BLOCK").arg(follow.wait_ms);
        }
        command.arg("STREAMS").arg(self.key(&follow.log)).arg(after);
        let reply = if follow.wait_ms > 0 {
            let wait = Duration::from_millis(follow.wait_ms);
            self.connection.observe("replies", false, self.block(&command, wait)).await?
        } else {
            self.connection.query::<Value>(RedisCommand::Read, &command).await?
        };
        let by_stream = super::read::taken_entries(&self.prefix, reply);
        Ok(by_stream.into_iter().flat_map(|(_, entries)| entries).collect())
    }

    pub(super) async fn states_of(&self, queues: &[StreamKey]) -> Result<Vec<QueueState>, StoreError> {
        let mut ask = pipe();
        for queue in queues {
            let key = self.key(queue);
            ask.cmd("XINFO").arg("STREAM").arg(&key).cmd("XINFO").arg("GROUPS").arg(&key);
            ask.cmd("XPENDING").arg(&key).arg(GROUP);
        }
        let mut answers = self.connection.replies(RedisCommand::Backlog, &ask).await?.into_iter();
        let mut next = || answers.next().and_then(Result::ok).unwrap_or(Value::Nil);
        let mut states = Vec::with_capacity(queues.len());
        let mut oldest = pipe();
        for queue in queues {
            let about = list(next());
            let groups = next();
            let pending = list(next());
            let number = |name: &str| field(&about, name).as_ref().and_then(number_of).map_or(0, i64::unsigned_abs);
            let delivered = delivered_by_group(&groups).unwrap_or_else(|| "0-0".to_owned());
            let held = held_by_group(groups);
            oldest.cmd("XRANGE").arg(self.key(queue)).arg(format!("({delivered}")).arg("+").arg("COUNT").arg(1);
            states.push(QueueState {
                waiting: number("length").saturating_sub(held),
                held,
                oldest_waiting: None,
                oldest_held: pending.into_iter().nth(1).and_then(into_text).map(EntryId::new),
                added: number("entries-added"),
            });
        }
        if queues.is_empty() {
            return Ok(states);
        }
        let found: Vec<RedisResult<Value>> = self.connection.replies(RedisCommand::Backlog, &oldest).await?;
        for (state, found) in states.iter_mut().zip(found) {
            state.oldest_waiting = entries(found.unwrap_or(Value::Nil)).into_iter().next().map(|(entry, _)| entry);
        }
        Ok(states)
    }

    pub(super) async fn holder_of(
        &self,
        queue: &StreamKey,
        entry: &EntryId,
    ) -> Result<Option<(Arc<str>, i64)>, StoreError> {
        let mut ask = pipe();
        ask.cmd("XPENDING").arg(self.key(queue)).arg(GROUP).arg(entry.as_str()).arg(entry.as_str()).arg(1);
        // If the stream or group is missing, no consumer has taken the entry.
        let reply = self.connection.replies(RedisCommand::Look, &ask).await?.pop().and_then(Result::ok);
        let held = list(reply.unwrap_or(Value::Nil)).into_iter().next().map(list).unwrap_or_default();
        let mut held = held.into_iter().skip(1);
        let consumer = held.next().and_then(into_text);
        let for_ms = held.next().as_ref().and_then(number_of);
        Ok(consumer.map(|consumer| (consumer.into(), for_ms.unwrap_or(0))))
    }

    pub(super) async fn read_shard_stats(&self) -> Result<ShardStats, StoreError> {
        let mut ask = pipe();
        ask.cmd("TIME");
        ask.cmd("HMGET").arg(format!("{}meta", self.prefix)).arg(&["last_ms", "state", "steps", "step_ms"]);
        ask.cmd("INFO").arg("memory");
        let ((seconds, micros), meta, info): ((i64, i64), Vec<Option<String>>, InfoDict) =
            self.connection.pipeline(RedisCommand::Backlog, &ask).await?;
        let memory = memory_of(&info);
        let found = shard_stats(seconds * 1_000 + micros / 1_000, &meta);
        Ok(ShardStats { memory_bytes: memory.used, memory_max: memory.max, ..found })
    }

    pub(super) async fn remove_stream(&self, stream: &StreamKey) -> Result<(), StoreError> {
        let mut remove = pipe();
        remove.cmd("DEL").arg(self.key(stream));
        if let Some((tenant, inbox)) = stream.as_str().strip_prefix("replies:").and_then(|name| name.split_once(':')) {
            remove.cmd("HDEL").arg(format!("{}seqs:{tenant}", self.prefix)).arg(inbox);
        }
        self.connection.pipeline::<Vec<i64>>(RedisCommand::ForgetInbox, &remove).await.map(drop)
    }
}

/// Returns a state with counts of 0 if the stream does not exist.
fn state_or_none(answer: RedisResult<Value>) -> RedisResult<StreamState> {
    match answer {
        Err(error) if error.detail() == Some("no such key") => Ok(StreamState::default()),
        answer => answer.map(stream_state),
    }
}

fn stream_state(about: Value) -> StreamState {
    let about = list(about);
    let number = |name: &str| field(&about, name).as_ref().and_then(number_of).map_or(0, i64::unsigned_abs);
    let first = field(&about, "first-entry").map(list).and_then(|entry| entry.into_iter().next());
    let last = field(&about, "last-generated-id").and_then(into_text).filter(|last| last != "0-0");
    StreamState {
        added: number("entries-added"),
        length: number("length"),
        first: first.and_then(into_text).map(EntryId::new),
        last: last.map(EntryId::new),
    }
}

fn delivered_by_group(groups: &Value) -> Option<String> {
    let groups = list(groups.clone()).into_iter().map(list);
    let ours =
        |group: &Vec<Value>| matches!(field(group, "name"), Some(Value::BulkString(name)) if name == GROUP.as_bytes());
    groups.into_iter().find(ours).and_then(|group| field(&group, "last-delivered-id")).and_then(into_text)
}
