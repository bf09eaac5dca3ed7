//! Calls of local tools: the worker offers the call to the caller's process, and another worker may end the call.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_core::turn::{LocalCall, Offer, OfferResult, RequeueReason};
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_engine::time::rfc3339;
use tickfleet_model::outcome::CallApproval;
use tickfleet_model::policy::ShadowDenial;
use tickfleet_model::{CallResult, Conclusion, Effect, FailureKind, Outcome, idempotency_key};
use tickfleet_store::seam::RunError;

use crate::calls::attempt::{self, HandlerEnd};
use crate::calls::call_attempt::{AttemptOutcome, CallAttempt, LocalOffer};
use crate::calls::guards::BegunCall;
use crate::calls::messages;
use crate::calls::reconcile_progress::own_attempt;
use crate::calls::state::Calls;
use crate::calls::turn::{Pipeline, SliceRun};
use crate::tools::{RegisteredTool, ToolFailure, ToolOutput, Toolbox};

/// The worker that begins the call leaves this note for the worker that ends the call.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LocalNote {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<CallApproval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    facts_evaluated_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shadow: Vec<ShadowDenial>,
    /// Only for a tool that declares a lookup of unknown outcomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<Box<RawValue>>,
}

impl Calls {
    pub(super) fn refused_local(&self, attempt: &CallAttempt<'_>) -> AttemptOutcome {
        let tool = &attempt.call.tool;
        let message = format!(
            "The tool {tool:?} runs in the process of its caller, and this caller does not run it. Nothing was executed."
        );
        let mut error = messages::error(Outcome::Permanent, message);
        error.details = Some(json!({ "reason": "not_local" }));
        attempt.refused(Outcome::Permanent, error)
    }

    pub(super) async fn offered(
        &self,
        attempt: &CallAttempt<'_>,
        begun: &BegunCall,
        lease: Duration,
    ) -> AttemptOutcome {
        if !self.still_leased(attempt).await {
            return attempt.unsent();
        }
        let name = &attempt.slice.name;
        let head = attempt.head();
        let tool = &begun.passed.tool;
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let message = json!({
            "turn_id": name.turn.as_str(),
            "call": attempt.id.to_string(),
            "agent": head.agent.as_str(),
            "tool": tool.spec.name,
            "arguments": begun.passed.arguments,
            "idempotency_key": idempotency_key(&name.tenant, &attempt.id.turn, &head.digest, attempt.id.position),
            "attempt": attempt.number,
            "lease_ms": lease_ms,
            "deadline": rfc3339(head.deadline_ms),
        });
        let note = LocalNote {
            approval: begun.approved.clone(),
            facts_evaluated_ms: begun.facts_evaluated_ms,
            shadow: begun.passed.shadow.clone(),
            arguments: tool.spec.reconcile.is_some().then(|| begun.passed.arguments.clone()),
        };
        let note = serde_json::to_string(&note).unwrap_or_default();
        AttemptOutcome::Offer(Box::new(LocalOffer { message: message.to_string(), note, lease_ms }))
    }

    /// `None` until the call's function has ended or the caller's process was lost. Evaluates no guard again, because
    /// the call may have taken effect.
    pub(super) async fn concluded(&self, attempt: &CallAttempt<'_>) -> Option<AttemptOutcome> {
        let turn = &attempt.slice.turn;
        let (local, conclusion) = turn.concluded().filter(|_| attempt.id.position == turn.position)?;
        let note: LocalNote = serde_json::from_str(&local.note).unwrap_or_default();
        let tool = tool_of(attempt);
        let outcome = self.end_of_local(attempt, tool.as_deref(), local, conclusion).await;
        let outcome = match &tool {
            Some(tool) if tool.spec.effect == Effect::Once => {
                let head = attempt.head();
                let grant = head.task.as_ref().map(|(_, grant)| grant);
                let active = Arc::clone(&attempt.config.active);
                let registry = Arc::clone(&attempt.config.registry);
                let tools = Toolbox::new(active, registry, head.allowed_tools.as_ref(), grant);
                let own = serde_json::from_str::<&RawValue>(&attempt.call.arguments).ok();
                match note.arguments.as_deref().or(own) {
                    Some(arguments) => self.reconciled(attempt, tool, tools, arguments, outcome).await,
                    None => outcome,
                }
            }
            _ => outcome,
        };
        let outcome = note.annotate(outcome);
        let streak = self.loops.check_of(attempt);
        self.read_streak(attempt, streak.as_ref()).await;
        self.loops.count_end(streak, attempt, &outcome);
        Some(outcome)
    }

    async fn end_of_local(
        &self,
        attempt: &CallAttempt<'_>,
        tool: Option<&RegisteredTool>,
        local: &LocalCall,
        conclusion: &Conclusion,
    ) -> AttemptOutcome {
        let (name, own) = (&attempt.call.tool, own_attempt(attempt.number));
        let Some(tool) = tool else {
            let what = "The tool is no longer configured, and its call ran in the process of its caller.";
            let error = messages::outcome_unknown(name, what);
            return ran(attempt.refused(Outcome::OutcomeUnknown, error), local, own);
        };
        let once = tool.spec.effect == Effect::Once;
        let transient = |message: &str, not_executed| ToolFailure::Transient {
            message: message.to_owned(),
            retry_after: None,
            not_executed,
        };
        let ended = match conclusion {
            Conclusion::Output { json, is_cut } => {
                let json = RawValue::from_string(json.clone()).unwrap_or_default();
                let output = ToolOutput { json, content_type: "application/json" };
                attempt::checked(tool, output, !is_cut).await
            }
            Conclusion::Lost => {
                failed(transient("The process that ran the call sent no heartbeat for a lease.", false))
            }
            Conclusion::Failed { code, message, kind } => failed(match kind {
                FailureKind::Permanent => ToolFailure::permanent(message.clone(), Some(json!({ "code": code }))),
                FailureKind::Transient => transient(message, false),
                FailureKind::NotExecuted => transient(message, true),
                FailureKind::Unknown if once => transient(message, false),
                FailureKind::Unknown => ToolFailure::Internal { message: message.clone() },
            }),
        };
        let outcome = attempt::classify(ended, tool, &attempt.id, name, Duration::ZERO);
        let outcome = ran(self.outcome_of(attempt, outcome, None), local, own);
        if let AttemptOutcome::Ended(result, _) = &outcome
            && (result.outcome != Outcome::OutcomeUnknown || tool.spec.reconcile.is_none())
        {
            self.metrics.call_ended(attempt.tool_name(), result.outcome, Some(took(local)));
        }
        outcome
    }
}

impl LocalNote {
    fn annotate(self, outcome: AttemptOutcome) -> AttemptOutcome {
        let Self { approval, facts_evaluated_ms, shadow, .. } = self;
        match outcome {
            AttemptOutcome::Ended(result, _) => {
                AttemptOutcome::Ended(Box::new(CallResult { approval, facts_evaluated_ms, ..*result }), shadow)
            }
            AttemptOutcome::Reconcile(wait, why, attempt, unknown) => {
                let unknown = CallResult { approval, facts_evaluated_ms, ..*unknown };
                AttemptOutcome::Reconcile(wait, why, attempt, Box::new(unknown))
            }
            other => other,
        }
    }
}

const fn failed(failure: ToolFailure) -> HandlerEnd {
    HandlerEnd::Returned(Ok(Err(failure)))
}

fn took(local: &LocalCall) -> Duration {
    Duration::from_millis(local.took_ms.max(0).unsigned_abs())
}

fn ran(outcome: AttemptOutcome, local: &LocalCall, attempts: u32) -> AttemptOutcome {
    let duration_ms = local.took_ms.max(0).unsigned_abs();
    match outcome {
        AttemptOutcome::Ended(result, shadow) => {
            AttemptOutcome::Ended(Box::new(CallResult { local: true, duration_ms, attempts, ..*result }), shadow)
        }
        other => other,
    }
}

fn tool_of(attempt: &CallAttempt<'_>) -> Option<Arc<RegisteredTool>> {
    let registry = &attempt.config.registry;
    let named = registry.resolve(&attempt.call.tool)?;
    let selectors = attempt.config.active.policy.agents.get(&attempt.head().agent).map(|agent| &agent.tool_versions);
    registry.select(named, selectors.and_then(|all| all.get(&named.spec.name)).map(String::as_str)).cloned()
}

impl Pipeline {
    pub(super) async fn offer(&self, run: SliceRun, offer: LocalOffer, attempt: u32, had_parallel_reads: bool) {
        let Some(run) = self.commit_and_release(run).await else { return };
        let had_parallel_reads = had_parallel_reads || self.journal.epoch() != run.lease.epoch;
        let LocalOffer { message, note, lease_ms } = &offer;
        let decided = retry_until(&self.now, || async {
            let offer = Offer { slice: &run.slice, note, message, lease_ms: *lease_ms, had_parallel_reads };
            match self.store.decide(offer).await {
                Ok(receipt) => Attempt::Done(Some(receipt.result)),
                Err(RunError::Unreadable { key, why }) => {
                    tracing::error!(turn = %run.slice.name, %key, %why, "failed to offer a local call");
                    Attempt::Done(None)
                }
                Err(_) => Attempt::Failed,
            }
        });
        match decided.await.flatten() {
            Some(OfferResult::Offered) => {}
            Some(OfferResult::Canceled) => self.cancel_remaining(run, attempt.saturating_sub(1), false).await,
            Some(OfferResult::Stale) => self.metrics.fenced("offer"),
            // It is unknown whether the call was offered. If it was, the store ignores the returned slice.
            None => self.return_slice(run, RequeueReason::Unsent { nonce: None }).await,
        }
    }
}
