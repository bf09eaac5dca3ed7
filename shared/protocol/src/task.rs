//! Messages about tasks: delegation, cancellation, and the reports of an external runtime about its leased task.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::cut::bounded_output;
use super::json::Document;
use super::message::fields::{Fields, ObjectPath};
use super::message::problem::MessageProblem;
use super::message::read_message;
use super::rejected_message::RejectedMessage;
use super::write::{Object, time};
use tickfleet_model::{
    AgentId, CallError, Conclusion, FailureKind, InboxName, RejectionCode, Task, TaskGrant, TaskId, TenantId, TurnId,
    limits,
};

#[derive(Debug, Clone)]
pub enum TaskMessage {
    Delegate(Box<Task>),
    /// The runtime still works on the task.
    Heartbeat(LeasedTask),
    Finish {
        leased: LeasedTask,
        output: Box<RawValue>,
    },
    Fail {
        leased: LeasedTask,
        /// The code is `failed` if the runtime gave no code.
        error: CallError,
        retryable: bool,
    },
    Renew(ClaimedCall),
    Conclude {
        claimed: ClaimedCall,
        conclusion: Conclusion,
    },
    Cancel {
        tenant: TenantId,
        target: CancelTarget,
        reason: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedTask {
    pub tenant: TenantId,
    pub task: TaskId,
    /// The ID of the entry that the runtime leased. If another runtime leases the task later, reports with this ID are
    /// rejected.
    pub lease: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedCall {
    pub tenant: TenantId,
    pub turn: TurnId,
    pub lease: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelTarget {
    Task(TaskId),
    Turn(TurnId),
}

const OPS: &str = "delegate, heartbeat, finish, fail, cancel";

pub const DELEGATE_FIELDS: [&str; 20] = [
    "op",
    "task_id",
    "tenant",
    "target_agent",
    "task_description",
    "input",
    "priority",
    "deadline",
    "reply_to",
    "delegator",
    "parent_task_id",
    "budget",
    "capabilities",
    "allowed_tools",
    "user_context",
    "session_data",
    "session_id",
    "correlation_id",
    "traceparent",
    "tracestate",
];

/// `bytes` are the `task` field of an entry on the `tasks` stream.
pub fn parse_task_message(bytes: &[u8]) -> Result<TaskMessage, Box<RejectedMessage>> {
    read_message(bytes, strict)
}

fn strict(document: &Document<'_>) -> Result<TaskMessage, MessageProblem> {
    let fields = Fields::of(document.root(), ObjectPath::Message)?;
    let op = fields.string("op", limits::NAME_BYTES_MAX)?.unwrap_or(Cow::Borrowed("delegate"));
    let is_local = matches!(&*op, "heartbeat" | "finish" | "fail") && fields.get("turn_id").is_some();
    if is_local {
        return local(&op, fields);
    }
    match op.as_ref() {
        "delegate" => delegate(&fields.only(&DELEGATE_FIELDS)?).map(|task| TaskMessage::Delegate(Box::new(task))),
        "heartbeat" => leased(&fields.only(&["op", "tenant", "task_id", "lease"])?).map(TaskMessage::Heartbeat),
        "finish" => finish(&fields.only(&["op", "tenant", "task_id", "lease", "output"])?),
        "fail" => fail(&fields.only(&["op", "tenant", "task_id", "lease", "error", "retryable"])?),
        "cancel" => cancel(&fields.only(&["op", "tenant", "task_id", "turn_id", "reason"])?),
        other => Err(fields.invalid("op", &format!("{other:?} is not one of {OPS}"))),
    }
}

fn delegate(fields: &Fields<'_, '_>) -> Result<Task, MessageProblem> {
    let description = fields.string("task_description", limits::TASK_DESCRIPTION_BYTES_MAX)?;
    let description = fields.required("task_description", description)?;
    if description.trim().is_empty() {
        return Err(fields.invalid("task_description", "is empty; describe the task"));
    }
    Ok(Task {
        id: fields.id("task_id", TaskId::new)?,
        tenant: tenant(fields)?,
        target: fields.required("target_agent", fields.id("target_agent", AgentId::new)?)?,
        delegator: fields.id("delegator", AgentId::new)?,
        description: description.into_owned(),
        input: fields.raw("input", limits::ARGUMENTS_BYTES_MAX)?,
        priority: fields.priority()?,
        deadline_ms: fields.deadline()?,
        reply_to: fields.id("reply_to", InboxName::new)?,
        parent: fields.id("parent_task_id", TaskId::new)?,
        grant: TaskGrant {
            budget: fields.count("budget")?.unwrap_or(limits::TASK_BUDGET_DEFAULT),
            capabilities: fields.names("capabilities", limits::TASK_CAPABILITIES_MAX, limits::NAME_BYTES_MAX)?,
            tools: fields.names("allowed_tools", limits::ALLOWED_TOOLS_MAX, limits::TOOL_NAME_BYTES_MAX)?,
            chain: Vec::new(),
        },
        context: fields.context()?,
    })
}

fn tenant(fields: &Fields<'_, '_>) -> Result<TenantId, MessageProblem> {
    fields.required("tenant", fields.id("tenant", TenantId::new)?)
}

fn leased(fields: &Fields<'_, '_>) -> Result<LeasedTask, MessageProblem> {
    let task = fields.required("task_id", fields.id("task_id", TaskId::new)?)?;
    Ok(LeasedTask { tenant: tenant(fields)?, task, lease: lease(fields)? })
}

fn lease(fields: &Fields<'_, '_>) -> Result<String, MessageProblem> {
    let lease = fields.required("lease", fields.string("lease", limits::LEASE_BYTES_MAX)?)?;
    if lease.is_empty() || lease.bytes().any(|b| !(b.is_ascii_digit() || b == b'-')) {
        return Err(fields.invalid("lease", "expected the id of the leased entry, as 1700000000000-0"));
    }
    Ok(lease.into_owned())
}

fn local(op: &str, fields: Fields<'_, '_>) -> Result<TaskMessage, MessageProblem> {
    const CLAIMED: [&str; 4] = ["op", "tenant", "turn_id", "lease"];
    let fields = match op {
        "heartbeat" => fields.only(&CLAIMED)?,
        "finish" => fields.only(&[&CLAIMED[..], &["output"]].concat())?,
        _ => fields.only(&[&CLAIMED[..], &["error", "retryable", "not_executed", "unknown"]].concat())?,
    };
    let claimed = ClaimedCall {
        tenant: tenant(&fields)?,
        turn: fields.required("turn_id", fields.id("turn_id", TurnId::new)?)?,
        lease: lease(&fields)?,
    };
    let conclusion = match op {
        "heartbeat" => return Ok(TaskMessage::Renew(claimed)),
        "finish" => {
            let output = output(&fields)?;
            let is_cut = output.get().len() > limits::OUTPUT_BYTES_MAX;
            let json = bounded_output(output, limits::OUTPUT_BYTES_MAX).get().to_owned();
            Conclusion::Output { json, is_cut }
        }
        _ => {
            let CallError { code, message, .. } = failure(&fields)?;
            let retryable = fields.flag("retryable")?;
            let not_executed = fields.flag("not_executed")?;
            let kind = match (fields.flag("unknown")?, retryable) {
                (true, false) if !not_executed => FailureKind::Unknown,
                (true, _) => return Err(fields.invalid("unknown", "excludes retryable and not_executed")),
                (false, true) if not_executed => FailureKind::NotExecuted,
                (false, true) => FailureKind::Transient,
                (false, false) if not_executed => {
                    return Err(fields.invalid("not_executed", "is for failures with `retryable: true`"));
                }
                (false, false) => FailureKind::Permanent,
            };
            Conclusion::Failed { code, message, kind }
        }
    };
    Ok(TaskMessage::Conclude { claimed, conclusion })
}

fn output(fields: &Fields<'_, '_>) -> Result<Box<RawValue>, MessageProblem> {
    // For `output`, null is a value, not an absent field.
    let output = fields.get_or_null("output").and_then(|value| value.text());
    let output = fields.required("output", output)?;
    RawValue::from_string(output.to_owned()).map_err(|e| fields.invalid("output", &e.to_string()))
}

fn finish(fields: &Fields<'_, '_>) -> Result<TaskMessage, MessageProblem> {
    Ok(TaskMessage::Finish { output: output(fields)?, leased: leased(fields)? })
}

fn fail(fields: &Fields<'_, '_>) -> Result<TaskMessage, MessageProblem> {
    let error = failure(fields)?;
    Ok(TaskMessage::Fail { leased: leased(fields)?, error, retryable: fields.flag("retryable")? })
}

fn failure(fields: &Fields<'_, '_>) -> Result<CallError, MessageProblem> {
    let error = fields.required("error", fields.get("error"))?;
    let error = Fields::of(Some(error), ObjectPath::Member("error"))?.only(&["code", "message"])?;
    let code = error.string("code", limits::NAME_BYTES_MAX)?.unwrap_or(Cow::Borrowed("failed"));
    let message = error.required("message", error.string("message", limits::REASON_BYTES_MAX)?)?;
    Ok(CallError { code: code.into_owned(), message: message.into_owned(), details: None })
}

fn cancel(fields: &Fields<'_, '_>) -> Result<TaskMessage, MessageProblem> {
    let target = match (fields.id("task_id", TaskId::new)?, fields.id("turn_id", TurnId::new)?) {
        (Some(task), None) => CancelTarget::Task(task),
        (None, Some(turn)) => CancelTarget::Turn(turn),
        (None, None) => {
            return Err(MessageProblem::new(RejectionCode::MissingField, "cancel needs a task_id or a turn_id"));
        }
        (Some(_), Some(_)) => {
            return Err(MessageProblem::new(
                RejectionCode::InvalidField,
                "cancel takes either a task_id or a turn_id, not both",
            ));
        }
    };
    let reason = fields.string("reason", limits::REASON_BYTES_MAX)?.map(Cow::into_owned);
    Ok(TaskMessage::Cancel { tenant: tenant(fields)?, target, reason })
}

/// Omits a grant's chain of delegations, which is internal to the fleet.
#[must_use]
pub fn write_task(task: &Task) -> String {
    let mut object = Object::new(task.description.len() + 512);
    object.text("op", "delegate");
    object.optional("task_id", task.id.as_ref().map(TaskId::as_str));
    object.text("tenant", task.tenant.as_str());
    object.text("target_agent", task.target.as_str());
    object.text("task_description", &task.description);
    if let Some(input) = &task.input {
        object.raw("input", input.get());
    }
    object.text("priority", task.priority.as_str());
    object.optional("deadline", task.deadline_ms.map(time).as_deref());
    object.optional("reply_to", task.reply_to.as_ref().map(InboxName::as_str));
    object.optional("delegator", task.delegator.as_ref().map(AgentId::as_str));
    object.optional("parent_task_id", task.parent.as_ref().map(TaskId::as_str));
    object.raw("budget", &task.grant.budget.to_string());
    object.names("capabilities", task.grant.capabilities.as_ref());
    object.names("allowed_tools", task.grant.tools.as_ref());
    object.context(&task.context);
    object.end()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> TaskMessage {
        parse_task_message(text.as_bytes()).unwrap_or_else(|refusal| panic!("{text}: {refusal:?}"))
    }

    fn refuse(text: &str) -> RejectedMessage {
        *parse_task_message(text.as_bytes()).expect_err(text)
    }

    #[test]
    fn a_delegation_reads_back_as_it_was_written() {
        let text = r#"{"op":"delegate","task_id":"t1","tenant":"acme","target_agent":"sam","task_description":"go\n",
            "input":{"n": 123456789012345678901234},"priority":"high","deadline":"2026-01-31T12:00:00+02:00",
            "reply_to":"in","delegator":"kelly","parent_task_id":"t0","budget":7,"capabilities":["b","a"],
            "user_context":{"u":1},"session_data":[],"correlation_id":"c"}"#;
        let TaskMessage::Delegate(task) = parse(text) else { panic!("not a delegation") };
        assert_eq!((task.grant.budget, task.deadline_ms), (7, Some(1_769_853_600_000)));
        assert_eq!(task.input.as_ref().unwrap().get(), r#"{"n": 123456789012345678901234}"#);
        let TaskMessage::Delegate(back) = parse(&write_task(&task)) else { panic!("not a delegation") };
        assert_eq!(format!("{back:?}"), format!("{task:?}"));
    }

    #[test]
    fn heartbeat_finish_fail_and_cancel_messages_parse() {
        let head = r#""tenant":"acme","task_id":"t1","lease":"1700000000000-0""#;
        assert!(matches!(parse(&format!(r#"{{"op":"heartbeat",{head}}}"#)), TaskMessage::Heartbeat(_)));
        let finish = parse(&format!(r#"{{"op":"finish",{head},"output":null}}"#));
        assert!(matches!(finish, TaskMessage::Finish { output, .. } if output.get() == "null"));
        let fail = parse(&format!(r#"{{"op":"fail",{head},"error":{{"message":"no"}},"retryable":true}}"#));
        assert!(matches!(fail, TaskMessage::Fail { error, retryable: true, .. } if error.code == "failed"));
        let claimed = r#""tenant":"acme","turn_id":"t1","lease":"1700000000000-0""#;
        assert!(matches!(parse(&format!(r#"{{"op":"heartbeat",{claimed}}}"#)), TaskMessage::Renew(_)));
        for (flags, kind) in [
            ("", Some(FailureKind::Permanent)),
            (r#","retryable":true"#, Some(FailureKind::Transient)),
            (r#","retryable":true,"not_executed":true"#, Some(FailureKind::NotExecuted)),
            (r#","unknown":true"#, Some(FailureKind::Unknown)),
            (r#","unknown":true,"retryable":true"#, None),
            (r#","not_executed":true"#, None),
        ] {
            let text = format!(r#"{{"op":"fail",{claimed},"error":{{"message":"no"}}{flags}}}"#);
            let parsed = parse_task_message(text.as_bytes()).ok().map(|message| match message {
                TaskMessage::Conclude { conclusion: Conclusion::Failed { kind, .. }, .. } => kind,
                other => panic!("{text}: {other:?}"),
            });
            assert_eq!(parsed, kind, "{text}");
        }
        let cancel = parse(r#"{"op":"cancel","tenant":"acme","turn_id":"x","reason":"late"}"#);
        assert!(matches!(cancel, TaskMessage::Cancel { target: CancelTarget::Turn(_), reason: Some(_), .. }));
    }

    #[test]
    fn each_violation_has_its_code_and_names_the_task() {
        for (text, code) in [
            (r#"{"tenant":"acme","target_agent":"sam","task_id":"t1"}"#, "missing_field"),
            (r#"{"tenant":"acme","target_agent":"sam","task_id":"t1","task_description":" "}"#, "invalid_field"),
            (
                r#"{"tenant":"acme","target_agent":"s","task_id":"t1","task_description":"x","budget":-1}"#,
                "invalid_field",
            ),
            (
                r#"{"tenant":"acme","target_agent":"s","task_id":"t1","task_description":"x","budget":1.5}"#,
                "invalid_field",
            ),
            (
                r#"{"tenant":"acme","target_agent":"s","task_id":"t1","task_description":"x","capabilities":[1]}"#,
                "invalid_field",
            ),
            (r#"{"op":"steal","tenant":"acme","task_id":"t1"}"#, "invalid_field"),
            (r#"{"op":"heartbeat","tenant":"acme","task_id":"t1"}"#, "missing_field"),
            (r#"{"op":"heartbeat","tenant":"acme","task_id":"t1","lease":"x"}"#, "invalid_field"),
            (r#"{"op":"heartbeat","tenant":"acme","task_id":"t1","lease":"1-0","output":1}"#, "unknown_field"),
            (r#"{"op":"finish","tenant":"acme","task_id":"t1","lease":"1-0"}"#, "missing_field"),
            (r#"{"op":"fail","tenant":"acme","task_id":"t1","lease":"1-0","error":"no"}"#, "invalid_field"),
            (r#"{"op":"cancel","tenant":"acme","task_id":"t1","turn_id":"t1"}"#, "invalid_field"),
        ] {
            let refusal = refuse(text);
            assert_eq!(refusal.code.as_str(), code, "{text}: {}", refusal.message);
            assert_eq!(refusal.task_id.as_ref().map(TaskId::as_str), Some("t1"));
            assert_eq!(refusal.tenant.as_ref().map(TenantId::as_str), Some("acme"));
        }
        assert_eq!(refuse(r#"{"op":"cancel","tenant":"acme"}"#).code.as_str(), "missing_field");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_task_message(&bytes);
        }
    }
}
