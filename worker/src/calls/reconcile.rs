//! Reconciliation: if the outcome of a `once` call is unknown, a lookup tool finds out whether the call took effect.
//! The call stays begun meanwhile, so no worker runs it again.

use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_model::tool::{Reconcile, ReconcileVerdict};
use tickfleet_model::{CallError, CallResult, Effect, Outcome, idempotency_key};
use tickfleet_protocol::bounded_output;

use crate::calls::attempt::{self, HandlerOutcome};
use crate::calls::call_attempt::{AttemptOutcome, CallAttempt};
use crate::calls::messages;
use crate::calls::reconcile_progress::ReconcileProgress;
use crate::calls::state::Calls;
use crate::tools::inner::Inner;
use crate::tools::{RegisteredTool, Toolbox};

/// Each later wait is three times the previous wait, at most [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Calls {
    /// If the tool has a lookup tool, the lookup decides about an unknown outcome. An inconclusive lookup is repeated
    /// later.
    pub(super) async fn reconciled(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        tools: Toolbox,
        arguments: &RawValue,
        outcome: AttemptOutcome,
    ) -> AttemptOutcome {
        let Some(by) = &tool.spec.reconcile else { return outcome };
        let AttemptOutcome::Ended(unknown, shadow) = outcome else { return outcome };
        if unknown.outcome != Outcome::OutcomeUnknown || attempt.lease.cancel.is_cancelled() {
            return AttemptOutcome::Ended(unknown, shadow);
        }
        // If this worker must stop, another worker does the lookup.
        if self.now.is_cancelled() {
            let parked = ReconcileProgress::decode(attempt.number).encode();
            return AttemptOutcome::Reconcile(Duration::ZERO, "the worker had to stop".into(), parked, unknown);
        }
        let before = ReconcileProgress::decode(attempt.number);
        let now = ReconcileProgress { lookups: before.lookups.saturating_add(1), ..before };
        let ended = match self.call_lookup_tool(attempt, by, tools, arguments).await {
            ReconcileVerdict::Happened(output) => {
                self.metrics.reconciled(Some(true));
                happened(attempt, *unknown, output)
            }
            ReconcileVerdict::NotSoFar if now.is_grace_over => {
                self.metrics.reconciled(Some(false));
                not_happened(*unknown, by)
            }
            ReconcileVerdict::NotSoFar if self.has_time_for(attempt, grace(by)) => {
                let why = format!(
                    "{} found no trace of it so far; it is called again when no request can be in flight",
                    by.tool
                );
                let parked = ReconcileProgress { lookups: 0, is_grace_over: true, ..now }.encode();
                return AttemptOutcome::Reconcile(grace(by), why, parked, unknown);
            }
            ReconcileVerdict::Unknown if now.lookups < by.tries && self.has_time_for(attempt, wait(now.lookups)) => {
                let why = format!("{} cannot tell whether it took effect", by.tool);
                return AttemptOutcome::Reconcile(wait(now.lookups), why, now.encode(), unknown);
            }
            ReconcileVerdict::NotSoFar | ReconcileVerdict::Unknown => {
                self.metrics.reconciled(None);
                *unknown
            }
        };
        if ended.attempts > 0 {
            self.metrics.call_ended(attempt.tool_name(), ended.outcome, None);
        }
        AttemptOutcome::Ended(Box::new(ended), shadow)
    }

    fn has_time_for(&self, attempt: &CallAttempt<'_>, wait: Duration) -> bool {
        self.store.clock().until(attempt.head().deadline_ms) > wait
    }

    /// The lookup tool only reads, so any failure counts as an unknown verdict.
    async fn call_lookup_tool(
        &self,
        attempt: &CallAttempt<'_>,
        by: &Reconcile,
        tools: Toolbox,
        arguments: &RawValue,
    ) -> ReconcileVerdict {
        let Some(other) = attempt.config.registry.resolve(&by.tool).filter(|other| other.spec.effect == Effect::Read)
        else {
            tracing::error!(
                tool = attempt.call.tool,
                by = by.tool,
                "reconcile names no tool with effect read; nothing is reconciled"
            );
            return ReconcileVerdict::Unknown;
        };
        let name = &attempt.slice.name;
        let head = attempt.head();
        let key = idempotency_key(&name.tenant, &attempt.id.turn, &head.digest, attempt.id.position);
        let lookup = by.lookup_arguments(arguments, &key, &attempt.id.to_string());
        let lookup = match other.arguments.check_in_time(&lookup).await {
            Ok(lookup) => lookup,
            Err(error) => {
                let problem = error.message(&by.tool);
                tracing::error!(
                    tool = attempt.call.tool,
                    by = by.tool,
                    problem,
                    "invalid arguments for the `reconcile` tool"
                );
                return ReconcileVerdict::Unknown;
            }
        };
        let context = self.context(attempt, tools, Inner::default());
        let limit = other.spec.timeout.min(self.store.clock().until(head.deadline_ms));
        let cancelled = attempt.lease.cancel.cancelled();
        let must_stop = self.now.cancelled();
        let ran = attempt::run(other, &context, &lookup, limit, cancelled, must_stop).await;
        match attempt::classify(ran, other, &attempt.id, &by.tool, limit) {
            HandlerOutcome::Output(output) => by.verdict(&output.json),
            _ => ReconcileVerdict::Unknown,
        }
    }
}

fn grace(by: &Reconcile) -> Duration {
    Duration::from_millis(by.grace_ms.unsigned_abs())
}

fn wait(lookups: u32) -> Duration {
    FIRST_WAIT.saturating_mul(3_u32.saturating_pow(lookups.saturating_sub(1))).min(LONGEST_WAIT)
}

fn happened(attempt: &CallAttempt<'_>, unknown: CallResult, output: Box<RawValue>) -> CallResult {
    CallResult {
        success: true,
        outcome: Outcome::Ok,
        output: Some(bounded_output(output, attempt.output_bytes_max)),
        error: None,
        attempts: unknown.attempts.max(1),
        reconciled: true,
        ..unknown
    }
}

/// Only for a call that can no longer take effect: the agent may make the call again.
fn not_happened(unknown: CallResult, by: &Reconcile) -> CallResult {
    let message = format!(
        "This call was lost in transit and did not take effect: {:?} found no trace of it in two lookups, {} s apart. You may call it again.",
        by.tool,
        by.grace_ms / 1_000
    );
    let error = messages::error(Outcome::Transient, message);
    let error = CallError { details: Some(json!({ "reason": "did_not_happen" })), ..error };
    CallResult {
        outcome: Outcome::Transient,
        error: Some(error),
        attempts: unknown.attempts.max(1),
        reconciled: true,
        ..unknown
    }
}
