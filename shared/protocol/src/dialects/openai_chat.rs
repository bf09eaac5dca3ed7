//! OpenAI Chat Completions: reads `tool_calls`, writes messages with the role `tool`.

use serde_json::{Value as Json, json};

use super::super::json::{Kind, Value, bounded};
use super::super::message::fields::{Fields, ObjectPath};
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::strict::{NotStrict, strict_schema};
use super::super::write::Object;
use super::call::{Element, arguments, id, tool};
use super::content::{content, id_of};
use super::{Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, ToolSpec, limits};

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        DialectInfo {
            option: "openai",
            summary: "OpenAI's Chat Completions",
            aliases: &["openai-chat"],
            has_strict: true,
            in_words: false,
            cut_off: &[
                "length",
                "content_filter",
                "model_length",
                "error",
                "error_toxic",
                "abort",
                "aborted",
                "timeout",
            ],
        }
    }

    fn member(&self) -> Option<(&'static str, &'static str)> {
        Some(("tool_calls", "OpenAI Chat"))
    }

    /// Ignores members that some providers add, such as `index`.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        let Element { fields, list, index } = element;
        let kind = fields.get("type").and_then(|kind| kind.as_str()).filter(|kind| !kind.is_empty());
        if let Some(kind) = kind.filter(|kind| kind != "function") {
            let kind = bounded(&kind, limits::NAME_BYTES_MAX);
            return Err(fields.invalid("type", &format!("{kind:?} is not supported; expected \"function\"")));
        }
        // A call without a function is read as a call with an empty tool name, so that the other calls remain valid.
        let Some(function) = fields.get("function").filter(|function| function.kind() == Kind::Object) else {
            return Ok(Some(Call { provider_id: id(&fields, "id"), tool: String::new(), arguments: String::new() }));
        };
        let function = Fields::of(Some(function), ObjectPath::Inside(list, index, "function"))?;
        let arguments = arguments(&function, "arguments", "")?;
        Ok(Some(Call { provider_id: id(&fields, "id"), tool: tool(&function, "name"), arguments }))
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        let named = element.member("function").or_else(|| element.member("custom"));
        RejectedCall::read(element.member("id"), named.and_then(|named| named.member("name")))
    }

    fn write_call(&self, call: &Call) -> String {
        let mut function = Object::new(call.arguments.len() + 48);
        function.text("name", &call.tool);
        function.text("arguments", &call.arguments);
        let mut object = Object::new(call.arguments.len() + 96);
        object.optional("id", call.provider_id.as_deref());
        object.text("type", "function");
        object.raw("function", &function.end());
        object.end()
    }

    fn message(&self, result: &CallResult) -> Option<String> {
        let content = content(result);
        let mut message = Object::new(content.len() + 96);
        message.text("role", "tool");
        message.text("tool_call_id", id_of(result));
        message.text("content", &content);
        Some(message.end())
    }

    fn define(&self, tools: &[&ToolSpec], strict: bool) -> Definitions {
        let mut not_strict = Vec::new();
        let definitions = Definitions::of_each(self.names(), tools, |name, tool| {
            let (parameters, is_strict) = parameters(tool, strict, &mut not_strict);
            let mut function = json!({"name": name, "description": tool.description, "parameters": parameters});
            if let (Some(members), true) = (function.as_object_mut(), is_strict) {
                members.insert("strict".into(), true.into());
            }
            json!({"type": "function", "function": function})
        });
        Definitions { not_strict, ..definitions }
    }

    fn names(&self) -> Option<NameRules> {
        Some(NameRules::STRICTEST)
    }
}

/// The schema of the arguments, and true if it is strict. If `strict` is impossible, adds the reason to `not_strict`.
pub(super) fn parameters(tool: &ToolSpec, strict: bool, not_strict: &mut Vec<(String, NotStrict)>) -> (Json, bool) {
    match strict.then(|| strict_schema(&tool.input_schema)) {
        Some(Ok(schema)) => (schema, true),
        Some(Err(why)) => {
            not_strict.push((tool.name.clone(), why));
            (tool.input_schema.clone(), false)
        }
        None => (tool.input_schema.clone(), false),
    }
}
