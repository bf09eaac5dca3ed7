//! The calls of a turn, in and out of every dialect.

use super::fields::{Fields, Place};
use super::json::{Bounds, Kind, Value, check};
use super::refusal::Problem;
use super::text;
use super::write::Object;
use tickfleet_model::{Call, Dialect, limits};

/// The members that hold calls, and the dialect that each stands for where `format` names none.
const HOLDERS: [(&str, Dialect); 4] = [
    ("calls", Dialect::Raw),
    ("tool_calls", Dialect::OpenaiChat),
    ("content", Dialect::Anthropic),
    ("answer", Dialect::Text),
];

/// What a turn must have.
const ONE_OF: &str = "a turn has exactly one of calls (raw, or what format says), tool_calls (OpenAI Chat), content \
                      (Anthropic) and answer (plain text)";

/// The dialect and the calls of the one member that holds calls.
pub(super) fn read_calls(fields: &Fields<'_, '_>) -> Result<(Dialect, Vec<Call>), Problem> {
    let format = format(fields)?;
    let mut present = HOLDERS.into_iter().filter_map(|(name, own)| Some((name, own, fields.get(name)?)));
    let Some((name, own, held)) = present.next() else {
        return Err(Problem::new("missing_field", format!("{ONE_OF}; this one has none")));
    };
    if let Some((other, ..)) = present.next() {
        return Err(Problem::new("invalid_field", format!("{ONE_OF}; this one has {name} and {other}")));
    }
    let dialect = format.unwrap_or(own);
    if name != "calls" && dialect != own {
        let (given, own) = (dialect.as_str(), own.as_str());
        return Err(fields.invalid("format", &format!("{name} is {own}, not {given}; put {given} calls into calls")));
    }
    let calls = if name == "answer" { read_answer(fields)? } else { read_list(dialect, name, held, fields)? };
    // Whoever submits a plain answer cannot know whether it has a call; of the other dialects the provider says so.
    if calls.is_empty() && dialect != Dialect::Text {
        let what = match dialect {
            Dialect::Anthropic => "has no tool_use block",
            Dialect::OpenaiResponses => "has no function_call item",
            _ => "is empty",
        };
        return Err(Problem::new("no_calls", format!("{name} {what}: a turn has at least one call")));
    }
    Ok((dialect, calls))
}

fn format(fields: &Fields<'_, '_>) -> Result<Option<Dialect>, Problem> {
    let Some(text) = fields.string("format", limits::NAME_BYTES_MAX)? else { return Ok(None) };
    let known = || Dialect::ALL.map(Dialect::as_str).join(", ");
    Dialect::parse(&text).map(Some).ok_or_else(|| fields.invalid("format", &format!("{text:?} is none of {}", known())))
}

fn read_list(
    dialect: Dialect,
    name: &'static str,
    list: Value<'_, '_>,
    message: &Fields<'_, '_>,
) -> Result<Vec<Call>, Problem> {
    if dialect == Dialect::Anthropic && list.kind() == Kind::String {
        return Err(Problem::new("no_calls", format!("{name} is plain text: the turn has no tool_use block")));
    }
    if list.kind() != Kind::Array {
        let found = list.kind().as_str();
        return Err(message.invalid(name, &format!("expected an array of calls, found {found}")));
    }
    let mut calls = Vec::new();
    for (index, element) in list.elements().enumerate() {
        let fields = Fields::of(Some(element), Place::Element(name, index))?;
        let call = match dialect {
            Dialect::Raw => Some(raw_call(fields)?),
            Dialect::OpenaiChat => Some(chat_call(&fields, name, index)?),
            Dialect::OpenaiResponses => responses_call(&fields)?,
            Dialect::Anthropic => anthropic_call(&fields)?,
            Dialect::Mcp => Some(mcp_call(fields)?),
            Dialect::Text => Some(text_call(fields)?),
        };
        if calls.len() == limits::CALLS_PER_TURN_MAX && call.is_some() {
            return Err(too_many(name));
        }
        calls.extend(call);
    }
    Ok(calls)
}

fn too_many(name: &str) -> Problem {
    let max = limits::CALLS_PER_TURN_MAX;
    Problem::new("too_many_calls", format!("{name} has more than {max} calls; split the turn"))
}

/// The calls in a model's plain answer, within the bounds of every other dialect.
fn read_answer(fields: &Fields<'_, '_>) -> Result<Vec<Call>, Problem> {
    let answer = fields.string("answer", limits::TURN_BYTES_MAX)?;
    let answer = answer.ok_or_else(|| fields.missing("answer"))?;
    let calls = text::calls_in(&answer);
    if calls.len() > limits::CALLS_PER_TURN_MAX {
        return Err(too_many("answer"));
    }
    let too_large = |what: &str, bytes: usize, max: usize| {
        Problem::new("too_large", format!("{what} of a call in answer has {bytes} bytes; at most {max} are allowed"))
    };
    for call in &calls {
        let id = call.provider_id.as_ref().map_or(0, String::len);
        for (what, bytes, max) in [
            ("the id", id, limits::PROVIDER_ID_BYTES_MAX),
            ("the tool's name", call.tool.len(), limits::TOOL_NAME_BYTES_MAX),
            ("the arguments", call.arguments.len(), limits::ARGUMENTS_BYTES_MAX),
        ] {
            if bytes > max {
                return Err(too_large(what, bytes, max));
            }
        }
    }
    Ok(calls)
}

/// `{id?, name, arguments?}`: a call without arguments has the arguments `{}`.
fn raw_call(fields: Fields<'_, '_>) -> Result<Call, Problem> {
    let fields = fields.only(&["id", "name", "arguments"])?;
    let arguments = arguments(&fields, "arguments", "{}")?;
    Ok(Call { provider_id: id(&fields, "id")?, tool: tool(&fields, "name")?, arguments })
}

/// `{id, type: "function", function: {name, arguments}}`. Members that providers add (`index`) are ignored.
fn chat_call(fields: &Fields<'_, '_>, name: &'static str, index: usize) -> Result<Call, Problem> {
    let kind = fields.string("type", limits::NAME_BYTES_MAX)?;
    if let Some(kind) = kind.filter(|kind| kind != "function") {
        return Err(fields.invalid("type", &format!("{kind:?} is not supported; expected \"function\"")));
    }
    let function = fields.required("function", fields.get("function"))?;
    let function = Fields::of(Some(function), Place::Inside(name, index, "function"))?;
    let arguments = arguments(&function, "arguments", "")?;
    Ok(Call { provider_id: id(fields, "id")?, tool: tool(&function, "name")?, arguments })
}

/// `{type: "function_call", call_id, name, arguments}`; `None` for an item of any other type: messages, reasoning,
/// and the calls of tools that the provider itself carries out. A custom tool's call is refused: it waits for an
/// answer that nobody here can give.
fn responses_call(fields: &Fields<'_, '_>) -> Result<Option<Call>, Problem> {
    let kind = fields.string("type", limits::NAME_BYTES_MAX)?;
    match fields.required("type", kind)?.as_ref() {
        "function_call" => {
            let arguments = arguments(fields, "arguments", "")?;
            Ok(Some(Call { provider_id: id(fields, "call_id")?, tool: tool(fields, "name")?, arguments }))
        }
        "custom_tool_call" => {
            Err(fields.invalid("type", "\"custom_tool_call\" is not supported; expected \"function_call\""))
        }
        _ => Ok(None),
    }
}

/// `{type: "tool_use", id, name, input}`; `None` for a block of any other type: text, thinking, and the
/// blocks of tools that the provider itself carries out.
fn anthropic_call(fields: &Fields<'_, '_>) -> Result<Option<Call>, Problem> {
    let kind = fields.string("type", limits::NAME_BYTES_MAX)?;
    if fields.required("type", kind)? != "tool_use" {
        return Ok(None);
    }
    let arguments = arguments(fields, "input", "")?;
    Ok(Some(Call { provider_id: id(fields, "id")?, tool: tool(fields, "name")?, arguments }))
}

/// `{name, arguments?, _meta?}`, the parameters of `tools/call`; `id` may be the request's, as a string.
fn mcp_call(fields: Fields<'_, '_>) -> Result<Call, Problem> {
    let fields = fields.only(&["id", "name", "arguments", "_meta"])?;
    let arguments = arguments(&fields, "arguments", "{}")?;
    Ok(Call { provider_id: id(&fields, "id")?, tool: tool(&fields, "name")?, arguments })
}

/// `{id?, tool, reason?, arguments?}`: a call as [`text::calls_in`] finds it in an answer.
fn text_call(fields: Fields<'_, '_>) -> Result<Call, Problem> {
    let fields = fields.only(&["id", "tool", "reason", "arguments"])?;
    let arguments = arguments(&fields, "arguments", "{}")?;
    Ok(Call { provider_id: id(&fields, "id")?, tool: tool(&fields, "tool")?, arguments })
}

/// The text of arguments: a string holds it as is, any other value is its own text, and what is not there is
/// `absent`.
fn arguments(fields: &Fields<'_, '_>, name: &str, absent: &str) -> Result<String, Problem> {
    let max = limits::ARGUMENTS_BYTES_MAX;
    let Some(value) = fields.get_or_null(name) else { return Ok(absent.to_owned()) };
    if value.kind() == Kind::String {
        return Ok(fields.string(name, max)?.unwrap_or_default().into_owned());
    }
    let text = value.text().unwrap_or_default();
    if text.len() > max {
        return Err(fields.too_large(name, text.len(), max));
    }
    Ok(text.to_owned())
}

fn id(fields: &Fields<'_, '_>, name: &str) -> Result<Option<String>, Problem> {
    Ok(fields.string(name, limits::PROVIDER_ID_BYTES_MAX)?.map(Into::into))
}

fn tool(fields: &Fields<'_, '_>, name: &str) -> Result<String, Problem> {
    Ok(fields.required(name, fields.string(name, limits::TOOL_NAME_BYTES_MAX)?)?.into())
}

/// Writes calls into a turn, as [`read_calls`] reads them.
pub(super) fn write_calls(turn: &mut Object, dialect: Dialect, calls: &[Call]) {
    let (name, format) = match dialect {
        Dialect::Raw => ("calls", None),
        Dialect::OpenaiChat => ("tool_calls", None),
        Dialect::Anthropic => ("content", None),
        Dialect::OpenaiResponses | Dialect::Mcp | Dialect::Text => ("calls", Some(dialect.as_str())),
    };
    turn.optional("format", format);
    let calls: Vec<String> = calls.iter().map(|call| write_call(dialect, call)).collect();
    turn.raw(name, &format!("[{}]", calls.join(",")));
}

fn write_call(dialect: Dialect, call: &Call) -> String {
    let mut object = Object::new(call.arguments.len() + 96);
    let (id, name) = (call.provider_id.as_deref(), call.tool.as_str());
    match dialect {
        Dialect::OpenaiChat => {
            let mut function = Object::new(call.arguments.len() + 48);
            function.text("name", name);
            function.text("arguments", &call.arguments);
            object.optional("id", id);
            object.text("type", "function");
            object.raw("function", &function.end());
        }
        Dialect::OpenaiResponses => {
            object.text("type", "function_call");
            object.optional("call_id", id);
            object.text("name", name);
            object.text("arguments", &call.arguments);
        }
        Dialect::Anthropic => {
            object.text("type", "tool_use");
            object.optional("id", id);
            object.text("name", name);
            push_arguments(&mut object, "input", &call.arguments);
        }
        Dialect::Raw | Dialect::Mcp | Dialect::Text => {
            object.optional("id", id);
            object.text(if dialect == Dialect::Text { "tool" } else { "name" }, name);
            push_arguments(&mut object, "arguments", &call.arguments);
        }
    }
    object.end()
}

/// Arguments as the JSON value that they are; what is none (it is refused call by call) as a string.
fn push_arguments(object: &mut Object, name: &'static str, arguments: &str) {
    if stands_alone(arguments) {
        object.raw(name, arguments);
    } else {
        object.text(name, arguments);
    }
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
