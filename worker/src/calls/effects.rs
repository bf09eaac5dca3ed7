//! The ledger of effects: of equal calls of a tool with an effect key, one is carried out, and its outcome is that of the
//! others. A model that plans anew after a crash makes its payment under another id; nobody else would know the call again.
//!
//! A call claims its effect before it begins, and says what came of it before that is settled. So nothing runs without a
//! claim, and what a claim's call did is known from the ledger, or else from the record of its turn, or else told as
//! unknown.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tickfleet_client::Reply;
use tickfleet_model::{Call, CallResult, EffectKey, EffectNote, Outcome, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_protocol::{bounded_output, result_json, without_nulls};
use tickfleet_store::{
    Claimant, Claimed, Conclusion, EffectClaim, EffectEnd, EffectName, SliceEntry, Store, TurnName, TurnView,
};
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::calls::messages;
use crate::calls::trying::{Disposition, Trying};
use crate::claimed::ClaimedEffect;
use crate::claims::Claims;
use crate::outbox::Outbox;
use crate::tools::RegisteredTool;

/// The end of an equal call wakes those that wait for it. Should that get lost, they look by themselves after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The time between two claims of a Redis that has just restarted.
const HOLD: Duration = Duration::from_millis(500);
/// Bytes of a result that are kept for equal calls; of a larger one it is kept that there was one.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// What a call holds that has claimed its effect.
pub(super) struct Claim {
    effect: EffectName,
    by: Claimant,
    window_ms: i64,
}

/// Claims effects, and says what came of them.
pub(super) struct Ledger {
    store: Store,
    outbox: Arc<Outbox>,
    claims: Arc<Claims>,
    metrics: Arc<Metrics>,
    /// Cancelled when nothing more may be waited for.
    now: CancellationToken,
}

impl Ledger {
    /// The ledger of the worker's shard.
    pub(super) fn new(common: &Common, outbox: &Arc<Outbox>, claims: &Arc<Claims>) -> Self {
        let (store, metrics, now) = (common.store.clone(), common.metrics.clone(), common.now.clone());
        Self { store, outbox: Arc::clone(outbox), claims: Arc::clone(claims), metrics, now }
    }

    /// Claims the effect of a call that is about to begin; none where its tool has no effect key.
    ///
    /// # Errors
    /// What becomes of the call instead: an equal call answers it, or is waited for.
    pub(super) async fn claim(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
    ) -> Result<Option<Claim>, Box<Disposition>> {
        let Some(key) = &tool.spec.effect_key else { return Ok(None) };
        let effect = effect_of(key, trying, tool, arguments)?;
        let by = Claimant::new(&trying.id.turn, trying.id.position, &trying.slice.meta.digest);
        let claim = Claim { effect, by, window_ms: key.window_ms };
        let mut nothing = None;
        loop {
            let rounds = self.claims.rounds();
            let asked = EffectClaim { knows: self.claims.told_to(), ..claim.asked(trying, nothing.take()) };
            match self.outbox.claim(asked).await {
                Some(Claimed::Begun) => return Ok(Some(claim)),
                Some(Claimed::Ours) => {
                    let deadline_ms = trying.slice.meta.deadline_ms;
                    self.claims.effects.hold(ClaimedEffect { said: claim.statement(EffectEnd::Open), deadline_ms });
                    // Else Redis may have lost it before we could say it again: it is asked for anew.
                    if self.claims.rounds() == rounds {
                        return Ok(Some(claim));
                    }
                }
                Some(Claimed::Ended(by, result)) => {
                    let result = read(&result).unwrap_or_else(|| claim.unknown(&by));
                    return Err(Box::new(claim.told(trying, &by, result)));
                }
                Some(Claimed::Waits(turn)) => return Err(Box::new(Disposition::WaitsForEqual(turn, LOOK_AGAIN))),
                Some(Claimed::Gone(by, result)) => match self.end_of(&claim, &by, result).await {
                    Some(result) => return Err(Box::new(claim.told(trying, &by, result))),
                    None => nothing = Some(by),
                },
                Some(Claimed::Hold) => tokio::select! {
                    () = self.now.cancelled() => return Err(Box::new(Disposition::HandBack(false))),
                    () = tokio::time::sleep(HOLD) => {}
                },
                Some(Claimed::Stale) | None => {
                    self.metrics.fenced("claim");
                    return Err(Box::new(Disposition::Lost));
                }
            }
        }
    }

    /// Whether it is known what came of an equal call, so that [`Self::claim`] answers this one with that.
    pub(super) async fn knows_end(&self, trying: &Trying<'_>, tool: &RegisteredTool, arguments: &RawValue) -> bool {
        let Some(key) = &tool.spec.effect_key else { return false };
        let Ok(effect) = effect_of(key, trying, tool, arguments) else { return false };
        self.store.is_concluded(&effect).await.unwrap_or_else(|error| {
            tracing::debug!(%error, call = %trying.id, "failed to read the ledger of effects; an open circuit breaker holds the call back");
            false
        })
    }

    /// Says what came of a call that had claimed its effect. One that is to go on keeps its claim.
    pub(super) async fn conclude(&self, claim: &Claim, carried: &Disposition) {
        let said = claim.statement(claim.end(carried));
        if matches!(carried, Disposition::WaitsForEqual(..)) {
            // It comes again, perhaps to another worker: to a Redis that has restarted by then, that one speaks for it.
            self.claims.effects.give_up(&said);
        } else {
            // Should Redis restart in between, this is what it hears.
            self.claims.effects.leave(&said);
        }
        if said.end != EffectEnd::Open {
            self.say(said).await;
        }
    }

    async fn say(&self, said: Conclusion) {
        let by = said.by.clone();
        if self.outbox.conclude(said).await.is_none() {
            // Equal calls find the result in the record of the turn for a while, and then are told that nobody knows.
            tracing::warn!(call = by.call(), "failed to record a call's outcome in the ledger of effects");
        }
    }

    /// The result of a call that is over and did not say so in the ledger; none where it certainly did nothing. It is
    /// written there, since what it was found in is kept for a shorter time.
    async fn end_of(&self, claim: &Claim, by: &Claimant, result: Option<String>) -> Option<CallResult> {
        let found = match result {
            Some(result) => read(&result),
            None => self.finished(claim, by).await,
        };
        let result = found.unwrap_or_else(|| claim.unknown(by));
        let end = end_by(&result);
        if end == EffectEnd::Undone {
            return None;
        }
        self.say(Conclusion { by: by.clone(), ..claim.statement(end) }).await;
        Some(result)
    }

    /// The result of a call whose turn has ended, if it is kept still.
    async fn finished(&self, claim: &Claim, by: &Claimant) -> Option<CallResult> {
        let (turn, position) = by.place()?;
        let name = TurnName { tenant: claim.effect.tenant.clone(), turn };
        let looked = self.store.look(&name).await.inspect_err(|error| {
            tracing::warn!(%error, call = by.call(), "failed to read the outcome of an equal call; reporting it as unknown");
        });
        let Ok(TurnView::Finished(finished)) = looked else { return None };
        // The id may have been given to other calls since: a record that does not say what its turn was is nobody's.
        if finished.digest.as_deref() != by.digest() {
            return None;
        }
        let reply: Reply = serde_json::from_str(&finished.reply).ok()?;
        reply.results.into_iter().nth(position)
    }
}

/// The effect of a call, by the key of its tool.
fn effect_of(
    key: &EffectKey,
    trying: &Trying<'_>,
    tool: &RegisteredTool,
    arguments: &RawValue,
) -> Result<EffectName, Box<Disposition>> {
    let (tenant, name) = (&trying.slice.name.tenant, &tool.spec.name);
    let hash = key.hash(tenant, name, arguments).map_err(|pointer| {
        Box::new(trying.refused(Outcome::InvalidArguments, messages::no_effect_key(name, pointer)))
    })?;
    Ok(EffectName { tenant: tenant.clone(), tool: name.clone(), hash })
}

impl Claim {
    fn asked(&self, trying: &Trying<'_>, nothing: Option<Claimant>) -> EffectClaim {
        EffectClaim {
            name: trying.slice.name.clone(),
            fence: trying.slice.fence.clone(),
            position: trying.id.position,
            digest: trying.slice.meta.digest.clone(),
            effect: self.effect.clone(),
            window_ms: self.window_ms,
            nothing,
            knows: None,
        }
    }

    /// What the ledger is told of the claim.
    fn statement(&self, end: EffectEnd) -> Conclusion {
        Conclusion { effect: self.effect.clone(), by: self.by.clone(), window_ms: self.window_ms, end }
    }

    /// What a try of its call means for the claim.
    fn end(&self, carried: &Disposition) -> EffectEnd {
        match carried {
            Disposition::Ended(result, _) => end_by(result),
            Disposition::Kept(settled) => end_by(&read(&settled.result).unwrap_or_else(|| self.unknown(&self.by))),
            // It has not begun, and waits for facts: the turn that it waits for may need the effect itself.
            Disposition::WaitsForEqual(..) => EffectEnd::Undone,
            Disposition::Again(..)
            | Disposition::Reconciles(..)
            | Disposition::Waits(..)
            | Disposition::Asks(_)
            | Disposition::Rests(_)
            | Disposition::HandBack(_)
            | Disposition::Lost => EffectEnd::Open,
        }
    }

    /// What is told of a call of which nobody knows how it ended.
    fn unknown(&self, by: &Claimant) -> CallResult {
        let what = "An equal call had been made before, and how it ended is not known any more.";
        CallResult {
            tool_call_id: None,
            call: by.call().to_owned(),
            tool: self.effect.tool.clone(),
            success: false,
            outcome: Outcome::OutcomeUnknown,
            output: None,
            error: Some(messages::outcome_unknown(&self.effect.tool, what)),
            content_type: "application/json".into(),
            duration_ms: 0,
            attempts: 0,
            repeats: None,
            approval: None,
            cached: None,
            note: None,
            reconciled: false,
            entered_ms: None,
        }
    }

    /// The end of a call that is not carried out, for this call's or an equal one's result is known. A worker that died
    /// after it had written into the ledger has left the call's own.
    fn told(&self, trying: &Trying<'_>, by: &Claimant, known: CallResult) -> Disposition {
        let is_own = *by == self.by;
        let output_max = limits::output_bytes_max(trying.slice.meta.calls);
        let output = known.output.filter(|_| known.success).map(|output| bounded_output(output, output_max));
        let result = CallResult {
            tool_call_id: trying.call.provider_id.clone(),
            call: trying.id.to_string(),
            tool: trying.call.tool.clone(),
            output: output.or_else(|| not_kept(known.success)),
            duration_ms: if is_own { known.duration_ms } else { 0 },
            attempts: if is_own { known.attempts } else { 0 },
            repeats: if is_own { known.repeats } else { Some(by.call().to_owned()) },
            ..known
        };
        Disposition::Ended(Box::new(result), Vec::new())
    }
}

/// The effect that a call had claimed, for the audit log; none where it certainly did nothing, and nobody told it what an
/// equal call did. It is reckoned anew from the arguments, so that a call is named whoever ends it.
pub(super) fn note_of(
    tool: &RegisteredTool,
    slice: &SliceEntry,
    call: &Call,
    result: &CallResult,
) -> Option<EffectNote> {
    let key = tool.spec.effect_key.as_ref()?;
    if result.repeats.is_none() && end_by(result) == EffectEnd::Undone {
        return None;
    }
    let given = result.approval.as_ref().and_then(|approval| approval.arguments.as_deref());
    let text = match given {
        Some(given) => Cow::Borrowed(given.get()),
        None if slice.meta.strict => without_nulls(&tool.spec.input_schema, &call.arguments),
        None => Cow::Borrowed(call.arguments.as_str()),
    };
    let arguments = serde_json::from_str::<&RawValue>(&text).ok()?;
    let hash = key.hash(&slice.name.tenant, &tool.spec.name, arguments).ok()?;
    Some(EffectNote { key: hash, window_ms: key.window_ms })
}

/// A result as the ledger or a record has it; none where a foreign writer has left something else.
fn read(result: &str) -> Option<CallResult> {
    serde_json::from_str(result).ok()
}

/// What a result says of the effect. It is let go only where it is certain that nothing took effect: a `once` tool whose
/// call may have is never told as anything but done or unknown (rules 7 and 25).
fn end_by(result: &CallResult) -> EffectEnd {
    match result.outcome {
        Outcome::Ok => EffectEnd::Ended(kept(result)),
        Outcome::OutcomeUnknown => EffectEnd::Unknown(kept(result)),
        // It ran, and what it returned was withheld.
        Outcome::Internal if result.attempts > 0 => EffectEnd::Ended(kept(result)),
        Outcome::Internal
        | Outcome::UnknownTool
        | Outcome::Denied
        | Outcome::InvalidArguments
        | Outcome::ApprovalRefused
        // The tool itself says that it refused. A payment without cover may be made again when there is some.
        | Outcome::Permanent
        // Of a `once` tool: its last try certainly did nothing, as all before it.
        | Outcome::Transient
        | Outcome::Expired
        | Outcome::Cancelled
        | Outcome::DailyCapReached
        | Outcome::Rejected => EffectEnd::Undone,
    }
}

/// A result as the ledger keeps it, within its bound.
fn kept(result: &CallResult) -> String {
    let output = result.output.clone().filter(|output| output.get().len() <= KEPT_BYTES_MAX);
    result_json(&CallResult { tool_call_id: None, output, ..result.clone() })
}

/// Stands for the output of a call that was carried out, where that was too large to be kept, or memory was short.
fn not_kept(success: bool) -> Option<Box<RawValue>> {
    let text = r#""It was carried out. Its result was not kept for equal calls.""#;
    RawValue::from_string(text.to_owned()).ok().filter(|_| success)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_model::{TenantId, TurnId};

    use super::*;

    #[test]
    fn a_call_that_waits_for_facts_keeps_no_claim_and_one_that_is_to_go_on_does() {
        let turn = TurnId::new("t1").unwrap();
        let effect = EffectName { tenant: TenantId::new("acme").unwrap(), tool: "pay".into(), hash: "0a".into() };
        let claim = Claim { effect, by: Claimant::new(&turn, 0, "d"), window_ms: 1_000 };
        assert_eq!(claim.end(&Disposition::WaitsForEqual(turn, LOOK_AGAIN)), EffectEnd::Undone);
        assert_eq!(claim.end(&Disposition::Again(LOOK_AGAIN, String::new())), EffectEnd::Open);
        assert_eq!(claim.end(&Disposition::HandBack(false)), EffectEnd::Open);
    }
}
