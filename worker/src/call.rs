//! START HERE (2): one call, end to end. Known tool → permission → arguments → approval → begin → execute → classify.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::value::RawValue;
use shared::formats::{cut_output, text, without_nulls};
use shared::model::retry::Verdict;
use shared::model::{Call, CallError, CallId, CallResult, Dialect, Effect, Outcome, idempotency_key, limits};
use shared::ops::traces;
use shared::store::{Begin, Begun, EndReason, SliceEntry};
use tokio::time::Instant;
use tracing::Span;

use crate::kit::Kit;
use crate::tools::{CallContext, RegisteredTool, ToolFailure, ToolOutput, Toolbox, Unusable};
use crate::{Lease, Worker, say};

/// What became of one try of a call.
pub(crate) enum Carried {
    /// It has its result.
    Ended(Box<CallResult>),
    /// It is tried again after this wait.
    Again(Duration),
    /// The worker must stop, or its lease is over; nothing took effect, so another may run it.
    HandBack,
    /// Somebody else holds the turn, or we can no longer be sure that nobody does.
    Lost,
}

/// One call on its way.
pub(crate) struct Trying<'a> {
    pub(crate) slice: &'a SliceEntry,
    pub(crate) call: &'a Call,
    pub(crate) id: CallId,
    /// Which try this is, from 1.
    pub(crate) attempt: u32,
    pub(crate) context: Arc<shared::model::Context>,
    pub(crate) lease: &'a Lease,
    /// What it is judged and carried out by.
    pub(crate) kit: &'a Kit,
}

impl Carried {
    /// What a span says became of the try.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Ended(result) => result.outcome.as_str(),
            Self::Again(_) => "again",
            Self::HandBack => "hand_back",
            Self::Lost => "lost",
        }
    }
}

impl Trying<'_> {
    /// The span of this try.
    pub(crate) fn span(&self) -> Span {
        tracing::debug_span!(
            target: traces::TARGET, "call", call = %self.id, tool = self.call.tool, attempt = self.attempt,
            outcome = tracing::field::Empty,
        )
    }

    fn result(&self, outcome: Outcome, error: CallError) -> CallResult {
        CallResult::refused(&self.id, self.call.provider_id.clone(), &self.call.tool, outcome, error)
    }

    fn refused(&self, outcome: Outcome, error: CallError) -> Carried {
        Carried::Ended(Box::new(self.result(outcome, error)))
    }

    /// A call without lasting effect that was cancelled while it ran.
    fn stopped(&self) -> Carried {
        let message = "The turn was cancelled while this call ran; its result was dropped.";
        self.refused(Outcome::Cancelled, say::error(Outcome::Cancelled, message))
    }

    /// A call that ended without running, for one of the reasons that schedulers know too.
    pub(crate) fn ended(&self, reason: EndReason) -> Carried {
        let (outcome, error) = shared::report::ended(reason, self.slice.meta.deadline_ms);
        self.refused(outcome, error)
    }
}

impl Worker {
    /// Carries out one try of one call.
    pub(crate) async fn carry_out(&self, trying: &Trying<'_>) -> Carried {
        if self.now.is_cancelled() {
            return Carried::HandBack;
        }
        if let Some(over) = self.over(trying).await {
            return over;
        }
        if let Some(problem) = unreadable(trying) {
            return trying.refused(Outcome::InvalidArguments, say::error(Outcome::InvalidArguments, problem));
        }
        let meta = &trying.slice.meta;
        let grant = meta.task.as_ref().map(|(_, grant)| grant);
        let (force, registry) = (Arc::clone(&trying.kit.force), Arc::clone(&trying.kit.registry));
        let tools = Toolbox::new(force, registry, meta.allowed_tools.as_ref(), grant);
        let tool = match self.permitted(trying, &tools) {
            Ok(tool) => tool,
            Err((outcome, error)) => return trying.refused(outcome, error),
        };
        let text = if meta.strict {
            without_nulls(&tool.spec.input_schema, &trying.call.arguments)
        } else {
            Cow::Borrowed(trying.call.arguments.as_str())
        };
        let arguments = match tool.arguments.check_in_time(&text).await {
            Ok(arguments) => arguments,
            Err(error) => {
                let told = CallError {
                    details: Some(error.details()),
                    ..say::error(Outcome::InvalidArguments, error.message(&trying.call.tool))
                };
                return trying.refused(Outcome::InvalidArguments, told);
            }
        };
        if tool.spec.requires_approval {
            let message = "This tool needs a person's approval, and this fleet has no way to ask for one.";
            return trying.refused(Outcome::ApprovalRefused, say::error(Outcome::ApprovalRefused, message));
        }
        if tool.spec.effect == Effect::Once {
            // Begun and then handed back, a call could only be reported as unknown: look before it is begun, too.
            if !self.still_leased(trying).await {
                return Carried::HandBack;
            }
            if let Some(stopped) = self.begin(trying).await {
                return stopped;
            }
        }
        self.execute(trying, &tool, tools, &arguments).await
    }

    /// Whether the slice may go on. Where the lease that it came under is over, it is handed back: nothing died, so no
    /// crash should count against it.
    async fn still_leased(&self, trying: &Trying<'_>) -> bool {
        let sure = self.pulse.is_sure(trying.lease.term).await;
        if !sure {
            self.metrics.fenced("execute");
            tracing::warn!(call = %trying.id, "the lease is over; handing the slice back");
        }
        sure
    }

    /// How a call ends whose turn was cancelled or has expired. Where a holder of the slice has died, it may have begun
    /// the call: then what it did cannot be known, whatever has happened since, and only `begin` can tell.
    async fn over(&self, trying: &Trying<'_>) -> Option<Carried> {
        let reason = if trying.lease.cancel.is_cancelled() {
            EndReason::Cancelled
        } else if self.clock.now_ms() >= trying.slice.meta.deadline_ms {
            EndReason::Expired
        } else {
            return None;
        };
        if trying.slice.crashes > 0
            && let Some(stopped) = self.begin(trying).await
        {
            return Some(stopped);
        }
        Some(trying.ended(reason))
    }

    /// The tool, if it is known and the agent may call it. A task's work is its agent's handler.
    fn permitted(&self, trying: &Trying<'_>, tools: &Toolbox) -> Result<Arc<RegisteredTool>, (Outcome, CallError)> {
        let meta = &trying.slice.meta;
        if meta.is_task {
            let handler = trying.kit.task_handlers.get(&meta.agent).cloned();
            return handler.ok_or_else(|| {
                let message = format!("Agent {:?} has no task handler on this fleet any more.", meta.agent.as_str());
                (Outcome::Permanent, say::error(Outcome::Permanent, message))
            });
        }
        let (tenant, name) = (&trying.slice.name.tenant, trying.call.tool.as_str());
        let unusable = match tools.find(tenant, &meta.agent, name) {
            Ok(tool) => return Ok(Arc::clone(tool)),
            Err(unusable) => unusable,
        };
        let may = tools.may_call(tenant, &meta.agent);
        let allowed: Vec<&str> = may.iter().map(|tool| tool.spec.name.as_str()).collect();
        Err(match unusable {
            Unusable::NoAgent => {
                let message = format!("Agent {:?} is no longer configured.", meta.agent.as_str());
                (Outcome::Denied, say::error(Outcome::Denied, message))
            }
            Unusable::NoTool => {
                let close = tools.close_to(name, &allowed);
                (Outcome::UnknownTool, say::unknown_tool(name, &close, &allowed))
            }
            Unusable::Denied(denial, rule) => (Outcome::Denied, say::denied(name, &denial, &rule, &allowed)),
        })
    }

    /// Records the intent of a call whose effect must not happen twice. Answers how the call ends instead, if it does.
    async fn begin(&self, trying: &Trying<'_>) -> Option<Carried> {
        let nonce = format!("{}.{}", trying.slice.fence, self.pulse.sending());
        loop {
            let begin = Begin {
                name: trying.slice.name.clone(),
                fence: trying.slice.fence.clone(),
                position: trying.id.position,
                nonce: Some(nonce.clone()),
            };
            match self.begins.ask(begin).await {
                Some(Begun::Ok) => return None,
                Some(Begun::Unknown) => {
                    let what = "The worker that ran this call was lost while it ran.";
                    return Some(
                        trying.refused(Outcome::OutcomeUnknown, say::outcome_unknown(&trying.call.tool, what)),
                    );
                }
                Some(Begun::Cancelled) => return Some(trying.ended(EndReason::Cancelled)),
                Some(Begun::Expired) => return Some(trying.ended(EndReason::Expired)),
                Some(Begun::Hold) => {
                    // Redis restarted; what it lost may include another's begin of this very call.
                    tokio::select! {
                        () = self.now.cancelled() => return Some(Carried::HandBack),
                        () = tokio::time::sleep(Duration::from_millis(500)) => {}
                    }
                }
                Some(Begun::Stale | Begun::Done) | None => {
                    self.metrics.fenced("begin");
                    return Some(Carried::Lost);
                }
            }
        }
    }

    async fn execute(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        tools: Toolbox,
        arguments: &RawValue,
    ) -> Carried {
        // Rule 7: nothing is sent on a heartbeat that may be too old.
        if !self.still_leased(trying).await {
            return Carried::HandBack;
        }
        let meta = &trying.slice.meta;
        let left = self.clock.until(meta.deadline_ms);
        let limit = tool.spec.timeout.min(left);
        let stop = trying.lease.cancel.child_token();
        let context = CallContext {
            tenant: trying.slice.name.tenant.clone(),
            agent: meta.agent.clone(),
            call: trying.id.clone(),
            idempotency_key: idempotency_key(
                &trying.slice.name.tenant,
                &trying.id.turn,
                &meta.digest,
                trying.id.position,
            ),
            deadline_ms: meta.deadline_ms,
            attempt: trying.attempt,
            context: trying.context.clone(),
            task: meta.task.clone(),
            tools,
            reply_to: meta.reply_to.clone(),
            cancel: stop.clone(),
        };
        let started = Instant::now();
        let running = AssertUnwindSafe(tool.handler.call(&context, arguments)).catch_unwind();
        let ran = tokio::select! {
            biased;
            ran = running => Ran::Returned(ran),
            () = tokio::time::sleep(limit) => Ran::TimedOut,
            () = trying.lease.cancel.cancelled() => Ran::Cancelled,
            () = self.now.cancelled() => Ran::MustStop,
        };
        stop.cancel();
        let took = started.elapsed();
        let carried = self.classify(trying, tool, ran, limit);
        match carried {
            Carried::Ended(mut result) => {
                result.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                result.attempts = trying.attempt;
                self.metrics.call_ended(&trying.call.tool, result.outcome, Some(took));
                Carried::Ended(result)
            }
            other => other,
        }
    }

    /// From what a handler did to the call's outcome, by the tool's effect.
    fn classify(&self, trying: &Trying<'_>, tool: &RegisteredTool, ran: Ran, limit: Duration) -> Carried {
        let once = tool.spec.effect == Effect::Once;
        let name = trying.call.tool.as_str();
        let unknown = |what: &str| trying.refused(Outcome::OutcomeUnknown, say::outcome_unknown(name, what));
        match ran {
            Ran::Returned(Ok(Ok(output))) => Carried::Ended(Box::new(succeeded(trying, output))),
            Ran::Returned(Ok(Err(failure))) => self.failed(trying, once, failure),
            Ran::Returned(Err(_)) => {
                tracing::error!(call = %trying.id, tool = name, "a handler panicked");
                if once {
                    unknown("The tool crashed while it ran.")
                } else {
                    trying.refused(Outcome::Internal, say::internal())
                }
            }
            Ran::TimedOut if once => unknown(&say::timed_out(name, limit)),
            Ran::TimedOut => self.try_again(trying, &say::timed_out(name, limit), None, "timeout"),
            Ran::Cancelled if once => unknown("The turn was cancelled while the call ran."),
            Ran::Cancelled => trying.stopped(),
            Ran::MustStop if once => unknown("The worker had to stop while the call ran."),
            Ran::MustStop => Carried::HandBack,
        }
    }

    fn failed(&self, trying: &Trying<'_>, once: bool, failure: ToolFailure) -> Carried {
        match failure {
            ToolFailure::Permanent { message, details } => {
                trying.refused(Outcome::Permanent, CallError { details, ..say::error(Outcome::Permanent, message) })
            }
            ToolFailure::NotConfigured { message } => {
                let error = CallError { code: "not_configured".into(), ..say::error(Outcome::Permanent, message) };
                trying.refused(Outcome::Permanent, error)
            }
            ToolFailure::Internal { message } => {
                tracing::error!(call = %trying.id, tool = trying.call.tool, reason = message, "a tool failed by a bug");
                trying.refused(Outcome::Internal, say::internal())
            }
            // Rule 7: a `once` tool is tried again only where it is certain that nothing took effect.
            ToolFailure::Transient { message, not_executed: false, .. } if once => {
                trying.refused(Outcome::OutcomeUnknown, say::outcome_unknown(&trying.call.tool, &message))
            }
            // The handler heard of the cancel before we looked.
            ToolFailure::Transient { .. } if trying.lease.cancel.is_cancelled() => trying.stopped(),
            ToolFailure::Transient { message, retry_after, .. } => {
                self.try_again(trying, &message, retry_after, "transient")
            }
        }
    }

    fn try_again(&self, trying: &Trying<'_>, message: &str, after: Option<Duration>, reason: &'static str) -> Carried {
        let left = self.clock.until(trying.slice.meta.deadline_ms);
        match self.options.ladder.verdict(trying.attempt, after, left) {
            Verdict::RetryAfter(wait) => {
                self.metrics.retried(reason);
                Carried::Again(wait)
            }
            Verdict::GiveUp(_) => trying.refused(Outcome::Transient, say::gave_up(message, trying.attempt)),
        }
    }
}

/// What is wrong with a call of a plain answer that cannot be read.
fn unreadable(trying: &Trying<'_>) -> Option<String> {
    let meta = &trying.slice.meta;
    (meta.dialect == Dialect::Text && !meta.is_task).then(|| text::problem(trying.call)).flatten()
}

/// How a handler came to its end.
enum Ran {
    Returned(Result<Result<ToolOutput, ToolFailure>, Box<dyn std::any::Any + Send>>),
    TimedOut,
    Cancelled,
    MustStop,
}

fn succeeded(trying: &Trying<'_>, output: ToolOutput) -> CallResult {
    let json = if output.json.get().len() > limits::OUTPUT_BYTES_MAX {
        let cut = cut_output(output.json.get(), limits::OUTPUT_BYTES_MAX).into_owned();
        RawValue::from_string(cut).unwrap_or(output.json)
    } else {
        output.json
    };
    CallResult {
        success: true,
        outcome: Outcome::Ok,
        output: Some(json),
        error: None,
        content_type: output.content_type.into(),
        ..trying.result(Outcome::Ok, CallError { code: String::new(), message: String::new(), details: None })
    }
}
