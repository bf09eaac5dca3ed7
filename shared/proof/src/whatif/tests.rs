#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use tickfleet_model::limit::{Every, Limit, LimitBound, LimitKey, LimitMatch, LimitMode, OnReach};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, AgentPolicy, Policy, TenantId};

use super::recorded::{Arguments, Fate, Operated, Pause, Read};
use super::replay::{Fleet, Replay};
use super::turns::{Decision, Note, Turn, TurnCall, What};
use super::{Difference, Kind};
use crate::lines::{self, Line};

fn policy(calls_per_tick: u32, limits: Vec<Limit>) -> Policy {
    let mut policy = Policy { limits: Arc::new(limits), ..Policy::default() };
    policy.defaults.calls_per_tick = calls_per_tick;
    policy.agents = Arc::new([(AgentId::new("kelly").unwrap(), AgentPolicy::default())].into());
    policy.tenants.insert(TenantId::new("acme").unwrap(), TenantPolicy::default());
    policy
}

fn limit(bound: LimitBound, every: Every, on_reach: OnReach) -> Limit {
    Limit {
        name: "few".into(),
        matches: LimitMatch::default(),
        per: BTreeSet::from([LimitKey::Agent]),
        bound,
        every,
        on_reach,
        mode: LimitMode::Enforce,
        keys_max: 9,
    }
}

/// A turn whose calls each end 100 ms after they went out.
fn turn(id: &str, decisions: &[(i64, usize, What)]) -> Turn {
    let mut calls = Vec::new();
    for (at_ms, _, what) in decisions {
        let count = match what {
            What::Go(count, _) | What::Refuse(count, _) => *count,
            What::Wait(..) => 0,
        };
        calls.extend((0..count).map(|_| TurnCall {
            tool: "echo".into(),
            arguments: Some("{}".into()),
            written_ms: at_ms + 100,
        }));
    }
    let decision =
        |(at_ms, first, what): &(i64, usize, What)| Decision { at_ms: *at_ms, first: *first, what: what.clone() };
    Turn {
        shard: 0,
        tenant: "acme".into(),
        agent: "kelly".into(),
        id: id.into(),
        calls,
        first: 0,
        is_whole: true,
        decisions: decisions.iter().map(decision).collect(),
        unknown: 0,
        context: None,
    }
}

/// An admission in a tick of five seconds.
fn go(calls: u32, used: u32, ends_ms: i64) -> What {
    What::Go(calls as usize, Note { calls, tick: (used, 3, ends_ms), day: (0, 1_000) })
}

fn replay(policy: &Policy, turns: &[Turn]) -> (Vec<Difference>, super::Summary) {
    replay_with(policy, &Operated::default(), turns)
}

fn replay_with(policy: &Policy, operated: &Operated, turns: &[Turn]) -> (Vec<Difference>, super::Summary) {
    let found = RefCell::new(Vec::new());
    let fleet = Fleet { policy, shards: 1, agent_stagger: |_, _, _| 0, counter_stagger: |_, _, _| 0 };
    let mut replay = Replay::new(fleet, operated, true, |difference| found.borrow_mut().push(difference));
    turns.iter().for_each(|turn| replay.turn(turn.clone()));
    let summary = replay.finish();
    (found.into_inner(), summary)
}

fn told(policy: &Policy, turns: &[Turn]) -> Vec<(String, Kind, String, Option<i64>)> {
    let (found, summary) = replay(policy, turns);
    assert!(summary.not_decidable.is_empty(), "{summary:?}");
    found.into_iter().map(|one| (one.call, one.kind, one.by, one.by_ms)).collect()
}

#[test]
fn ticks_are_waited_for_as_they_were_and_longer_or_shorter_under_another_cap() {
    let turns = [
        turn("a", &[(1_000, 0, go(3, 3, 5_000)), (5_020, 3, go(2, 2, 10_000))]),
        turn("b", &[(1_100, 0, What::Wait("max_calls_per_tick".into(), 5_000)), (5_030, 0, go(1, 3, 10_000))]),
    ];
    assert_eq!(told(&policy(3, vec![]), &turns), []);
    let more = told(&policy(9, vec![]), &turns);
    let sooner = |call: &str, ms| (call.to_owned(), Kind::Sooner, "max_calls_per_tick".to_owned(), Some(ms));
    assert_eq!(more, [sooner("a/3", 4_020), sooner("a/4", 4_020), sooner("b/0", 3_930)]);
    let fewer = told(&policy(2, vec![]), &turns);
    assert!(fewer.iter().all(|(_, kind, by, _)| *kind == Kind::Delayed && by == "max_calls_per_tick"), "{fewer:?}");
    let calls: BTreeSet<&str> = fewer.iter().map(|one| one.0.as_str()).collect();
    assert_eq!(calls, BTreeSet::from(["a/2", "a/3", "a/4", "b/0"]), "{fewer:?}");
}

#[test]
fn what_a_limit_refused_is_let_go_by_a_larger_one_and_debits_it() {
    let refused = |at_ms| (at_ms, 0, What::Refuse(1, Some("limits.few".into())));
    let turns = [turn("a", &[(1_000, 0, go(1, 1, 5_000))]), turn("b", &[refused(1_100)]), turn("c", &[refused(1_200)])];
    let few = |max| policy(3, vec![limit(LimitBound::Calls(max), Every::Period(60_000), OnReach::Reject)]);
    assert_eq!(told(&few(1), &turns), []);
    assert_eq!(told(&few(2), &turns), [("b/0".into(), Kind::LetGo, "limits.few".into(), None)]);
    assert_eq!(told(&few(0), &turns), [("a/0".into(), Kind::Capped, "limits.few".into(), None)]);
}

#[test]
fn places_are_free_again_when_the_calls_end_that_had_them() {
    let turns = [
        turn("a", &[(1_000, 0, go(1, 1, 5_000))]),
        turn("b", &[(1_050, 0, go(1, 2, 5_000))]),
        turn("c", &[(1_200, 0, go(1, 3, 5_000))]),
    ];
    let places = |max| policy(3, vec![limit(LimitBound::Concurrent(max), Every::Held, OnReach::Wait)]);
    assert_eq!(told(&places(2), &turns), []);
    assert_eq!(told(&places(1), &turns), [("b/0".into(), Kind::Delayed, "limits.few".into(), Some(50))]);
}

#[test]
fn what_waited_while_its_agent_was_paused_waits_as_it_did_and_not_where_nobody_paused_it() {
    let act = |at_ms, who: &str, ends| Pause { at_ms, who: who.into(), ends };
    let waits = |at_ms, until_ms| (at_ms, 0, What::Wait("max_calls_per_tick".into(), until_ms));
    let turns = [
        turn("a", &[(1_000, 0, go(1, 1, 5_000))]),
        turn("b", &[waits(1_000, 5_000), waits(5_010, 10_000), (10_010, 0, go(1, 1, 15_000))]),
        turn("c", &[(10_020, 0, go(1, 2, 15_000))]),
    ];
    let policy = policy(3, vec![]);
    for who in ["acme", "acme:kelly"] {
        let pauses = vec![act(1_000, who, false), act(7_000, who, true)];
        let operated = Operated { pauses, ..Operated::default() };
        let (found, summary) = replay_with(&policy, &operated, &turns);
        assert!(found.is_empty() && summary.not_decidable.is_empty(), "{who}: {found:?} {summary:?}");
    }
    let another = Operated { pauses: vec![act(1_000, "acme:ben", false)], ..Operated::default() };
    let (found, _) = replay_with(&policy, &another, &turns);
    let told: Vec<_> = found.iter().map(|one| (one.call.as_str(), one.kind)).collect();
    assert_eq!(told, [("b/0", Kind::Sooner)]);
}

#[test]
fn a_pause_and_its_end_are_read_from_the_log() {
    let act = |action: &str| {
        let text = format!(
            r#"{{"timestamp":"1970-01-01T00:00:05.100Z","level":"info","action":"{action}","entity_type":"agent","entity_id":"acme:kelly","actor_type":"operator","actor_id":"anna","tenant":"acme","message":"anna did it","meta":{{"reason":"late"}}}}"#
        );
        let line = lines::entry(0, "5101-0", "", &text);
        let Some(Line::Entry(entry)) = Line::read(&line) else { unreachable!() };
        match Read::entry(&entry) {
            Read::Pause(pause) => pause,
            other => unreachable!("{other:?}"),
        }
    };
    let pause = |ends| Pause { at_ms: 5_101, who: "acme:kelly".into(), ends };
    assert_eq!((act("PAUSE"), act("RESUME")), (pause(false), pause(true)));
}

#[test]
fn what_is_not_known_is_told_and_no_difference() {
    let mut one = turn("a", &[(1_000, 0, What::Refuse(1, Some("limits.few".into())))]);
    one.calls[0].arguments = None;
    let sum = LimitBound::Sum { argument: "/amount".into(), max: 5 };
    let policy = policy(3, vec![limit(sum, Every::Day, OnReach::Reject)]);
    let (found, summary) = replay(&policy, &[one]);
    assert!(found.is_empty() && summary.not_decidable.len() == 1, "{found:?} {summary:?}");
}

#[test]
fn an_entry_says_what_was_decided_and_how_it_was_admitted() {
    let text = r#"{"timestamp":"1970-01-01T00:00:05.100Z","action":"TOOL_CALL","entity_id":"tool_pay","actor_id":"kelly","tenant":"acme","message":"kelly called pay: denied","meta":{"call":"t/1","turn":"t","arguments":{"pin":"[REDACTED]"},"outcome":"denied","error":{"code":"denied","details":{"reason":"rule_not_met","rule":"permissions.pay.rules.few","limit":5}},"premises":{"calls":2,"task":"k1"}}}"#;
    let line = lines::entry(2, "5100-0", "A5000,1,1,3,10000,1,9;W1000,t,5000", text);
    let Some(Line::Entry(entry)) = Line::read(&line) else { unreachable!() };
    let Read::Call(call) = Read::entry(&entry) else { unreachable!() };
    assert_eq!((call.shard, call.position, call.tool.as_str(), call.written_ms), (2, 1, "pay", 5_100));
    assert!(matches!(call.arguments, Arguments::Hidden(_)));
    assert_eq!(call.fate.words(), "denied (permissions.pay.rules.few)");
    assert_ne!(call.fate, Fate::Passed);
    let turn = Turn::of(&[*call]).unwrap();
    assert_eq!((turn.first, turn.is_whole), (1, true));
    let decided: Vec<(i64, &What)> = turn.decisions.iter().map(|one| (one.at_ms, &one.what)).collect();
    assert_eq!(decided[0], (1_000, &What::Wait("max_calls_per_tick".into(), 5_000)));
    assert_eq!((decided.len(), decided[1].0), (2, 5_000));
}
