//! Keeps `docs/protocol.md` and `docs/formats.md` true: every example there goes through the code that it describes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::Value;

use super::{
    LimitReset, RejectedId, RejectionStatus, limit_reset_entry, messages, parse_task_message, parse_turn,
    rejection_reply,
};
use tickfleet_model::{CallResult, Dialect, Redactor, RejectionCode, TenantId, TurnId, ids::shard_of, limits};

const PAGE: &str = include_str!("../../../docs/protocol.md");
const FORMATS: &str = include_str!("../../../docs/formats.md");

/// The examples of the page: what stands after ```` ```json ````, and the JSON.
fn examples() -> Vec<(&'static str, &'static str)> {
    let blocks = PAGE.split("\n```json").skip(1);
    blocks.map(|block| block.split_once("\n```").unwrap().0.split_once('\n').unwrap()).collect()
}

fn json(text: &str) -> Value {
    super::json::check(text.as_bytes(), super::json::Bounds { bytes_max: 1 << 20, depth_max: 64 })
        .unwrap_or_else(|e| panic!("{text}: {e}"));
    serde_json::from_str(text).unwrap()
}

#[test]
fn every_example_is_what_it_says() {
    let examples = examples();
    assert!(examples.len() > 12, "{}", examples.len());
    for (kind, text) in examples {
        match kind.trim() {
            "turn" => drop(parse_turn(text.as_bytes()).unwrap_or_else(|r| panic!("{text}: {r:?}"))),
            "task" => drop(parse_task_message(text.as_bytes()).unwrap_or_else(|r| panic!("{text}: {r:?}"))),
            "reply" => reply(&json(text)),
            "audit" => assert_eq!(json(text)["action"], "TOOL_CALL"),
            "audit of an operator" => assert_eq!(json(text), reset_entry()),
            "" => drop(json(text)),
            other => {
                let code = other.strip_prefix("refused ").unwrap_or_else(|| panic!("unknown kind of example: {other}"));
                assert_eq!(parse_turn(text.as_bytes()).unwrap_err().code.as_str(), code);
            }
        }
    }
}

/// What is written when somebody resets a counter.
fn reset_entry() -> Value {
    let tenant = TenantId::new("acme").unwrap();
    let open = limit_reset_entry(&LimitReset {
        timestamp_ms: 1_795_339_800_123,
        by: "anna",
        reason: "the import was ours",
        limit: "mails_per_agent",
        counter: "acme:kelly",
        tenant: Some(&tenant),
        unit: "calls",
        redactor: &Redactor::default(),
    });
    json(&format!(r#"{open},"used_before":5,"window_ends_ms":1795342200000}}}}"#))
}

/// The results of a reply are results, and its messages are what they give in its dialect.
fn reply(reply: &Value) {
    let dialect: Dialect = serde_json::from_value(reply["dialect"].clone()).unwrap();
    let results: Vec<CallResult> = serde_json::from_str(&reply["results"].to_string()).unwrap();
    assert!(["done", "rejected", "conflict"].contains(&reply["status"].as_str().unwrap()));
    assert!(reply["turn_id"].is_string() ^ reply["task_id"].is_string());
    let rendered = messages(dialect, &results).map(|text| json(&text));
    assert_eq!(reply.get("messages"), rendered.as_ref());
}

#[test]
fn the_rejected_example_is_answered_as_shown() {
    let examples = examples();
    let at = examples.iter().position(|(kind, _)| kind.contains("refused")).unwrap();
    let refusal = parse_turn(examples[at].1.as_bytes()).unwrap_err();
    let shown = json(examples[at + 1].1);
    let turn = TurnId::new("t-18").unwrap();
    assert_eq!(json(&rejection_reply(&refusal, RejectionStatus::Rejected, RejectedId::Turn(&turn))), shown);
}

#[test]
fn the_shard_table_and_the_limits_are_those_of_the_code() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | `0x"));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 5);
    for (name, rest) in rows {
        let cells: Vec<_> = rest.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        assert_eq!(u32::from_str_radix(cells[0], 16).unwrap(), crc32fast::hash(name.as_bytes()));
        for (cell, shards) in cells[1..].iter().zip([1, 4, 16, 64]) {
            assert_eq!(cell.parse::<u32>().unwrap(), shard_of(&TenantId::new(name).unwrap(), shards), "{name}");
        }
    }
    for (what, max) in [
        ("a message", limits::TURN_BYTES_MAX),
        ("calls of a turn", limits::CALLS_PER_TURN_MAX),
        ("arguments of a call, `input` of a task", limits::ARGUMENTS_BYTES_MAX),
        ("tool name, `correlation_id`", limits::TOOL_NAME_BYTES_MAX),
        ("`user_context`, `session_data` and `correlation_id` together", limits::CONTEXT_BYTES_MAX),
        ("`task_description`", limits::TASK_DESCRIPTION_BYTES_MAX),
        ("`capabilities` of a task", limits::TASK_CAPABILITIES_MAX),
        ("nesting of arrays and objects", limits::JSON_DEPTH_MAX),
        ("an output in a result", limits::OUTPUT_BYTES_MAX),
        ("all outputs of a turn", limits::TURN_OUTPUT_BYTES_MAX),
    ] {
        let row = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| {what} | "))).expect(what);
        let digits: String = row.chars().filter(char::is_ascii_digit).collect();
        assert_eq!(digits, max.to_string(), "{what}");
    }
}

#[test]
fn every_code_of_rejection_has_a_row() {
    let rows = || PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let cells: String = rows().collect();
    for word in RejectionCode::WORDS {
        assert!(cells.contains(&format!("`{word}`")), "no row of docs/protocol.md begins with {word}");
    }
}

/// Blocks of the page about formats that begin with ```` ```<word> ````.
fn blocks(word: &str) -> impl Iterator<Item = &'static str> {
    let start = format!("\n```{word}\n");
    FORMATS
        .match_indices(&start)
        .map(|(at, _)| {
            let inside = &FORMATS[at + "\n```".len()..];
            inside.split_once('\n').unwrap().1.split_once("\n```").unwrap().0
        })
        .collect::<Vec<_>>()
        .into_iter()
}

#[test]
fn the_strict_example_is_made_of_the_schema_above_it() {
    let schema = json(blocks("json schema").next().unwrap());
    let mut strict = super::strict::strict_schema(&schema).unwrap();
    strict["required"].as_array_mut().unwrap().sort_by_key(Value::to_string);
    assert_eq!(strict, json(blocks("json strict").next().unwrap()));
}

#[test]
fn the_answers_are_read_as_shown() {
    let answers: Vec<_> = blocks("text answer").map(super::text::calls_in).collect();
    let calls = json(blocks("json calls").next().unwrap());
    let read = |call: &tickfleet_model::Call| serde_json::json!([call.tool, json(&call.arguments)]);
    assert_eq!(Value::from(answers[0].iter().map(read).collect::<Vec<_>>()), calls);
    assert_eq!(answers[1].len(), 1, "nothing behind the broken call is read");
    let problem = super::text::problem(&answers[1][0]).unwrap();
    assert_eq!(Value::from(problem), json(blocks("json problem").next().unwrap()));
}
