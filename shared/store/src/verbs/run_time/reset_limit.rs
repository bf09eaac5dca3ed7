//! Counters of limits that an operator sets to zero.

use crate::keys::CounterName;
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// What a counter was before it was set to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WasReset {
    /// What it had used in its window: calls, or millionths; none where that could not be read.
    pub used: Option<u64>,
    /// When its window ends, ms of shard time; none where that could not be read.
    pub ends_ms: Option<i64>,
    /// Turns on its lane, which are looked at now.
    pub waiting: u64,
}

impl Store {
    /// Sets a counter to zero, and has the turns that wait for it looked at. `entry` goes into the audit log; it is a JSON
    /// object whose last member is an object, both still open: what the counter was is written behind it. None where the
    /// shard has no such counter; then nothing is written.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reset_limit(&self, name: &CounterName, entry: &str) -> Result<Option<WasReset>, StoreError> {
        let mut args = self.args();
        args.text(name.limit.as_str()).text(name.counter.as_str()).text(entry);
        let mut reply = self.ask(Verb::ResetLimit, args).await?;
        if reply.text()? == "NONE" {
            return Ok(None);
        }
        let (used, ends_ms) = (reply.text()?.parse().ok(), reply.text()?.parse().ok());
        Ok(Some(WasReset { used, ends_ms, waiting: reply.number()?.unsigned_abs() }))
    }
}
