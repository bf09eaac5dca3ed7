//! One try of a call that has passed every guard: the handler runs under a limit, and what it did is judged by the
//! tool's effect.

use std::any::Any;
use std::borrow::Cow;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_model::{CallError, CallId, CallResult, Effect, Outcome, limits};
use tickfleet_protocol::bounded_output;
use tickfleet_protocol::json::repaired;

use crate::calls::messages::{self, CallEnding};
use crate::tools::{Awaited, CallContext, RegisteredTool, ToolFailure, ToolOutput, wording};

/// The way in which a handler came to its end.
pub(crate) enum Ran {
    Returned(Result<Result<ToolOutput, ToolFailure>, Box<dyn Any + Send>>),
    /// It returned something that is not what the tool promises; in words.
    Unfit(String),
    TimedOut,
    Cancelled,
    MustStop,
}

/// The outcome of a try, by the tool's effect.
pub(crate) enum Judged {
    /// It succeeded.
    Output(ToolOutput),
    /// It failed for good.
    Failed(CallEnding),
    /// It failed, and another try does no harm.
    Again {
        /// The message to the model if there is no other try.
        message: String,
        /// The far side's wish, a floor for the wait.
        after: Option<Duration>,
        /// `timeout` or `transient`, for metrics.
        reason: &'static str,
    },
    /// It has begun work that goes on elsewhere, and is called again when that has ended.
    Waits {
        /// What it waits for.
        awaits: Awaited,
        /// The time after which it is called again in any case.
        at_most: Duration,
    },
    /// The turn was cancelled, and the call had no lasting effect.
    Stopped,
    /// The worker must stop, and another may run the call.
    HandBack,
}

/// Runs the handler for `limit` at most, until one of the two futures resolves.
pub(crate) async fn run(
    tool: &RegisteredTool,
    context: &CallContext,
    arguments: &RawValue,
    limit: Duration,
    cancelled: impl Future<Output = ()>,
    must_stop: impl Future<Output = ()>,
) -> Ran {
    let running = AssertUnwindSafe(tool.handler.call(context, arguments)).catch_unwind();
    let mut ran = tokio::select! {
        biased;
        ran = running => Ran::Returned(ran),
        () = tokio::time::sleep(limit) => Ran::TimedOut,
        () = cancelled => Ran::Cancelled,
        () = must_stop => Ran::MustStop,
    };
    context.cancel.cancel();
    if let Ran::Returned(Ok(Ok(output))) = &mut ran {
        read_by_all(output);
    }
    if let Ran::Returned(Ok(Ok(output))) = &ran
        && let Err(unfit) = tool.check_output(output).await
    {
        let problems: Vec<&str> = unfit.problems.iter().map(|problem| problem.message.as_str()).collect();
        return Ran::Unfit(problems.join("; "));
    }
    ran
}

/// Makes an output one that every reader of replies can read, whatever the tool's service wrote: the call has succeeded,
/// and a reader's failure would be taken for its own. What cannot be made so is passed as text.
fn read_by_all(output: &mut ToolOutput) {
    let text = output.json.get();
    let json = match repaired(text, limits::JSON_DEPTH_MAX) {
        Some(Cow::Borrowed(_)) => return,
        Some(Cow::Owned(json)) => RawValue::from_string(json),
        None => to_raw_value(text),
    };
    // Both are JSON.
    if let Ok(json) = json {
        output.json = json;
    }
}

/// From what a handler did to what the call comes to, by the tool's effect. `name` is what the model called it.
pub(crate) fn judge(ran: Ran, tool: &RegisteredTool, call: &CallId, name: &str, limit: Duration) -> Judged {
    let once = tool.spec.effect == Effect::Once;
    let failed_for_good = |outcome, error| Judged::Failed(CallEnding { outcome, error });
    let unknown = |what: &str| failed_for_good(Outcome::OutcomeUnknown, messages::outcome_unknown(name, what));
    match ran {
        Ran::Returned(Ok(Ok(output))) => Judged::Output(output),
        Ran::Returned(Ok(Err(failure))) => failed(failure, once, call, name),
        Ran::Returned(Err(_)) => {
            tracing::error!(%call, tool = name, "handler panicked");
            if once {
                unknown("The tool crashed while it ran.")
            } else {
                failed_for_good(Outcome::Internal, messages::internal())
            }
        }
        Ran::Unfit(problem) => {
            tracing::error!(%call, tool = name, problem, "tool output does not match its output schema");
            failed_for_good(Outcome::Internal, messages::unfit_output(name, &problem, once))
        }
        Ran::TimedOut if once => unknown(&messages::timed_out(name, limit)),
        Ran::TimedOut => Judged::Again { message: messages::timed_out(name, limit), after: None, reason: "timeout" },
        Ran::Cancelled if once => unknown("The turn was cancelled while the call ran."),
        Ran::Cancelled => Judged::Stopped,
        Ran::MustStop if once => unknown("The worker had to stop while the call ran."),
        Ran::MustStop => Judged::HandBack,
    }
}

fn failed(failure: ToolFailure, once: bool, call: &CallId, name: &str) -> Judged {
    let (outcome, error) = match failure {
        ToolFailure::InvalidArguments { message } => {
            (Outcome::InvalidArguments, messages::invalid_arguments(name, &message))
        }
        ToolFailure::Permanent { message, details } => {
            let mut error = messages::error(Outcome::Permanent, message);
            error.details = details;
            (Outcome::Permanent, error)
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
                // Where in its work it failed, nobody knows.
                (Outcome::OutcomeUnknown, messages::outcome_unknown(name, "The tool failed by a bug while it ran."))
            } else {
                (Outcome::Internal, messages::internal())
            }
        }
        // It would be begun twice.
        ToolFailure::Waits { .. } if once => {
            tracing::error!(%call, tool = name, "once tool asked for a retry; not retried");
            (Outcome::OutcomeUnknown, messages::outcome_unknown(name, "The tool failed by a bug while it ran."))
        }
        ToolFailure::Waits { awaits, at_most } => return Judged::Waits { awaits, at_most },
        // Rule 7: a `once` tool is tried again only where it is certain that nothing took effect.
        ToolFailure::Transient { message, not_executed: false, .. } if once => {
            (Outcome::OutcomeUnknown, messages::outcome_unknown(name, &message))
        }
        ToolFailure::Transient { message, retry_after, .. } => {
            return Judged::Again { message, after: retry_after, reason: "transient" };
        }
    };
    Judged::Failed(CallEnding { outcome, error })
}

/// The result of a call that succeeded, made of what `result` makes of an outcome. A huge output is cut here, and here
/// alone: to its share of what the turn's `calls` may return together.
pub(crate) fn succeeded(
    output: ToolOutput,
    calls: usize,
    result: impl FnOnce(Outcome, CallError) -> CallResult,
) -> CallResult {
    let none = CallError { code: String::new(), message: String::new(), details: None };
    CallResult {
        success: true,
        output: Some(bounded_output(output.json, limits::output_bytes_max(calls))),
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
    fn an_output_is_one_that_every_reader_can_read() {
        let deep = format!("{}1{}", "[".repeat(70), "]".repeat(70));
        for (returned, passed_on) in [
            (r#"{"paid":true,"memo":"caf\ud83d"}"#, r#"{"paid":true,"memo":"caf\ufffd"}"#),
            (r#"{"total":1e400,"n":1180591620717411303424}"#, r#"{"total":1e400,"n":1180591620717411303424}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (deep.as_str(), format!("{deep:?}").as_str()),
        ] {
            let json = RawValue::from_string(returned.to_owned()).unwrap();
            let mut output = ToolOutput { json, content_type: "application/json" };
            read_by_all(&mut output);
            assert_eq!(output.json.get(), passed_on);
        }
    }
}
