//! Anthropic Messages: reads `tool_use` blocks, writes one user message with a `tool_result` block per call.

use serde_json::json;

use super::super::content::ContentBlock;
use super::super::json::{Kind, Value};
use super::super::message::fields::Fields;
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::write::Object;
use super::call::{Element, arguments, id, push_arguments, read_list, tool};
use super::content::{IN_ONE_USER_MESSAGE, content, id_of, list_of, parts, push_text_part};
use super::{Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, RejectionCode, ToolSpec};

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        DialectInfo {
            option: "anthropic",
            summary: "Anthropic's Messages",
            aliases: &[],
            has_strict: false,
            in_words: false,
            cut_off: &[
                "max_tokens",
                "model_context_window_exceeded",
                "refusal",
                "content_filtered",
                "guardrail_intervened",
            ],
        }
    }

    fn member(&self) -> Option<(&'static str, &'static str)> {
        Some(("content", "Anthropic"))
    }

    fn read(
        &self,
        name: &'static str,
        held: Value<'_, '_>,
        turn: &Fields<'_, '_>,
    ) -> Result<Vec<Call>, MessageProblem> {
        if held.kind() == Kind::String {
            let message = format!("{name} is plain text: the turn has no tool_use block");
            return Err(MessageProblem::new(RejectionCode::NoCalls, message));
        }
        read_list(self, name, held, turn)
    }

    /// Other blocks are not calls: text, thinking, and calls of tools that the provider runs itself.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        let fields = element.fields;
        if !is_call(fields.get("type")) {
            return Ok(None);
        }
        let arguments = arguments(&fields, "input", "")?;
        Ok(Some(Call { provider_id: id(&fields, "id"), tool: tool(&fields, "name"), arguments }))
    }

    fn without_calls(&self) -> &'static str {
        "has no tool_use block"
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        is_call(element.member("type"))
            .then(|| RejectedCall::read(element.member("id"), element.member("name")))
            .flatten()
    }

    fn write_call(&self, call: &Call) -> String {
        let mut block = Object::new(call.arguments.len() + 96);
        block.text("type", "tool_use");
        block.optional("id", call.provider_id.as_deref());
        block.text("name", &call.tool);
        push_arguments(&mut block, "input", &call.arguments, 3);
        block.end()
    }

    fn message(&self, result: &CallResult) -> Option<String> {
        let mut block = Object::new(256);
        block.text("type", "tool_result");
        block.text("tool_use_id", id_of(result));
        match parts(result) {
            Some(parts) => block.raw("content", &list_of(&parts, push_part)),
            None => block.text("content", &content(result)),
        }
        block.raw("is_error", if result.success { "false" } else { "true" });
        Some(block.end())
    }

    fn frame(&self) -> Option<(&'static str, &'static str)> {
        Some(IN_ONE_USER_MESSAGE)
    }

    fn define(&self, tools: &[&ToolSpec], _strict: bool) -> Definitions {
        Definitions::of_each(
            self.names(),
            tools,
            |name, tool| json!({"name": name, "description": tool.description, "input_schema": tool.input_schema}),
        )
    }

    fn names(&self) -> Option<NameRules> {
        Some(NameRules::STRICTEST)
    }
}

fn push_part(object: &mut Object, part: &ContentBlock) {
    match part {
        ContentBlock::Text { text } => push_text_part(object, text),
        ContentBlock::Image { data, media_type } => {
            let mut source = Object::new(data.len() + 64);
            source.text("type", "base64");
            source.text("media_type", media_type);
            source.text("data", data);
            object.text("type", "image");
            object.raw("source", &source.end());
        }
    }
}

fn is_call(kind: Option<Value<'_, '_>>) -> bool {
    kind.and_then(|kind| kind.as_str()).is_some_and(|kind| kind == "tool_use")
}
