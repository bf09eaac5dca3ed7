//! One attempt of a call that has passed every guard. The tool's effect decides the outcome of a failed attempt.

use std::any::Any;
use std::borrow::Cow;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_model::{CallError, CallId, CallResult, Effect, Outcome, limits};
use tickfleet_protocol::bounded_content;
use tickfleet_protocol::json::repaired;

use crate::calls::messages::{self, CallEnding};
use crate::tools::{Awaited, CallContext, RegisteredTool, ToolFailure, ToolOutput, wording};

pub(crate) enum HandlerEnd {
    Returned(Result<Result<ToolOutput, ToolFailure>, Box<dyn Any + Send>>),
    /// The output does not match the tool's output schema.
    Unfit(String),
    TimedOut,
    Cancelled,
    MustStop,
}

pub(crate) enum HandlerOutcome {
    Output(ToolOutput),
    Failed(CallEnding),
    /// The call failed, and a retry is harmless.
    Retry {
        /// Shown to the model if the call is not retried.
        message: String,
        /// The minimum wait that the service asked for.
        after: Option<Duration>,
        /// `timeout` or `transient`, for metrics.
        reason: &'static str,
    },
    /// The call has begun work that continues elsewhere. The handler runs again when that work has ended.
    Waits {
        awaits: Awaited,
        /// After this time, the handler runs again even if that work has not ended.
        at_most: Duration,
    },
    /// The turn was canceled, and the call had no lasting effect.
    Stopped,
    Requeue,
}

pub(crate) async fn run(
    tool: &RegisteredTool,
    context: &CallContext,
    arguments: &RawValue,
    limit: Duration,
    cancelled: impl Future<Output = ()>,
    must_stop: impl Future<Output = ()>,
) -> HandlerEnd {
    let running = AssertUnwindSafe(tool.handler.call(context, arguments)).catch_unwind();
    let ran = tokio::select! {
        biased;
        ran = running => HandlerEnd::Returned(ran),
        () = tokio::time::sleep(limit) => HandlerEnd::TimedOut,
        () = cancelled => HandlerEnd::Cancelled,
        () = must_stop => HandlerEnd::MustStop,
    };
    context.cancel.cancel();
    match ran {
        HandlerEnd::Returned(Ok(Ok(output))) => checked(tool, output, true).await,
        other => other,
    }
}

/// Does not check an output that was cut (`is_whole` is false).
pub(crate) async fn checked(tool: &RegisteredTool, mut output: ToolOutput, is_whole: bool) -> HandlerEnd {
    make_readable(&mut output);
    if is_whole && let Err(unfit) = tool.check_output(&output).await {
        let problems: Vec<&str> = unfit.problems.iter().map(|problem| problem.message.as_str()).collect();
        return HandlerEnd::Unfit(problems.join("; "));
    }
    HandlerEnd::Returned(Ok(Ok(output)))
}

/// Makes the output valid for every JSON parser. Otherwise, a client could treat a successful call as failed.
fn make_readable(output: &mut ToolOutput) {
    let text = output.json.get();
    let json = match repaired(text, limits::JSON_DEPTH_MAX) {
        Some(Cow::Borrowed(_)) => return,
        Some(Cow::Owned(json)) => RawValue::from_string(json),
        None => to_raw_value(text),
    };
    // Both texts are valid JSON, so the conversion does not fail.
    if let Ok(json) = json {
        output.json = json;
    }
}

pub(crate) fn classify(
    ran: HandlerEnd,
    tool: &RegisteredTool,
    call: &CallId,
    name: &str,
    limit: Duration,
) -> HandlerOutcome {
    let once = tool.spec.effect == Effect::Once;
    let failed_for_good = |outcome, error| HandlerOutcome::Failed(CallEnding { outcome, error });
    let unknown = |what: &str| failed_for_good(Outcome::OutcomeUnknown, messages::outcome_unknown(name, what));
    match ran {
        HandlerEnd::Returned(Ok(Ok(output))) => HandlerOutcome::Output(output),
        HandlerEnd::Returned(Ok(Err(failure))) => failed(failure, once, call, name),
        HandlerEnd::Returned(Err(_)) => {
            tracing::error!(%call, tool = name, "handler panicked");
            if once {
                unknown("The tool crashed while it ran.")
            } else {
                failed_for_good(Outcome::Internal, messages::internal())
            }
        }
        HandlerEnd::Unfit(problem) => {
            tracing::error!(%call, tool = name, problem, "tool output does not match its output schema");
            failed_for_good(Outcome::Internal, messages::unfit_output(name, &problem, once))
        }
        HandlerEnd::TimedOut if once => unknown(&messages::timed_out(name, limit)),
        HandlerEnd::TimedOut => {
            HandlerOutcome::Retry { message: messages::timed_out(name, limit), after: None, reason: "timeout" }
        }
        HandlerEnd::Cancelled if once => unknown("The turn was canceled while the call ran."),
        HandlerEnd::Cancelled => HandlerOutcome::Stopped,
        HandlerEnd::MustStop if once => unknown("The worker had to stop while the call ran."),
        HandlerEnd::MustStop => HandlerOutcome::Requeue,
    }
}

fn failed(failure: ToolFailure, once: bool, call: &CallId, name: &str) -> HandlerOutcome {
    let (outcome, error) = match failure {
        ToolFailure::InvalidArguments { message } => {
            (Outcome::InvalidArguments, messages::invalid_arguments(name, &message))
        }
        ToolFailure::Ended { outcome, message, details } => {
            let mut error = messages::error(outcome, message);
            error.details = details;
            (outcome, error)
        }
        ToolFailure::NotConfigured { message } => {
            let mut error = messages::error(Outcome::Permanent, message);
            error.code = "not_configured".into();
            (Outcome::Permanent, error)
        }
        ToolFailure::Internal { message } => {
            let reason = wording::cut(&message, limits::ERROR_BYTES_MAX);
            tracing::error!(%call, tool = name, reason, "tool panicked");
            if once {
                // After a panic, it is unknown how much of its work the handler has done.
                (Outcome::OutcomeUnknown, messages::outcome_unknown(name, "The tool failed by a bug while it ran."))
            } else {
                (Outcome::Internal, messages::internal())
            }
        }
        // The repeated call would run the `once` tool twice.
        ToolFailure::Waits { .. } if once => {
            tracing::error!(%call, tool = name, "once tool asked for a retry; not retried");
            (Outcome::OutcomeUnknown, messages::outcome_unknown(name, "The tool failed by a bug while it ran."))
        }
        ToolFailure::Waits { awaits, at_most } => return HandlerOutcome::Waits { awaits, at_most },
        // Invariant 7: a `once` tool is retried only if the failed attempt certainly had no effect.
        ToolFailure::Transient { message, not_executed: false, .. } if once => {
            (Outcome::OutcomeUnknown, messages::outcome_unknown(name, &message))
        }
        ToolFailure::Transient { message, retry_after, .. } => {
            return HandlerOutcome::Retry { message, after: retry_after, reason: "transient" };
        }
    };
    HandlerOutcome::Failed(CallEnding { outcome, error })
}

pub(crate) fn succeeded(
    output: ToolOutput,
    bytes_max: usize,
    result: impl FnOnce(Outcome, CallError) -> CallResult,
) -> CallResult {
    let none = CallError { code: String::new(), message: String::new(), details: None };
    CallResult {
        success: true,
        output: Some(bounded_content(output.json, output.content_type, bytes_max)),
        error: None,
        content_type: output.content_type.into(),
        ..result(Outcome::Ok, none)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_output_is_normalized_to_portable_json() {
        let deep = format!("{}1{}", "[".repeat(70), "]".repeat(70));
        for (returned, passed_on) in [
            (r#"{"paid":true,"memo":"caf\ud83d"}"#, r#"{"paid":true,"memo":"caf\ufffd"}"#),
            (r#"{"total":1e400,"n":1180591620717411303424}"#, r#"{"total":1e400,"n":1180591620717411303424}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (deep.as_str(), format!("{deep:?}").as_str()),
        ] {
            let json = RawValue::from_string(returned.to_owned()).unwrap();
            let mut output = ToolOutput { json, content_type: "application/json" };
            make_readable(&mut output);
            assert_eq!(output.json.get(), passed_on);
        }
    }

    #[test]
    fn a_tool_failure_sets_the_outcome_of_its_call() {
        let turn = tickfleet_model::TurnId::new("t").unwrap();
        let call = CallId { turn, position: 0 };
        let failure = ToolFailure::Ended { outcome: Outcome::Denied, message: "no".into(), details: None };
        let HandlerOutcome::Failed(ending) = failed(failure, true, &call, "pay") else { panic!("another end") };
        assert_eq!((ending.outcome, &*ending.error.code), (Outcome::Denied, "denied"));
    }
}
