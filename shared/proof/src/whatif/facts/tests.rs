#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::json;
use tickfleet_model::policy::{Fact, FactChange, FactCondition, FactRow, Permissions, RuleMode, ToolGrant};
use tickfleet_model::{Effect, Outcome};

use super::replay::{FactReplay, NO_SESSION};
use super::{FactCall, FactLifetimes, FactTurn, GuardResult, ToolFacts};
use crate::lines::{self, Line};
use crate::whatif::recorded::{LogStart, RecordedCall, RecordedEntry};
use crate::whatif::{Difference, DifferenceKind, Summary};

/// The first letter is the action: `S` sets, `C` clears, `R` requires, `F` forbids. A number after the fact is
/// `kept_ms`.
fn row(asks: &[&str]) -> FactRow {
    let mut row = FactRow::default();
    for ask in asks {
        let (letter, fact) = ask.split_at(1);
        let (fact, kept_ms) = fact.split_once(' ').unwrap_or((fact, "60000"));
        let fact = Fact::parse(fact).unwrap();
        let kept_ms = kept_ms.parse().unwrap();
        let change = FactChange { fact: fact.clone(), on: BTreeSet::from([Outcome::Ok]), kept_ms };
        let condition = FactCondition { fact, mode: RuleMode::Enforce, message: None };
        match letter {
            "S" => row.sets.push(change),
            "C" => row.clears.push(change),
            "R" => row.require.push(condition),
            _ => row.forbid.push(condition),
        }
    }
    row
}

fn policy(rows: &[(&str, &[&str])]) -> Permissions {
    let mut permissions = Permissions::default();
    for (tool, asks) in rows {
        let grant = ToolGrant { everyone: true, facts: row(asks), ..ToolGrant::default() };
        permissions.matrix.insert((*tool).to_owned(), grant);
    }
    permissions
}

const MAIL: (&str, &[&str]) = ("mail", &["Stainted"]);
const PAY: (&str, &[&str]) = ("pay", &["Ftainted"]);

struct Call {
    turn: &'static str,
    position: usize,
    tool: &'static str,
    admitted_ms: i64,
    facts_evaluated_ms: Option<i64>,
    ended_ms: i64,
    outcome: &'static str,
    stopped: Option<&'static str>,
    session: Option<&'static str>,
    arguments: &'static str,
}

/// `call` is turn and position. `times` are admission, evaluation of facts, and end (ms).
fn ran(call: (&'static str, usize), tool: &'static str, times: (i64, i64, i64)) -> Call {
    let (admitted_ms, facts_evaluated_ms, ended_ms) = times;
    Call {
        turn: call.0,
        position: call.1,
        tool,
        admitted_ms,
        facts_evaluated_ms: Some(facts_evaluated_ms),
        ended_ms,
        outcome: "ok",
        stopped: None,
        session: Some("5e55"),
        arguments: "{}",
    }
}

fn denied(call: Call, rule: &'static str) -> Call {
    Call { outcome: "denied", stopped: Some(rule), ended_ms: call.facts_evaluated_ms.unwrap_or(call.ended_ms), ..call }
}

impl Call {
    /// Entries of older versions lack the time at which facts were evaluated.
    fn unasked(self) -> Self {
        Self { facts_evaluated_ms: None, ..self }
    }

    fn recorded(&self) -> RecordedCall {
        let Self { turn, position, tool, admitted_ms, facts_evaluated_ms, ended_ms, outcome, session, .. } = self;
        let ran = self.stopped.is_none();
        let mut policy_inputs = json!({"calls": 1, "ran": ran});
        let fields = policy_inputs.as_object_mut().unwrap();
        fields.extend(session.map(|session| ("session".to_owned(), json!(session))));
        fields.extend(facts_evaluated_ms.map(|at_ms| ("facts_evaluated_ms".to_owned(), json!(at_ms))));
        let error = self.stopped.map(|rule| {
            let reason = if rule.contains("require") { "fact_missing" } else { "fact_forbidden" };
            json!({"code": "denied", "details": {"reason": reason, "rule": rule}})
        });
        let timestamp = chrono::DateTime::from_timestamp_millis(*ended_ms).unwrap().to_rfc3339();
        let arguments: serde_json::Value = serde_json::from_str(self.arguments).unwrap();
        let mut meta = json!({
            "call": format!("{turn}/{position}"), "turn": turn, "arguments": arguments, "outcome": outcome, "error": error,
            "duration_ms": if ran { 5 } else { 0 }, "retry_count": 0, "policy_inputs": policy_inputs,
        });
        if ran {
            meta["ended_ms"] = json!(ended_ms);
        }
        let text = json!({
            "timestamp": timestamp, "action": "TOOL_CALL", "entity_id": tool, "actor_id": "kelly", "tenant": "acme",
            "message": format!("kelly called {tool}: x"), "meta": meta,
        });
        let admitted = format!("A{admitted_ms},1,1,9,{},1,9", admitted_ms + 5_000);
        let line = lines::entry(0, &format!("{ended_ms}-0"), &admitted, &text.to_string());
        let Some(Line::Entry(entry)) = Line::read(&line) else { unreachable!() };
        let RecordedEntry::Call(call) = RecordedEntry::entry(&entry) else { unreachable!() };
        *call
    }
}

fn replay_from(permissions: &Permissions, began: &LogStart, calls: &[Call]) -> (Vec<Difference>, u64, Summary) {
    let mut turns: Vec<FactTurn> = Vec::new();
    for of in calls.chunk_by(|one, other| one.turn == other.turn) {
        let recorded: Vec<RecordedCall> = of.iter().map(Call::recorded).collect();
        let kept = FactLifetimes::of(permissions);
        let mut before_ms = None;
        let by_facts = recorded.iter().filter_map(|call| {
            let before_ms = before_ms.replace(call.ended_ms);
            let facts = &permissions.matrix.get(&call.tool)?.facts;
            let row = ToolFacts { tool: &call.tool, facts, effect: Effect::Once };
            FactCall::of(call, &row, &kept, GuardResult::Same, before_ms)
        });
        turns.extend(FactTurn::of(&recorded[0], by_facts.collect()));
    }
    turns.sort_by_key(|turn| turn.at_ms);
    // The command stores the turns in a file.
    let lines: Vec<String> = turns.iter().map(|turn| serde_json::to_string(turn).unwrap()).collect();
    let found = RefCell::new(Vec::new());
    let mut replay = FactReplay::new(began, |difference| found.borrow_mut().push(difference));
    lines.iter().for_each(|line| replay.turn(serde_json::from_str(line).unwrap()));
    let (decided, summary) = replay.finish();
    (found.into_inner(), decided, summary)
}

type ReportedDifference = (String, DifferenceKind, String, Option<i64>);

fn reported(rows: &[(&str, &[&str])], calls: &[Call]) -> (Vec<ReportedDifference>, u64) {
    let (found, decided, summary) = replay_from(&policy(rows), &LogStart::default(), calls);
    assert!(summary.not_decidable.is_empty(), "{summary:?}");
    (found.into_iter().map(|one| (one.call, one.kind, one.by, one.by_ms)).collect(), decided)
}

fn one(call: &str, kind: DifferenceKind, by: &str, by_ms: Option<i64>) -> ReportedDifference {
    (call.to_owned(), kind, by.to_owned(), by_ms)
}

const FORBIDS: &str = "permissions.pay.facts.forbid.tainted";
const REQUIRES: &str = "permissions.pay.facts.require.quoted";

#[test]
fn a_set_fact_denies_calls_until_it_is_cleared_or_expires() {
    let look: (&str, &[&str]) = ("look", &["Ctainted"]);
    let calls = [
        ran(("a", 0), "pay", (100, 110, 120)),
        ran(("b", 0), "mail", (200, 210, 220)),
        denied(ran(("b", 1), "pay", (200, 221, 0)), FORBIDS),
        ran(("c", 0), "look", (300, 310, 320)),
        ran(("d", 0), "pay", (400, 410, 420)),
        ran(("e", 0), "mail", (500, 510, 520)),
        // A minute later, the fact has expired.
        ran(("f", 0), "pay", (60_600, 60_610, 60_620)),
    ];
    assert_eq!(reported(&[MAIL, PAY, look], &calls), (vec![], 4));
    // The policy has no row that clears the fact.
    let found = reported(&[MAIL, PAY], &calls);
    assert_eq!(found.0, [one("d/0", DifferenceKind::Denied, FORBIDS, None)]);
    // The policy has no row that sets the fact.
    assert_eq!(reported(&[PAY, look], &calls).0, [one("b/1", DifferenceKind::Allowed, FORBIDS, None)]);
    // In the policy, another condition stops the call.
    let quoted: (&str, &[&str]) = ("pay", &["Rquoted"]);
    let all: Vec<_> = ["a/0", "d/0", "f/0"].map(|call| one(call, DifferenceKind::Denied, REQUIRES, None)).into();
    let mut found = reported(&[MAIL, quoted, look], &calls).0;
    let other = found.iter().position(|one| one.1 == DifferenceKind::Otherwise).map(|at| found.remove(at));
    assert_eq!((found, other), (all, Some(one("b/1", DifferenceKind::Otherwise, REQUIRES, None))));
}

#[test]
fn an_uncertain_fact_forbids_calls_but_meets_no_requirement() {
    let unknown = |turn, tool, at_ms| Call { outcome: "outcome_unknown", ..at(turn, tool, at_ms) };
    fn at(turn: &'static str, tool: &'static str, at_ms: i64) -> Call {
        ran((turn, 0), tool, (at_ms, at_ms + 10, at_ms + 20))
    }
    // There is a quote, and later a second quote with an unknown outcome.
    let quotes: &[(&str, &[&str])] = &[("quote", &["Squoted"]), ("pay", &["Rquoted"])];
    let calls = [
        at("a", "quote", 0),
        unknown("b", "quote", 30_000),
        at("c", "pay", 59_000),
        denied(at("d", "pay", 61_000), REQUIRES),
    ];
    assert_eq!(reported(quotes, &calls), (vec![], 2));
    // A mail sets a fact for a long time, and a note for a short time. A look with an unknown outcome may have cleared
    // the fact.
    let look: (&str, &[&str]) = ("look", &["Ctainted 1000"]);
    let note: (&str, &[&str]) = ("note", &["Stainted 1000"]);
    let calls = [
        at("a", "mail", 0),
        at("b", "note", 10_000),
        denied(at("c", "pay", 20_000), FORBIDS),
        unknown("d", "look", 30_000),
        denied(at("e", "pay", 59_000), FORBIDS),
        at("f", "pay", 61_000),
    ];
    assert_eq!(reported(&[MAIL, PAY, look, note], &calls), (vec![], 3));
    // The change by the look is kept longer than the fact that it may have cleared.
    let look: (&str, &[&str]) = ("look", &["Ctainted 600000"]);
    let calls = [at("a", "mail", 0), unknown("b", "look", 30_000), at("c", "pay", 61_000)];
    assert_eq!(reported(&[MAIL, PAY, look], &calls), (vec![], 1));
}

#[test]
fn a_fact_from_before_the_log_is_undecidable_until_it_is_cleared() {
    let mut began = LogStart::default();
    began.cut_shard(0, 90);
    let rows: &[(&str, &[&str])] =
        &[MAIL, PAY, ("note", &["Stainted 1000"]), ("look", &["Ctainted"]), ("ask", &["Rtainted"])];
    let note = || ran(("a", 0), "note", (100, 110, 120));
    let (found, decided, summary) =
        replay_from(&policy(rows), &began, &[note(), ran(("b", 0), "pay", (2_000, 2_010, 2_020))]);
    assert!(found.is_empty() && decided == 0, "{found:?}");
    assert_eq!(summary.not_decidable.values().sum::<u64>(), 1, "{summary:?}");
    let look = ran(("b", 0), "look", (200, 210, 220));
    let then = ran(("c", 0), "pay", (2_000, 2_010, 2_020));
    let (found, decided, summary) = replay_from(&policy(rows), &began, &[note(), look, then]);
    assert!(found.is_empty() && decided == 1 && summary.not_decidable.is_empty(), "{found:?} {summary:?}");
}

#[test]
fn a_new_condition_is_decided_by_the_start_and_order_of_calls() {
    let calls = [
        ran(("a", 0), "mail", (100, 0, 120)).unasked(),
        ran(("a", 1), "pay", (100, 0, 126)).unasked(),
        Call { session: Some("07e4"), ..ran(("b", 0), "pay", (2_000, 0, 2_010)).unasked() },
        ran(("c", 0), "pay", (3_000, 0, 3_010)).unasked(),
    ];
    let expected = ["a/1", "c/0"].map(|call| one(call, DifferenceKind::Denied, FORBIDS, None));
    assert_eq!(reported(&[MAIL, PAY], &calls).0, expected);
}

#[test]
fn a_call_waits_for_an_earlier_turn_that_may_set_its_required_fact() {
    let pays: &[(&str, &[&str])] = &[("pay", &["Rquoted"]), ("quote", &["Squoted"])];
    let calls = [
        ran(("a", 0), "quote", (100, 0, 500)).unasked(),
        ran(("b", 0), "pay", (200, 0, 225)).unasked(),
        ran(("b", 1), "pay", (200, 0, 235)).unasked(),
        ran(("c", 0), "pay", (600, 0, 625)).unasked(),
    ];
    let expected = [one("b/0", DifferenceKind::Delayed, REQUIRES, Some(280))];
    assert_eq!(reported(pays, &calls).0, expected);
    // No call waits for a call of a later turn, so no two turns wait for each other.
    let late = [
        ran(("b", 0), "pay", (200, 0, 225)).unasked(),
        ran(("b", 1), "quote", (200, 0, 300)).unasked(),
        ran(("z", 0), "quote", (210, 0, 500)).unasked(),
    ];
    assert_eq!(reported(pays, &late).0, [one("b/0", DifferenceKind::Denied, REQUIRES, None)]);
}

#[test]
fn a_newly_denied_call_sets_no_fact_for_later_calls() {
    // The denied offer sets no fact, so the order is denied too.
    let rows: &[(&str, &[&str])] = &[("offer", &["Rquoted", "Soffered"]), ("order", &["Roffered"])];
    let calls = [ran(("a", 0), "offer", (100, 0, 120)).unasked(), ran(("b", 0), "order", (2_000, 0, 2_020)).unasked()];
    let expected = [
        one("a/0", DifferenceKind::Denied, "permissions.offer.facts.require.quoted", None),
        one("b/0", DifferenceKind::Denied, "permissions.order.facts.require.offered", None),
    ];
    assert_eq!(reported(rows, &calls).0, expected);
    // The fleet denied the first call, but the policy allows it. The end of this call is unknown.
    let first = denied(ran(("a", 0), "offer", (100, 110, 0)), "permissions.offer.facts.require.quoted");
    let then = ran(("b", 0), "order", (2_000, 0, 2_020)).unasked();
    let without = policy(&[("offer", &["Soffered"]), ("order", &["Roffered"])]);
    let (found, _, summary) = replay_from(&without, &LogStart::default(), &[first, then]);
    assert_eq!(
        found.iter().map(|one| (one.call.as_str(), one.kind)).collect::<Vec<_>>(),
        [("a/0", DifferenceKind::Allowed)]
    );
    assert_eq!(summary.not_decidable.values().sum::<u64>(), 1, "{summary:?}");
}

#[test]
fn missing_log_data_makes_a_call_undecidable() {
    let undecided = |calls: &[Call], rows: &[(&str, &[&str])], began: &LogStart| {
        let (found, _, summary) = replay_from(&policy(rows), began, calls);
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(summary.not_decidable.len(), 1, "{summary:?}");
        summary.not_decidable.into_keys().next().unwrap()
    };
    // Entries of an older version have no session, so the call may have affected any session of the tenant.
    let old = || Call { session: None, ..ran(("a", 0), "pay", (100, 0, 110)).unasked() };
    assert_eq!(undecided(&[old()], &[MAIL, PAY], &LogStart::default()), NO_SESSION);
    let mail = Call { session: None, ..ran(("a", 0), "mail", (100, 0, 110)).unasked() };
    let then = ran(("b", 0), "pay", (2_000, 2_010, 2_020));
    assert!(undecided(&[mail, then], &[MAIL, PAY], &LogStart::default()).contains("may have changed a fact"));
    // Facts from before the log began are unknown.
    let mut began = LogStart::default();
    began.cut_shard(0, 90);
    let at = |ms: i64| [ran(("a", 0), "pay", (ms, ms + 10, ms + 20))];
    assert!(undecided(&at(100), &[MAIL, PAY], &began).contains("before the log began"));
    // After a minute, all facts from before the log have expired.
    let (found, decided, summary) = replay_from(&policy(&[MAIL, PAY]), &began, &at(60_200));
    assert!(found.is_empty() && decided == 1 && summary.not_decidable.is_empty(), "{found:?} {summary:?}");
    // The arguments of the facts are secrets.
    let of: &[(&str, &[&str])] = &[("quote", &["Squoted(/item)"]), ("pay", &["Rquoted(/item)"])];
    let hidden = Call { arguments: r#"{"item":"[REDACTED]"}"#, ..ran(("a", 0), "pay", (100, 110, 120)) };
    assert!(undecided(&[hidden], of, &LogStart::default()).contains("arguments"));
}

#[test]
fn simultaneous_events_are_replayed_in_both_orders() {
    let mail = |turn, at_ms| ran((turn, 0), "mail", (100, 105, at_ms));
    let pay = || ran(("b", 0), "pay", (101, 120, 125));
    // The order of two events in the same millisecond is unknown, so the result is undecidable.
    let (found, decided, summary) = replay_from(&policy(&[MAIL, PAY]), &LogStart::default(), &[mail("a", 120), pay()]);
    assert!(found.is_empty() && decided == 0 && summary.not_decidable.len() == 1, "{found:?} {summary:?}");
    // The fact was set before, so both orders give the same result.
    let calls = [mail("a", 110), mail("c", 120), pay()];
    let (found, ..) = replay_from(&policy(&[MAIL, PAY]), &LogStart::default(), &calls);
    assert_eq!(
        found.iter().map(|one| (one.call.as_str(), one.kind)).collect::<Vec<_>>(),
        [("b/0", DifferenceKind::Denied)]
    );
}

#[test]
fn facts_about_arguments_are_separate_for_each_value() {
    let of: &[(&str, &[&str])] = &[("quote", &["Squoted(/item)"]), ("pay", &["Rquoted(/item)", "Cquoted(/item)"])];
    let about = |call: Call, arguments| Call { arguments, ..call };
    let calls = [
        about(ran(("a", 0), "quote", (100, 110, 120)), r#"{"item":"pen"}"#),
        about(ran(("b", 0), "pay", (200, 210, 220)), r#"{"item":"pen"}"#),
        about(denied(ran(("c", 0), "pay", (300, 310, 0)), REQUIRES), r#"{"item":"pen"}"#),
        about(denied(ran(("d", 0), "pay", (400, 410, 0)), REQUIRES), r#"{"item":"ink"}"#),
    ];
    assert_eq!(reported(of, &calls), (vec![], 3));
}
