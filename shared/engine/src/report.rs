//! Renders the texts for producers and auditors.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::time::rfc3339;
use tickfleet_core::keys::TurnName;
use tickfleet_core::turn::Head;
use tickfleet_core::turn::end::{EndedCall, ExecutionState, Render, RenderedCall, ReplyFrame};
use tickfleet_core::turn::state::EndReason;
use tickfleet_model::approval::{NarrowedValues, narrow};
use tickfleet_model::outcome::{CallApproval, PolicyInputs};
use tickfleet_model::policy::{Policy, ShadowDenial, session_note};
use tickfleet_model::redaction::Redactor;
use tickfleet_model::{AgentId, Call, CallError, CallId, CallResult, EffectNote, Outcome, TenantId, limits};
use tickfleet_protocol::{audit, result};

#[derive(Debug, Clone)]
pub struct ReportOptions {
    pub log_tool_calls: bool,
    pub redactor: Arc<Redactor>,
    pub result_chars: usize,
    pub policy_inputs: bool,
    pub policy_version: Option<u64>,
    /// The start of the active policy's digest; empty if unknown.
    pub policy_digest: Arc<str>,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            log_tool_calls: true,
            redactor: Arc::new(Redactor::default()),
            result_chars: limits::AUDIT_RESULT_CHARS,
            policy_inputs: false,
            policy_version: None,
            policy_digest: "".into(),
        }
    }
}

#[derive(Serialize)]
struct ReplyHead<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a str>,
    tenant: &'a str,
    agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    delegator: Option<&'a str>,
    /// The call that delegated the task. The reply of the call's turn may arrive after this reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    delegated_by: Option<&'a str>,
    status: &'a str,
    dialect: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

impl ReplyHead<'_> {
    fn open(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_else(|_| "{}".into());
        text.pop();
        text.push_str(",\"results\":[");
        text
    }
}

#[must_use]
pub fn is_task(name: &TurnName, head: &Head) -> bool {
    head.task.as_ref().is_some_and(|(task, _)| task.as_str() == name.turn.as_str())
}

#[must_use]
pub fn frame(name: &TurnName, head: &Head) -> ReplyFrame {
    // Providers reject a message without content.
    let messages = result::messages_frame(head.dialect).filter(|_| head.calls > 0);
    ReplyFrame { head: reply_head(name, head).open(), messages, audits: head.want_audits }
}

fn reply_head<'a>(name: &'a TurnName, head: &'a Head) -> ReplyHead<'a> {
    let id = Some(name.turn.as_str());
    let is_task = is_task(name, head);
    ReplyHead {
        turn_id: id.filter(|_| !is_task),
        task_id: id.filter(|_| is_task),
        tenant: name.tenant.as_str(),
        agent: head.agent.as_str(),
        delegator: delegated(name, head).flatten().map(AgentId::as_str),
        delegated_by: head.delegated_by.as_deref(),
        status: "done",
        dialect: head.dialect.as_str(),
        correlation_id: head.context.correlation_id.as_deref(),
        traceparent: head.context.traceparent.as_deref(),
    }
}

/// The JSON contains the placeholders `{requested_ms}` and `{until_ms}`. The approval request replaces them with times.
#[must_use]
pub fn pending_approval(name: &TurnName, head: &Head, approval: &str, call: &CallId, tool: &str) -> String {
    let mut head = reply_head(name, head);
    head.status = "pending_approval";
    let open = head.open();
    let about = serde_json::json!({ "id": approval, "call": call.to_string(), "tool": tool }).to_string();
    let about = about.trim_end_matches('}');
    format!(r#"{open}],"approval":{about},"requested_ms":{{requested_ms}},"until_ms":{{until_ms}}}}}}"#)
}

pub struct ReportedCall<'a> {
    pub name: &'a TurnName,
    pub head: &'a Head,
    pub tool_name: Option<&'a str>,
    pub tool_id: Option<&'a str>,
    /// JSON.
    pub arguments: &'a str,
    pub result: &'a CallResult,
    /// Also true if the call received another call's result, see [`CallResult::ran`].
    pub ran: bool,
    pub shadow: &'a [ShadowDenial],
    /// The claimed effect, if the call may have taken effect.
    pub effect: Option<&'a EffectNote>,
    /// In shard time.
    pub now_ms: i64,
}

/// `None` for a turn. `Some(None)` if no agent delegated the task.
#[must_use]
pub fn delegated<'a>(name: &TurnName, head: &'a Head) -> Option<Option<&'a AgentId>> {
    is_task(name, head).then(|| head.task.as_ref().and_then(|(_, grant)| grant.chain.last()))
}

/// JSON without secrets. Leaves out inputs that other parts of the audit entry contain.
fn policy_inputs(r: &ReportedCall<'_>, redactor: &Redactor) -> String {
    let head = r.head;
    let clean = |raw: &Option<Box<RawValue>>| raw.as_ref().map(|raw| redactor.json(raw.get()).into_owned());
    let raw = |text: Option<String>| text.and_then(|text| RawValue::from_string(text).ok());
    let policy_inputs = PolicyInputs {
        calls: head.calls,
        strict: head.strict,
        parallel_reads: head.parallel_reads,
        allowed_tools: head.allowed_tools.clone(),
        task: head.task.as_ref().map(|(task, _)| task.to_string()),
        task_tools: head.task.as_ref().and_then(|(_, grant)| grant.tools.clone()),
        capabilities: head.task.as_ref().and_then(|(_, grant)| grant.capabilities.clone()),
        user_context: raw(clean(&head.context.user_context)),
        session_data: raw(clean(&head.context.session_data)),
        session: Some(session_note(&r.name.tenant, head.task.as_ref().map(|(task, _)| task), &head.context)),
        ran: r.ran,
        facts_evaluated_ms: r.result.facts_evaluated_ms,
    };
    serde_json::to_string(&policy_inputs).unwrap_or_default()
}

#[must_use]
pub fn rendered_call(options: &ReportOptions, r: &ReportedCall<'_>) -> RenderedCall {
    let audit = if options.log_tool_calls {
        audit::audit_entry(&audit::AuditInput {
            timestamp_ms: r.now_ms,
            tenant: &r.name.tenant,
            agent: &r.head.agent,
            delegated: delegated(r.name, r.head),
            turn: r.name.turn.as_str(),
            tool_name: r.tool_name,
            tool_id: r.tool_id,
            arguments: r.arguments,
            result: r.result,
            shadow: r.shadow,
            policy_inputs: &if options.policy_inputs { policy_inputs(r, &options.redactor) } else { String::new() },
            effect: r.effect,
            policy_version: options.policy_version,
            policy_digest: &options.policy_digest,
            result_chars_max: options.result_chars,
            redactor: &options.redactor,
        })
    } else {
        String::new()
    };
    RenderedCall {
        result: result::result_json(r.result).into(),
        message: result::tool_message(r.head.dialect, r.result).unwrap_or_default().into(),
        audit: audit.into(),
        failed: !matches!(r.result.outcome, Outcome::Ok | Outcome::Expired),
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct CallHistory<'a> {
    /// In words, see [`limit_words`].
    pub limit: Option<&'a str>,
    pub tries: u32,
    /// True if a dead worker held the call, or may have held the call.
    pub lost: bool,
    pub waited: bool,
    /// Without secrets.
    pub why: Option<&'a str>,
}

impl CallHistory<'_> {
    /// If the call began, the sentence never states that the call did not run (invariant 21).
    fn sentence_end(&self) -> String {
        match (self.tries, self.lost) {
            _ if self.waited => {
                " while this call waited for work that it had started. Completed work is not undone.".into()
            }
            (0, false) => " before this call could run. It was not executed.".into(),
            (0, true) => {
                ". A worker may have started this call, but no result was recorded: it may have run, so check before you repeat it."
                    .into()
            }
            (1, _) => " while this call waited for its second try. The first try failed; its effects are unknown."
                .into(),
            (tries, _) => format!(
                " while this call waited for another try. {tries} tries failed; their effects are unknown."
            ),
        }
    }
}

#[must_use]
pub fn ended(reason: &EndReason, deadline_ms: i64, history: &CallHistory<'_>) -> (Outcome, CallError) {
    let (outcome, code, message, details) = match reason {
        EndReason::Expired => (
            Outcome::Expired,
            "expired",
            format!("The deadline {} passed{}", rfc3339(deadline_ms), history.sentence_end()),
            Some(serde_json::json!({ "deadline": rfc3339(deadline_ms) })),
        ),
        EndReason::Canceled => (
            Outcome::Cancelled,
            "cancelled",
            format!("The turn was canceled{}{}", because(history.why), history.sentence_end()),
            history.why.map(|why| serde_json::json!({ "reason": why })),
        ),
        EndReason::DailyCapReached { resets_ms } => (
            Outcome::DailyCapReached,
            "daily_cap_reached",
            format!(
                "The daily limit of actions is used up. It resets at {}. This call was not executed.",
                rfc3339(*resets_ms)
            ),
            Some(serde_json::json!({ "resets_at": rfc3339(*resets_ms) })),
        ),
        EndReason::TaskBudgetReached => (
            Outcome::Rejected,
            "task_budget_reached",
            "The task's own budget of actions is used up. This call was not executed.".into(),
            None,
        ),
        EndReason::OverLimit { limit } => {
            let named = limit_text(limit, history);
            let message = format!("This call alone exceeds the limit {named}. It was not executed.");
            (Outcome::Rejected, "limit_reached", message, Some(serde_json::json!({ "limit": limit })))
        }
        EndReason::NoAmount { limit } => {
            let named = limit_text(limit, history);
            let what = "counts an argument that is missing from this call, or is not a plain number";
            let message = format!("The limit {named} {what}. Give it as a number; the call was not executed.");
            (Outcome::InvalidArguments, "invalid_arguments", message, Some(serde_json::json!({ "limit": limit })))
        }
        // The limit counts permits, so the time of the next free permit is unknown.
        EndReason::LimitReached { limit, resets_ms: 0 } => {
            let named = limit_text(limit, history);
            let what = "Every slot of the limit";
            let message = format!("{what} {named} is in use. This call was not executed; retry it later.");
            (Outcome::Rejected, "limit_reached", message, Some(serde_json::json!({ "limit": limit })))
        }
        EndReason::LimitReached { limit, resets_ms } => {
            let named = limit_text(limit, history);
            let resets_at = rfc3339(*resets_ms);
            let message = format!(
                "The limit {named} is used up. There is room again at {resets_at}. This call was not executed."
            );
            let details = serde_json::json!({ "limit": limit, "resets_at": resets_at });
            (Outcome::Rejected, "limit_reached", message, Some(details))
        }
        EndReason::Quarantined { .. } => (
            Outcome::Internal,
            "internal",
            "Tool execution failed. The error has been logged for investigation.".into(),
            None,
        ),
        EndReason::AgentRemoved => (
            Outcome::Rejected,
            "agent_removed",
            "The agent is no longer configured. This call was not executed.".into(),
            None,
        ),
    };
    (outcome, CallError { code: code.into(), message, details })
}

fn limit_text(limit: &str, history: &CallHistory<'_>) -> String {
    history.limit.map_or_else(|| limit.to_owned(), |words| format!("{limit} ({words})"))
}

/// With this tenant's values: `5 calls per user in 1h`. `None` if no limit has this name.
#[must_use]
pub fn limit_words(policy: &Policy, tenant: &TenantId, name: &str) -> Option<String> {
    let limit = policy.limits.iter().find(|limit| limit.name == name)?;
    Some(policy.tenants.get(tenant).map_or_else(|| limit.to_string(), |owner| owner.limit(limit).to_string()))
}

#[must_use]
pub fn because(why: Option<&str>) -> String {
    why.map(|why| format!(" (reason: {why})")).unwrap_or_default()
}

/// A begun call must never be reported as not executed.
#[must_use]
pub fn begun_and_lost(tool: &str) -> (Outcome, CallError) {
    unknown(format!(
        "This call was started, but no result was recorded. {tool} may or may not have taken effect: check before \
         you repeat it."
    ))
}

fn lost_by_runtime(reason: &EndReason, deadline_ms: i64, why: Option<&str>) -> (Outcome, CallError) {
    let what = match reason {
        EndReason::Expired => format!("The deadline {} passed", rfc3339(deadline_ms)),
        EndReason::Canceled => format!("The task was canceled{}", because(why)),
        _ => "The task was abandoned".into(),
    };
    unknown(format!(
        "{what} after a runtime took the task and before it reported a result. The task may be done in full, in part or \
         not at all: check before you repeat it."
    ))
}

fn unknown(message: String) -> (Outcome, CallError) {
    (Outcome::OutcomeUnknown, CallError { code: Outcome::OutcomeUnknown.as_str().into(), message, details: None })
}

/// `narrowed` is a JSON object from pointers to the approvers' values.
#[must_use]
pub fn approved(id: &str, by: &[String], narrowed: Option<&str>, arguments: &str) -> CallApproval {
    let values: NarrowedValues = narrowed.and_then(|narrowed| serde_json::from_str(narrowed).ok()).unwrap_or_default();
    let may = values.keys().cloned().collect();
    let changed = (!values.is_empty()).then(|| narrow(arguments, &may, &values).ok()).flatten();
    let arguments = changed.and_then(|changed| RawValue::from_string(changed).ok());
    CallApproval { id: id.to_owned(), by: by.to_vec(), arguments }
}

#[derive(Debug, Clone)]
pub struct Renderer<'a> {
    pub options: &'a ReportOptions,
    pub policy: &'a Policy,
}

impl Renderer<'_> {
    /// The number counts attempts in addition to the call's failed attempts.
    #[must_use]
    pub fn outcome(&self, ended_call: &EndedCall<'_>, tool: &str) -> (Outcome, CallError, u32) {
        let EndedCall { name, turn, reason, execution, .. } = ended_call;
        let deadline_ms = turn.head.deadline_ms;
        let why = turn.canceled.as_deref().map(|why| self.options.redactor.text(why));
        let limit = match reason {
            EndReason::LimitReached { limit, .. } | EndReason::OverLimit { limit } | EndReason::NoAmount { limit } => {
                limit_words(self.policy, &name.tenant, limit)
            }
            _ => None,
        };
        let history = CallHistory { why: why.as_deref(), limit: limit.as_deref(), ..CallHistory::default() };
        let ((outcome, error), more) = match execution {
            ExecutionState::NotRun => (ended(reason, deadline_ms, &history), 0),
            ExecutionState::Tried(tries) => (ended(reason, deadline_ms, &CallHistory { tries: *tries, ..history }), 0),
            ExecutionState::Begun => (begun_and_lost(tool), 1),
            ExecutionState::TakenByRuntime => (lost_by_runtime(reason, deadline_ms, history.why), 1),
            ExecutionState::MayHaveRun => {
                let is_open =
                    matches!(reason, EndReason::Expired | EndReason::Canceled | EndReason::Quarantined { .. });
                (ended(reason, deadline_ms, &CallHistory { lost: true, ..history }), u32::from(is_open))
            }
            ExecutionState::BeganChild => (ended(reason, deadline_ms, &CallHistory { waited: true, ..history }), 0),
        };
        (outcome, error, more)
    }
}

impl Render for Renderer<'_> {
    fn ended(&self, ended_call: &EndedCall<'_>) -> RenderedCall {
        let EndedCall { name, turn, position, call, execution, now_ms, .. } = ended_call;
        let head = &turn.head;
        if head.calls == 0 {
            return RenderedCall::default();
        }
        let unreadable = || Call {
            provider_id: None,
            tool: if is_task(name, head) { crate::delegation::TASK_TOOL.into() } else { String::new() },
            arguments: String::new(),
        };
        let unreadable = call.is_none().then(unreadable);
        let Some(call) = call.or(unreadable.as_ref()) else { return RenderedCall::default() };
        let (outcome, error, more) = self.outcome(ended_call, &call.tool);
        let id = CallId { turn: name.turn.clone(), position: *position };
        let mut result = CallResult::refused(&id, call.provider_id.clone(), &call.tool, outcome, error);
        let ran = result.ran();
        result.attempts = more + if *position == turn.position { turn.attempts } else { 0 };
        result.local = turn.local.is_some() && *execution == ExecutionState::TakenByRuntime;
        if let Some(begun) = turn.begun.as_ref().filter(|begun| begun.position == *position)
            && let Some(consent) = begun.consent.as_ref().filter(|_| more > 0)
        {
            result.approval =
                Some(approved(&consent.approval, &consent.by, consent.narrowed.as_deref(), &call.arguments));
        }
        let reported = ReportedCall {
            name,
            head,
            tool_name: self.policy.tool_name(&call.tool),
            tool_id: None,
            arguments: &call.arguments,
            result: &result,
            ran,
            shadow: &[],
            effect: None,
            now_ms: *now_ms,
        };
        rendered_call(self.options, &reported)
    }

    fn frame(&self, name: &TurnName, head: &Head) -> ReplyFrame {
        frame(name, head)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

    use serde_json::Value;
    use tickfleet_core::turn::state::UsedConsent;
    use tickfleet_core::turn::{Begun, Turn};

    use super::*;

    fn turn(calls: usize) -> Turn {
        serde_json::from_value(serde_json::json!({
            "h": {"ag": "kelly", "dl": 0, "dg": "d", "n": calls},
            "q": {"r": "normal"},
            "pl": 1,
            "t": 1,
            "b": 10,
            "s": {"s": "ready", "upto": calls},
        }))
        .unwrap()
    }

    fn render(turn: &Turn, reason: &EndReason, options: &ReportOptions) -> Vec<(Value, Value)> {
        let name = TurnName::parse("acme:t1").unwrap();
        let policy = Policy::default();
        let renderer = Renderer { options, policy: &policy };
        let call = Call {
            provider_id: None,
            tool: "send_invoice".into(),
            arguments: r#"{"amount": 700, "to": "kim"}"#.into(),
        };
        let one = |position| {
            let execution = turn.execution_state(position);
            let call = Some(&call);
            let rendered =
                renderer.ended(&EndedCall { name: &name, turn, position, call, reason, execution, now_ms: 0 });
            let read = |text: &[u8]| serde_json::from_slice(text).unwrap();
            (read(&rendered.result), read(&rendered.audit))
        };
        (turn.position..turn.head.calls).map(one).collect()
    }

    fn outcomes(results: &[(Value, Value)]) -> Vec<(&str, u64)> {
        let all = results.iter().map(|(result, _)| result);
        all.map(|result| (result["outcome"].as_str().unwrap(), result["attempts"].as_u64().unwrap())).collect()
    }

    #[test]
    fn an_expired_turn_reports_a_begun_call_as_outcome_unknown() {
        let options = ReportOptions { policy_inputs: true, ..ReportOptions::default() };
        let consent = UsedConsent {
            approval: "apr-1".into(),
            by: vec!["ann".into()],
            narrowed: Some(r#"{"/amount":400}"#.into()),
        };
        let begun = Begun { consent: Some(consent), ..Begun::new(1, "n1") };
        let mut lost = Turn { position: 1, debited: 4, begun: Some(begun), ..turn(4) };
        let results = render(&lost, &EndReason::Expired, &options);
        assert_eq!(outcomes(&results), [("outcome_unknown", 1), ("expired", 0), ("expired", 0)]);
        let expected = serde_json::json!({"id": "apr-1", "by": ["ann"], "arguments": {"amount": 400, "to": "kim"}});
        assert_eq!((&results[0].0["approval"], results[1].0["approval"].is_null()), (&expected, true));
        assert_eq!(results[0].1["meta"]["approval"]["id"], "apr-1");

        // The begun call failed twice, and then the worker that held the slice died.
        (lost.attempts, lost.crashes, lost.debited) = (2, 1, 3);
        let results = render(&lost, &EndReason::Expired, &options);
        assert_eq!(outcomes(&results), [("outcome_unknown", 3), ("expired", 1), ("expired", 0)]);
        let ran = results.iter().map(|(_, audit)| audit["meta"]["policy_inputs"]["ran"] == true);
        assert!(ran.eq([false; 3]), "auditors read `ran` only about calls whose attempts ended");
    }

    #[test]
    fn a_missing_amount_for_a_limit_reports_invalid_arguments() {
        let history = CallHistory { limit: Some("500 of /amount per agent in a day"), ..CallHistory::default() };
        let (outcome, error) = ended(&EndReason::NoAmount { limit: "spent".into() }, 0, &history);
        assert_eq!((outcome, error.code.as_str()), (Outcome::InvalidArguments, "invalid_arguments"));
        assert!(error.message.contains("spent (500 of /amount"), "{}", error.message);
        assert_eq!(ended(&EndReason::OverLimit { limit: "spent".into() }, 0, &history).0, Outcome::Rejected);
    }
}
