//! The fleet's own format, for programs: `{id?, name, arguments?}`.

use serde_json::json;

use super::super::json::Value;
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::write::Object;
use super::call::{Element, arguments, id, push_arguments, tool};
use super::{CALLS, Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, ToolSpec};

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        DialectInfo {
            option: "raw",
            summary: "Complete results for programs",
            aliases: &[],
            has_strict: false,
            in_words: false,
            cut_off: &[],
        }
    }

    fn member(&self) -> Option<(&'static str, &'static str)> {
        Some((CALLS, "raw, or what format says"))
    }

    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        let fields = element.fields.only(&["id", "name", "arguments"])?;
        let arguments = arguments(&fields, "arguments", "{}")?;
        Ok(Some(Call { provider_id: id(&fields, "id"), tool: tool(&fields, "name"), arguments }))
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        RejectedCall::read(element.member("id"), element.member("name"))
    }

    fn write_call(&self, call: &Call) -> String {
        let mut object = Object::new(call.arguments.len() + 96);
        object.optional("id", call.provider_id.as_deref());
        object.text("name", &call.tool);
        push_arguments(&mut object, "arguments", &call.arguments, 3);
        object.end()
    }

    fn message(&self, _result: &CallResult) -> Option<String> {
        None
    }

    fn frame(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    fn define(&self, tools: &[&ToolSpec], _strict: bool) -> Definitions {
        Definitions::of_each(self.names(), tools, |_, tool| {
            let mut definition = json!({
                "name": tool.name,
                "display_name": tool.display_name,
                "description": tool.description,
                "input_schema": tool.input_schema,
                "category": tool.category,
                "version": tool.version,
                "effect": tool.effect,
                "requires_approval": tool.requires_approval,
            });
            if let (Some(object), Some(schema)) = (definition.as_object_mut(), &tool.output_schema) {
                object.insert("output_schema".into(), schema.clone());
            }
            definition
        })
    }

    fn names(&self) -> Option<NameRules> {
        None
    }
}
