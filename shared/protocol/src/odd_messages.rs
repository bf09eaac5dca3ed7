//! Tests unusual messages that providers really send and that broke other systems.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::{Map, Value};
use tickfleet_model::{Call, Turn};

use super::text::{calls_in, problem};
use super::{is_cut, parse_turn, write_turn};

const CUT: &str = include_str!("../../../tests/data/trouble/cut.json");
const ODD_IDS: &str = include_str!("../../../tests/data/trouble/odd-ids.json");
const NULLS: &str = include_str!("../../../tests/data/trouble/null-arguments.json");
const PLAIN: &str = include_str!("../../../tests/data/trouble/plain-text.json");

fn cases(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

fn turn(members: &Value) -> Turn {
    let mut turn: Map<String, Value> = members.as_object().unwrap().clone();
    turn.insert("tenant".into(), "acme".into());
    turn.insert("agent".into(), "kelly".into());
    let text = Value::from(turn).to_string();
    parse_turn(text.as_bytes()).unwrap_or_else(|refusal| panic!("{text}: {refusal:?}"))
}

fn ids(calls: &[Call], cut: bool) -> Vec<&str> {
    let calls = calls.iter().filter(|call| is_cut(&call.arguments) == cut);
    calls.map(|call| call.provider_id.as_deref().unwrap()).collect()
}

#[test]
fn a_truncated_call_has_no_parseable_arguments() {
    for case in cases(CUT) {
        let turn = turn(&case["turn"]);
        let cut = ids(&turn.calls, true);
        let whole = ids(&turn.calls, false);
        assert_eq!(
            (serde_json::json!(cut), serde_json::json!(whole)),
            (case["cut"].clone(), case["whole"].clone()),
            "{case}"
        );
        for call in turn.calls.iter().filter(|call| is_cut(&call.arguments)) {
            assert!(serde_json::from_str::<Value>(&call.arguments).is_err(), "{call:?}");
        }
        let again = parse_turn(write_turn(&turn).as_bytes()).unwrap();
        assert_eq!(again.calls, turn.calls, "a client writes what it read");
    }
}

#[test]
fn an_invalid_id_or_name_affects_only_its_own_call() {
    for case in cases(ODD_IDS) {
        let turn = turn(&serde_json::json!({"tool_calls": case["calls"]}));
        let ids: Vec<_> = turn.calls.iter().map(|call| call.provider_id.as_deref()).collect();
        let tools: Vec<_> = turn.calls.iter().map(|call| call.tool.as_str()).collect();
        assert_eq!(serde_json::json!(ids), case["ids"], "{}", case["about"]);
        assert_eq!(serde_json::json!(tools), case["tools"], "{}", case["about"]);
    }
}

#[test]
fn null_arguments_parse_as_empty_in_every_dialect() {
    for case in cases(NULLS) {
        let turn = turn(&case);
        assert_eq!(turn.calls.len(), 1, "{case}");
        assert!(matches!(turn.calls[0].arguments.as_str(), "" | "{}"), "{case}: {:?}", turn.calls[0]);
    }
}

#[test]
fn a_near_miss_of_a_call_is_read_or_reported() {
    let forms: Value = serde_json::from_str(PLAIN).unwrap();
    let answers = |kind: &str| -> Vec<String> { serde_json::from_value(forms[kind].clone()).unwrap() };
    let mut wrong = Vec::new();
    for answer in answers("read") {
        let calls = calls_in(&answer);
        let found: Vec<_> = calls.iter().map(|call| (call.tool.as_str(), call.arguments.as_str())).collect();
        if found != [("find", r#"{"q": "tea"}"#)] {
            wrong.push(format!("not read: {answer}: {found:?}"));
        }
    }
    for answer in answers("reported") {
        let calls = calls_in(&answer);
        if calls.len() != 1 || problem(&calls[0]).is_none() {
            wrong.push(format!("not reported: {answer}: {calls:?}"));
        }
    }
    for answer in answers("prose") {
        let calls = calls_in(&answer);
        if !calls.is_empty() {
            wrong.push(format!("no call: {answer}: {calls:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
