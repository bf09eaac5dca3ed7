//! Gemini's `generateContent`: reads the model's content, writes one user content. The user content has a
//! `functionResponse` part for each call.

use serde_json::json;

use super::super::content::{ContentBlock, content_blocks};
use super::super::json::{Kind, Value};
use super::super::message::fields::{Fields, ObjectPath};
use super::super::message::problem::MessageProblem;
use super::super::names::NameRules;
use super::super::write::Object;
use super::call::{Element, arguments, id, push_arguments, read_list, tool};
use super::content::{content, list_of, notes};
use super::{CALLS, Definitions, DialectInfo, DialectRules, RejectedCall};
use tickfleet_model::{Call, CallResult, ToolSpec};

const CONTENT: &str = "content";

/// The name in JSON, and the name in the output of the Python SDK.
const FUNCTION_CALL: [&str; 2] = ["functionCall", "function_call"];

const TO_FOLLOW: [&str; 2] = ["willContinue", "will_continue"];

const PIECES: [&str; 2] = ["partialArgs", "partial_args"];

pub(super) struct Rules;

impl DialectRules for Rules {
    fn info(&self) -> DialectInfo {
        DialectInfo {
            option: "gemini",
            summary: "Google's Gemini",
            aliases: &[],
            has_strict: false,
            in_words: false,
            cut_off: &[
                "max_tokens",
                "safety",
                "recitation",
                "language",
                "other",
                "blocklist",
                "prohibited_content",
                "spii",
                "malformed_function_call",
                "unexpected_tool_call",
                "too_many_tool_calls",
                "image_safety",
            ],
        }
    }

    fn takes(&self, name: &str) -> bool {
        name == CALLS || name == CONTENT
    }

    fn list<'a, 'd>(&self, name: &'static str, held: Value<'a, 'd>) -> (&'static str, Value<'a, 'd>) {
        match parts(held) {
            Some(parts) => (if name == CONTENT { "content.parts" } else { "calls.parts" }, parts),
            None => (name, held),
        }
    }

    fn read(
        &self,
        name: &'static str,
        held: Value<'_, '_>,
        turn: &Fields<'_, '_>,
    ) -> Result<Vec<Call>, MessageProblem> {
        // If the model's answer is empty, the content object has no parts.
        if held.kind() == Kind::Object && parts(held).is_none() {
            return Ok(Vec::new());
        }
        read_list(self, name, held, turn)
    }

    /// Other parts are not calls: text, thoughts, and calls of tools that Google runs itself.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem> {
        let Element { fields, list, index } = element;
        let found = FUNCTION_CALL.into_iter().find_map(|name| Some((name, fields.get(name)?)));
        let Some((name, call)) = found else { return Ok(None) };
        // A member that is not an object is read as a call without a tool, so that the other calls remain valid.
        if call.kind() != Kind::Object {
            return Ok(Some(Call { provider_id: None, tool: String::new(), arguments: String::new() }));
        }
        let call = Fields::of(Some(call), ObjectPath::Inside(list, index, name))?;
        for name in TO_FOLLOW {
            if call.flag(name)? {
                return Err(in_pieces(&call, name));
            }
        }
        if let Some(name) = PIECES.into_iter().find(|name| call.get(name).is_some()) {
            return Err(in_pieces(&call, name));
        }
        let arguments = arguments(&call, "args", "{}")?;
        Ok(Some(Call { provider_id: id(&call, "id"), tool: tool(&call, "name"), arguments }))
    }

    fn without_calls(&self) -> &'static str {
        "has no functionCall part"
    }

    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall> {
        let call = FUNCTION_CALL.into_iter().find_map(|name| element.member(name))?;
        RejectedCall::read(call.member("id"), call.member("name"))
    }

    fn write_call(&self, call: &Call) -> String {
        let mut function = Object::new(call.arguments.len() + 64);
        function.optional("id", call.provider_id.as_deref());
        function.text("name", &call.tool);
        push_arguments(&mut function, "args", &call.arguments, 4);
        let mut part = Object::new(call.arguments.len() + 96);
        part.raw("functionCall", &function.end());
        part.end()
    }

    /// If the model gave no ID, the part has no ID either. Gemini then matches parts by order and name.
    fn message(&self, result: &CallResult) -> Option<String> {
        let output = result.output.as_ref().map_or("null", |output| output.get());
        let blocks = content_blocks(result);
        let mut response = Object::new(256);
        if result.error.is_some() {
            response.text("error", &content(result));
        } else {
            match &blocks {
                Some(blocks) => response.text("output", &text_beside_images(blocks)),
                None => response.raw("output", output),
            }
            response.optional("note", notes(result).as_deref());
        }
        let response = response.end();
        let mut function = Object::new(response.len() + 96);
        function.optional("id", result.tool_call_id.as_deref());
        function.text("name", &result.tool);
        function.raw("response", &response);
        if let Some(mut images) = blocks {
            images.retain(|block| matches!(block, ContentBlock::Image { .. }));
            if !images.is_empty() {
                function.raw("parts", &list_of(&images, push_image));
            }
        }
        let mut part = Object::new(response.len() + 128);
        part.raw("functionResponse", &function.end());
        Some(part.end())
    }

    /// All responses go into one content, because Gemini rejects fewer responses than calls.
    fn frame(&self) -> Option<(&'static str, &'static str)> {
        Some((r#"[{"role":"user","parts":["#, "]}]"))
    }

    fn define(&self, tools: &[&ToolSpec], _strict: bool) -> Definitions {
        let each = Definitions::of_each(
            self.names(),
            tools,
            |name, tool| json!({"name": name, "description": tool.description, "parametersJsonSchema": tool.input_schema}),
        );
        if tools.is_empty() {
            each
        } else {
            Definitions { tools: json!([{"functionDeclarations": each.tools}]), ..each }
        }
    }

    /// These are the rules of the Gemini API. Vertex AI permits longer names (128 bytes).
    fn names(&self) -> Option<NameRules> {
        Some(NameRules { also: b".:-", first_is_letter: true, bytes_max: 64 })
    }
}

fn text_beside_images(blocks: &[ContentBlock]) -> String {
    let texts = blocks.iter().map(|block| match block {
        ContentBlock::Text { text } => text.as_str(),
        ContentBlock::Image { .. } => "[image attached]",
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn push_image(object: &mut Object, block: &ContentBlock) {
    if let ContentBlock::Image { data, media_type } = block {
        let mut inline = Object::new(data.len() + 64);
        inline.text("mimeType", media_type);
        inline.text("data", data);
        object.raw("inlineData", &inline.end());
    }
}

fn parts<'a, 'd>(content: Value<'a, 'd>) -> Option<Value<'a, 'd>> {
    content.member("parts").filter(|parts| parts.kind() != Kind::Null)
}

/// The arguments of one piece can be valid on their own, but differ from those of the whole call. So pieces are
/// rejected.
fn in_pieces(call: &Fields<'_, '_>, name: &str) -> MessageProblem {
    call.invalid(name, "the arguments of a streamed call must be assembled first")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::{Value, json};
    use tickfleet_model::{CallError, CallId, Dialect, Outcome, Turn, TurnId};

    use crate::definitions::test_tool;
    use crate::{NameMap, RejectedId, RejectionStatus, define, messages, parse_turn, rejection_reply};

    fn content() -> Value {
        json!({"role": "model", "parts": [
            {"text": "The user asks for the weather.", "thought": true},
            {"functionCall": {"name": "get_weather", "args": {"city": "Paris", "days": 2}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"id": "fc-2", "name": "get_time"}},
            {"text": "One moment."}
        ]})
    }

    fn turn(member: &str, held: &Value) -> String {
        json!({"tenant": "acme", "agent": "kelly", "format": "gemini", member: held}).to_string()
    }

    fn read(text: &str) -> Turn {
        parse_turn(text.as_bytes()).unwrap_or_else(|refusal| panic!("{text}: {refusal:?}"))
    }

    fn refused(text: &str) -> (String, Value) {
        let refusal = parse_turn(text.as_bytes()).unwrap_err();
        let id = TurnId::new("t").unwrap();
        let reply = rejection_reply(&refusal, RejectionStatus::Rejected, RejectedId::Turn(&id));
        (refusal.message.clone(), serde_json::from_str(&reply).unwrap())
    }

    #[test]
    fn a_turn_accepts_a_whole_content_or_its_parts() {
        let content = content();
        for text in [turn("calls", &content["parts"]), turn("calls", &content), turn("content", &content)] {
            let turn = read(&text);
            assert_eq!(turn.dialect, Dialect::Gemini);
            let calls: Vec<_> =
                turn.calls.iter().map(|c| (c.provider_id.as_deref(), c.tool.as_str(), c.arguments.as_str())).collect();
            let weather = (None, "get_weather", r#"{"city":"Paris","days":2}"#);
            assert_eq!(calls, [weather, (Some("fc-2"), "get_time", "{}")]);
        }
        let part =
            json!([{"text": null, "function_call": {"id": null, "name": "a", "args": {}, "will_continue": null}}]);
        assert_eq!(read(&turn("calls", &part)).calls[0].tool, "a");
    }

    #[test]
    fn responses_keep_order_and_name_and_carry_output_or_error() {
        let id = |position| CallId { turn: TurnId::new("t").unwrap(), position };
        let error = CallError { code: "denied".into(), message: "not you".into(), details: Some(json!({"rule": 1})) };
        let refused = tickfleet_model::CallResult::refused(&id(0), None, "get_weather", Outcome::Denied, error);
        let output = |json: &str| Some(serde_json::value::RawValue::from_string(json.into()).unwrap());
        let fine = |json: &str| tickfleet_model::CallResult {
            tool_call_id: Some("fc-2".into()),
            tool: "get_time".into(),
            success: true,
            outcome: Outcome::Ok,
            output: output(json),
            error: None,
            ..refused.clone()
        };
        let results = [refused.clone(), fine(r#"{"error":"is a member here"}"#), fine(r#""noon""#), fine("null")];
        let converted: Value = serde_json::from_str(&messages(Dialect::Gemini, &results).unwrap()).unwrap();
        let time =
            |response: Value| json!({"functionResponse": {"id": "fc-2", "name": "get_time", "response": response}});
        let expected = json!([{"role": "user", "parts": [
            {"functionResponse": {"name": "get_weather", "response": {"error": "not you\n{\"rule\":1}"}}},
            time(json!({"output": {"error": "is a member here"}})),
            time(json!({"output": "noon"})),
            time(json!({"output": null})),
        ]}]);
        assert_eq!(converted, expected);
    }

    #[test]
    fn all_functions_are_declared_in_one_tool_with_legal_names() {
        let tools = [test_tool("math.add"), test_tool("2fa:send"), test_tool("a b"), test_tool(&"n.".repeat(40))];
        let tools: Vec<_> = tools.iter().collect();
        let defined = define(Dialect::Gemini, &tools);
        let declared = &defined[0]["functionDeclarations"];
        let expected =
            json!({"name": "math.add", "description": "Adds.", "parametersJsonSchema": tools[0].input_schema});
        assert_eq!(declared[0], expected);
        assert_eq!((&declared[1]["name"], &declared[2]["name"]), (&json!("_x32_fa:send"), &json!("a_x20_b")));
        assert_eq!(declared[3]["name"].as_str().unwrap().len(), 64);
        let map = NameMap::new(tools.iter().map(|tool| &tool.name));
        for (tool, declaration) in tools.iter().zip(declared.as_array().unwrap()) {
            assert_eq!(map.tool(declaration["name"].as_str().unwrap()), tool.name);
        }
        assert_eq!(define(Dialect::Gemini, &[]), json!([]));
    }

    #[test]
    fn a_rejected_turn_returns_an_error_for_each_call() {
        let broken = turn("content", &content()).replacen('{', r#"{"oops":1,"#, 1);
        let (_, reply) = refused(&broken);
        assert_eq!((&reply["dialect"], &reply["error"]["code"]), (&json!("gemini"), &json!("unknown_field")));
        let parts = reply["messages"][0]["parts"].as_array().unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0]["functionResponse"]["name"], "get_weather");
        assert_eq!(parts[1]["functionResponse"]["id"], "fc-2");
        assert!(parts[1]["functionResponse"]["response"]["error"].as_str().unwrap().contains("oops"));
    }

    #[test]
    fn an_incomplete_call_is_rejected_with_its_path() {
        for (held, expected) in [
            (json!({"role": "model"}), "calls has no functionCall part: a turn has at least one call"),
            (json!([{"text": "Hi."}]), "calls has no functionCall part: a turn has at least one call"),
            (json!("words"), "calls: expected an array of calls, found a string"),
            (
                json!([{"functionCall": {"name": "a", "willContinue": true}}]),
                "calls[0].functionCall.willContinue: the arguments of a streamed call must be assembled first",
            ),
            (
                json!([{"functionCall": {"name": "a", "partialArgs": [{"jsonPath": "$.a"}]}}]),
                "calls[0].functionCall.partialArgs: the arguments of a streamed call must be assembled first",
            ),
        ] {
            assert_eq!(refused(&turn("calls", &held)).0, expected);
        }
        let converted = refused(&turn("tool_calls", &json!([]))).0;
        assert_eq!(converted, "format: tool_calls is openai_chat, not gemini; put gemini calls into calls");
    }
}
