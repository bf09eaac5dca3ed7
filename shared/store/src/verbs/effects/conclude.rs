//! What came of a call that had claimed its effect key.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::effects::claim::{Claimant, EffectName};
use crate::{Store, StoreError};

/// Bytes of an output that is kept for equal calls while memory is short, too.
const SMALL_BYTES: usize = 256;

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
            let output = output_of(result).filter(|(before, upto)| upto - before > SMALL_BYTES);
            args.maybe(output.map(|(before, _)| before)).maybe(output.map(|(_, upto)| upto));
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

/// The part of a result that can be left out.
#[derive(Deserialize)]
struct Kept<'r> {
    #[serde(borrow)]
    output: Option<&'r RawValue>,
}

/// Where the output of a result begins and ends, in bytes.
fn output_of(result: &str) -> Option<(usize, usize)> {
    let output = serde_json::from_str::<Kept<'_>>(result).ok()?.output?.get();
    // It is a part of the same text.
    let before = output.as_ptr().addr().checked_sub(result.as_ptr().addr())?;
    Some((before, before + output.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_found_where_it_stands_and_not_where_something_else_says_the_same() {
        let result = r#"{"call":"t1/0","text":"{\"a\":1}","output": {"a":1},"error":null}"#;
        assert_eq!(output_of(result).map(|(before, upto)| &result[before..upto]), Some(r#"{"a":1}"#));
        assert_eq!(output_of(r#"{"call":"t1/0","output":null}"#), None);
        assert_eq!(output_of(""), None);
    }
}
