//! Idempotency claims: of equal calls of a tool with an effect key, one is carried out, and its outcome is that of the
//! others. A model that plans anew after a crash makes its payment under another ID; nobody else would know the call again.
//!
//! A call claims its effect where it begins, and its settle ends the claim. So nothing runs without a claim, and what a
//! claim's call did is known from the claim, or else from the record of its turn, or else reported as unknown.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tickfleet_core::View;
use tickfleet_core::call::CallName;
use tickfleet_core::call::claim::{Claim, ClaimEffect, ClaimState, Claimant, EffectEnd, EffectName, EndClaim};
use tickfleet_core::turn::Slice;
use tickfleet_model::outcome::EffectHappened;
use tickfleet_model::{Call, CallResult, Effect, EffectKey, EffectNote, Outcome, limits};
use tickfleet_protocol::{bounded_output, result_json, without_nulls};
use tickfleet_store::Store;

use crate::Common;
use crate::calls::messages;
use crate::calls::trying::{Disposition, Trying};
use crate::config::WorkerConfig;
use crate::tools::RegisteredTool;

/// Bytes of a result that are kept for equal calls; of a larger one it is kept that there was one.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// Knows what came of equal calls.
pub(super) struct Ledger {
    store: Store,
}

impl Ledger {
    /// The ledger of the worker's shard.
    pub(super) fn new(common: &Common) -> Self {
        Self { store: common.store.clone() }
    }

    /// The claim of a call that is about to begin; none where its tool has no effect key. `nothing` is an equal call that
    /// certainly had no effect.
    ///
    /// # Errors
    /// The end of a call that lacks an argument of the effect key.
    pub(super) fn claim_of(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
        nothing: Option<Claimant>,
    ) -> Result<Option<ClaimEffect>, Box<Disposition>> {
        if tool.spec.effect != Effect::Once {
            return Ok(None);
        }
        let Some(key) = &tool.spec.effect_key else { return Ok(None) };
        let effect = effect_of(key, trying, tool, arguments)?;
        let by = claimant(trying.slice, trying.id.position);
        Ok(Some(ClaimEffect { effect, by, window_ms: key.window_ms, nothing }))
    }

    /// Whether it is known what came of an equal call, so that its result is this one's.
    pub(super) async fn knows_end(&self, trying: &Trying<'_>, tool: &RegisteredTool, arguments: &RawValue) -> bool {
        let Ok(Some(claim)) = self.claim_of(trying, tool, arguments, None) else { return false };
        let key = claim.effect.key();
        let mut view = View::default();
        let found = self.store.evaluate(&mut view, |view, context| {
            let claim = view.record::<Claim>(&key)?.map(|stored| stored.value);
            let claim = claim.filter(|claim| claim.until_ms > context.now_ms);
            Ok(claim.is_some_and(|claim| matches!(claim.state, ClaimState::Ended { .. })))
        });
        found.await.unwrap_or_else(|error| {
            tracing::debug!(%error, call = %trying.id, "failed to read an effect claim; an open circuit breaker holds the call back");
            false
        })
    }

    /// The end of a call that an equal call has answered.
    pub(super) fn answered(
        &self,
        trying: &Trying<'_>,
        claim: &ClaimEffect,
        by: &Claimant,
        result: &str,
    ) -> Disposition {
        let result = read(result).unwrap_or_else(|| unknown(claim, by));
        self.told(trying, claim, by, result)
    }

    /// The result of a call that is over and did not end its claim; none where it certainly did nothing. It is written to
    /// the claim, since what it was found in is kept for a shorter time.
    pub(super) async fn end_of(
        &self,
        claim: &ClaimEffect,
        by: &Claimant,
        result: Option<String>,
    ) -> Option<CallResult> {
        let result = result.as_deref().and_then(read).unwrap_or_else(|| unknown(claim, by));
        let end = end_by(&result);
        if end == EffectEnd::Undone {
            return None;
        }
        let end = EndClaim { effect: claim.effect.clone(), by: by.clone(), end, window_ms: claim.window_ms };
        if let Err(error) = self.store.decide(end).await {
            // Equal calls find the result in the record of the turn for a while, and then are told that nobody knows.
            tracing::warn!(%error, call = %by.call, "failed to record a call's outcome in its effect claim");
        }
        Some(result)
    }

    /// The end of a call that is not carried out, for this call's or an equal one's result is known. A worker that died
    /// after it had settled has left the call's own.
    pub(super) fn told(
        &self,
        trying: &Trying<'_>,
        claim: &ClaimEffect,
        by: &Claimant,
        known: CallResult,
    ) -> Disposition {
        let is_own = *by == claim.by;
        let output_max = limits::output_bytes_max(trying.head().calls);
        let output = known.output.filter(|_| known.success).map(|output| bounded_output(output, output_max));
        let result = CallResult {
            tool_call_id: trying.call.provider_id.clone(),
            call: trying.id.to_string(),
            tool: trying.call.tool.clone(),
            output: output.or_else(|| not_kept(known.success)),
            duration_ms: if is_own { known.duration_ms } else { 0 },
            attempts: if is_own { known.attempts } else { 0 },
            repeats: if is_own { known.repeats } else { Some(by.call.to_string()) },
            ..known
        };
        Disposition::Ended(Box::new(result), Vec::new())
    }
}

/// A claim that has just begun, as the journal reports it.
pub(super) fn opened(claim: &ClaimEffect) -> EndClaim {
    let ClaimEffect { effect, by, window_ms, .. } = claim.clone();
    EndClaim { effect, by, end: EffectEnd::Open, window_ms }
}

/// The end of the claim that a call has, or may have from an earlier try; none where its tool has no effect key, or an
/// equal call has answered it.
pub(super) fn end_of(config: &WorkerConfig, slice: &Slice, index: usize, result: &CallResult) -> Option<EndClaim> {
    let call = &slice.calls[index];
    if slice.turn.is_task() || result.repeats.is_some() {
        return None;
    }
    let selectors = config.active.policy.agents.get(&slice.turn.head.agent).map(|agent| &agent.tool_versions);
    let named = config.registry.resolve(&call.tool)?;
    let tool = config
        .registry
        .select(named, selectors.and_then(|all| all.get(&named.spec.name)).map(String::as_str))
        .filter(|tool| tool.spec.effect == Effect::Once)?;
    let key = tool.spec.effect_key.as_ref()?;
    let hash = hash_of(key, tool, slice, call, result)?;
    let effect = EffectName { tenant: slice.name.tenant.clone(), tool: tool.spec.name.clone(), hash };
    let by = claimant(slice, slice.turn.position + index);
    Some(EndClaim { effect, by, end: end_by(result), window_ms: key.window_ms })
}

fn claimant(slice: &Slice, position: usize) -> Claimant {
    let call = CallName::new(slice.name.turn.clone(), position);
    Claimant { call, digest: slice.turn.head.digest.clone(), admitted_ms: slice.turn.admitted_ms }
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

/// The result of a call of which nobody knows how it ended.
fn unknown(claim: &ClaimEffect, by: &Claimant) -> CallResult {
    let what = "An equal call had been made before, and how it ended is not known any more.";
    CallResult {
        tool_call_id: None,
        call: by.call.to_string(),
        tool: claim.effect.tool.clone(),
        success: false,
        outcome: Outcome::OutcomeUnknown,
        output: None,
        error: Some(messages::outcome_unknown(&claim.effect.tool, what)),
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

/// The effect that a call had claimed, for the audit log; none where it certainly did nothing, and nobody told it what an
/// equal call did. It is reckoned anew from the arguments, so that a call is named whoever ends it.
pub(super) fn note_of(tool: &RegisteredTool, slice: &Slice, call: &Call, result: &CallResult) -> Option<EffectNote> {
    let key = tool.spec.effect_key.as_ref()?;
    if result.repeats.is_none() && end_by(result) == EffectEnd::Undone {
        return None;
    }
    Some(EffectNote { key: hash_of(key, tool, slice, call, result)?, window_ms: key.window_ms })
}

/// The hash of the arguments that a call ran with, or would have run with.
fn hash_of(key: &EffectKey, tool: &RegisteredTool, slice: &Slice, call: &Call, result: &CallResult) -> Option<String> {
    let given = result.approval.as_ref().and_then(|approval| approval.arguments.as_deref());
    let text = match given {
        Some(given) => Cow::Borrowed(given.get()),
        None if slice.turn.head.strict => without_nulls(&tool.spec.input_schema, &call.arguments),
        None => Cow::Borrowed(call.arguments.as_str()),
    };
    let arguments = serde_json::from_str::<&RawValue>(&text).ok()?;
    key.hash(&slice.name.tenant, &tool.spec.name, arguments).ok()
}

/// A result as the ledger or a record has it; none where a foreign writer has left something else.
fn read(result: &str) -> Option<CallResult> {
    serde_json::from_str(result).ok()
}

/// What a result says of the effect. It is let go only where it is certain that nothing took effect: a `once` tool whose
/// call may have is never told as anything but done or unknown (rules 7 and 25).
fn end_by(result: &CallResult) -> EffectEnd {
    match result.outcome.happened() {
        EffectHappened::Yes => EffectEnd::Ended(kept(result)),
        EffectHappened::Perhaps => EffectEnd::Unknown(kept(result)),
        EffectHappened::IfRun if result.attempts > 0 => EffectEnd::Ended(kept(result)),
        // A payment without cover may be made again later.
        EffectHappened::IfRun | EffectHappened::No => EffectEnd::Undone,
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
