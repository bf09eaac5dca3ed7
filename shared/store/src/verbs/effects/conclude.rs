//! What came of a call that had claimed its effect key.

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::effects::claim::{Claimant, EffectName};
use crate::{Store, StoreError};

/// The statement about a call that had claimed an effect.
#[derive(Debug, Clone)]
pub struct Conclusion {
    /// What it was about to do.
    pub effect: EffectName,
    /// The call.
    pub by: Claimant,
    /// For how long its end answers equal calls, ms; while it is [open](EffectEnd::Open), how long the claim is kept.
    pub window_ms: i64,
    /// What came of it.
    pub end: EffectEnd,
}

/// What came of such a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectEnd {
    /// It has this result, JSON.
    Ended(String),
    /// Nobody knows: this result, JSON, says so, unless somebody has said more.
    Unknown(String),
    /// It certainly did nothing: an equal call may begin.
    Undone,
    /// Its end is to come: it has its claim still. Said where Redis may have lost that (rule 8).
    Open,
}

/// The outcome of a conclusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concluded {
    /// The ledger says so now.
    Ok,
    /// The ledger said as much before.
    Known,
    /// The claim is another call's by now.
    Others,
}

impl Store {
    /// Says what came of calls that had claimed their effects.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be said again.
    pub async fn conclude(&self, calls: &[Conclusion]) -> Result<Vec<Concluded>, StoreError> {
        let mut args = self.args();
        args.show(calls.len());
        for call in calls {
            let (word, result) = match &call.end {
                EffectEnd::Ended(result) => ("ENDED", result.as_str()),
                EffectEnd::Unknown(result) => ("UNKNOWN", result.as_str()),
                EffectEnd::Undone => ("UNDONE", ""),
                EffectEnd::Open => ("OPEN", ""),
            };
            args.show(&call.effect).text(call.by.as_str()).text(word).show(call.window_ms).text(result);
        }
        let mut reply = self.ask(Verb::Conclude, args).await?;
        let concluded = |value: &redis::Value| {
            Ok(match text_of(value).as_deref() {
                Some("OK") => Concluded::Ok,
                Some("KNOWN") => Concluded::Known,
                Some("OTHERS") => Concluded::Others,
                _ => return Err(unexpected(Verb::Conclude.as_str(), value)),
            })
        };
        reply.rest().iter().map(concluded).collect()
    }
}
