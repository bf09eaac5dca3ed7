//! How often the same call came in a row with the same result.

use std::time::Duration;

use crate::script::reply::Reply;
use crate::verbs::Verb;
use crate::verbs::loops::RowCall;
use crate::{Store, StoreError};

/// When a row is one call too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowBounds {
    /// After so many in a row, the call is refused.
    pub refused_after: u32,
    /// For so long.
    pub refused_for: Duration,
    /// A row is forgotten after so long without a call.
    pub forgotten_after: Duration,
}

/// A call that has its result.
#[derive(Debug, Clone)]
pub struct Repeat {
    /// The call.
    pub call: RowCall,
    /// The hash of its result.
    pub result: String,
    /// Its id, `<turn>/<position>`.
    pub by: String,
    /// The bounds; those of the first of a batch hold for all.
    pub bounds: RowBounds,
}

/// Where a call stands in its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated {
    /// It is the so manieth in a row.
    pub count: u64,
    /// Until when the next one is refused, ms of shard time.
    pub refused_until_ms: Option<i64>,
}

impl Store {
    /// Counts calls that have their results.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be counted again, and counts once while nothing came after it.
    pub async fn count_repeat(&self, calls: &[Repeat]) -> Result<Vec<Repeated>, StoreError> {
        let Some(bounds) = calls.first().map(|call| call.bounds) else { return Ok(Vec::new()) };
        let mut args = self.args();
        args.show(bounds.refused_after).show(bounds.refused_for.as_millis());
        args.show(bounds.forgotten_after.as_millis()).show(calls.len());
        for repeat in calls {
            args.show(&repeat.call.row).text(repeat.call.hash.as_str());
            args.text(repeat.result.as_str()).text(repeat.by.as_str());
        }
        let mut reply = self.ask(Verb::CountRepeat, args).await?;
        let repeated = |value: redis::Value| {
            let mut reply = Reply::new(Verb::CountRepeat.as_str(), value)?;
            let count = reply.number()?.unsigned_abs();
            Ok(Repeated { count, refused_until_ms: Some(reply.number()?).filter(|until_ms| *until_ms > 0) })
        };
        reply.rest().into_iter().map(repeated).collect()
    }
}
