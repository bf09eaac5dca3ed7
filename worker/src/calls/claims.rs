//! Idempotency claims: of equal calls with an effect key, only one is carried out, and the others get its outcome.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tickfleet_core::View;
use tickfleet_core::call::CallName;
use tickfleet_core::call::claim::{Claim, ClaimEffect, ClaimState, Claimant, EffectEnd, EffectName, EndClaim};
use tickfleet_core::turn::Slice;
use tickfleet_model::outcome::EffectHappened;
use tickfleet_model::{Call, CallResult, Effect, EffectKey, EffectNote, Outcome};
use tickfleet_protocol::{bounded_content, result_json, without_nulls};
use tickfleet_store::Store;

use crate::Common;
use crate::calls::call_attempt::{AttemptOutcome, CallAttempt};
use crate::calls::messages;
use crate::config::WorkerConfig;
use crate::tools::RegisteredTool;

/// The longest output that a claim keeps, in bytes. For a larger output, the claim keeps only that the call succeeded.
const KEPT_BYTES_MAX: usize = 16 * 1024;

pub(super) struct EffectClaims {
    store: Store,
}

impl EffectClaims {
    pub(super) fn new(common: &Common) -> Self {
        Self { store: common.store.clone() }
    }

    /// Only a `once` tool with an effect key has a claim. `nothing` is an equal call without an effect: the new claim
    /// replaces its claim.
    pub(super) fn claim_of(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
        nothing: Option<Claimant>,
    ) -> Result<Option<ClaimEffect>, Box<AttemptOutcome>> {
        if tool.spec.effect != Effect::Once {
            return Ok(None);
        }
        let Some(key) = &tool.spec.effect_key else { return Ok(None) };
        let effect = effect_of(key, attempt, tool, arguments)?;
        let by = claimant(attempt.slice, attempt.id.position);
        Ok(Some(ClaimEffect { effect, by, window_ms: key.window_ms, nothing }))
    }

    /// True if the outcome of an equal call is known. False also if an argument of the effect key is missing, or if the
    /// claim cannot be read.
    pub(super) async fn is_end_known(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
    ) -> bool {
        let Ok(Some(claim)) = self.claim_of(attempt, tool, arguments, None) else { return false };
        let key = claim.effect.key();
        let mut view = View::default();
        let found = self.store.evaluate(&mut view, |view, context| {
            let claim = view.record::<Claim>(&key)?.map(|stored| stored.value);
            let claim = claim.filter(|claim| claim.until_ms > context.now_ms);
            Ok(claim.is_some_and(|claim| matches!(claim.state, ClaimState::Ended { .. })))
        });
        found.await.unwrap_or_else(|error| {
            tracing::debug!(%error, call = %attempt.id, "failed to read an effect claim; an open circuit breaker holds the call back");
            false
        })
    }

    pub(super) fn equal_call_outcome(
        &self,
        attempt: &CallAttempt<'_>,
        claim: &ClaimEffect,
        by: &Claimant,
        result: &str,
    ) -> AttemptOutcome {
        let result = read(result).unwrap_or_else(|| unknown(claim, by));
        self.known_outcome(attempt, claim, by, result)
    }

    /// `None` if `by` certainly had no effect. Otherwise records the end in the claim, because a claim is kept for
    /// longer than the record of a turn.
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
            // For some time, equal calls find the result in the turn's record. Afterwards, their outcome is unknown.
            tracing::warn!(%error, call = %by.call, "failed to record a call's outcome in its effect claim");
        }
        Some(result)
    }

    /// The known result of an equal call, or of this call itself if a worker settled the call and then died.
    pub(super) fn known_outcome(
        &self,
        attempt: &CallAttempt<'_>,
        claim: &ClaimEffect,
        by: &Claimant,
        known: CallResult,
    ) -> AttemptOutcome {
        let is_own = *by == claim.by;
        let output = known.output.filter(|_| known.success);
        let output = output.map(|output| bounded_content(output, &known.content_type, attempt.output_bytes_max));
        let result = CallResult {
            tool_call_id: attempt.call.provider_id.clone(),
            call: attempt.id.to_string(),
            tool: attempt.call.tool.clone(),
            output: output.or_else(|| omitted_output(known.success)),
            duration_ms: if is_own { known.duration_ms } else { 0 },
            attempts: if is_own { known.attempts } else { 0 },
            local: is_own && known.local,
            repeats: if is_own { known.repeats } else { Some(by.call.to_string()) },
            ..known
        };
        AttemptOutcome::Ended(Box::new(result), Vec::new())
    }
}

pub(super) fn opened(claim: &ClaimEffect) -> EndClaim {
    let ClaimEffect { effect, by, window_ms, .. } = claim.clone();
    EndClaim { effect, by, end: EffectEnd::Open, window_ms }
}

/// The end of the call's claim. `None` if the call cannot have a claim, or has the result of an equal call.
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

fn effect_of(
    key: &EffectKey,
    attempt: &CallAttempt<'_>,
    tool: &RegisteredTool,
    arguments: &RawValue,
) -> Result<EffectName, Box<AttemptOutcome>> {
    let tenant = &attempt.slice.name.tenant;
    let name = &tool.spec.name;
    let hash = key.hash(tenant, name, arguments).map_err(|pointer| {
        Box::new(attempt.refused(Outcome::InvalidArguments, messages::no_effect_key(name, pointer)))
    })?;
    Ok(EffectName { tenant: tenant.clone(), tool: name.clone(), hash })
}

fn unknown(claim: &ClaimEffect, by: &Claimant) -> CallResult {
    let what = "An equal call was made before, but its outcome is no longer known.";
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
        local: false,
        facts_evaluated_ms: None,
    }
}

/// Computes the key again from the arguments, so that any process that ends the call can log the effect.
pub(super) fn note_of(tool: &RegisteredTool, slice: &Slice, call: &Call, result: &CallResult) -> Option<EffectNote> {
    let key = tool.spec.effect_key.as_ref()?;
    if result.repeats.is_none() && end_by(result) == EffectEnd::Undone {
        return None;
    }
    Some(EffectNote { key: hash_of(key, tool, slice, call, result)?, window_ms: key.window_ms })
}

/// Hashes the arguments that the call ran with. `None` if they are unreadable or lack an argument of the effect key.
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

/// `None` if the text is not a stored result: another program may have written the text.
fn read(result: &str) -> Option<CallResult> {
    serde_json::from_str(result).ok()
}

/// Releases the claim only if nothing took effect. A `once` call that may have taken effect is always reported as done
/// or unknown (invariants 7 and 21).
fn end_by(result: &CallResult) -> EffectEnd {
    match result.outcome.happened() {
        EffectHappened::Yes => EffectEnd::Ended(kept(result)),
        EffectHappened::Perhaps => EffectEnd::Unknown(kept(result)),
        EffectHappened::IfRun if result.attempts > 0 => EffectEnd::Ended(kept(result)),
        // For example, a declined payment may be made again later.
        EffectHappened::IfRun | EffectHappened::No => EffectEnd::Undone,
    }
}

fn kept(result: &CallResult) -> String {
    let output = result.output.clone().filter(|output| output.get().len() <= KEPT_BYTES_MAX);
    result_json(&CallResult { tool_call_id: None, output, ..result.clone() })
}

/// Replaces an output that was too large to keep, or was dropped because memory was short.
fn omitted_output(success: bool) -> Option<Box<RawValue>> {
    let text = r#""It was carried out. Its result was not kept for equal calls.""#;
    RawValue::from_string(text.to_owned()).ok().filter(|_| success)
}
