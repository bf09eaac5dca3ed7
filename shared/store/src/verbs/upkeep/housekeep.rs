//! Bounds that are kept once in a while rather than with every batch.

use crate::script::reply::{Reply, number_of};
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// Redis' memory as its own settings see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Bytes in use.
    pub used: u64,
    /// `maxmemory`, bytes; 0 means none.
    pub max: u64,
}

impl Memory {
    /// Rule 13: from 80 % of `maxmemory` on no new work is taken in, so that what is in can be finished.
    #[must_use]
    pub const fn is_tight(self) -> bool {
        self.max > 0 && self.used / 4 >= self.max / 5
    }

    /// `bytes`, but one part in `of` of all memory at most.
    const fn share(self, bytes: u64, of: u64) -> u64 {
        if self.max > 0 && self.max / of < bytes { self.max / of } else { bytes }
    }
}

impl Store {
    /// Looks at Redis' memory and tells the scripts whether new work may come in, however full it is.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn weigh(&self) -> Result<Memory, StoreError> {
        let mut reply = Reply::new("weigh", self.run("weigh", self.args()).await?)?;
        Ok(Memory { used: reply.number()?.unsigned_abs(), max: reply.number()?.unsigned_abs() })
    }

    /// Forgets budgets that say nothing any more, a few hundred agents a call. Answers where to go on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn prune(&self, cursor: u64) -> Result<u64, StoreError> {
        let mut args = self.args();
        args.show(cursor);
        let mut reply = Reply::new("prune", self.run("prune", args).await?)?;
        Ok(reply.number()?.unsigned_abs())
    }

    /// Bounds audit log and dead stream by bytes and by age, beside what every settle does.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn housekeep(&self, memory: Memory, audit_bytes_max: u64, dead_retain_ms: i64) -> Result<(), StoreError> {
        let (audit, dead) = (self.keys.key("audit"), self.keys.key("dead"));
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        pipe.cmd("TIME");
        for stream in [&audit, &dead] {
            pipe.cmd("XLEN").arg(stream).cmd("MEMORY").arg("USAGE").arg(stream).arg("SAMPLES").arg(5);
        }
        // Rule 18: a key that holds something else keeps no other bound from being kept.
        let found: Vec<redis::RedisResult<redis::Value>> = self.connection.pipeline("housekeep", &pipe).await?;
        let number = |at: usize| found.get(at).and_then(|n| number_of(n.as_ref().ok()?)).unwrap_or(0).unsigned_abs();
        let (audit_size, dead_size) = ((number(1), number(2)), (number(3), number(4)));
        let redis_ms = found.first().and_then(|time| clock_ms(time.as_ref().ok()?));
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        trim_to(&mut pipe, &audit, audit_size, memory.share(audit_bytes_max, AUDIT_SHARE));
        trim_to(&mut pipe, &dead, dead_size, memory.share(limits::DEAD_BYTES_MAX, DEAD_SHARE));
        // Rule 20: by the clock that numbered the entries, which shard time may be days ahead of.
        if let Some(redis_ms) = redis_ms {
            pipe.cmd("XTRIM").arg(&dead).arg("MINID").arg("~").arg((redis_ms - dead_retain_ms).max(0));
            // The build before this one kept the inboxes of all tenants together.
            let idle_ms = redis_ms - self.options.reply_retain_ms;
            pipe.cmd("ZREMRANGEBYSCORE").arg(self.keys.key("inboxes")).arg("-inf").arg(idle_ms);
        }
        let kept = self.connection.pipeline::<Vec<redis::RedisResult<i64>>>("housekeep", &pipe).await?;
        kept.into_iter().find_map(Result::err).map_or(Ok(()), |error| Err(StoreError::verb("housekeep", error)))
    }
}

/// What `TIME` answers, seconds and µs, in ms.
fn clock_ms(time: &redis::Value) -> Option<i64> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time.clone()).ok()?;
    Some(seconds * 1_000 + micros / 1_000)
}

/// The audit log has one part in so many of the memory at most, however much is allowed.
const AUDIT_SHARE: u64 = 4;
/// And so the dead stream.
const DEAD_SHARE: u64 = 16;

/// Trims a stream of this many entries and bytes to `bytes_max`.
fn trim_to(pipe: &mut redis::Pipeline, stream: &str, (entries, bytes): (u64, u64), bytes_max: u64) {
    if bytes > bytes_max {
        let keep = u128::from(entries) * u128::from(bytes_max) / u128::from(bytes.max(1));
        pipe.cmd("XTRIM").arg(stream).arg("MAXLEN").arg("~").arg(keep.to_string());
    }
}

/// What `INFO memory` says.
pub(crate) fn memory_of(info: &str) -> Memory {
    let read = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
    };
    Memory { used: read("used_memory"), max: read("maxmemory") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_tight_from_80_percent_on_and_never_without_a_bound() {
        let tight = |used, max| Memory { used, max }.is_tight();
        assert_eq!([tight(799, 1_000), tight(800, 1_000), tight(u64::MAX, 0)], [false, true, false]);
    }
}
