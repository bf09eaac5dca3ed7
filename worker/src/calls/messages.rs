//! The messages to agents: short texts that a model can act on.

use std::time::Duration;

use tickfleet_model::policy::Denial;
use tickfleet_model::retry::NoRetryReason;
use tickfleet_model::{CallError, Durability, Outcome, limits};
use tickfleet_ops::metrics::{Metrics, RuleAction};
use tickfleet_rules::{DenialCause, RuleDenial};

use crate::tools::wording;

const NAMES_MAX: usize = 20;

#[derive(Debug)]
pub(crate) struct CallEnding {
    pub(crate) outcome: Outcome,
    pub(crate) error: CallError,
}

impl CallEnding {
    /// Boxed because the ending is large and most calls pass the guards.
    pub(crate) fn of(outcome: Outcome, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { outcome, error: error(outcome, message) })
    }
}

pub(crate) fn error(outcome: Outcome, message: impl Into<String>) -> CallError {
    CallError { code: outcome.as_str().into(), message: bounded(message.into()), details: None }
}

pub(crate) fn invalid_arguments(tool: &str, problem: &str) -> CallError {
    let tool = wording::cut(tool, limits::NAME_BYTES_MAX);
    let named = problem.contains(&tool);
    let message = if named { problem.to_owned() } else { format!("Invalid arguments for tool '{tool}': {problem}") };
    error(Outcome::InvalidArguments, message)
}

pub(crate) fn no_effect_key(tool: &str, pointer: &str) -> CallError {
    let problem = format!("the argument at '{pointer}' is required: it identifies repeated calls.");
    invalid_arguments(tool, &problem)
}

/// An equal call waits for this call. If this call also waited, neither call would end, so this call is denied.
pub(crate) fn equal_call_waits(tool: &str, call: &str) -> CallError {
    let details = Some(serde_json::json!({ "reason": "equal_call", "call": call }));
    let message = format!(
        "You may not call {tool:?} with these arguments: the same call {call} is running and waits for you to finish."
    );
    CallError { details, ..error(Outcome::Denied, message) }
}

/// To approve a call, a person must see all of its arguments.
pub(crate) fn too_long_for_approval(tool: &str, bytes: usize) -> CallError {
    let bytes_max = limits::APPROVAL_ARGUMENTS_BYTES_MAX;
    let problem = format!(
        "this call needs approval by a person, who is shown all arguments: at most {bytes_max} bytes are allowed, and \
         these have {bytes}. Shorten them, or make several calls. The call was not executed."
    );
    let details = serde_json::json!({ "bytes": bytes, "bytes_max": bytes_max });
    CallError { details: Some(details), ..invalid_arguments(tool, &problem) }
}

pub(crate) fn unknown_tool(name: &str, close: &[&str], allowed: &[&str]) -> CallError {
    let name: String = name.chars().take(80).collect();
    let mut message = format!("There is no tool called {name:?}.");
    if !close.is_empty() {
        message += &format!(" Did you mean {}?", close.join(" or "));
    }
    message += &may_call(allowed);
    with_allowed(error(Outcome::UnknownTool, message), allowed)
}

pub(crate) fn denied(name: &str, denial: &Denial, rule: &str, allowed: &[&str]) -> CallError {
    let why = match denial {
        Denial::Disabled => "it is disabled".to_owned(),
        Denial::DeniedByRule => "a rule forbids it".to_owned(),
        Denial::NotGranted => "it is not granted to you".to_owned(),
        Denial::MissingCapability(capability) => format!("it needs the capability {capability:?}"),
        Denial::NoVersion(selector) => format!("no version of it matches {selector:?}"),
        Denial::Narrowed => "this turn or task was narrowed to other tools".to_owned(),
        Denial::MissingFeature(feature) => format!("the plan lacks the feature {feature:?}"),
    };
    let mut error = with_allowed(
        error(Outcome::Denied, format!("You may not call {name:?}: {why}.{}", may_call(allowed))),
        allowed,
    );
    if let Some(serde_json::Value::Object(details)) = &mut error.details {
        details.insert("reason".into(), denial.reason().into());
        details.insert("rule".into(), rule.into());
    }
    error
}

pub(crate) fn unmet(name: &str, unmet: &RuleDenial) -> CallError {
    let advice = match unmet.why {
        DenialCause::NotMet => "",
        DenialCause::Undecided => " A call that a rule cannot evaluate is denied.",
    };
    let problem = unmet.message.trim_end_matches('.');
    let message = format!("You may not call {name:?} with these arguments: {problem}.{advice}");
    let details = serde_json::json!({ "reason": unmet.why.reason(), "rule": unmet.rule });
    CallError { details: Some(details), ..error(Outcome::Denied, message) }
}

/// Counts only errors of [`unmet`].
pub(crate) fn count_rule(error: &CallError, metrics: &Metrics) {
    let detail = |name: &str| error.details.as_ref()?.get(name)?.as_str();
    let Some(rule) = detail("rule") else { return };
    for (why, action) in [(DenialCause::NotMet, RuleAction::Deny), (DenialCause::Undecided, RuleAction::Undecided)] {
        if detail("reason") == Some(why.reason()) {
            metrics.rule_denied(rule, action);
        }
    }
}

/// `why` is the reason for not retrying. `after` is the wait that the service asked for.
pub(crate) fn retries_exhausted(
    message: &str,
    attempts: u32,
    why: Option<NoRetryReason>,
    after: Option<Duration>,
) -> CallError {
    let tries = if attempts == 1 { "1 try".to_owned() } else { format!("{attempts} tries") };
    let asked_s = after.unwrap_or_default().as_secs();
    let (why, advice) = match why {
        Some(NoRetryReason::RetryAfterTooLong) => (
            format!(
                " The requested wait before the next try is {asked_s} s; a call waits at most {} s.",
                limits::RETRY_AFTER_MS_MAX / 1_000
            ),
            "Try again after that time",
        ),
        Some(NoRetryReason::DeadlineFirst) => {
            (" The deadline comes before the next try.".to_owned(), "Try again later")
        }
        Some(NoRetryReason::TriesUsedUp) | None => (String::new(), "Try again later"),
    };
    let text = format!("{} (after {tries}).{why} {advice} or use another approach.", message.trim_end_matches('.'));
    let details = after.map(|_| serde_json::json!({ "retry_after_s": asked_s }));
    CallError { details, ..error(Outcome::Transient, text) }
}

pub(crate) const BREAKER_OPEN: &str = "breaker_open";

pub(crate) fn tool_unavailable(tool: &str, failures: u32, tries: u32) -> CallError {
    let before = match tries {
        0 => "This call was not sent".to_owned(),
        1 => "This call was tried once, and then not sent again".to_owned(),
        tries => format!("This call was tried {tries} times, and then not sent again"),
    };
    let text = format!(
        "{tool:?} failed {failures} times in a row, so calls to it are suspended for a while. {before}. Try again later or use another \
         approach."
    );
    CallError { details: Some(serde_json::json!({ "reason": BREAKER_OPEN })), ..error(Outcome::Transient, text) }
}

pub(crate) const NOT_DURABLE: &str = "not_durable";

pub(crate) fn not_durable(durability: Durability, within: Duration) -> String {
    let who = match durability {
        Durability::None => "Redis has not",
        Durability::Disk => "The disk of Redis' primary has not",
        Durability::Replica => "No replica of Redis has",
    };
    format!("{who} confirmed the start of this call within {} ms, so it was not executed", within.as_millis())
}

pub(crate) fn cannot_be_durable(durability: Durability) -> String {
    let durable = durability.as_str();
    format!("Redis cannot confirm the start of this call ('durable: {durable}'), so it was not executed")
}

pub(crate) fn outcome_unknown(tool: &str, what: &str) -> CallError {
    let what = what.trim_end_matches('.');
    error(
        Outcome::OutcomeUnknown,
        format!(
            "{what}. It may or may not have taken effect, so it was not repeated. Check whether {tool:?} did its work \
             (look for its result with a read-only tool, or ask a person) before you call it again."
        ),
    )
}

/// The message reveals no internals.
pub(crate) fn internal() -> CallError {
    error(Outcome::Internal, "Tool execution failed. The error has been logged for investigation.")
}

pub(crate) fn unfit_output(tool: &str, problem: &str, once: bool) -> CallError {
    let done = if once { " It has taken effect: do not call it again." } else { "" };
    let message = format!(
        "{tool:?} ran, but its output does not match its output schema and is withheld: {}. The error has been \
         logged for investigation.{done}",
        problem.trim_end_matches('.')
    );
    CallError { code: "invalid_output".into(), ..error(Outcome::Internal, message) }
}

pub(crate) fn timed_out(tool: &str, after: Duration) -> String {
    format!("{tool:?} did not answer within {:.1} s.", after.as_secs_f64())
}

fn may_call(allowed: &[&str]) -> String {
    if allowed.is_empty() {
        return " You may call no tools.".into();
    }
    let more =
        if allowed.len() > NAMES_MAX { format!(" and {} more", allowed.len() - NAMES_MAX) } else { String::new() };
    format!(" You may call: {}{more}.", allowed[..allowed.len().min(NAMES_MAX)].join(", "))
}

fn with_allowed(error: CallError, allowed: &[&str]) -> CallError {
    let names: Vec<&str> = allowed.iter().take(NAMES_MAX).copied().collect();
    CallError { details: Some(serde_json::json!({ "allowed_tools": names })), ..error }
}

fn bounded(mut message: String) -> String {
    if message.len() > limits::ERROR_BYTES_MAX {
        let end = (0..=limits::ERROR_BYTES_MAX - 3).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_error_explains_why_the_call_is_not_retried() {
        let after = Some(Duration::from_secs(999_999));
        let error = retries_exhausted(
            "The service answered with status 429.",
            1,
            Some(NoRetryReason::RetryAfterTooLong),
            after,
        );
        assert_eq!(
            error.message,
            "The service answered with status 429 (after 1 try). The requested wait before the next try is 999999 s; a call \
             waits at most 60 s. Try again after that time or use another approach."
        );
        assert_eq!(error.details, Some(serde_json::json!({"retry_after_s": 999_999})));
        let error = retries_exhausted("No answer.", 2, Some(NoRetryReason::DeadlineFirst), None);
        assert!(error.message.contains("The deadline comes before the next try."), "{}", error.message);
        let error = retries_exhausted("No answer.", 4, Some(NoRetryReason::TriesUsedUp), None);
        assert_eq!(error.message, "No answer (after 4 tries). Try again later or use another approach.");
        assert_eq!(error.details, None);
    }
}
