//! Reads and writes turns in any dialect.

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use super::dialects::members;
use super::json::Document;
use super::message::calls::{read_calls, write_calls};
use super::message::fields::{Fields, ObjectPath};
use super::message::problem::MessageProblem;
use super::message::read_message;
use super::rejected_message::RejectedMessage;
use super::write::{Object, time};
use tickfleet_model::{AgentId, InboxName, TaskId, TenantId, Turn, TurnId, limits};

/// Without the fields for calls.
const HEAD: [&str; 21] = [
    "turn_id",
    "tenant",
    "agent",
    "priority",
    "deadline",
    "reply_to",
    "task_id",
    "user_context",
    "session_data",
    "session_id",
    "correlation_id",
    "traceparent",
    "tracestate",
    "tool_call_audits",
    "strict",
    "stop_reason",
    "format",
    "allowed_tools",
    "parallel_reads",
    "pending_approval",
    "local_calls",
];

pub static TURN_FIELDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| HEAD.into_iter().chain(call_fields()).collect());

/// The fields in which a turn can have calls: those of the dialects.
pub fn call_fields() -> impl Iterator<Item = &'static str> {
    members().map(|(name, ..)| name)
}

/// Arguments remain text until the call runs, so that broken arguments do not affect the other calls of the turn.
pub fn parse_turn(bytes: &[u8]) -> Result<Turn, Box<RejectedMessage>> {
    read_message(bytes, strict)
}

fn strict(document: &Document<'_>) -> Result<Turn, MessageProblem> {
    let fields = Fields::of(document.root(), ObjectPath::Message)?.only(&TURN_FIELDS)?;
    let (dialect, calls) = read_calls(&fields)?;
    Ok(Turn {
        id: fields.id("turn_id", TurnId::new)?,
        tenant: fields.required("tenant", fields.id("tenant", TenantId::new)?)?,
        agent: fields.required("agent", fields.id("agent", AgentId::new)?)?,
        priority: fields.priority()?,
        deadline_ms: fields.deadline()?,
        reply_to: fields.id("reply_to", InboxName::new)?,
        dialect,
        task: fields.id("task_id", TaskId::new)?,
        context: fields.context()?,
        want_audits: fields.flag("tool_call_audits")?,
        strict: fields.flag("strict")?,
        allowed_tools: fields.names("allowed_tools", limits::ALLOWED_TOOLS_MAX, limits::TOOL_NAME_BYTES_MAX)?,
        parallel_reads: fields.flag("parallel_reads")?,
        pending_approval: fields.flag("pending_approval")?,
        local_calls: fields.flag("local_calls")?,
        calls,
    })
}

/// Arguments that are not JSON (dialect `raw`) are written as a string, so that only their call is rejected.
#[must_use]
pub fn write_turn(turn: &Turn) -> String {
    let mut object = Object::new(256 + turn.calls.iter().map(|call| call.arguments.len() + 96).sum::<usize>());
    object.optional("turn_id", turn.id.as_ref().map(TurnId::as_str));
    object.text("tenant", turn.tenant.as_str());
    object.text("agent", turn.agent.as_str());
    object.text("priority", turn.priority.as_str());
    object.optional("deadline", turn.deadline_ms.map(time).as_deref());
    object.optional("reply_to", turn.reply_to.as_ref().map(InboxName::as_str));
    object.optional("task_id", turn.task.as_ref().map(TaskId::as_str));
    object.context(&turn.context);
    if turn.want_audits {
        object.raw("tool_call_audits", "true");
    }
    if turn.strict {
        object.raw("strict", "true");
    }
    object.names("allowed_tools", turn.allowed_tools.as_ref());
    if turn.parallel_reads {
        object.raw("parallel_reads", "true");
    }
    if turn.pending_approval {
        object.raw("pending_approval", "true");
    }
    if turn.local_calls {
        object.raw("local_calls", "true");
    }
    write_calls(&mut object, turn.dialect, &turn.calls);
    object.end()
}
