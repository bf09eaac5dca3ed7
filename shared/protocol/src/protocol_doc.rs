//! Tests that the examples on the protocol's reference pages agree with the code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::Value;

use super::{
    AuditAction, AuditValue, Operator, OperatorAct, RejectedId, RejectionStatus, messages, operator_entry,
    parse_task_message, parse_turn, rejection_reply,
};
use tickfleet_model::{CallResult, Dialect, Outcome, Redactor, RejectionCode, TenantId, TurnId, ids::shard_of};

const PROTOCOL: &str = include_str!("../../../docs/reference/protocol.md");
const DIALECTS: &str = include_str!("../../../docs/reference/dialects.md");
const OUTCOMES: &str = include_str!("../../../docs/reference/outcomes.md");
const AUDIT_ENTRY: &str = include_str!("../../../docs/reference/audit-entry.md");

/// The kind is the text after ```` ```json ````.
fn examples() -> Vec<(&'static str, &'static str)> {
    let pages = [PROTOCOL, DIALECTS, OUTCOMES, AUDIT_ENTRY];
    let blocks = pages.into_iter().flat_map(|page| page.split("\n```json").skip(1));
    blocks.map(|block| block.split_once("\n```").unwrap().0.split_once('\n').unwrap()).collect()
}

fn json(text: &str) -> Value {
    super::json::check(text.as_bytes(), super::json::Bounds { bytes_max: 1 << 20, depth_max: 64 })
        .unwrap_or_else(|e| panic!("{text}: {e}"));
    serde_json::from_str(text).unwrap()
}

#[test]
fn every_example_parses_as_its_declared_kind() {
    let examples = examples();
    assert!(examples.len() > 12, "{}", examples.len());
    for (kind, text) in examples {
        match kind.trim() {
            "turn" => drop(parse_turn(text.as_bytes()).unwrap_or_else(|r| panic!("{text}: {r:?}"))),
            "task" => drop(parse_task_message(text.as_bytes()).unwrap_or_else(|r| panic!("{text}: {r:?}"))),
            "reply" => reply(&json(text)),
            "audit" => assert_eq!(json(text)["action"], "TOOL_CALL"),
            "audit of an operator" => assert_eq!(json(text), reset_entry()),
            "results" => drop(results(text)),
            "" | "schema" | "strict" | "calls" | "problem" => drop(json(text)),
            other if other.starts_with("messages ") => {}
            other => {
                let code = other.strip_prefix("refused ").unwrap_or_else(|| panic!("unknown kind of example: {other}"));
                assert_eq!(parse_turn(text.as_bytes()).unwrap_err().code.as_str(), code);
            }
        }
    }
}

fn reset_entry() -> Value {
    let tenant = TenantId::new("acme").unwrap();
    let act = OperatorAct {
        action: AuditAction::LimitReset,
        entity_type: "limit",
        entity_id: "messages_per_agent@acme:support",
        did: "reset messages_per_agent@acme:support",
        tenant: Some(&tenant),
        details: &[
            ("limit", AuditValue::Name("messages_per_agent")),
            ("counter", AuditValue::Name("acme:support")),
            ("unit", AuditValue::Name("calls")),
        ],
    };
    let operator = Operator { by: "anna", reason: "the import was ours", redactor: &Redactor::default() };
    let mut entry = json(&operator_entry(&act, operator, 1_795_339_800_123));
    entry["meta"]["used_before"] = 5.into();
    entry["meta"]["window_ends_ms"] = 1_795_342_200_000_i64.into();
    entry
}

fn reply(reply: &Value) {
    let dialect: Dialect = serde_json::from_value(reply["dialect"].clone()).unwrap();
    let results: Vec<CallResult> = serde_json::from_str(&reply["results"].to_string()).unwrap();
    assert!(["done", "rejected", "conflict", "pending_approval"].contains(&reply["status"].as_str().unwrap()));
    assert_eq!(reply["status"] == "pending_approval", reply["approval"]["id"].is_string());
    assert!(reply["turn_id"].is_string() ^ reply["task_id"].is_string());
    let rendered = messages(dialect, &results).map(|text| json(&text));
    assert_eq!(reply.get("messages"), rendered.as_ref());
}

fn results(text: &str) -> Vec<CallResult> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn the_example_messages_match_the_example_results() {
    let examples = examples();
    let shown = results(examples.iter().find(|(kind, _)| kind.trim() == "results").unwrap().1);
    let mut dialects = 0;
    for (kind, text) in examples {
        let Some(dialect) = kind.trim().strip_prefix("messages ") else { continue };
        let dialect: Dialect = serde_json::from_value(Value::from(dialect)).unwrap();
        assert_eq!(json(&messages(dialect, &shown).unwrap()), json(text), "{dialect:?}");
        dialects += 1;
    }
    assert_eq!(dialects, 6);
}

#[test]
fn the_rejected_example_produces_the_documented_reply() {
    let examples = examples();
    let at = examples.iter().position(|(kind, _)| kind.contains("refused")).unwrap();
    let refusal = parse_turn(examples[at].1.as_bytes()).unwrap_err();
    let shown = json(examples[at + 1].1);
    let turn = TurnId::new("t-18").unwrap();
    assert_eq!(json(&rejection_reply(&refusal, RejectionStatus::Rejected, RejectedId::Turn(&turn))), shown);
}

#[test]
fn the_shard_table_matches_the_code() {
    let rows = PROTOCOL.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | `0x"));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 5);
    for (name, rest) in rows {
        let cells: Vec<_> = rest.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        assert_eq!(u32::from_str_radix(cells[0], 16).unwrap(), crc32fast::hash(name.as_bytes()));
        for (cell, shards) in cells[1..].iter().zip([1, 4, 16, 64]) {
            assert_eq!(cell.parse::<u32>().unwrap(), shard_of(&TenantId::new(name).unwrap(), shards), "{name}");
        }
    }
}

#[test]
fn every_outcome_and_every_rejection_code_has_a_row() {
    let rows = || OUTCOMES.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let cells: String = rows().collect();
    let outcomes = Outcome::ALL.iter().map(|outcome| outcome.as_str());
    for word in outcomes.chain(RejectionCode::WORDS) {
        assert!(cells.contains(&format!("`{word}`")), "no row of docs/reference/outcomes.md begins with {word}");
    }
}

#[test]
fn every_audit_action_has_a_row() {
    let (_, rows) = AUDIT_ENTRY.split_once("\n| `action` | Meaning |\n").unwrap();
    let cells =
        rows.lines().skip(1).map_while(|line| line.strip_prefix("| ")).filter_map(|line| line.split(" | ").next());
    let words = cells.flat_map(|cell| cell.split(", ")).map(|word| word.trim_matches('`'));
    let documented: Vec<_> = words.filter_map(AuditAction::parse).collect();
    let of_operators: Vec<_> = AuditAction::ALL.iter().copied().filter(|one| *one != AuditAction::ToolCall).collect();
    assert_eq!(documented, of_operators);
}

fn blocks(word: &str) -> impl Iterator<Item = &'static str> {
    let start = format!("\n```{word}\n");
    DIALECTS
        .match_indices(&start)
        .map(|(at, _)| {
            let inside = &DIALECTS[at + "\n```".len()..];
            inside.split_once('\n').unwrap().1.split_once("\n```").unwrap().0
        })
        .collect::<Vec<_>>()
        .into_iter()
}

#[test]
fn the_strict_example_matches_its_schema() {
    let schema = json(blocks("json schema").next().unwrap());
    let mut strict = super::strict::strict_schema(&schema).unwrap();
    strict["required"].as_array_mut().unwrap().sort_by_key(Value::to_string);
    assert_eq!(strict, json(blocks("json strict").next().unwrap()));
}

#[test]
fn the_answer_examples_parse_as_documented() {
    let answers: Vec<_> = blocks("text answer").map(super::text::calls_in).collect();
    let calls = json(blocks("json calls").next().unwrap());
    let read = |call: &tickfleet_model::Call| serde_json::json!([call.tool, json(&call.arguments)]);
    assert_eq!(Value::from(answers[0].iter().map(read).collect::<Vec<_>>()), calls);
    assert_eq!(answers[1].len(), 1, "nothing behind the broken call is read");
    let problem = super::text::problem(&answers[1][0]).unwrap();
    assert_eq!(Value::from(problem), json(blocks("json problem").next().unwrap()));
}
