//! Raw outputs of open models, some of them broken. The parser must return only the intended calls.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tickfleet_protocol::text::{calls_in, problem};
use tickfleet_tests::fetched::FetchedData;

const DATA: FetchedData = FetchedData {
    script: "canitoolcall.py",
    folder: "canitoolcall-0.1.1",
    what: "the PyPI package canitoolcall 0.1.1 (0.4 MB)",
    skip_variable: "TICKFLEET_SKIP_CANITOOLCALL",
};

#[derive(Deserialize)]
struct Fixture {
    id: String,
    family: String,
    raw: String,
    calls: Vec<Expected>,
    broken: bool,
}

#[derive(Deserialize)]
struct Expected {
    name: String,
    arguments: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ParserVerdict {
    Equal,
    /// No call is expected, and the parser reports the problem.
    BrokenAndReported,
    /// Calls are expected, but the parser reports a problem.
    Reported,
    /// Calls are expected, but the parser sees only plain text.
    Unseen,
    /// No call is expected, but the parser reports an invalid call.
    FalseComplaint,
    Wrong,
}

fn judge(fixture: &Fixture) -> ParserVerdict {
    let calls = calls_in(&fixture.raw);
    let readable: Vec<_> = calls.iter().filter(|call| problem(call).is_none()).collect();
    let complained = readable.len() < calls.len();
    let right = readable.iter().zip(&fixture.calls).all(|(call, expected)| {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        call.tool == expected.name && same(&arguments, &expected.arguments)
    });
    match (readable.len(), fixture.calls.len()) {
        (found, expected) if !right || found > expected => ParserVerdict::Wrong,
        (0, 0) if complained && fixture.broken => ParserVerdict::BrokenAndReported,
        (0, 0) if complained => ParserVerdict::FalseComplaint,
        (found, expected) if found == expected => ParserVerdict::Equal,
        _ if complained => ParserVerdict::Reported,
        _ => ParserVerdict::Unseen,
    }
}

/// 1 and 1.0 are the same number, but 3 and "3" differ.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, one)| other.get(key).is_some_and(|other| same(one, other)))
        }
        _ => one == other,
    }
}

#[test]
fn raw_model_output_never_runs_an_unintended_call() {
    let Some(dir) = DATA.unless_skipped().unwrap() else { return };
    let text = std::fs::read_to_string(dir.join("fixtures.jsonl")).unwrap();
    let fixtures: Vec<Fixture> =
        text.split('\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut counts: BTreeMap<ParserVerdict, usize> = BTreeMap::new();
    let mut families: BTreeMap<(&str, ParserVerdict), usize> = BTreeMap::new();
    for fixture in &fixtures {
        let verdict = judge(fixture);
        *counts.entry(verdict).or_default() += 1;
        *families.entry((&fixture.family, verdict)).or_default() += 1;
        if matches!(verdict, ParserVerdict::Wrong | ParserVerdict::Unseen | ParserVerdict::FalseComplaint) {
            eprintln!("{verdict:?}: {}", fixture.id);
        }
    }
    eprintln!("{counts:?}\n{families:?}");
    assert_eq!(fixtures.len(), 469);
    assert_eq!(counts.get(&ParserVerdict::Wrong), None, "a call that nobody meant would run");
    let found = |verdict| counts.get(&verdict).copied().unwrap_or(0);
    let all = [
        ParserVerdict::Equal,
        ParserVerdict::BrokenAndReported,
        ParserVerdict::Reported,
        ParserVerdict::FalseComplaint,
        ParserVerdict::Unseen,
    ];
    assert_eq!(all.map(found), [133, 34, 300, 2, 0]);
}
