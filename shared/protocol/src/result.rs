//! Writes results: as JSON, and as messages to models.

use super::dialects::rules;
use super::write::Object;
use tickfleet_model::{CacheHit, CallResult, Dialect};

/// The fields have the documented order.
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
    if let Some(call) = &result.repeats {
        object.text("repeats", call);
    }
    if let Some(approval) = &result.approval {
        // An approval is plain data, so its serialization does not fail.
        object.raw("approval", &serde_json::to_string(approval).unwrap_or_else(|_| "null".into()));
    }
    if let Some(cached) = &result.cached {
        object.raw("cached", &cached_json(cached));
    }
    if result.reconciled {
        object.raw("reconciled", "true");
    }
    if result.local {
        object.raw("local", "true");
    }
    object.optional("note", result.note.as_deref());
    object.end()
}

pub(crate) fn cached_json(cached: &CacheHit) -> String {
    let mut object = Object::new(cached.call.len() + 48);
    object.raw("age_ms", &cached.age_ms.to_string());
    object.text("call", &cached.call);
    object.end()
}

/// `None` if the dialect has no messages. The message has the provider's ID, or the fleet's ID if the provider gave
/// none.
#[must_use]
pub fn tool_message(dialect: Dialect, result: &CallResult) -> Option<String> {
    rules(dialect).message(result)
}

/// The text before and after the [`tool_message`]s of a turn, which are joined with commas. `None` if the dialect has
/// no messages.
#[must_use]
pub fn messages_frame(dialect: Dialect) -> Option<(&'static str, &'static str)> {
    rules(dialect).frame()
}

/// `results` are in call order. `None` if the dialect has no messages, or if `results` is empty, because providers
/// reject an empty message.
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

    use super::super::content::{CONTENT_BLOCKS, ContentBlock, write_blocks};
    use super::super::cut::cut_output;
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
            repeats: None,
            approval: None,
            cached: None,
            note: None,
            reconciled: false,
            local: false,
            facts_evaluated_ms: None,
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
    fn a_result_survives_a_json_round_trip() {
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
    fn each_dialect_formats_results_and_errors_its_own_way() {
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

    #[test]
    fn images_are_native_in_dialects_that_permit_them_and_text_in_the_others() {
        let image = ContentBlock::image(b"GIF89a;").unwrap();
        let blocks = write_blocks(&[ContentBlock::Text { text: "a chart".into() }, image]);
        let note = Some("Paid twice.".to_owned());
        let result = CallResult { content_type: CONTENT_BLOCKS.into(), note, ..ok(Some("c1"), blocks.get()) };
        let message = |dialect| read(&tool_message(dialect, &result).unwrap());
        let data = "R0lGODlhOw==";
        let text = |text: &str| json!({"type": "text", "text": text});
        let source = json!({"type": "base64", "media_type": "image/gif", "data": data});
        let parts = json!([text("a chart"), {"type": "image", "source": source}, text("(Paid twice.)")]);
        assert_eq!(message(Dialect::Anthropic)["content"], parts);
        let parts = json!([
            {"type": "input_text", "text": "a chart"},
            {"type": "input_image", "image_url": format!("data:image/gif;base64,{data}")},
            {"type": "input_text", "text": "(Paid twice.)"},
        ]);
        assert_eq!(message(Dialect::OpenaiResponses)["output"], parts);
        let parts =
            json!([text("a chart"), {"type": "image", "data": data, "mimeType": "image/gif"}, text("(Paid twice.)")]);
        for dialect in [Dialect::Mcp, Dialect::Mcp2026_07_28] {
            assert_eq!(message(dialect)["content"], parts);
            assert_eq!(message(dialect)["structuredContent"], Value::Null);
        }
        let words = "a chart\n[an image (image/gif), about 9 bytes, not shown]\n(Paid twice.)";
        let function = &message(Dialect::Gemini)["functionResponse"];
        assert_eq!(function["response"], json!({"output": "a chart\n[image attached]", "note": "Paid twice."}));
        assert_eq!(function["parts"], json!([{"inlineData": {"mimeType": "image/gif", "data": data}}]));
        assert_eq!(message(Dialect::OpenaiChat)["content"], words);
        assert!(message(Dialect::Text)["text"].as_str().unwrap().contains(words));
        // An output that only looks like content blocks is data.
        let data = CallResult { content_type: "application/json".into(), ..result.clone() };
        assert_eq!(
            read(&tool_message(Dialect::Anthropic, &data).unwrap())["content"].as_str().unwrap()[..8],
            blocks.get()[..8]
        );
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
