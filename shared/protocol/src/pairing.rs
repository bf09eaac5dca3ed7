//! Tests that each call has exactly one result, in the order of the calls. Otherwise, providers reject the
//! conversation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{RejectedId, RejectionStatus, messages, parse_turn, rejection_reply};
use tickfleet_model::{CallError, CallId, CallResult, Dialect, Outcome, Turn, TurnId, limits};

#[derive(Debug, Clone)]
struct ProviderCall {
    id: Option<String>,
    arguments: String,
    after_other: bool,
}

fn provider_call() -> impl Strategy<Value = ProviderCall> {
    let id = prop_oneof![
        4 => Just(None),
        4 => Just(Some("same".to_owned())),
        4 => any::<String>().prop_map(Some),
        1 => any::<char>().prop_map(|c| Some(c.to_string().repeat(257))),
    ];
    let arguments = prop_oneof![Just("{}".to_owned()), Just("{oops".to_owned()), Just(String::new()), any::<String>()];
    (id, arguments, any::<bool>()).prop_map(|(id, arguments, after_other)| ProviderCall { id, arguments, after_other })
}

fn element(dialect: Dialect, position: usize, call: &ProviderCall) -> Value {
    let name = format!("t{position}");
    let arguments = &call.arguments;
    let id = &call.id;
    match dialect {
        Dialect::Raw | Dialect::Mcp | Dialect::Mcp2026_07_28 => json!({"id": id, "name": name, "arguments": arguments}),
        Dialect::Text => json!({"id": id, "tool": name, "arguments": arguments}),
        Dialect::OpenaiChat => json!({"id": id, "function": {"name": name, "arguments": arguments}}),
        Dialect::OpenaiResponses => {
            json!({"type": "function_call", "id": "fc", "call_id": id, "name": name, "arguments": arguments})
        }
        Dialect::Anthropic => json!({"type": "tool_use", "id": id, "name": name, "input": arguments}),
        Dialect::Gemini => json!({"functionCall": {"id": id, "name": name, "args": arguments}}),
    }
}

fn turn(dialect: Dialect, calls: &[ProviderCall], in_words: bool, spoilt: bool) -> String {
    let mut list = Vec::new();
    for (position, call) in calls.iter().enumerate() {
        if call.after_other && matches!(dialect, Dialect::Anthropic | Dialect::OpenaiResponses | Dialect::Gemini) {
            list.push(json!({"type": "reasoning", "id": "no call"}));
        }
        list.push(element(dialect, position, call));
    }
    let mut turn = json!({"tenant": "acme", "agent": "kelly", "format": dialect.as_str()});
    let members = turn.as_object_mut().unwrap();
    if in_words && dialect == Dialect::Text {
        let words: Vec<String> = list.iter().map(|call| format!("Now {call}, please.")).collect();
        members.insert("answer".into(), words.join("\n").into());
    } else {
        members.insert("calls".into(), list.into());
    }
    if spoilt {
        members.insert("zzz".into(), 1.into());
    }
    turn.to_string()
}

fn results(turn: &Turn, id: &TurnId, fine: bool) -> Vec<CallResult> {
    let one = |(position, call): (usize, &tickfleet_model::Call)| {
        let error = CallError { code: "denied".into(), message: "not you".into(), details: None };
        let id = CallId { turn: id.clone(), position };
        let refused = CallResult::refused(&id, call.provider_id.clone(), &call.tool, Outcome::Denied, error);
        if fine && position % 2 == 0 {
            let output = serde_json::value::RawValue::from_string("{\"a\":1}".into()).unwrap();
            return CallResult { success: true, outcome: Outcome::Ok, output: Some(output), error: None, ..refused };
        }
        refused
    };
    turn.calls.iter().enumerate().map(one).collect()
}

fn answered(dialect: Dialect, messages: &Value) -> Vec<String> {
    let list = match dialect {
        Dialect::Anthropic | Dialect::Text => {
            assert_eq!(messages.as_array().unwrap().len(), 1, "one message for all");
            &messages[0]["content"]
        }
        Dialect::Gemini => &messages[0]["parts"],
        _ => messages,
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let one = |message: &Value| match dialect {
        Dialect::OpenaiChat => text(&message["tool_call_id"]),
        Dialect::OpenaiResponses => text(&message["call_id"]),
        Dialect::Anthropic => text(&message["tool_use_id"]),
        Dialect::Gemini => {
            let response = &message["functionResponse"];
            text(response.get("id").unwrap_or(&response["name"]))
        }
        Dialect::Mcp | Dialect::Mcp2026_07_28 => text(&message["_meta"]["tickfleet/call"]),
        Dialect::Text => text(&message["text"]).split('"').nth(1).unwrap().to_owned(),
        Dialect::Raw => text(&message["tool_call_id"]),
    };
    list.as_array().unwrap().iter().map(one).collect()
}

fn expected(dialect: Dialect, calls: &[ProviderCall]) -> Vec<String> {
    let one = |(position, call): (usize, &ProviderCall)| match dialect {
        Dialect::Text => format!("t{position}"),
        Dialect::Mcp | Dialect::Mcp2026_07_28 => format!("t/{position}"),
        Dialect::Gemini => call.id.clone().unwrap_or_else(|| format!("t{position}")),
        _ => call.id.clone().unwrap_or_else(|| format!("t/{position}")),
    };
    calls.iter().enumerate().map(one).collect()
}

/// In a plain-text answer, nothing after the first unreadable call is read.
fn read(dialect: Dialect, calls: &[ProviderCall], in_words: bool) -> &[ProviderCall] {
    let is_bad =
        |call: &ProviderCall| !call.arguments.is_empty() && serde_json::from_str::<Value>(&call.arguments).is_err();
    match calls.iter().position(is_bad) {
        Some(bad) if in_words && dialect == Dialect::Text => &calls[..=bad],
        _ => calls,
    }
}

proptest! {
    #[test]
    fn every_call_is_answered_once_and_in_order_in_every_dialect(
        calls in prop_oneof![
            32 => proptest::collection::vec(provider_call(), 1..12), 1 => proptest::collection::vec(provider_call(), 120..140),
        ],
        dialect in 0..Dialect::ALL.len(), in_words in any::<bool>(),
        spoilt in any::<bool>(), fine in any::<bool>()
    ) {
        let dialect = Dialect::ALL[dialect];
        let text = turn(dialect, &calls, in_words, spoilt);
        let calls = read(dialect, &calls, in_words);
        let spoilt = spoilt || calls.len() > limits::CALLS_PER_TURN_MAX;
        let id = TurnId::new("t").unwrap();
        let (found, messages_json) = match parse_turn(text.as_bytes()) {
            Ok(turn) => {
                prop_assert!(!spoilt && turn.dialect == dialect);
                let results = results(&turn, &id, fine);
                (results.len(), messages(dialect, &results).map(|text| serde_json::from_str::<Value>(&text).unwrap()))
            }
            Err(refusal) => {
                prop_assert!(spoilt, "{text}: {refusal:?}");
                prop_assert_eq!(refusal.dialect, dialect);
                let reply: Value = serde_json::from_str(&rejection_reply(
                    &refusal, RejectionStatus::Rejected, RejectedId::Turn(&id),
                )).unwrap();
                (reply["results"].as_array().unwrap().len(), reply.get("messages").cloned())
            }
        };
        prop_assert_eq!(found, calls.len());
        prop_assert_eq!(messages_json.is_none(), dialect == Dialect::Raw);
        if let Some(messages_json) = messages_json {
            prop_assert_eq!(answered(dialect, &messages_json), expected(dialect, calls));
        }
    }
}
