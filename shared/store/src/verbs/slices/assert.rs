//! The calls that a worker began and what came of them, said again if Redis may have lost that (rule 8).

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{SettledCall, Store, StoreError};

/// The statement of a worker about one call.
#[derive(Debug, Clone)]
pub struct Assertion {
    /// The turn.
    pub name: TurnName,
    /// Position of the call.
    pub position: usize,
    /// Digest of the turn's content: the same id may be given to other calls.
    pub digest: String,
    /// The nonce that it was begun with.
    pub nonce: String,
    /// The time for which this is kept if Redis does not know it, ms: longer than the turn can last.
    pub kept_ms: i64,
    /// The claim that it makes.
    pub claim: Claim,
}

/// The outcome of a call that was begun.
#[derive(Debug, Clone)]
pub enum Claim {
    /// It runs, or its result is not known any more.
    Begun,
    /// It has this result.
    Ended(SettledCall),
    /// It certainly did nothing, and may be begun again.
    Undone,
}

/// The outcome of an assertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asserted {
    /// Redis has the call's result.
    Known,
    /// Redis did not know. Whoever begins the call from here on is told.
    Marked,
    /// Somebody else has begun it already.
    Late,
    /// The earlier statement is withdrawn.
    Unmarked,
}

impl Store {
    /// Says what was begun and what came of it. `is_another` says that Redis is known to be another than it was: then
    /// it is a later epoch, even where Redis has nothing left that would say so.
    ///
    /// # Errors
    /// [`StoreError`]; the same assertions may be repeated.
    pub async fn assert(&self, calls: &[Assertion], is_another: bool) -> Result<Vec<Asserted>, StoreError> {
        let mut args = self.args();
        args.flag(is_another).show(calls.len());
        for call in calls {
            args.show(&call.name).show(call.position).text(call.digest.as_str()).text(call.nonce.as_str());
            args.show(call.kept_ms);
            match &call.claim {
                Claim::Begun => args.text("BEGUN").text("").text("").text(""),
                Claim::Undone => args.text("UNDONE").text("").text("").text(""),
                Claim::Ended(call) => {
                    args.text("ENDED").text(call.result.as_str()).text(call.message.as_str()).text(call.audit.as_str())
                }
            };
        }
        let mut reply = self.ask(Verb::Assert, args).await?;
        let asserted = |value: &redis::Value| {
            Ok(match text_of(value).as_deref() {
                Some("KNOWN") => Asserted::Known,
                Some("MARKED") => Asserted::Marked,
                Some("LATE") => Asserted::Late,
                Some("UNMARKED") => Asserted::Unmarked,
                _ => return Err(unexpected(Verb::Assert.as_str(), value)),
            })
        };
        reply.rest().iter().map(asserted).collect()
    }
}
