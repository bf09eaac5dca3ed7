//! From results to what is settled: the dialect's messages, the audit entry, the frame of the reply.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::time::rfc3339;
use tickfleet_model::approval::{Narrowed, narrow};
use tickfleet_model::outcome::{Approved, Premises};
use tickfleet_model::policy::{Policy, ShadowDenial, session_note};
use tickfleet_model::redaction::Redactor;
use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{
    AgentId, Call, CallError, CallId, CallResult, Dialect, EffectNote, Outcome, TenantId, TurnId, limits,
};
use tickfleet_protocol::{audit, result};
use tickfleet_store::{
    BegunBy, BegunCall, EndReason, Ending, MetLimit, ReplyFrame, SettledCall, Settlement, SliceMeta, TurnName,
    UsedConsent,
};

/// The way in which results are reported.
#[derive(Debug, Clone)]
pub struct ReportOptions {
    /// True if calls are audited.
    pub log_tool_calls: bool,
    /// Redacts what must not appear in the audit log.
    pub redactor: Arc<Redactor>,
    /// Characters of a result in the audit log.
    pub result_chars: usize,
    /// True if audit entries say what else their calls were decided by.
    pub premises: bool,
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
            premises: false,
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
    /// Of a task: the call that asked for it, whose own reply may come later.
    #[serde(skip_serializing_if = "Option::is_none")]
    delegated_by: Option<&'a str>,
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
    // Providers refuse a message that says nothing.
    let messages = result::messages_frame(meta.dialect).filter(|_| meta.calls > 0);
    ReplyFrame {
        head: head(name, meta).open(),
        messages,
        audits: meta.want_audits,
        calls: Some(meta.calls),
        wakes: wakes(name, meta),
    }
}

/// The head of the reply to a turn or task that has ended.
fn head<'a>(name: &'a TurnName, meta: &'a SliceMeta) -> Head<'a> {
    let id = Some(name.turn.as_str());
    let delegator = meta.task.as_ref().and_then(|(_, grant)| grant.chain.last());
    Head {
        turn_id: id.filter(|_| !meta.is_task),
        task_id: id.filter(|_| meta.is_task),
        tenant: name.tenant.as_str(),
        agent: meta.agent.as_str(),
        delegator: delegator.filter(|_| meta.is_task).map(AgentId::as_str),
        delegated_by: meta.by.as_deref(),
        status: "done",
        dialect: meta.dialect.as_str(),
        correlation_id: meta.context.correlation_id.as_deref(),
        traceparent: meta.context.traceparent.as_deref(),
    }
}

/// The reply that says that a call of a turn waits for people, as JSON: the times of the approval are known where it is
/// asked for, which puts them in the place of `{asked_ms}` and `{until_ms}`.
#[must_use]
pub fn pending_approval(name: &TurnName, meta: &SliceMeta, (approval, call, tool): (&str, &CallId, &str)) -> String {
    let mut head = head(name, meta);
    head.status = "pending_approval";
    let open = head.open();
    let about = serde_json::json!({ "id": approval, "call": call.to_string(), "tool": tool }).to_string();
    let about = about.trim_end_matches('}');
    format!(r#"{open}],"approval":{about},"asked_ms":{{asked_ms}},"until_ms":{{until_ms}}}}}}"#)
}

/// Who may wait for the end of a turn or task: of an inner call's turn, the turn whose call made it; of any other turn, the
/// task that it runs under; of a task, the turn whose call delegated it.
fn wakes(name: &TurnName, meta: &SliceMeta) -> Option<TurnId> {
    if meta.is_task {
        let turn = meta.by.as_deref()?.rsplit_once('/')?.0;
        return TurnId::new(turn).ok();
    }
    let task = || meta.task.as_ref().and_then(|(task, _)| TurnId::new(task.as_str()).ok());
    outer_turn(&name.turn).or_else(task)
}

/// The facts about one call for result, message and audit entry.
pub struct Reported<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// The agent that made the call; of a task, the one that carried it out.
    pub agent: &'a AgentId,
    /// The agent that delegated it, see [`delegated`].
    pub delegated: Option<Option<&'a AgentId>>,
    /// The turn, for the audit log.
    pub turn: &'a str,
    /// The dialect of the message.
    pub dialect: Dialect,
    /// The stable id of the tool, where it is known.
    pub tool_name: Option<&'a str>,
    /// And its id.
    pub tool_id: Option<&'a str>,
    /// The arguments as text.
    pub arguments: &'a str,
    /// The result.
    pub result: &'a CallResult,
    /// Whether it is known to have run, or was told what another one did, see [`CallResult::ran`]: one that may have run is told
    /// as tried, and nobody knows how far it had come.
    pub ran: bool,
    /// The rules in shadow that would have stopped the call.
    pub shadow: &'a [ShadowDenial],
    /// What its turn says beside its calls.
    pub meta: &'a SliceMeta,
    /// The effect that it had claimed, where it has an effect key and may have taken effect.
    pub effect: Option<&'a EffectNote>,
    /// Shard time, ms.
    pub now_ms: i64,
}

/// Of a task, the agent that delegated it, or none if somebody else did; none of a turn.
#[must_use]
pub fn delegated(meta: &SliceMeta) -> Option<Option<&AgentId>> {
    meta.is_task.then(|| meta.task.as_ref().and_then(|(_, grant)| grant.chain.last()))
}

/// What a call was decided by beside what its audit entry says anyhow, without secrets.
fn premises(r: &Reported<'_>, redactor: &Redactor) -> String {
    let meta = r.meta;
    let clean = |raw: &Option<Box<RawValue>>| raw.as_ref().map(|raw| redactor.json(raw.get()).into_owned());
    let raw = |text: Option<String>| text.and_then(|text| RawValue::from_string(text).ok());
    let said = Premises {
        calls: meta.calls,
        strict: meta.strict,
        parallel_reads: meta.parallel_reads,
        allowed_tools: meta.allowed_tools.clone(),
        task: meta.task.as_ref().map(|(task, _)| task.to_string()),
        task_tools: meta.task.as_ref().and_then(|(_, grant)| grant.tools.clone()),
        capabilities: meta.task.as_ref().and_then(|(_, grant)| grant.capabilities.clone()),
        user_context: raw(clean(&meta.context.user_context)),
        session_data: raw(clean(&meta.context.session_data)),
        session: Some(session_note(r.tenant, meta.task.as_ref().map(|(task, _)| task), &meta.context)),
        ran: r.ran,
        entered_ms: r.result.entered_ms,
    };
    serde_json::to_string(&said).unwrap_or_default()
}

/// Renders one result.
#[must_use]
pub fn settled_call(options: &ReportOptions, r: &Reported<'_>) -> SettledCall {
    let audit = if options.log_tool_calls {
        audit::audit_entry(&audit::AuditInput {
            timestamp_ms: r.now_ms,
            tenant: r.tenant,
            agent: r.agent,
            delegated: r.delegated,
            turn: r.turn,
            tool_name: r.tool_name,
            tool_id: r.tool_id,
            arguments: r.arguments,
            result: r.result,
            shadow: r.shadow,
            premises: &if options.premises { premises(r, &options.redactor) } else { String::new() },
            effect: r.effect,
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
        facts: None,
        failed: !matches!(r.result.outcome, Outcome::Ok | Outcome::Expired),
    }
}

/// The history of a call that ends without a result of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Past<'a> {
    /// The limit that the call met.
    pub limit: Option<&'a MetLimit>,
    /// Tries that it has behind it.
    pub tries: u32,
    /// True if the call got lost while somebody held it, or may have held it.
    pub lost: bool,
    /// True if it had begun work that went on elsewhere.
    pub waited: bool,
    /// Why somebody cancelled it, without secrets.
    pub why: Option<&'a str>,
}

impl Past<'_> {
    /// The end of the sentence that says why a call ended, in a way that never denies what began (rule 25).
    fn told(&self) -> String {
        match (self.tries, self.lost) {
            _ if self.waited => {
                " while this call waited for work that it had begun. What was done until then stands.".into()
            }
            (0, false) => " before this call could run. It was not executed.".into(),
            (0, true) => {
                ". A worker may have begun this call, and no result of it was recorded: whether it ran is not known, so check before you repeat it."
                    .into()
            }
            (1, _) => " while this call waited for its second try. The first one failed; what it did before is not known."
                .into(),
            (tries, _) => format!(
                " while this call waited for another try. {tries} tries failed; what they did before is not known."
            ),
        }
    }
}

/// Returns what the agent is told of calls that end without a result of their own.
#[must_use]
pub fn ended(reason: EndReason, info: i64, past: &Past<'_>) -> (Outcome, CallError) {
    let (outcome, code, message, details) = match reason {
        EndReason::Expired => (
            Outcome::Expired,
            "expired",
            format!("The deadline {} came{}", rfc3339(info), past.told()),
            Some(serde_json::json!({ "deadline": rfc3339(info) })),
        ),
        EndReason::Cancelled => (
            Outcome::Cancelled,
            "cancelled",
            format!("The turn was cancelled{}{}", because(past.why), past.told()),
            past.why.map(|why| serde_json::json!({ "reason": why })),
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
        EndReason::LimitReached | EndReason::OverLimit | EndReason::NoAmount => {
            let (message, details) = limit_met(reason, info, past);
            // The limit cannot be counted because of the call's own arguments: these are to be corrected.
            let outcome = match reason {
                EndReason::NoAmount => (Outcome::InvalidArguments, "invalid_arguments"),
                _ => (Outcome::Rejected, "limit_reached"),
            };
            (outcome.0, outcome.1, message, Some(details))
        }
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

/// What is told of a call that a limit refused, and for programs.
fn limit_met(reason: EndReason, info: i64, past: &Past<'_>) -> (String, serde_json::Value) {
    let (limit, name) = (limit(past), past.limit.map(|limit| &limit.name));
    let details = serde_json::json!({ "limit": name });
    match reason {
        EndReason::OverLimit => {
            (format!("This call asks for more than the limit {limit} ever allows. It was not executed."), details)
        }
        EndReason::NoAmount => {
            let what = "counts an argument that is missing from this call, or is not a plain number";
            (format!("The limit {limit} {what}. Give it as a number; the call was not executed."), details)
        }
        // Places of calls that are out: when one of them ends nobody knows.
        _ if info == 0 => {
            let what = "Every place of the limit";
            (format!("{what} {limit} is taken. This call was not executed; it may be repeated later."), details)
        }
        _ => (
            format!(
                "The limit {limit} is used up. There is room again at {}. This call was not executed.",
                rfc3339(info)
            ),
            serde_json::json!({ "limit": name, "resets_at": rfc3339(info) }),
        ),
    }
}

/// A limit within a sentence: `mails_per_user (5 calls per user in 1h)`.
fn limit(past: &Past<'_>) -> String {
    past.limit.map_or_else(String::new, |limit| format!("{} ({})", limit.name, limit.words))
}

/// A cancel's reason within a sentence.
#[must_use]
pub fn because(why: Option<&str>) -> String {
    why.map(|why| format!(" (reason: {why})")).unwrap_or_default()
}

/// Returns what the agent is told of one call of an ending.
#[must_use]
pub fn ended_call(ending: &Ending, position: usize, tool: &str, redactor: &Redactor) -> (Outcome, CallError) {
    let why = ending.why.as_deref().map(|why| redactor.text(why));
    let why = why.as_deref();
    match ending.begun.filter(|begun| begun.position == position) {
        Some(BegunCall { by: BegunBy::Runtime, .. }) => taken_and_not_ended(ending, why),
        Some(BegunCall { by: BegunBy::Worker, .. }) => begun_and_lost(tool),
        Some(BegunCall { by: BegunBy::Waiter, .. }) => {
            ended(ending.reason, ending.info, &Past { waited: true, why, ..Past::default() })
        }
        None if ending.marked.contains(&position) => begun_and_lost(tool),
        None => {
            let tries = if position == ending.first { ending.tries } else { 0 };
            ended(
                ending.reason,
                ending.info,
                &Past {
                    tries,
                    lost: ending.crashes > 0 && position < ending.admitted,
                    why,
                    limit: ending.limit.as_ref(),
                    waited: false,
                },
            )
        }
    }
}

/// Returns true if a call of an ending may have run at a try of which no result was recorded.
fn may_have_run(ending: &Ending, position: usize) -> bool {
    match ending.begun.filter(|begun| begun.position == position) {
        Some(begun) => matches!(begun.by, BegunBy::Worker | BegunBy::Runtime),
        None if ending.marked.contains(&position) => true,
        None => {
            let is_open = matches!(ending.reason, EndReason::Expired | EndReason::Cancelled | EndReason::Internal);
            let tries = if position == ending.first { ending.tries } else { 0 };
            is_open && tries == 0 && ending.crashes > 0 && position < ending.admitted
        }
    }
}

/// Returns what the agent is told of a call that was begun and left without a result: whatever ends the turn, the call
/// must not be reported as not executed.
#[must_use]
pub fn begun_and_lost(tool: &str) -> (Outcome, CallError) {
    unknown(format!(
        "This call had been begun, and no result of it was recorded. {tool} may have taken effect or not: check before \
         you repeat it."
    ))
}

/// Returns what a delegator is told of a task that an external runtime had taken and did not end.
fn taken_and_not_ended(ending: &Ending, why: Option<&str>) -> (Outcome, CallError) {
    let what = match ending.reason {
        EndReason::Expired => format!("The deadline {} came", rfc3339(ending.info)),
        EndReason::Cancelled => format!("The task was cancelled{}", because(why)),
        EndReason::DailyCapReached
        | EndReason::TaskBudgetReached
        | EndReason::LimitReached
        | EndReason::OverLimit
        | EndReason::NoAmount
        | EndReason::Internal
        | EndReason::Rejected => "The task was given up".into(),
    };
    unknown(format!(
        "{what} after a runtime had taken the task, which did not say how it ended. It may have done some of it, all or \
         nothing: check before you repeat it."
    ))
}

fn unknown(message: String) -> (Outcome, CallError) {
    (Outcome::OutcomeUnknown, CallError { code: Outcome::OutcomeUnknown.as_str().into(), message, details: None })
}

/// The consent to a call with these arguments, as its result names it.
#[must_use]
pub fn approved(consent: &UsedConsent, arguments: &str) -> Approved {
    let values: Narrowed = serde_json::from_str(&consent.narrowed).unwrap_or_default();
    let may = values.keys().cloned().collect();
    let changed = (!values.is_empty()).then(|| narrow(arguments, &may, &values).ok()).flatten();
    let arguments = changed.and_then(|changed| RawValue::from_string(changed).ok());
    Approved { id: consent.id.clone(), by: consent.by.clone(), arguments }
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

/// The meta of an ending's turn. Of one that cannot be read (a later build's, or changed by a hand) whatever can be:
/// its calls are answered all the same.
fn meta_of(ending: &Ending) -> Result<SliceMeta, String> {
    let read = serde_json::from_str::<SliceMeta>(&ending.meta);
    let Err(problem) = read else { return read.map_err(|e| e.to_string()) };
    let parts: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&ending.meta).unwrap_or_default();
    let mut plain = serde_json::json!({"ag": "unknown", "dl": 0, "dg": "", "n": ending.upto});
    for (name, value) in parts {
        let mut more = plain.clone();
        more[&name] = value;
        if serde_json::from_value::<SliceMeta>(more.clone()).is_ok() {
            plain = more;
        }
    }
    serde_json::from_value(plain).map_err(|_| format!("meta: {problem}"))
}

/// The settlement of calls that nobody runs. The audit log names their tools as `policy` knows them. `consent` is the one that
/// a call of the turn has taken, where one may have begun: its result names it.
///
/// # Errors
/// The problem of the ending's data, for the log: only a foreign writer leaves such.
pub fn ending(
    options: &ReportOptions,
    policy: &Policy,
    ending: &Ending,
    consent: Option<&UsedConsent>,
    now_ms: i64,
) -> Result<Settlement, String> {
    let meta = meta_of(ending)?;
    let calls = (ending.first..ending.upto).zip(ending.calls.iter().map(Some).chain(std::iter::repeat(None)));
    let settle = |(position, blob): (usize, Option<&String>)| {
        if meta.calls == 0 {
            return SettledCall::default();
        }
        let call = call_of(&meta, blob);
        let id = CallId { turn: ending.name.turn.clone(), position };
        let (outcome, error) = ended_call(ending, position, &call.tool, &options.redactor);
        let mut result = CallResult::refused(&id, call.provider_id, &call.tool, outcome, error);
        if position == ending.first {
            result.attempts = ending.tries;
        }
        let ran = result.ran();
        // A call that may have run was tried.
        if may_have_run(ending, position) {
            result.attempts += 1;
            let consent = consent.filter(|consent| consent.position == position);
            result.approval = consent.map(|consent| approved(consent, &call.arguments));
        }
        let reported = Reported {
            tenant: &ending.name.tenant,
            agent: &meta.agent,
            delegated: delegated(&meta),
            turn: ending.name.turn.as_str(),
            dialect: meta.dialect,
            tool_name: policy.tool_name(&call.tool),
            tool_id: None,
            arguments: &call.arguments,
            result: &result,
            ran,
            shadow: &[],
            meta: &meta,
            effect: None,
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

    use tickfleet_model::tool::{KnownTools, ToolTraits};

    use super::*;

    #[test]
    fn an_end_wakes_whoever_waits_for_it() {
        let wakes = |turn: &str, meta: &str| {
            let meta: SliceMeta = serde_json::from_str(meta).unwrap();
            frame(&TurnName::parse(&format!("acme:{turn}")).unwrap(), &meta).wakes.map(|turn| turn.to_string())
        };
        let free = r#"{"ag":"kelly","dl":0,"dg":"d","n":1}"#;
        assert_eq!(wakes("t1", free), None);
        // An inner call's turn, the turn whose call made it; also within a step of a task.
        assert_eq!(wakes("t1.0.call-2", free).as_deref(), Some("t1"));
        assert_eq!(wakes("job.step-1.3.call-1", free).as_deref(), Some("job.step-1"));
    }

    #[test]
    fn an_ending_does_not_deny_a_call_that_was_begun() {
        let ending_of = Ending {
            name: TurnName::parse("acme:t1").unwrap(),
            fence: "s:1".into(),
            reason: EndReason::Expired,
            first: 1,
            upto: 4,
            info: 0,
            limit: None,
            begun: Some(BegunCall { position: 1, by: BegunBy::Worker }),
            marked: vec![2],
            tries: 0,
            crashes: 0,
            admitted: 4,
            why: None,
            meta: r#"{"ag":"kelly","dl":0,"dg":"d","n":4}"#.into(),
            calls: vec![r#"{"t":"send_invoice","a":"{\"amount\": 700, \"to\": \"kim\"}"}"#.into(); 3],
        };
        let consent = UsedConsent {
            position: 1,
            id: "apr-1".into(),
            by: vec!["ann".into()],
            narrowed: r#"{"/amount":400}"#.into(),
        };
        let settlement = ending(&ReportOptions::default(), &Policy::default(), &ending_of, Some(&consent), 0).unwrap();
        let named = |at: usize| {
            serde_json::from_str::<serde_json::Value>(&settlement.calls[at].result).unwrap()["approval"].clone()
        };
        let expected = serde_json::json!({"id": "apr-1", "by": ["ann"], "arguments": {"amount": 400, "to": "kim"}});
        assert_eq!((named(0), named(1).is_null()), (expected, true), "the call that may have run names its consent");
        assert!(settlement.calls[0].audit.contains(r#""approval":{"id":"apr-1""#), "{}", settlement.calls[0].audit);
        let told = |settlement: &Settlement| -> Vec<(String, u64)> {
            let told = settlement.calls.iter().map(|call| {
                let result: serde_json::Value = serde_json::from_str(&call.result).unwrap();
                (result["outcome"].as_str().unwrap().to_owned(), result["attempts"].as_u64().unwrap())
            });
            told.collect()
        };
        let pairs = |all: &[(&str, u64)]| {
            all.iter().map(|(outcome, tries)| ((*outcome).to_owned(), *tries)).collect::<Vec<_>>()
        };
        let unknown = "outcome_unknown";
        assert_eq!(told(&settlement), pairs(&[(unknown, 1), (unknown, 1), ("expired", 0)]));

        // The one that was begun had failed before, and the holder of the others was lost.
        let lost = Ending { tries: 2, crashes: 1, marked: Vec::new(), admitted: 3, ..ending_of };
        let settlement = ending(&ReportOptions::default(), &Policy::default(), &lost, None, 0).unwrap();
        assert_eq!(told(&settlement), pairs(&[(unknown, 3), ("expired", 1), ("expired", 0)]));

        // Auditors are told that it ran only of one whose tries ended: what decides the log anew goes by it.
        let options = ReportOptions { premises: true, ..ReportOptions::default() };
        let ran = |ending_of: Ending| -> Vec<bool> {
            let settlement = ending(&options, &Policy::default(), &ending_of, None, 0).unwrap();
            let ran = settlement.calls.iter().map(|call| {
                let entry: serde_json::Value = serde_json::from_str(&call.audit).unwrap();
                entry["meta"]["premises"]["ran"] == true
            });
            ran.collect()
        };
        assert_eq!(ran(Ending { tries: 0, begun: None, reason: EndReason::Internal, ..lost.clone() }), [false; 3]);
        assert_eq!(ran(lost.clone()), [true, false, false]);

        // A dialect shows `crm.find` as `crm_x2E_find`: whoever ends the call, the log has one name for the tool.
        let call = Call { provider_id: None, tool: "crm_x2E_find".into(), arguments: "{}".into() };
        let spelled = vec![serde_json::to_string(&call).unwrap(); 3];
        let spelling = ("crm_x2E_find".to_owned(), "crm.find".to_owned());
        let known_tools = KnownTools::new([("crm.find".to_owned(), ToolTraits::default())].into(), [spelling].into());
        let policy = Policy { known_tools: Arc::new(known_tools), ..Policy::default() };
        let settlement = ending(&options, &policy, &Ending { calls: spelled, ..lost }, None, 0).unwrap();
        for call in &settlement.calls {
            let entry: serde_json::Value = serde_json::from_str(&call.audit).unwrap();
            assert_eq!(entry["entity_id"], "crm.find");
        }
    }

    #[test]
    fn an_argument_that_a_limit_needs_is_the_calls_own_fault() {
        let limit = MetLimit { name: "spent".into(), words: "500 of /amount per agent in a day".into() };
        let past = Past { limit: Some(&limit), ..Past::default() };
        let (outcome, error) = ended(EndReason::NoAmount, 0, &past);
        assert_eq!((outcome, error.code.as_str()), (Outcome::InvalidArguments, "invalid_arguments"));
        assert!(error.message.contains("spent (500 of /amount"), "{}", error.message);
        assert_eq!(ended(EndReason::OverLimit, 0, &past).0, Outcome::Rejected);
    }
}
