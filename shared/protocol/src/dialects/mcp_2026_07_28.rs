//! MCP revision 2026-07-28. The parameters of `tools/call` are the same as in earlier revisions. Results state that
//! they are complete, and structured content may have any JSON type.

use super::super::cut::CUT_OBJECT;
use super::super::json::Value;
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::write::Object;
use super::call::Element;
use super::mcp::{self, definition, push_content, push_ending};
use super::{Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, ToolSpec};

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        let summary = "MCP's revision 2026-07-28: results of any type";
        DialectInfo {
            option: "mcp-2026-07-28",
            summary,
            aliases: &[],
            has_strict: false,
            in_words: false,
            cut_off: &[],
        }
    }

    /// Rejects `inputResponses` and `requestState`, because the fleet never returns a result that asks for input.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        mcp::Rules.read_call(element)
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        mcp::Rules.salvage_call(element)
    }

    fn write_call(&self, call: &Call) -> String {
        mcp::Rules.write_call(call)
    }

    /// A cut output does not match the tool's output schema, so it is not structured content.
    fn message(&self, result: &CallResult) -> Option<String> {
        let mut object = Object::new(256);
        object.text("resultType", "complete");
        let is_structured = push_content(&mut object, result);
        let output = result.output.as_ref().map(|output| output.get()).filter(|_| is_structured);
        if let Some(output) = output.filter(|output| !output.starts_with(CUT_OBJECT)) {
            object.raw("structuredContent", output);
        }
        push_ending(&mut object, result);
        Some(object.end())
    }

    /// Unlike in earlier revisions, the schema may describe any JSON type, not only an object.
    fn define(&self, tools: &[&ToolSpec], _strict: bool) -> Definitions {
        Definitions::of_each(self.names(), tools, |name, tool| {
            definition(name, tool, tool.output_schema.as_ref().filter(|schema| schema.is_object()))
        })
    }

    fn names(&self) -> Option<NameRules> {
        Some(mcp::NAMES)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::{Value, json};
    use tickfleet_model::{CallError, CallId, CallResult, Dialect, Outcome, Turn, TurnId};

    use crate::definitions::test_tool;
    use crate::{RejectedId, RejectionStatus, cut_output, define, messages, parse_turn, rejection_reply};

    fn params() -> Value {
        json!({
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "client", "version": "1.0.0"},
                "io.modelcontextprotocol/clientCapabilities": {},
                "progressToken": 7
            },
            "name": "get_weather",
            "arguments": {"location": "New York"}
        })
    }

    fn turn(call: &Value) -> String {
        json!({"turn_id": "t", "tenant": "acme", "agent": "kelly", "format": "mcp_2026_07_28", "calls": [call]})
            .to_string()
    }

    fn converted(result: CallResult) -> Value {
        let messages = messages(Dialect::Mcp2026_07_28, &[result]).unwrap();
        serde_json::from_str::<Vec<Value>>(&messages).unwrap().remove(0)
    }

    fn failed() -> CallResult {
        let error = CallError { code: "denied".into(), message: "not you".into(), details: None };
        let call = CallId { turn: TurnId::new("t").unwrap(), position: 0 };
        CallResult::refused(&call, Some("7".into()), "get_weather", Outcome::Denied, error)
    }

    fn fine(output: &str) -> CallResult {
        let output = Some(serde_json::value::RawValue::from_string(output.into()).unwrap());
        CallResult { success: true, outcome: Outcome::Ok, output, error: None, ..failed() }
    }

    #[test]
    fn request_parameters_parse_as_a_call() {
        let turn: Turn = parse_turn(turn(&params()).as_bytes()).unwrap();
        assert_eq!(turn.dialect, Dialect::Mcp2026_07_28);
        assert_eq!(
            (turn.calls[0].tool.as_str(), &*turn.calls[0].arguments),
            ("get_weather", r#"{"location":"New York"}"#)
        );
    }

    #[test]
    fn a_result_of_any_json_type_has_structured_content() {
        for output in [json!({"temperature": 22.5}), json!([{"id": "1"}]), json!("warm"), json!(7), json!(null)] {
            let converted = converted(fine(&output.to_string()));
            assert_eq!(
                (&converted["resultType"], converted.get("structuredContent")),
                (&json!("complete"), Some(&output))
            );
            assert_eq!((&converted["isError"], &converted["_meta"]["tickfleet/call"]), (&json!(false), &json!("t/0")));
        }
        let list = converted(fine("[1]"));
        assert_eq!(list["content"], json!([{"type": "text", "text": "[1]"}]));
        let cut = cut_output(&format!("{{\"a\":\"{}\"}}", "x".repeat(900)), 400).into_owned();
        assert_eq!(converted(fine(&cut)).get("structuredContent"), None);
        let error = converted(failed());
        let expected = json!({"resultType": "complete", "content": [{"type": "text", "text": "not you"}], "isError": true,
            "_meta": {"tickfleet/call": "t/0", "tickfleet/tool_call_id": "7"}});
        assert_eq!(error, expected);
    }

    #[test]
    fn an_output_schema_may_be_of_any_type() {
        let mut tool = test_tool("users.list");
        for schema in [json!({"type": "array", "items": {"type": "object"}}), json!({"type": "object"}), json!({})] {
            tool.output_schema = Some(schema.clone());
            let defined = define(Dialect::Mcp2026_07_28, &[&tool]);
            assert_eq!((&defined[0]["name"], &defined[0]["outputSchema"]), (&json!("users.list"), &schema));
            assert_eq!(defined[0]["inputSchema"], tool.input_schema);
            let before = define(Dialect::Mcp, &[&tool]);
            assert_eq!(before[0].get("outputSchema").is_some(), schema["type"] == "object");
        }
    }

    #[test]
    fn an_unsolicited_input_response_is_rejected() {
        for member in ["inputResponses", "requestState"] {
            let mut call = params();
            call.as_object_mut().unwrap().insert(member.into(), json!({"login": {"action": "accept"}}));
            let refusal = parse_turn(turn(&call).as_bytes()).unwrap_err();
            assert!(refusal.message.contains(&format!("unknown field calls[0].{member}")), "{}", refusal.message);
            let id = TurnId::new("t").unwrap();
            let reply = rejection_reply(&refusal, RejectionStatus::Rejected, RejectedId::Turn(&id));
            let reply: Value = serde_json::from_str(&reply).unwrap();
            let message = &reply["messages"][0];
            assert_eq!((&message["resultType"], &message["isError"]), (&json!("complete"), &json!(true)));
        }
    }
}
