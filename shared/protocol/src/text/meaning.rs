//! Interprets a JSON value in an answer as a call, an unreadable call, or something else.

use std::borrow::Cow;

use super::super::json::{Kind, Value, prefix};
use super::forms::folded;
use tickfleet_model::{Call, limits, suggest};

/// All keys in this module are in lower case without punctuation.
const NAMES: [&str; 8] =
    ["tool", "toolname", "functionname", "recipientname", "toolcall", "functioncall", "calltool", "usetool"];
/// These keys have a tool's name only if arguments are in the same object.
const NAMES_BESIDE_ARGUMENTS: [&str; 2] = ["function", "action"];
/// The value is an object with the whole call.
const WRAPPERS: [&str; 7] = ["function", "tool", "toolcall", "functioncall", "tooluse", "call", "action"];
const LISTS: [&str; 3] = ["toolcalls", "functioncalls", "tooluses"];
const ARGUMENTS: [&str; 9] = [
    "arguments",
    "toolinput",
    "toolarguments",
    "toolargs",
    "toolparameters",
    "actioninput",
    "functionarguments",
    "functionargs",
    "functionparameters",
];
/// These keys have arguments only if a tool's name is in the same object.
const ARGUMENTS_BESIDE_NAME: [&str; 7] =
    ["parameters", "args", "params", "kwargs", "input", "inputs", "actionarguments"];
const ASIDE: [&str; 10] =
    ["reason", "id", "callid", "toolcallid", "type", "thought", "thoughts", "thinking", "explanation", "why"];
/// LangChain agents use these action names for their final answer.
const FINAL_ANSWERS: [&str; 3] = ["finalanswer", "finish", "none"];

/// [`super::problem`] reports the call: it has no tool name, or its arguments are not JSON.
pub(super) fn unreadable(raw: &str, tool: String) -> Call {
    Call { provider_id: None, tool, arguments: prefix(raw, limits::ARGUMENTS_BYTES_MAX).to_owned() }
}

enum ObjectMeaning {
    Call(Call),
    Unreadable,
    Other,
}

pub(super) fn collect(value: Value<'_, '_>, calls: &mut Vec<Call>) {
    if value.kind() == Kind::Array {
        return value.elements().for_each(|element| add(element, false, calls));
    }
    let list = |names: &'static [&'static str]| member(value, names).filter(|held| held.kind() != Kind::Null);
    if let Some(held) = list(&LISTS) {
        return match held.kind() {
            Kind::Array => held.elements().for_each(|element| add(element, true, calls)),
            Kind::Object => add(held, true, calls),
            _ => add(value, false, calls),
        };
    }
    match list(&["calls"]).filter(|held| held.kind() == Kind::Array) {
        Some(held) => held.elements().for_each(|element| add(element, false, calls)),
        None => add(value, false, calls),
    }
}

/// `is_announced` is true for a value in a list under a key of [`LISTS`].
fn add(value: Value<'_, '_>, is_announced: bool, calls: &mut Vec<Call>) {
    match meaning_of(value) {
        ObjectMeaning::Call(call) => calls.push(call),
        ObjectMeaning::Other if !is_announced || value.kind() == Kind::Null => {}
        ObjectMeaning::Unreadable | ObjectMeaning::Other => {
            calls.push(unreadable(value.text().unwrap_or_default(), String::new()));
        }
    }
}

fn meaning_of(object: Value<'_, '_>) -> ObjectMeaning {
    if object.kind() != Kind::Object {
        return ObjectMeaning::Other;
    }
    if let Some(inner) = member(object, &WRAPPERS).filter(|inner| inner.kind() == Kind::Object) {
        return match meaning_of(inner) {
            ObjectMeaning::Call(call) => {
                ObjectMeaning::Call(Call { provider_id: id(object).or(call.provider_id), ..call })
            }
            // A tool definition has a description, and a call does not.
            ObjectMeaning::Other if has_text(inner, "name") && inner.member("description").is_none() => {
                ObjectMeaning::Unreadable
            }
            other => other,
        };
    }
    // With `tool: null`, the model states explicitly that it calls no tool.
    if object.member("tool").is_some_and(|tool| tool.kind() == Kind::Null) {
        return ObjectMeaning::Other;
    }
    let arguments = member(object, &ARGUMENTS).or_else(|| member(object, &ARGUMENTS_BESIDE_NAME));
    if let Some(name) = member(object, &NAMES) {
        return match (text(name), arguments) {
            (Some(name), Some(arguments)) => ObjectMeaning::Call(call(object, name, arguments_text(arguments))),
            (Some(name), None) if is_alone(object) => ObjectMeaning::Call(call(object, name, "{}".into())),
            (Some(_), None) | (None, Some(_)) => ObjectMeaning::Unreadable,
            (None, None) => ObjectMeaning::Other,
        };
    }
    if let (Some(name), Some(arguments)) = (member(object, &NAMES_BESIDE_ARGUMENTS).and_then(text), arguments) {
        let is_answer = FINAL_ANSWERS.contains(&folded(&name).as_str());
        return if is_answer {
            ObjectMeaning::Other
        } else {
            ObjectMeaning::Call(call(object, name, arguments_text(arguments)))
        };
    }
    // A tool definition has a description, and a call does not.
    if object.member("description").is_some() {
        return ObjectMeaning::Other;
    }
    let sure = member(object, &ARGUMENTS).or_else(|| object.member("parameters"));
    let named = object.member("name").or_else(|| object.member("function"));
    match (named.and_then(text), sure) {
        (Some(name), Some(arguments)) => ObjectMeaning::Call(call(object, name, arguments_text(arguments))),
        (Some(name), None) => match arguments.filter(|arguments| arguments.kind() == Kind::Object) {
            Some(arguments) => ObjectMeaning::Call(call(object, name, arguments_text(arguments))),
            None => ObjectMeaning::Other,
        },
        (None, Some(_)) if named.is_some() || object.member("reason").is_some() => ObjectMeaning::Unreadable,
        (None, Some(_)) if member(object, &ARGUMENTS).is_some() || is_misspelt(object) => ObjectMeaning::Unreadable,
        _ => ObjectMeaning::Other,
    }
}

fn is_misspelt(object: Value<'_, '_>) -> bool {
    object.members().any(|(key, value)| {
        value.kind() == Kind::String && suggest::closest(&key, ["tool", "tool_name", "function", "name"]).is_some()
    })
}

fn is_alone(object: Value<'_, '_>) -> bool {
    object.members().all(|(key, _)| {
        let key = folded(&key);
        NAMES.contains(&key.as_str()) || ASIDE.contains(&key.as_str())
    })
}

pub(super) fn name_of<'a>(object: Value<'a, '_>) -> Option<Cow<'a, str>> {
    let name = member(object, &NAMES).or_else(|| member(object, &NAMES_BESIDE_ARGUMENTS));
    name.or_else(|| object.member("name")).and_then(text)
}

/// `key` is the first key of an incomplete object, and `seen` is the object's text.
pub(super) fn starts_call(key: &str, seen: &str) -> bool {
    let key = folded(key);
    let key = key.as_str();
    if NAMES.contains(&key) || LISTS.contains(&key) {
        return true;
    }
    let may_begin = ["name", "calls"].contains(&key)
        || NAMES_BESIDE_ARGUMENTS.contains(&key)
        || ARGUMENTS.contains(&key)
        || ARGUMENTS_BESIDE_NAME.contains(&key)
        || ASIDE.contains(&key);
    may_begin && ["arguments", "parameters", "tool", "action_input", "\"args\""].iter().any(|word| seen.contains(word))
}

/// Ignores case and punctuation.
fn member<'a, 'd>(object: Value<'a, 'd>, names: &[&str]) -> Option<Value<'a, 'd>> {
    object.members().find(|(key, _)| names.contains(&folded(key).as_str())).map(|(_, value)| value)
}

fn has_text(object: Value<'_, '_>, name: &str) -> bool {
    object.member(name).and_then(text).is_some()
}

fn text<'a>(value: Value<'a, '_>) -> Option<Cow<'a, str>> {
    value.as_str().filter(|text| !text.is_empty())
}

fn call(object: Value<'_, '_>, tool: Cow<'_, str>, arguments: String) -> Call {
    Call { provider_id: id(object), tool: tool.into_owned(), arguments }
}

fn id(object: Value<'_, '_>) -> Option<String> {
    object.member("id").and_then(|id| id.as_str()).map(Cow::into_owned)
}

fn arguments_text(value: Value<'_, '_>) -> String {
    match value.kind() {
        Kind::Null => "{}".to_owned(),
        _ => value.as_str().map_or_else(|| value.text().unwrap_or_default().to_owned(), Cow::into_owned),
    }
}
