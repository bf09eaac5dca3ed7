//! Bounds that are kept once in a while rather than with every batch.

use super::words::{Words, number_of, text_of};
use super::{Store, StoreError};

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
}

impl Store {
    /// Looks at Redis' memory and tells the scripts whether new work may come in.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn watch_memory(&self) -> Result<Memory, StoreError> {
        let info: String = self.connection.query("memory", redis::cmd("INFO").arg("memory")).await?;
        let memory = memory_of(&info);
        let meta = self.keys.key("meta");
        let set = redis::cmd("HSET").arg(&meta).arg("pressure").arg(u8::from(memory.is_tight())).to_owned();
        let known: redis::Value =
            self.connection.query("memory", redis::cmd("HGET").arg(&meta).arg("pressure")).await?;
        if text_of(&known).as_deref() != Some(if memory.is_tight() { "1" } else { "0" }) {
            // At the brim even this write may be refused; then scripts that take work in are refused as well.
            self.connection.query::<i64>("memory", &set).await?;
        }
        Ok(memory)
    }

    /// Forgets budgets that say nothing any more, a few hundred agents a call. Answers where to go on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn prune(&self, cursor: u64) -> Result<u64, StoreError> {
        let mut args = self.args();
        args.show(cursor);
        let mut words = Words::new("prune", self.run("prune", args).await?)?;
        Ok(words.number()?.unsigned_abs())
    }

    /// Bounds the audit log by bytes (beside age and entries, which every settle keeps), the dead stream by age,
    /// and forgets inboxes that nobody has used for as long as replies are kept.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn housekeep(&self, now_ms: i64, audit_bytes_max: u64, dead_retain_ms: i64) -> Result<(), StoreError> {
        let audit = self.keys.key("audit");
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        pipe.cmd("XLEN").arg(&audit).cmd("MEMORY").arg("USAGE").arg(&audit).arg("SAMPLES").arg(5);
        // Rule 18: a key that holds something else keeps no other bound from being kept.
        let size: Vec<redis::RedisResult<redis::Value>> = self.connection.pipeline("housekeep", &pipe).await?;
        let number = |at: usize| size.get(at).and_then(|n| number_of(n.as_ref().ok()?)).unwrap_or(0).unsigned_abs();
        let (entries, bytes) = (number(0), number(1));
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        if bytes > audit_bytes_max {
            let keep = u128::from(entries) * u128::from(audit_bytes_max) / u128::from(bytes.max(1));
            pipe.cmd("XTRIM").arg(&audit).arg("MAXLEN").arg("~").arg(keep.to_string());
        }
        pipe.cmd("XTRIM").arg(self.keys.key("dead")).arg("MINID").arg("~").arg((now_ms - dead_retain_ms).max(0));
        let idle = now_ms - self.options.reply_retain_ms;
        pipe.cmd("ZREMRANGEBYSCORE").arg(self.keys.key("inboxes")).arg("-inf").arg(idle);
        let kept = self.connection.pipeline::<Vec<redis::RedisResult<i64>>>("housekeep", &pipe).await?;
        kept.into_iter().find_map(Result::err).map_or(Ok(()), |error| Err(StoreError::verb("housekeep", error)))
    }
}

/// What `INFO memory` says.
pub(super) fn memory_of(info: &str) -> Memory {
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
