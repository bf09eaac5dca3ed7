//! Results out: the one shape of a result, and how each dialect tells it to a model.

use std::borrow::Cow;

use super::cut::{CUT_OBJECT, cut_output};
use super::json::unescape;
use super::text::result_block;
use super::write::Object;
use tickfleet_model::{CallResult, Dialect, limits};

/// A result as JSON, in the documented order of its fields.
#[must_use]
pub fn result_json(result: &CallResult) -> String {
    let mut object = Object::new(256 + result.output.as_ref().map_or(0, |output| output.get().len()));
    match &result.tool_call_id {
        Some(id) => object.text("tool_call_id", id),
        None => object.raw("tool_call_id", "null"),
    }
    object.text("call", &result.call);
    object.text("tool", &result.tool);
    object.raw("success", if result.success { "true" } else { "false" });
    object.text("outcome", result.outcome.as_str());
    if let Some(output) = &result.output {
        object.raw("output", output.get());
    }
    if let Some(error) = &result.error {
        let mut inner = Object::new(error.message.len() + 64);
        inner.text("code", &error.code);
        inner.text("message", &error.message);
        if let Some(details) = &error.details {
            inner.raw("details", &details.to_string());
        }
        object.raw("error", &inner.end());
    }
    object.text("content_type", &result.content_type);
    object.raw("duration_ms", &result.duration_ms.to_string());
    object.raw("attempts", &result.attempts.to_string());
    object.end()
}

/// What tells a model (in MCP: a client) of this result in `dialect`; `None` for [`Dialect::Raw`], which has nothing
/// of the kind.
///
/// The provider's id is echoed unchanged, and our own stands in for one that was not given. A failed call is
/// told by its error's message, followed by the error's details as JSON.
#[must_use]
pub fn tool_message(dialect: Dialect, result: &CallResult) -> Option<String> {
    let id = result.tool_call_id.as_deref().unwrap_or(&result.call);
    let content = content(result);
    let mut object = Object::new(content.len() + id.len() + 96);
    match dialect {
        Dialect::Raw => return None,
        Dialect::OpenaiChat => {
            object.text("role", "tool");
            object.text("tool_call_id", id);
            object.text("content", &content);
        }
        Dialect::OpenaiResponses => {
            object.text("type", "function_call_output");
            object.text("call_id", id);
            object.text("output", &content);
        }
        Dialect::Anthropic => {
            object.text("type", "tool_result");
            object.text("tool_use_id", id);
            object.text("content", &content);
            object.raw("is_error", if result.success { "false" } else { "true" });
        }
        Dialect::Mcp => mcp_result(&mut object, result, &content),
        Dialect::Text => text_part(&mut object, &result_block(&result.tool, result.success, &content)),
    }
    Some(object.end())
}

fn text_part(object: &mut Object, text: &str) {
    object.text("type", "text");
    object.text("text", text);
}

/// A `CallToolResult`. It has no place for an id: `_meta` names the call.
fn mcp_result(object: &mut Object, result: &CallResult, content: &str) {
    let mut part = Object::new(content.len() + 32);
    text_part(&mut part, content);
    object.raw("content", &format!("[{}]", part.end()));
    // What was cut is an object too, but not the one that the tool's output schema promises.
    let output = result.output.as_ref().map_or("", |output| output.get());
    if output.starts_with('{') && !output.starts_with(CUT_OBJECT) {
        object.raw("structuredContent", output);
    }
    object.raw("isError", if result.success { "false" } else { "true" });
    let mut meta = Object::new(result.call.len() + 64);
    meta.text("tickfleet/call", &result.call);
    meta.optional("tickfleet/tool_call_id", result.tool_call_id.as_deref());
    object.raw("_meta", &meta.end());
}

/// What a model reads: the text of a string output, the JSON of any other, or the error.
fn content(result: &CallResult) -> Cow<'_, str> {
    if let Some(error) = &result.error {
        return match &error.details {
            None => Cow::Borrowed(&error.message),
            Some(details) => {
                let details = details.to_string();
                Cow::Owned(format!("{}\n{}", error.message, cut_output(&details, limits::ERROR_BYTES_MAX)))
            }
        };
    }
    let json = result.output.as_ref().map_or("null", |output| output.get());
    let inner = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).and_then(unescape);
    inner.unwrap_or(Cow::Borrowed(json))
}

/// What goes before and after the comma-joined [`tool_message`]s of a turn, so that the list is ready to be
/// appended to a conversation: OpenAI takes a message or item per call, Anthropic one message with all results,
/// and so does a model that is told in text, since many templates refuse two user messages in a row. For MCP it is
/// the list of results. `None` where the dialect has no messages.
#[must_use]
pub const fn messages_frame(dialect: Dialect) -> Option<(&'static str, &'static str)> {
    match dialect {
        Dialect::Raw => None,
        Dialect::OpenaiChat | Dialect::OpenaiResponses | Dialect::Mcp => Some(("[", "]")),
        Dialect::Anthropic | Dialect::Text => Some((r#"[{"role":"user","content":["#, "]}]")),
    }
}

/// The `messages` list of a turn with these results in call order; `None` where the dialect has no messages
/// or there is no result (an empty message would be refused by providers).
#[must_use]
pub fn messages(dialect: Dialect, results: &[CallResult]) -> Option<String> {
    let (before, after) = messages_frame(dialect).filter(|_| !results.is_empty())?;
    let mut list = String::from(before);
    for (index, message) in results.iter().filter_map(|result| tool_message(dialect, result)).enumerate() {
        if index > 0 {
            list.push(',');
        }
        list.push_str(&message);
    }
    list.push_str(after);
    Some(list)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::*;
    use tickfleet_model::{CallError, CallId, Outcome, TurnId};

    fn ok(id: Option<&str>, output: &str) -> CallResult {
        CallResult {
            tool_call_id: id.map(Into::into),
            call: "t/0".into(),
            tool: "add".into(),
            success: true,
            outcome: Outcome::Ok,
            output: Some(RawValue::from_string(output.into()).unwrap()),
            error: None,
            content_type: "application/json".into(),
            duration_ms: 7,
            attempts: 1,
        }
    }

    fn failed(details: Option<Value>) -> CallResult {
        let call = CallId { turn: TurnId::new("t").unwrap(), position: 0 };
        let error = CallError { code: "denied".into(), message: "not you".into(), details };
        CallResult::refused(&call, Some("c\"1".into()), "add", Outcome::Denied, error)
    }

    fn read(text: &str) -> Value {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn the_result_reads_back_as_the_type_it_came_from() {
        for result in
            [ok(None, "1e400"), ok(Some("c"), r#"{"a":12345678901234567890123}"#), failed(Some(json!({"a": 1})))]
        {
            let text = result_json(&result);
            assert_eq!(text, serde_json::to_string(&result).unwrap());
            let back: CallResult = serde_json::from_str(&text).unwrap();
            assert_eq!(format!("{back:?}"), format!("{result:?}"));
        }
    }

    #[test]
    fn each_dialect_tells_results_and_errors_its_own_way() {
        let message = |dialect, result: &CallResult| read(&tool_message(dialect, result).unwrap());
        let string = ok(Some("c1"), r#""a\nb""#);
        let openai = json!({"role": "tool", "tool_call_id": "c1", "content": "a\nb"});
        assert_eq!(message(Dialect::OpenaiChat, &string), openai);
        let anthropic = json!({"type": "tool_result", "tool_use_id": "t/0", "content": "[1]", "is_error": false});
        assert_eq!(message(Dialect::Anthropic, &ok(None, "[1]")), anthropic);
        let error = message(Dialect::Anthropic, &failed(Some(json!({"path": "a"}))));
        assert_eq!(error["content"], "not you\n{\"path\":\"a\"}");
        assert_eq!((&error["is_error"], &error["tool_use_id"]), (&json!(true), &json!("c\"1")));
        assert_eq!(tool_message(Dialect::Raw, &string), None);
        let item = json!({"type": "function_call_output", "call_id": "c1", "output": "a\nb"});
        assert_eq!(message(Dialect::OpenaiResponses, &string), item);
        let part = json!({"type": "text", "text": "<tool_result tool_name=\"add\">\na\nb\n</tool_result>"});
        assert_eq!(message(Dialect::Text, &string), part);
        let mcp = json!({"content": [{"type": "text", "text": "a\nb"}], "isError": false,
            "_meta": {"tickfleet/call": "t/0", "tickfleet/tool_call_id": "c1"}});
        assert_eq!(message(Dialect::Mcp, &string), mcp);
        assert_eq!(message(Dialect::Mcp, &ok(None, r#"{"a":1}"#))["structuredContent"], json!({"a": 1}));
        assert_eq!(message(Dialect::Mcp, &failed(None))["isError"], true);
        let cut = cut_output(&format!("{{\"a\":\"{}\"}}", "x".repeat(900)), 400).into_owned();
        assert_eq!(message(Dialect::Mcp, &ok(None, &cut))["structuredContent"], Value::Null);
        let huge = message(Dialect::OpenaiChat, &failed(Some(json!({"x": "y".repeat(9_000)}))));
        assert!(huge["content"].as_str().unwrap().len() < 1_100);
    }

    proptest! {
        #[test]
        fn messages_pair_with_calls_one_to_one_and_in_order(
            calls in proptest::collection::vec((proptest::option::of(any::<String>()), any::<bool>(), any::<String>()), 1..20),
            anthropic in any::<bool>(),
        ) {
            let dialect = if anthropic { Dialect::Anthropic } else { Dialect::OpenaiChat };
            let results: Vec<CallResult> = calls.iter().enumerate().map(|(position, (id, fine, text))| {
                let call = format!("t/{position}");
                let base = if *fine { ok(id.as_deref(), &serde_json::to_string(text).unwrap()) } else { failed(None) };
                CallResult { tool_call_id: id.clone(), call, ..base }
            }).collect();
            let list = read(&messages(dialect, &results).unwrap());
            let (list, key) = if anthropic { (&list[0]["content"], "tool_use_id") } else { (&list, "tool_call_id") };
            let ids: Vec<_> = list.as_array().unwrap().iter().map(|m| m[key].as_str().unwrap().to_owned()).collect();
            let expected: Vec<_> = results.iter().map(|r| r.tool_call_id.clone().unwrap_or(r.call.clone())).collect();
            prop_assert_eq!(ids, expected);
        }
    }
}
