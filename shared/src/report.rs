//! From results to what is settled: the dialect's messages, the audit entry, the frame of the reply.

use std::sync::Arc;

use serde::Serialize;

use crate::formats::{audit, result};
use crate::model::redaction::Redactor;
use crate::model::{AgentId, Call, CallError, CallId, CallResult, Dialect, Outcome, TenantId, limits};
use crate::store::{Before, EndReason, Ending, ReplyFrame, SettledCall, Settlement, SliceMeta, TurnName};

/// How results are reported.
#[derive(Debug, Clone)]
pub struct ReportOptions {
    /// Whether calls are audited.
    pub log_tool_calls: bool,
    /// What must not appear in the audit log.
    pub redactor: Arc<Redactor>,
    /// Characters of a result in the audit log.
    pub result_chars: usize,
    /// Generation of the policy in force, for the audit log.
    pub policy_version: Option<u64>,
    /// The beginning of that policy's digest, for the audit log; empty where it is not known.
    pub policy_digest: Arc<str>,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            log_tool_calls: true,
            redactor: Arc::new(Redactor::default()),
            result_chars: limits::AUDIT_RESULT_CHARS,
            policy_version: None,
            policy_digest: "".into(),
        }
    }
}

/// The head of a reply: everything but its results.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a str>,
    tenant: &'a str,
    agent: &'a str,
    /// Of a task: the agent that asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    delegator: Option<&'a str>,
    status: &'a str,
    dialect: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

impl Head<'_> {
    /// The JSON up to and with `"results":[`.
    fn open(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_else(|_| "{}".into());
        text.pop();
        text.push_str(",\"results\":[");
        text
    }
}

/// The frame of a turn's or task's reply.
#[must_use]
pub fn frame(name: &TurnName, meta: &SliceMeta) -> ReplyFrame {
    let id = Some(name.turn.as_str());
    let delegator = meta.task.as_ref().and_then(|(_, grant)| grant.chain.last());
    let head = Head {
        turn_id: id.filter(|_| !meta.is_task),
        task_id: id.filter(|_| meta.is_task),
        tenant: name.tenant.as_str(),
        agent: meta.agent.as_str(),
        delegator: delegator.filter(|_| meta.is_task).map(AgentId::as_str),
        status: "done",
        dialect: meta.dialect.as_str(),
        correlation_id: meta.context.correlation_id.as_deref(),
        traceparent: meta.context.traceparent.as_deref(),
    };
    // Providers refuse a message that says nothing.
    let messages = result::messages_frame(meta.dialect).filter(|_| meta.calls > 0);
    ReplyFrame { head: head.open(), messages, audits: meta.want_audits }
}

/// What is said of one call in result, message and audit.
pub struct Reported<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Who made the call.
    pub agent: &'a AgentId,
    /// The turn, for the audit log.
    pub turn: &'a str,
    /// The dialect of the message.
    pub dialect: Dialect,
    /// The stable id of the tool, where it is known.
    pub tool_id: Option<&'a str>,
    /// The arguments as text.
    pub arguments: &'a str,
    /// What became of it.
    pub result: &'a CallResult,
    /// Shard time, ms.
    pub now_ms: i64,
}

/// Renders one result.
#[must_use]
pub fn settled_call(options: &ReportOptions, r: &Reported<'_>) -> SettledCall {
    let audit = if options.log_tool_calls {
        audit::audit_entry(&audit::AuditInput {
            timestamp_ms: r.now_ms,
            tenant: r.tenant,
            agent: r.agent,
            turn: r.turn,
            tool_id: r.tool_id,
            arguments: r.arguments,
            result: r.result,
            policy_version: options.policy_version,
            policy_digest: &options.policy_digest,
            result_chars_max: options.result_chars,
            redactor: &options.redactor,
        })
    } else {
        String::new()
    };
    SettledCall {
        result: result::result_json(r.result),
        message: result::tool_message(r.dialect, r.result).unwrap_or_default(),
        audit,
    }
}

/// What the agent is told of calls that end without having run.
#[must_use]
pub fn ended(reason: EndReason, info: i64) -> (Outcome, CallError) {
    let (outcome, code, message, details) = match reason {
        EndReason::Expired => (
            Outcome::Expired,
            "expired",
            format!("The deadline {} came before this call could run. It was not executed.", rfc3339(info)),
            Some(serde_json::json!({ "deadline": rfc3339(info) })),
        ),
        EndReason::Cancelled => (
            Outcome::Cancelled,
            "cancelled",
            "The turn was cancelled before this call could run. It was not executed.".into(),
            None,
        ),
        EndReason::DailyCapReached => (
            Outcome::DailyCapReached,
            "daily_cap_reached",
            format!(
                "The daily limit of actions is used up. It resets at {}. This call was not executed.",
                rfc3339(info)
            ),
            Some(serde_json::json!({ "resets_at": rfc3339(info) })),
        ),
        EndReason::TaskBudgetReached => (
            Outcome::Rejected,
            "task_budget_reached",
            "The task's own budget of actions is used up. This call was not executed.".into(),
            None,
        ),
        EndReason::Internal => (
            Outcome::Internal,
            "internal",
            "Tool execution failed. The error has been logged for investigation.".into(),
            None,
        ),
        EndReason::Rejected => (
            Outcome::Rejected,
            "agent_removed",
            "The agent is no longer configured. This call was not executed.".into(),
            None,
        ),
    };
    (outcome, CallError { code: code.into(), message, details })
}

/// As [`ended`], of a call that has something behind it: what began is not told as not run (rule 25).
#[must_use]
pub fn ended_after(reason: EndReason, info: i64, before: Before) -> (Outcome, CallError) {
    let (outcome, error) = ended(reason, info);
    let event = match reason {
        EndReason::Expired => format!("The deadline {} came", rfc3339(info)),
        EndReason::Cancelled => "The turn was cancelled".to_owned(),
        _ => return (outcome, error),
    };
    let message = match before {
        Before::Nothing => return (outcome, error),
        Before::Tried(tries) => {
            let tries = if tries == 1 { "1 try".to_owned() } else { format!("{tries} tries") };
            format!("{event} after {tries} of this call, without success. It was not tried again.")
        }
        Before::Lost => {
            format!("{event} after a worker was lost that may have run this call. Whether it did is not known.")
        }
    };
    (outcome, CallError { message, ..error })
}

/// What the agent is told of a call that was begun and left without a result: whatever ends the turn, the call must not
/// be reported as not executed.
#[must_use]
pub fn begun_and_lost(tool: &str) -> (Outcome, CallError) {
    let message = format!(
        "This call had been begun, and no result of it was recorded. {tool} may have taken effect or not: check before \
         you repeat it."
    );
    (Outcome::OutcomeUnknown, CallError { code: Outcome::OutcomeUnknown.as_str().into(), message, details: None })
}

/// A time for people and programs: RFC 3339 in UTC, to the second.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

/// A call from its blob; an external task's blob is the task's own message.
#[must_use]
pub fn call_of(meta: &SliceMeta, blob: Option<&String>) -> Call {
    let text = blob.cloned().unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_else(|_| {
        let tool = if meta.is_task { crate::delegation::TASK_TOOL } else { "" };
        Call { provider_id: None, tool: tool.into(), arguments: text }
    })
}

/// The settlement of calls that nobody runs.
///
/// # Errors
/// What is wrong with the ending's data, for the log: only a foreign writer leaves such.
pub fn ending(options: &ReportOptions, ending: &Ending, now_ms: i64) -> Result<Settlement, String> {
    let meta: SliceMeta = if ending.meta.is_empty() {
        return Err("the turn's meta is lost".into());
    } else {
        serde_json::from_str(&ending.meta).map_err(|e| format!("meta: {e}"))?
    };
    let calls = (ending.first..ending.upto).zip(ending.calls.iter().map(Some).chain(std::iter::repeat(None)));
    let settle = |(position, blob): (usize, Option<&String>)| {
        if meta.calls == 0 {
            return SettledCall::default();
        }
        let call = call_of(&meta, blob);
        let id = CallId { turn: ending.name.turn.clone(), position };
        let begun = ending.begun == Some(position) || ending.marked.contains(&position);
        let before = if position == ending.first { ending.before } else { Before::Nothing };
        let (outcome, error) =
            if begun { begun_and_lost(&call.tool) } else { ended_after(ending.reason, ending.info, before) };
        let mut result = CallResult::refused(&id, call.provider_id, &call.tool, outcome, error);
        if let Before::Tried(tries) = before {
            result.attempts = tries;
        }
        let reported = Reported {
            tenant: &ending.name.tenant,
            agent: &meta.agent,
            turn: ending.name.turn.as_str(),
            dialect: meta.dialect,
            tool_id: None,
            arguments: &call.arguments,
            result: &result,
            now_ms,
        };
        settled_call(options, &reported)
    };
    Ok(Settlement {
        name: ending.name.clone(),
        fence: ending.fence.clone(),
        queue: None,
        first: ending.first,
        reply_to: meta.reply_to.clone(),
        frame: frame(&ending.name, &meta),
        calls: calls.map(settle).collect(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_ending_does_not_deny_a_call_that_was_begun() {
        let ending_of = Ending {
            name: TurnName::parse("acme:t1").unwrap(),
            fence: "s:1".into(),
            reason: EndReason::Expired,
            first: 1,
            upto: 3,
            info: 0,
            begun: Some(1),
            marked: Vec::new(),
            before: Before::Nothing,
            meta: r#"{"ag":"kelly","dl":0,"dg":"d","n":3}"#.into(),
            calls: vec![r#"{"t":"send_invoice","a":"{}"}"#.into(), r#"{"t":"send_invoice","a":"{}"}"#.into()],
        };
        let settlement = ending(&ReportOptions::default(), &ending_of, 0).unwrap();
        let outcomes = settlement.calls.iter().map(|call| {
            let result: serde_json::Value = serde_json::from_str(&call.result).unwrap();
            result["outcome"].as_str().unwrap().to_owned()
        });
        assert_eq!(outcomes.collect::<Vec<_>>(), ["outcome_unknown", "expired"]);
    }
}
