//! Turns in: one message in any dialect becomes a validated [`Turn`]; and out again, for producers in Rust.

#[cfg(test)]
mod tests;

use super::fields::{Fields, Place, read_message};
use super::json::{Bounds, Document, Kind, Value, check};
use super::refusal::{Problem, Refusal};
use super::write::{Object, time};
use crate::model::{AgentId, Call, Dialect, InboxName, TaskId, TenantId, Turn, TurnId, limits};

/// The fields of a turn on the wire.
const FIELDS: [&str; 15] = [
    "turn_id",
    "tenant",
    "agent",
    "priority",
    "deadline",
    "reply_to",
    "task_id",
    "user_context",
    "session_data",
    "correlation_id",
    "traceparent",
    "tool_call_audits",
    "calls",
    "tool_calls",
    "content",
];

/// Reads the JSON of one turn (the `turn` field of an entry on the `turns` stream).
///
/// The arguments of calls stay text and are judged when a call is carried out, so that one call with broken
/// arguments does not cost its siblings.
///
/// # Errors
/// [`Refusal`] says which rule the message breaks, and carries what can still be read for the reply.
pub fn parse_turn(bytes: &[u8]) -> Result<Turn, Box<Refusal>> {
    read_message(bytes, strict)
}

fn strict(document: &Document<'_>) -> Result<Turn, Problem> {
    let fields = Fields::of(document.root(), Place::Message)?.only(&FIELDS)?;
    let (dialect, calls) = calls(&fields)?;
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
        calls,
    })
}

/// The name of the field that holds the calls of a dialect.
const fn calls_field(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Raw => "calls",
        Dialect::OpenaiChat => "tool_calls",
        Dialect::Anthropic => "content",
    }
}

/// The dialect and the calls of the one list of calls that the message must have.
fn calls(fields: &Fields<'_, '_>) -> Result<(Dialect, Vec<Call>), Problem> {
    let lists = [Dialect::Raw, Dialect::OpenaiChat, Dialect::Anthropic];
    let mut present = lists.into_iter().filter_map(|dialect| Some((dialect, fields.get(calls_field(dialect))?)));
    let one_of = "a turn has exactly one of calls (raw), tool_calls (OpenAI Chat) and content (Anthropic)";
    let Some((dialect, list)) = present.next() else {
        return Err(Problem::new("missing_field", format!("{one_of}; this one has none")));
    };
    if let Some((other, _)) = present.next() {
        let (one, other) = (calls_field(dialect), calls_field(other));
        return Err(Problem::new("invalid_field", format!("{one_of}; this one has {one} and {other}")));
    }
    let field = calls_field(dialect);
    if dialect == Dialect::Anthropic && list.kind() == Kind::String {
        return Err(Problem::new("no_calls", "content is plain text: the turn has no tool_use block"));
    }
    if list.kind() != Kind::Array {
        let found = list.kind().as_str();
        return Err(fields.invalid(field, &format!("expected an array of calls, found {found}")));
    }
    Ok((dialect, read_list(dialect, field, list)?))
}

fn read_list(dialect: Dialect, field: &'static str, list: Value<'_, '_>) -> Result<Vec<Call>, Problem> {
    let mut calls = Vec::new();
    for (index, element) in list.elements().enumerate() {
        let fields = Fields::of(Some(element), Place::Element(field, index))?;
        let call = match dialect {
            Dialect::Raw => Some(raw_call(fields)?),
            Dialect::OpenaiChat => Some(openai_call(&fields, index)?),
            Dialect::Anthropic => anthropic_call(&fields)?,
        };
        if calls.len() == limits::CALLS_PER_TURN_MAX && call.is_some() {
            let max = limits::CALLS_PER_TURN_MAX;
            return Err(Problem::new("too_many_calls", format!("{field} has more than {max} calls; split the turn")));
        }
        calls.extend(call);
    }
    if calls.is_empty() {
        let what = if dialect == Dialect::Anthropic { "has no tool_use block" } else { "is empty" };
        return Err(Problem::new("no_calls", format!("{field} {what}: a turn has at least one call")));
    }
    Ok(calls)
}

/// `{id?, name, arguments?}`: a call without arguments has the arguments `{}`.
fn raw_call(fields: Fields<'_, '_>) -> Result<Call, Problem> {
    let fields = fields.only(&["id", "name", "arguments"])?;
    let arguments = match fields.get_or_null("arguments") {
        Some(value) => arguments(&fields, "arguments", value)?,
        None => "{}".into(),
    };
    Ok(Call { provider_id: provider_id(&fields)?, tool: tool(&fields)?, arguments })
}

/// `{id, type: "function", function: {name, arguments}}`. Members that providers add (`index`) are ignored.
fn openai_call(fields: &Fields<'_, '_>, index: usize) -> Result<Call, Problem> {
    let kind = fields.string("type", limits::NAME_BYTES_MAX)?;
    if let Some(kind) = kind.filter(|kind| kind != "function") {
        return Err(fields.invalid("type", &format!("{kind:?} is not supported; expected \"function\"")));
    }
    let function = fields.required("function", fields.get("function"))?;
    let function = Fields::of(Some(function), Place::Inside("tool_calls", index, "function"))?;
    let arguments = match function.get_or_null("arguments") {
        Some(value) => arguments(&function, "arguments", value)?,
        None => String::new(),
    };
    Ok(Call { provider_id: provider_id(fields)?, tool: tool(&function)?, arguments })
}

/// `{type: "tool_use", id, name, input}`; `None` for a block of any other type: text, thinking, and the
/// blocks of tools that the provider itself carries out.
fn anthropic_call(fields: &Fields<'_, '_>) -> Result<Option<Call>, Problem> {
    let kind = fields.string("type", limits::NAME_BYTES_MAX)?;
    if fields.required("type", kind)? != "tool_use" {
        return Ok(None);
    }
    let arguments = match fields.get_or_null("input") {
        Some(value) => arguments(fields, "input", value)?,
        None => String::new(),
    };
    Ok(Some(Call { provider_id: provider_id(fields)?, tool: tool(fields)?, arguments }))
}

/// The text of arguments: a string holds it as is, any other value is its own text.
fn arguments(fields: &Fields<'_, '_>, name: &str, value: Value<'_, '_>) -> Result<String, Problem> {
    let max = limits::ARGUMENTS_BYTES_MAX;
    if value.kind() == Kind::String {
        return Ok(fields.string(name, max)?.unwrap_or_default().into_owned());
    }
    let text = value.text().unwrap_or_default();
    if text.len() > max {
        return Err(fields.too_large(name, text.len(), max));
    }
    Ok(text.to_owned())
}

fn provider_id(fields: &Fields<'_, '_>) -> Result<Option<String>, Problem> {
    Ok(fields.string("id", limits::PROVIDER_ID_BYTES_MAX)?.map(Into::into))
}

fn tool(fields: &Fields<'_, '_>) -> Result<String, Problem> {
    Ok(fields.required("name", fields.string("name", limits::TOOL_NAME_BYTES_MAX)?)?.into())
}

/// Writes a turn as [`parse_turn`] reads it, in the turn's own dialect.
///
/// Arguments that are no JSON (which a raw call may carry, to be refused one by one) are written as a string.
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
    let calls: Vec<String> = turn.calls.iter().map(|call| write_call(turn.dialect, call)).collect();
    object.raw(calls_field(turn.dialect), &format!("[{}]", calls.join(",")));
    object.end()
}

fn write_call(dialect: Dialect, call: &Call) -> String {
    let mut object = Object::new(call.arguments.len() + 96);
    if dialect == Dialect::Anthropic {
        object.text("type", "tool_use");
    }
    object.optional("id", call.provider_id.as_deref());
    match dialect {
        Dialect::OpenaiChat => {
            let mut function = Object::new(call.arguments.len() + 48);
            function.text("name", &call.tool);
            function.text("arguments", &call.arguments);
            object.text("type", "function");
            object.raw("function", &function.end());
        }
        Dialect::Raw | Dialect::Anthropic => {
            let field = if dialect == Dialect::Raw { "arguments" } else { "input" };
            object.text("name", &call.tool);
            if stands_alone(&call.arguments) {
                object.raw(field, &call.arguments);
            } else {
                object.text(field, &call.arguments);
            }
        }
    }
    object.end()
}

/// Whether arguments can be written as a JSON value and read back as the same text.
fn stands_alone(arguments: &str) -> bool {
    // Message, list and call are around the arguments.
    const BOUNDS: Bounds = Bounds { bytes_max: limits::ARGUMENTS_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX - 3 };
    let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r');
    !arguments.starts_with(|c| c == '"' || blank(c))
        && !arguments.ends_with(blank)
        && check(arguments.as_bytes(), BOUNDS).is_ok()
}
