//! Reads and writes one call. All dialects share this code.

use std::borrow::Cow;

use super::super::json::{Bounds, Kind, Value, bounded, check, prefix};
use super::super::message::fields::{Fields, ObjectPath};
use super::super::message::problem::MessageProblem;
use super::super::text;
use super::super::write::Object;
use super::DialectRules;
use tickfleet_model::{Call, RejectionCode, limits};

pub(crate) struct Element<'a, 'd> {
    pub(super) fields: Fields<'a, 'd>,
    pub(super) list: &'static str,
    pub(super) index: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedCall {
    pub provider_id: Option<String>,
    /// A name of more than [`limits::TOOL_NAME_BYTES_MAX`] bytes is cut and ends with `…`. Empty if the name cannot be
    /// read.
    pub tool: String,
    /// True for a call of a custom tool (OpenAI Responses). The result of such a call must be an item of a different
    /// type.
    pub custom: bool,
}

impl RejectedCall {
    #[must_use]
    pub fn of(call: Call) -> Self {
        let tool = bounded(&call.tool, limits::TOOL_NAME_BYTES_MAX).into_owned();
        Self { provider_id: call.provider_id, tool, custom: false }
    }

    /// `None` if neither the ID nor the tool can be read.
    pub(super) fn read(id: Option<Value<'_, '_>>, tool: Option<Value<'_, '_>>) -> Option<Self> {
        let text = |value: Option<Value<'_, '_>>| value.and_then(text_of);
        let provider_id = text(id);
        let tool = text(tool);
        if tool.is_none() && provider_id.is_none() {
            return None;
        }
        let tool = bounded(&tool.unwrap_or_default(), limits::TOOL_NAME_BYTES_MAX).into_owned();
        Some(Self { provider_id, tool, custom: false })
    }
}

/// `held` is the list or contains the list.
pub(super) fn read_list<R: DialectRules + ?Sized>(
    rules: &R,
    name: &'static str,
    held: Value<'_, '_>,
    turn: &Fields<'_, '_>,
) -> Result<Vec<Call>, MessageProblem> {
    let (list, held) = rules.list(name, held);
    if held.kind() != Kind::Array {
        let found = held.kind().as_str();
        return Err(turn.invalid(list, &format!("expected an array of calls, found {found}")));
    }
    let mut calls = Vec::new();
    for (index, element) in held.elements().enumerate() {
        // Skip a null: some serializers write null in place of a call.
        if element.kind() == Kind::Null {
            continue;
        }
        let fields = Fields::of(Some(element), ObjectPath::Element(list, index))?;
        let call = rules.read_call(Element { fields, list, index })?;
        if calls.len() == limits::CALLS_PER_TURN_MAX && call.is_some() {
            return Err(too_many(list));
        }
        calls.extend(call);
    }
    Ok(calls)
}

fn too_many(name: &str) -> MessageProblem {
    let max = limits::CALLS_PER_TURN_MAX;
    MessageProblem::new(RejectionCode::TooManyCalls, format!("{name} has more than {max} calls; split the turn"))
}

pub(super) fn read_answer(fields: &Fields<'_, '_>, name: &'static str) -> Result<Vec<Call>, MessageProblem> {
    let answer = fields.string(name, limits::TURN_BYTES_MAX)?;
    let answer = answer.ok_or_else(|| fields.missing(name))?;
    let calls = text::calls_in(&answer);
    if calls.len() > limits::CALLS_PER_TURN_MAX {
        return Err(too_many(name));
    }
    let too_large = |what: &str, bytes: usize, max: usize| {
        MessageProblem::new(
            RejectionCode::TooLarge,
            format!("{what} of a call in {name} has {bytes} bytes; at most {max} are allowed"),
        )
    };
    for call in &calls {
        for (what, bytes, max) in [
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

/// Returns `absent` if the member is missing or null.
pub(super) fn arguments(fields: &Fields<'_, '_>, name: &str, absent: &str) -> Result<String, MessageProblem> {
    let max = limits::ARGUMENTS_BYTES_MAX;
    let Some(value) = fields.get(name) else { return Ok(absent.to_owned()) };
    if value.kind() == Kind::String {
        return Ok(fields.string(name, max)?.unwrap_or_default().into_owned());
    }
    let text = value.text().unwrap_or_default();
    if text.len() > max {
        return Err(fields.too_large(name, text.len(), max));
    }
    Ok(text.to_owned())
}

/// Keeps the full length, because a conversation can continue only with this ID. An ID that is not a string becomes its
/// JSON text, so that the call remains valid.
pub(super) fn id(fields: &Fields<'_, '_>, name: &str) -> Option<String> {
    fields.get(name).and_then(text_of)
}

/// A missing, long or unusual name matches no tool, so only this call fails.
pub(super) fn tool(fields: &Fields<'_, '_>, name: &str) -> String {
    let name = fields.get(name).and_then(text_of).unwrap_or_default();
    bounded(&name, limits::TOOL_NAME_BYTES_MAX).into_owned()
}

fn text_of(value: Value<'_, '_>) -> Option<String> {
    match value.kind() {
        Kind::Null => None,
        Kind::String => value.as_str().map(Cow::into_owned),
        Kind::Bool | Kind::Number | Kind::Array | Kind::Object => value.text().map(str::to_owned),
    }
}

/// [`cut_off`] appends this character to incomplete arguments. No JSON parser accepts such arguments, so no call runs
/// with them.
const CUT: char = '…';

pub fn cut_off(arguments: &mut String) {
    if is_cut(arguments) {
        return;
    }
    let keep = prefix(arguments, limits::ARGUMENTS_BYTES_MAX - CUT.len_utf8()).len();
    arguments.truncate(keep);
    arguments.push(CUT);
}

#[must_use]
pub fn is_cut(arguments: &str) -> bool {
    arguments.ends_with(CUT)
}

#[must_use]
pub fn cut_response(tool: &str) -> String {
    let tool = bounded(tool, limits::NAME_BYTES_MAX);
    format!(
        "The response was cut off before its call of '{tool}' was complete, so the call was not carried out. Request \
         the response again, with a higher limit of output tokens."
    )
}

/// `depth` counts the levels around the arguments in a turn. Text that is not JSON is written as a string, so that only
/// this call is rejected.
pub(super) fn push_arguments(object: &mut Object, name: &'static str, arguments: &str, depth: usize) {
    if survives_round_trip(arguments, depth) {
        object.raw(name, arguments);
    } else {
        object.text(name, arguments);
    }
}

/// True if the arguments can be written as a JSON value and then read back as the same text.
fn survives_round_trip(arguments: &str, depth: usize) -> bool {
    let bounds = Bounds { bytes_max: limits::ARGUMENTS_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX - depth };
    let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r');
    !arguments.starts_with(|c| c == '"' || blank(c))
        && !arguments.ends_with(blank)
        && check(arguments.as_bytes(), bounds).is_ok()
}
