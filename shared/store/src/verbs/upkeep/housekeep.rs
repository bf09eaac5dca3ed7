//! Bounds that are kept once in a while rather than with every batch.

use crate::connection::question::Question;
use crate::reads::memory::Memory;
use crate::script::reply::number_of;
use crate::{Store, StoreError, entry_ms};
use tickfleet_model::limits;

/// The audit log has one part in so many of the memory at most, however much is allowed.
const AUDIT_SHARE: u64 = 4;
/// And so the dead stream.
const DEAD_SHARE: u64 = 16;

impl Store {
    /// Bounds audit log and dead stream by bytes and by age; a settle bounds the log by entries.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn housekeep(&self, memory: Memory, audit_bytes_max: u64, dead_retain_ms: i64) -> Result<(), StoreError> {
        let (audit, dead) = (self.keys.key("audit"), self.keys.key("dead"));
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        for stream in [&audit, &dead] {
            pipe.cmd("XLEN").arg(stream).cmd("MEMORY").arg("USAGE").arg(stream).arg("SAMPLES").arg(5);
        }
        pipe.cmd("XRANGE").arg(&audit).arg("-").arg("+").arg("COUNT").arg(1);
        // Rule 18: a key that holds something else keeps no other bound from being kept.
        let found = self.connection.answers(Question::Housekeep, &pipe).await?;
        let number = |at: usize| found.get(at).and_then(|n| number_of(n.as_ref().ok()?)).unwrap_or(0).unsigned_abs();
        let (audit_size, dead_size) = ((number(1), number(2)), (number(3), number(4)));
        let redis_ms = found.first().and_then(|time| clock_ms(time.as_ref().ok()?));
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        trim_to(&mut pipe, &audit, audit_size, memory.share(audit_bytes_max, AUDIT_SHARE));
        // A seal goes with the entries that it stands for: its id is none lower than theirs.
        if let Some(first) = found.get(5).and_then(|entries| first_ms(entries.as_ref().ok()?)) {
            pipe.cmd("XTRIM").arg(self.keys.key("seals")).arg("MINID").arg("~").arg(first);
        }
        trim_to(&mut pipe, &dead, dead_size, memory.share(limits::DEAD_BYTES_MAX, DEAD_SHARE));
        // Rule 20: by the clock that numbered the entries, which shard time may be days ahead of.
        if let Some(redis_ms) = redis_ms {
            pipe.cmd("XTRIM").arg(&dead).arg("MINID").arg("~").arg((redis_ms - dead_retain_ms).max(0));
            pipe.cmd("XTRIM").arg(&audit).arg("MINID").arg("~").arg((redis_ms - self.options.audit_retain_ms).max(0));
            // The build before this one kept the inboxes of all tenants together.
            let idle_ms = redis_ms - self.options.reply_retain_ms;
            pipe.cmd("ZREMRANGEBYSCORE").arg(self.keys.key("inboxes")).arg("-inf").arg(idle_ms);
        }
        let kept = self.connection.pipeline::<Vec<redis::RedisResult<i64>>>(Question::Housekeep, &pipe).await?;
        kept.into_iter()
            .find_map(Result::err)
            .map_or(Ok(()), |error| Err(StoreError::verb(Question::Housekeep.as_str(), error)))
    }
}

/// Reads the answer of `TIME`, seconds and µs, in ms.
fn clock_ms(time: &redis::Value) -> Option<i64> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time.clone()).ok()?;
    Some(seconds * 1_000 + micros / 1_000)
}

/// When the first of these entries was written, ms.
fn first_ms(entries: &redis::Value) -> Option<i64> {
    let entries: Vec<(String, redis::Value)> = redis::from_redis_value(entries.clone()).ok()?;
    entry_ms(&entries.first()?.0)
}

/// Trims a stream of this many entries and bytes to `bytes_max`.
fn trim_to(pipe: &mut redis::Pipeline, stream: &str, (entries, bytes): (u64, u64), bytes_max: u64) {
    if bytes > bytes_max {
        let keep = u128::from(entries) * u128::from(bytes_max) / u128::from(bytes.max(1));
        pipe.cmd("XTRIM").arg(stream).arg("MAXLEN").arg("~").arg(keep.to_string());
    }
}
