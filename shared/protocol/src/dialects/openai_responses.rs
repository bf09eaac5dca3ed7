//! OpenAI Responses: reads output items, writes `function_call_output` items.

use serde_json::json;

use super::super::content::ContentBlock;
use super::super::json::Value;
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::write::Object;
use super::call::{Element, arguments, cut_off, id, tool};
use super::content::{content, id_of, list_of, parts};
use super::is_unfinished;
use super::openai_chat::parameters;
use super::{Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, ToolSpec};

const FUNCTION: &str = "function_call";
const CUSTOM: &str = "custom_tool_call";

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        DialectInfo {
            option: "openai-responses",
            summary: "OpenAI's Responses",
            aliases: &[],
            has_strict: true,
            in_words: false,
            cut_off: &["incomplete", "max_output_tokens", "in_progress", "queued", "failed", "cancelled"],
        }
    }

    /// Other items are not calls: messages, reasoning, and calls of tools that the provider runs itself. A custom
    /// tool's call is rejected, because the fleet cannot return the item type that the call requires.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        let fields = element.fields;
        let kind = fields.get("type").and_then(|kind| kind.as_str()).unwrap_or_default();
        match kind.as_ref() {
            FUNCTION => {
                let arguments = arguments(&fields, "arguments", "")?;
                let mut call = Call { provider_id: id(&fields, "call_id"), tool: tool(&fields, "name"), arguments };
                let status = fields.get("status").and_then(|status| status.as_str());
                if status.is_some_and(|status| is_unfinished(&status)) {
                    cut_off(&mut call.arguments);
                }
                Ok(Some(call))
            }
            CUSTOM => Err(fields.invalid("type", "\"custom_tool_call\" is not supported; expected \"function_call\"")),
            _ => Ok(None),
        }
    }

    fn without_calls(&self) -> &'static str {
        "has no function_call item"
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        let kind = element.member("type").and_then(|kind| kind.as_str()).unwrap_or_default();
        if kind != FUNCTION && kind != CUSTOM {
            return None;
        }
        let call = RejectedCall::read(element.member("call_id"), element.member("name"))?;
        Some(RejectedCall { custom: kind == CUSTOM, ..call })
    }

    fn write_call(&self, call: &Call) -> String {
        let mut item = Object::new(call.arguments.len() + 96);
        item.text("type", FUNCTION);
        item.optional("call_id", call.provider_id.as_deref());
        item.text("name", &call.tool);
        item.text("arguments", &call.arguments);
        item.end()
    }

    fn message(&self, result: &CallResult) -> Option<String> {
        let mut item = Object::new(256);
        item.text("type", "function_call_output");
        item.text("call_id", id_of(result));
        match parts(result) {
            Some(parts) => item.raw("output", &list_of(&parts, push_part)),
            None => item.text("output", &content(result)),
        }
        Some(item.end())
    }

    fn rejection_message(&self, result: &CallResult, call: &RejectedCall) -> Option<String> {
        if !call.custom {
            return self.message(result);
        }
        let mut item = Object::new(256);
        item.text("type", "custom_tool_call_output");
        item.text("call_id", id_of(result));
        item.text("output", result.error.as_ref().map_or("", |error| &error.message));
        Some(item.end())
    }

    /// Always writes `strict`, because OpenAI assumes true if it is missing.
    fn define(&self, tools: &[&ToolSpec], strict: bool) -> Definitions {
        let mut not_strict = Vec::new();
        let definitions = Definitions::of_each(self.names(), tools, |name, tool| {
            let (parameters, strict) = parameters(tool, strict, &mut not_strict);
            json!({
                "name": name,
                "description": tool.description,
                "parameters": parameters,
                "strict": strict,
                "type": "function",
            })
        });
        Definitions { not_strict, ..definitions }
    }

    fn names(&self) -> Option<NameRules> {
        Some(NameRules::STRICTEST)
    }
}

fn push_part(object: &mut Object, part: &ContentBlock) {
    match part {
        ContentBlock::Text { text } => {
            object.text("type", "input_text");
            object.text("text", text);
        }
        ContentBlock::Image { data, media_type } => {
            object.text("type", "input_image");
            object.text("image_url", &format!("data:{media_type};base64,{data}"));
        }
    }
}
