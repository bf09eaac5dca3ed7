//! Plain-text answers of models without function calling: reads calls in the text, writes results as blocks of text.

use super::super::json::Value;
use super::super::message::fields::Fields;
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::text::{Prompts, calls_up_to, result_block};
use super::super::write::Object;
use super::call::{Element, arguments, id, push_arguments, read_answer, read_list, tool};
use super::content::{IN_ONE_USER_MESSAGE, content, push_text_part};
use super::{Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, ToolSpec};

const ANSWER: &str = "answer";

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        let summary = "Plain text for models without function calling";
        DialectInfo { option: "text", summary, aliases: &[], has_strict: false, in_words: true, cut_off: &[] }
    }

    fn member(&self) -> Option<(&'static str, &'static str)> {
        Some((ANSWER, "plain text"))
    }

    fn read(
        &self,
        name: &'static str,
        held: Value<'_, '_>,
        turn: &Fields<'_, '_>,
    ) -> Result<Vec<Call>, MessageProblem> {
        if name == ANSWER { read_answer(turn, name) } else { read_list(self, name, held, turn) }
    }

    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        let fields = element.fields.only(&["id", "tool", "reason", "arguments"])?;
        let arguments = arguments(&fields, "arguments", "{}")?;
        Ok(Some(Call { provider_id: id(&fields, "id"), tool: tool(&fields, "tool"), arguments }))
    }

    fn salvage(&self, name: &'static str, held: Value<'_, '_>) -> Vec<RejectedCall> {
        if name == ANSWER {
            let found = held.as_str().map(|answer| calls_up_to(&answer, usize::MAX)).unwrap_or_default();
            return found.into_iter().map(RejectedCall::of).collect();
        }
        held.elements().filter_map(|element| self.salvage_call(element)).collect()
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        RejectedCall::read(element.member("id"), element.member("tool"))
    }

    fn write_call(&self, call: &Call) -> String {
        let mut object = Object::new(call.arguments.len() + 96);
        object.optional("id", call.provider_id.as_deref());
        object.text("tool", &call.tool);
        push_arguments(&mut object, "arguments", &call.arguments, 3);
        object.end()
    }

    fn message(&self, result: &CallResult) -> Option<String> {
        let block = result_block(&result.tool, result.success, &content(result));
        let mut part = Object::new(block.len() + 32);
        push_text_part(&mut part, &block);
        Some(part.end())
    }

    /// All results go into one user message, because many chat templates reject two user messages in a row.
    fn frame(&self) -> Option<(&'static str, &'static str)> {
        Some(IN_ONE_USER_MESSAGE)
    }

    fn define(&self, tools: &[&ToolSpec], _strict: bool) -> Definitions {
        Definitions { tools: Prompts::default().describe(tools).into(), not_strict: Vec::new() }
    }

    fn names(&self) -> Option<NameRules> {
        None
    }
}
