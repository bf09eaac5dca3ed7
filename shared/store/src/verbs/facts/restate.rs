//! What the ends of calls did to facts is said again, where Redis may have lost it.

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::facts::enter::FactsEnd;
use crate::{Store, StoreError};

/// What the end of one call did to facts.
#[derive(Debug, Clone)]
pub struct Restatement {
    /// The turn.
    pub name: TurnName,
    /// Position of the call.
    pub position: usize,
    /// What it did.
    pub end: FactsEnd,
    /// When it ended, ms of shard time.
    pub ended_ms: i64,
}

impl Store {
    /// Says again what ends of calls did to facts. Answers how many of the changes Redis had lost.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be said again.
    pub async fn restate(&self, calls: &[Restatement], now_ms: i64) -> Result<usize, StoreError> {
        let left = |call: &Restatement, kept_ms: i64| kept_ms - (now_ms - call.ended_ms).max(0);
        let all = calls.iter().flat_map(|call| call.end.changes.iter().map(move |change| (call, change)));
        let all: Vec<_> = all.filter(|(call, change)| left(call, change.kept_ms) > 0).collect();
        if all.is_empty() {
            return Ok(0);
        }
        let mut args = self.args();
        args.show(all.len());
        for (call, change) in all {
            let (tenant, session, turn) = (&call.name.tenant, &call.end.session, &call.name.turn);
            args.show(format_args!("{tenant}:{session}")).show(change.letter()).text(change.fact.as_str());
            args.show(left(call, change.kept_ms)).show(format_args!("{turn}/{}", call.position)).show(call.ended_ms);
        }
        let mut reply = self.ask(Verb::Restate, args).await?;
        let said = reply.rest();
        let lost = said.iter().map(|value| match text_of(value).as_deref() {
            Some("OK") => Ok(1),
            Some("KNOWN") => Ok(0),
            _ => Err(unexpected(Verb::Restate.as_str(), value)),
        });
        lost.sum()
    }
}
