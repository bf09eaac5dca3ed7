//! MCP up to 2025-11-25: reads the parameters of `tools/call`, writes `CallToolResult`s.

use serde_json::{Value as Json, json};

use super::super::content::{ContentBlock, write_blocks};
use super::super::cut::CUT_OBJECT;
use super::super::json::Value;
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::write::Object;
use super::call::{Element, arguments, id, push_arguments, tool};
use super::content::{content, parts};
use super::{Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, Effect, ToolSpec};

pub(super) const NAMES: NameRules = NameRules { also: b".-", first_is_letter: false, bytes_max: 128 };

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        let summary = "MCP: tools as in `tools/list`, calls as in `tools/call`";
        DialectInfo { option: "mcp", summary, aliases: &[], has_strict: false, in_words: false, cut_off: &[] }
    }

    /// A client can add the ID of its request as the string `id`.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        let fields = element.fields.only(&["id", "name", "arguments", "_meta"])?;
        let arguments = arguments(&fields, "arguments", "{}")?;
        Ok(Some(Call { provider_id: id(&fields, "id"), tool: tool(&fields, "name"), arguments }))
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        RejectedCall::read(element.member("id"), element.member("name"))
    }

    fn write_call(&self, call: &Call) -> String {
        let mut params = Object::new(call.arguments.len() + 96);
        params.optional("id", call.provider_id.as_deref());
        params.text("name", &call.tool);
        push_arguments(&mut params, "arguments", &call.arguments, 3);
        params.end()
    }

    /// `CallToolResult` has no field for an ID, so `_meta` identifies the call.
    fn message(&self, result: &CallResult) -> Option<String> {
        let mut object = Object::new(256);
        let is_structured = push_content(&mut object, result);
        // A cut output also begins with `{`, but does not match the tool's output schema. So it is not structured
        // content.
        let output = result.output.as_ref().map_or("", |output| output.get());
        if is_structured && output.starts_with('{') && !output.starts_with(CUT_OBJECT) {
            object.raw("structuredContent", output);
        }
        push_ending(&mut object, result);
        Some(object.end())
    }

    fn define(&self, tools: &[&ToolSpec], _strict: bool) -> Definitions {
        // In this revision, a structured result must be an object, so omit any other output schema.
        let is_object = |schema: &&Json| schema.get("type").is_some_and(|kind| kind == "object");
        Definitions::of_each(self.names(), tools, |name, tool| {
            definition(name, tool, tool.output_schema.as_ref().filter(is_object))
        })
    }

    fn names(&self) -> Option<NameRules> {
        Some(NAMES)
    }
}

/// Returns false for content blocks, which have no structured form.
pub(super) fn push_content(object: &mut Object, result: &CallResult) -> bool {
    let blocks = parts(result);
    let is_structured = blocks.is_none();
    let blocks = blocks.unwrap_or_else(|| vec![ContentBlock::Text { text: content(result).into_owned() }]);
    object.raw("content", write_blocks(&blocks).get());
    is_structured
}

pub(super) fn push_ending(object: &mut Object, result: &CallResult) {
    object.raw("isError", if result.success { "false" } else { "true" });
    let mut meta = Object::new(result.call.len() + 64);
    meta.text("tickfleet/call", &result.call);
    meta.optional("tickfleet/tool_call_id", result.tool_call_id.as_deref());
    object.raw("_meta", &meta.end());
}

/// The fleet does not know whether a tool is destructive, so the definition has no hint about that.
pub(super) fn definition(name: &str, tool: &ToolSpec, output: Option<&Json>) -> Json {
    let mut definition = json!({
        "name": name,
        "title": tool.display_name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "annotations": {
            "readOnlyHint": tool.effect == Effect::Read,
            "idempotentHint": tool.effect != Effect::Once,
        },
    });
    if let (Some(members), Some(schema)) = (definition.as_object_mut(), output) {
        members.insert("outputSchema".into(), schema.clone());
    }
    definition
}
