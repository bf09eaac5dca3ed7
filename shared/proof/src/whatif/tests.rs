#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use tickfleet_model::limit::{Limit, LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, AgentPolicy, Policy, TenantId};

use super::recorded::{Arguments, LogStart, OperatorActions, Pause, RecordedDecision, RecordedEntry};
use super::replay::{Fleet, Replay};
use super::turns::{Decision, DispatchDecision, DispatchNote, Turn, TurnCall, TurnContext};
use super::{Difference, DifferenceKind};
use crate::lines::{self, Line};

mod permit_gaps;
mod unknown;

fn policy(calls_per_tick: u32, limits: Vec<Limit>) -> Policy {
    let mut policy = Policy { limits: Arc::new(limits), ..Policy::default() };
    policy.defaults.calls_per_tick = calls_per_tick;
    policy.agents = Arc::new([(AgentId::new("kelly").unwrap(), AgentPolicy::default())].into());
    policy.tenants.insert(TenantId::new("acme").unwrap(), TenantPolicy::default());
    policy
}

fn limit(bound: LimitBound, every: LimitWindow, on_reach: OnReach) -> Limit {
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

/// Each call ends 100 ms after its dispatch.
fn turn(id: &str, decisions: &[(i64, usize, DispatchDecision)]) -> Turn {
    let mut calls = Vec::new();
    for (at_ms, _, what) in decisions {
        let count = match what {
            DispatchDecision::Go(count, _) | DispatchDecision::Refuse(count, _) => *count,
            DispatchDecision::Wait(..) => 0,
        };
        calls.extend((0..count).map(|_| TurnCall {
            tool: "echo".into(),
            arguments: Some("{}".into()),
            written_ms: at_ms + 100,
            over_ms: None,
        }));
    }
    let decision = |(at_ms, first, what): &(i64, usize, DispatchDecision)| Decision {
        at_ms: *at_ms,
        first: *first,
        what: what.clone(),
        places: Vec::new(),
    };
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

/// After the dispatch, `used` of the tick's 3 calls are used.
fn go(calls: u32, used: u32, ends_ms: i64) -> DispatchDecision {
    DispatchDecision::Go(calls as usize, DispatchNote { calls, tick: (used, 3, ends_ms), day: (0, 1_000), task: None })
}

fn replay(policy: &Policy, turns: &[Turn]) -> (Vec<Difference>, super::Summary) {
    replay_with(policy, &OperatorActions::default(), turns)
}

fn replay_with(policy: &Policy, operated: &OperatorActions, turns: &[Turn]) -> (Vec<Difference>, super::Summary) {
    replay_of(policy, operated, turns, false, None)
}

fn replay_of(
    policy: &Policy,
    operated: &OperatorActions,
    turns: &[Turn],
    one_tenant: bool,
    slots: Option<u64>,
) -> (Vec<Difference>, super::Summary) {
    let found = RefCell::new(Vec::new());
    let fleet =
        Fleet { policy, shards: 1, agent_stagger: |_, _, _| 0, counter_stagger: |_, _, _| 0, slots, one_tenant };
    let began = LogStart::default();
    let mut replay = Replay::new(fleet, operated, &began, |difference| found.borrow_mut().push(difference));
    turns.iter().for_each(|turn| replay.turn(turn.clone()));
    let summary = replay.finish();
    (found.into_inner(), summary)
}

fn differences(policy: &Policy, turns: &[Turn]) -> Vec<(String, DifferenceKind, String, Option<i64>)> {
    let (found, summary) = replay(policy, turns);
    assert!(summary.not_decidable.is_empty(), "{summary:?}");
    found.into_iter().map(|one| (one.call, one.kind, one.by, one.by_ms)).collect()
}

#[test]
fn a_changed_tick_cap_shortens_or_lengthens_waits() {
    let turns = [
        turn("a", &[(1_000, 0, go(3, 3, 5_000)), (5_020, 3, go(2, 2, 10_000))]),
        turn(
            "b",
            &[(1_100, 0, DispatchDecision::Wait("max_calls_per_tick".into(), 5_000)), (5_030, 0, go(1, 3, 10_000))],
        ),
    ];
    assert_eq!(differences(&policy(3, vec![]), &turns), []);
    let more = differences(&policy(9, vec![]), &turns);
    let sooner = |call: &str, ms| (call.to_owned(), DifferenceKind::Sooner, "max_calls_per_tick".to_owned(), Some(ms));
    assert_eq!(more, [sooner("a/3", 4_020), sooner("a/4", 4_020), sooner("b/0", 3_930)]);
    let fewer = differences(&policy(2, vec![]), &turns);
    assert!(
        fewer.iter().all(|(_, kind, by, _)| *kind == DifferenceKind::Delayed && by == "max_calls_per_tick"),
        "{fewer:?}"
    );
    let calls: BTreeSet<&str> = fewer.iter().map(|one| one.0.as_str()).collect();
    assert_eq!(calls, BTreeSet::from(["a/2", "a/3", "a/4", "b/0"]), "{fewer:?}");
}

#[test]
fn a_simultaneous_turn_that_fills_the_limit_replays_first() {
    // If `b` had been decided first, both calls of `b` would have fit.
    let first = turn("a", &[(1_000, 0, go(3, 3, 5_000)), (5_010, 3, go(1, 1, 10_000))]);
    let mut cut = turn("b", &[(1_000, 0, go(1, 1, 5_000)), (5_020, 1, go(1, 1, 10_000))]);
    cut.agent = "stan".into();
    let mut few = limit(LimitBound::Calls(4), LimitWindow::Period(5_000), OnReach::Wait);
    few.per = BTreeSet::from([LimitKey::Tenant]);
    let mut policy = policy(3, vec![few]);
    let agents = ["kelly", "stan"].map(|agent| (AgentId::new(agent).unwrap(), AgentPolicy::default()));
    policy.agents = Arc::new(agents.into());
    assert_eq!(differences(&policy, &[first.clone(), cut.clone()]), []);
    assert_eq!(differences(&policy, &[cut, first]), []);
}

#[test]
fn a_larger_limit_admits_a_rejected_call_and_debits_it() {
    let refused = |at_ms| (at_ms, 0, DispatchDecision::Refuse(1, Some("limits.few".into())));
    let turns = [turn("a", &[(1_000, 0, go(1, 1, 5_000))]), turn("b", &[refused(1_100)]), turn("c", &[refused(1_200)])];
    let few = |max| policy(3, vec![limit(LimitBound::Calls(max), LimitWindow::Period(60_000), OnReach::Reject)]);
    assert_eq!(differences(&few(1), &turns), []);
    assert_eq!(differences(&few(2), &turns), [("b/0".into(), DifferenceKind::NotRejected, "limits.few".into(), None)]);
    assert_eq!(differences(&few(0), &turns), [("a/0".into(), DifferenceKind::Capped, "limits.few".into(), None)]);
}

#[test]
fn a_limit_across_tenants_is_undecidable_from_one_tenants_calls() {
    let mut few = limit(LimitBound::Calls(1), LimitWindow::Period(60_000), OnReach::Reject);
    few.per = BTreeSet::from([LimitKey::Tool]);
    let mut policy = policy(9, vec![few]);
    policy.tenants.insert(TenantId::new("umbrella").unwrap(), TenantPolicy::default());
    let turns = [turn("a", &[(1_000, 0, DispatchDecision::Refuse(1, Some("limits.few".into())))])];
    let (found, summary) = replay_of(&policy, &OperatorActions::default(), &turns, true, None);
    let why: Vec<&String> = summary.not_decidable.keys().collect();
    assert!(found.is_empty() && why.len() == 1 && why[0].contains("several tenants"), "{found:?} {why:?}");
    let (found, _) = replay(&policy, &turns);
    assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), [DifferenceKind::NotRejected]);
}

#[test]
fn a_concurrency_slot_is_free_again_when_its_call_ends() {
    let turns = [
        turn("a", &[(1_000, 0, go(1, 1, 5_000))]),
        turn("b", &[(1_050, 0, go(1, 2, 5_000))]),
        turn("c", &[(1_200, 0, go(1, 3, 5_000))]),
    ];
    let places = |max| policy(3, vec![limit(LimitBound::Concurrent(max), LimitWindow::Concurrency, OnReach::Wait)]);
    assert_eq!(differences(&places(2), &turns), []);
    assert_eq!(
        differences(&places(1), &turns),
        [("b/0".into(), DifferenceKind::Delayed, "limits.few".into(), Some(50))]
    );
}

fn over(mut turn: Turn, over_ms: i64) -> Turn {
    turn.calls.iter_mut().for_each(|call| call.over_ms = Some(over_ms));
    turn
}

#[test]
fn a_permit_return_in_the_same_millisecond_follows_the_recorded_decision() {
    let waits = |at_ms| (at_ms, 0, DispatchDecision::Wait("limits.few".into(), 0));
    let places = |max| policy(9, vec![limit(LimitBound::Concurrent(max), LimitWindow::Concurrency, OnReach::Wait)]);
    // Another turn got the permit that was returned in this millisecond, so turn b waited.
    let waited = [
        turn("a", &[(1_000, 0, go(1, 1, 5_000))]),
        turn("b", &[waits(1_100), (1_132, 0, go(1, 2, 5_000))]),
        turn("c", &[(1_232, 0, go(1, 3, 5_000))]),
    ];
    assert_eq!(differences(&places(1), &waited), []);
    assert_eq!(
        differences(&places(2), &waited),
        [("b/0".into(), DifferenceKind::Sooner, "limits.few".into(), Some(32))]
    );
    // Turn b got the returned permit, so it was dispatched at once.
    let went = [turn("a", &[(1_000, 0, go(1, 1, 5_000))]), turn("b", &[waits(1_099), (1_100, 0, go(1, 2, 5_000))])];
    assert_eq!(differences(&places(1), &went), []);
}

#[test]
fn the_shard_time_of_a_permit_return_overrides_the_entry_id() {
    let places = policy(9, vec![limit(LimitBound::Concurrent(1), LimitWindow::Concurrency, OnReach::Wait)]);
    let went = |at_ms| turn("b", &[(at_ms, 0, go(1, 2, 5_000))]);
    // First, the entry is written 60 ms after the end of the slice. Then a clock steps back, so the entry's ID is 100
    // ms before the admission.
    let mut early = turn("a", &[(1_000, 0, go(1, 1, 5_000))]);
    assert_eq!(differences(&places, &[over(early.clone(), 1_040), went(1_040)]), []);
    early.calls[0].written_ms = 900;
    assert_eq!(differences(&places, &[over(early.clone(), 1_200), went(1_200)]), []);
    let late = differences(&places, &[over(early, 1_200), went(1_150)]);
    assert_eq!(late, [("b/0".into(), DifferenceKind::Delayed, "limits.few".into(), Some(50))]);
}

fn of_task(mut turn: Turn, budgets: &[(u32, u32)]) -> Turn {
    let context = TurnContext { task: Some("k1".into()), user: None, session: None, parallel_reads: false };
    turn.context = Some(context);
    let notes = turn.decisions.iter_mut().filter_map(|one| match &mut one.what {
        DispatchDecision::Go(_, note) => Some(note),
        _ => None,
    });
    notes.zip(budgets).for_each(|(note, budget)| note.task = Some(*budget));
    turn
}

#[test]
fn a_task_budget_replays_its_rejections_and_admits_when_freed() {
    let refused = |at_ms, first, calls| (at_ms, first, DispatchDecision::Refuse(calls, Some("task_budget".into())));
    // Between the two turns, the task passed three calls of its five-call budget to a subtask.
    let turns = [
        of_task(turn("a", &[(1_000, 0, go(1, 1, 5_000))]), &[(1, 5)]),
        of_task(turn("b", &[(1_200, 0, go(1, 2, 5_000)), (1_300, 1, refused(0, 0, 2).2)]), &[(5, 5)]),
    ];
    assert_eq!(differences(&policy(9, vec![]), &turns), []);
    let few = |max| policy(9, vec![limit(LimitBound::Calls(max), LimitWindow::Period(60_000), OnReach::Reject)]);
    let differences = |policy: &Policy| -> Vec<_> {
        differences(policy, &turns).into_iter().map(|one| (one.0, one.1, one.2)).collect()
    };
    let of = |call: &str, kind, by: &str| (call.to_owned(), kind, by.to_owned());
    assert_eq!(differences(&few(9)), []);
    let mut refuses_a = few(1);
    let mut only_a = limit(LimitBound::Calls(0), LimitWindow::Period(60_000), OnReach::Reject);
    only_a.matches.tools = vec!["never".into()];
    refuses_a.limits = Arc::new(vec![only_a]);
    assert_eq!(differences(&refuses_a), []);
    let capped = differences(&few(0));
    assert!(capped.iter().all(|one| one.2 == "limits.few"), "{capped:?}");
    let mut named = turns.clone();
    named[0].calls[0].tool = "never".into();
    let found: Vec<_> =
        super::tests::differences(&refuses_a, &named).into_iter().map(|one| (one.0, one.1, one.2)).collect();
    let expected =
        [of("a/0", DifferenceKind::Capped, "limits.few"), of("b/1", DifferenceKind::NotRejected, "task_budget")];
    assert_eq!(found, expected);
    let silent = [turn("c", &[refused(1_000, 0, 1)])];
    let (found, summary) = replay(&policy(9, vec![]), &silent);
    assert!(found.is_empty() && summary.not_decidable.len() == 1, "{found:?} {summary:?}");
}

#[test]
fn a_percentage_limit_needs_the_number_of_slots() {
    let part = |percent| policy(9, vec![limit(LimitBound::Part(percent), LimitWindow::Concurrency, OnReach::Wait)]);
    let waits = (1_050, 0, DispatchDecision::Wait("limits.few".into(), 0));
    let turns = vec![
        turn("a", &[(1_000, 0, go(1, 1, 5_000))]),
        turn("b", &[(1_010, 0, go(1, 2, 5_000))]),
        turn("c", &[waits, (1_100, 0, go(1, 3, 5_000))]),
    ];
    let with_slots = |percent, slots| {
        let (found, _) = replay_of(&part(percent), &OperatorActions::default(), &turns, false, Some(slots));
        found.into_iter().map(|one| (one.call, one.kind, one.by_ms)).collect::<Vec<_>>()
    };
    let sooner = [("c/0".to_owned(), DifferenceKind::Sooner, Some(50))];
    assert_eq!(with_slots(25, 8), []);
    assert_eq!(with_slots(50, 8), sooner);
    assert!(with_slots(12, 8).iter().any(|one| (&*one.0, one.1) == ("b/0", DifferenceKind::Delayed)));
    assert_eq!(with_slots(25, 16), sooner, "a quarter of 16 slots is half of 8 slots");
    let (found, summary) = replay(&part(25), &turns);
    let why: Vec<&String> = summary.not_decidable.keys().collect();
    assert!(
        found.is_empty() && why.len() == 1 && why[0].starts_with("limits.few is a percentage of"),
        "{found:?} {why:?}"
    );
}

#[test]
fn a_wait_for_a_share_of_slots_is_reported_as_undecidable() {
    let mut share = limit(LimitBound::Share(1), LimitWindow::Concurrency, OnReach::Wait);
    share.per = BTreeSet::from([LimitKey::Tenant]);
    let waits = (1_050, 0, DispatchDecision::Wait("limits.few".into(), 0));
    let turns = [turn("a", &[(1_000, 0, go(1, 1, 5_000))]), turn("b", &[waits, (1_400, 0, go(1, 2, 5_000))])];
    let (found, summary) = replay(&policy(9, vec![share]), &turns);
    let why: Vec<&String> = summary.not_decidable.keys().collect();
    assert!(found.is_empty() && why.len() == 1 && why[0].starts_with("limits.few is a share"), "{found:?} {why:?}");
    assert_eq!(
        differences(&policy(9, vec![]), &turns),
        [("b/0".into(), DifferenceKind::Sooner, "limits.few".into(), Some(350))]
    );
}

#[test]
fn a_turn_of_a_paused_agent_keeps_its_recorded_wait() {
    let act = |at_ms, who: &str, ends| Pause { at_ms, who: who.into(), ends };
    let waits = |at_ms, until_ms| (at_ms, 0, DispatchDecision::Wait("max_calls_per_tick".into(), until_ms));
    let turns = [
        turn("a", &[(1_000, 0, go(1, 1, 5_000))]),
        turn("b", &[waits(1_000, 5_000), waits(5_010, 10_000), (10_010, 0, go(1, 1, 15_000))]),
        turn("c", &[(10_020, 0, go(1, 2, 15_000))]),
    ];
    let policy = policy(3, vec![]);
    for who in ["acme", "acme:kelly"] {
        let pauses = vec![act(1_000, who, false), act(7_000, who, true)];
        let operated = OperatorActions { pauses, ..OperatorActions::default() };
        let (found, summary) = replay_with(&policy, &operated, &turns);
        assert!(found.is_empty() && summary.not_decidable.is_empty(), "{who}: {found:?} {summary:?}");
    }
    let another = OperatorActions { pauses: vec![act(1_000, "acme:ben", false)], ..OperatorActions::default() };
    let (found, _) = replay_with(&policy, &another, &turns);
    let differences: Vec<_> = found.iter().map(|one| (one.call.as_str(), one.kind)).collect();
    assert_eq!(differences, [("b/0", DifferenceKind::Sooner)]);
}

#[test]
fn a_pause_and_its_end_are_read_from_the_log() {
    let act = |action: &str| {
        let text = format!(
            r#"{{"timestamp":"1970-01-01T00:00:05.100Z","level":"info","action":"{action}","entity_type":"agent","entity_id":"acme:kelly","actor_type":"operator","actor_id":"anna","tenant":"acme","message":"anna did it","meta":{{"reason":"late"}}}}"#
        );
        let line = lines::entry(0, "5101-0", "", &text);
        let Some(Line::Entry(entry)) = Line::read(&line) else { unreachable!() };
        match RecordedEntry::entry(&entry) {
            RecordedEntry::Pause(pause) => pause,
            other => unreachable!("{other:?}"),
        }
    };
    let pause = |ends| Pause { at_ms: 5_101, who: "acme:kelly".into(), ends };
    assert_eq!((act("PAUSE"), act("RESUME")), (pause(false), pause(true)));
}

#[test]
fn a_rejection_prefers_the_shards_time() {
    let refused = |over: &str| {
        let text = format!(
            r#"{{"timestamp":"1970-01-01T00:00:05.366Z","action":"TOOL_CALL","entity_id":"tool_pay","actor_id":"kelly","tenant":"acme","message":"kelly called pay: daily_cap_reached","meta":{{"call":"t/0","turn":"t","arguments":{{}},"outcome":"daily_cap_reached","error":{{"code":"daily_cap_reached","details":{{"resets_at":"1970-01-02T00:00:00Z"}}}},"policy_inputs":{{"calls":1}}{over}}}}}"#
        );
        let line = lines::entry(0, "5381-0", "", &text);
        let Some(Line::Entry(entry)) = Line::read(&line) else { unreachable!() };
        let RecordedEntry::Call(call) = RecordedEntry::entry(&entry) else { unreachable!() };
        Turn::of(&[*call]).unwrap().at_ms()
    };
    // The first entry lacks the time by the shard's clock, so the time is estimated. The second entry has this time.
    assert_eq!((refused(""), refused(r#","ended_ms":5371"#)), (Some(5_366), Some(5_371)));
}

#[test]
fn a_wait_before_a_rejection_belongs_to_the_rejected_call() {
    let read = |call: usize, admitted: &str, meta: &str| {
        let text = format!(
            r#"{{"timestamp":"1970-01-01T00:00:05.300Z","action":"TOOL_CALL","entity_id":"tool_pay","actor_id":"kelly","tenant":"acme","message":"kelly called pay: ok","meta":{{"call":"t/{call}","turn":"t","arguments":{{}},"policy_inputs":{{"calls":2}},{meta}}}}}"#
        );
        let line = lines::entry(0, "5300-0", admitted, &text);
        let Some(Line::Entry(entry)) = Line::read(&line) else { unreachable!() };
        let RecordedEntry::Call(call) = RecordedEntry::entry(&entry) else { unreachable!() };
        *call
    };
    let refused = r#""outcome":"rejected","error":{"code":"limit_reached","details":{"limit":"few"}},"ended_ms":5178"#;
    let calls = [read(0, "", refused), read(1, "A5199,1,1,3,10000,1,9;L5167,few,0", r#""outcome":"ok""#)];
    let turn = Turn::of(&calls).unwrap();
    let decided: Vec<(i64, usize)> = turn.decisions.iter().map(|one| (one.at_ms, one.first)).collect();
    assert_eq!(decided, [(5_167, 0), (5_178, 0), (5_199, 1)]);
    assert!(matches!(turn.decisions[0].what, DispatchDecision::Wait(..)), "{:?}", turn.decisions);
}

#[test]
fn an_entry_yields_the_decision_and_the_admission() {
    let text = r#"{"timestamp":"1970-01-01T00:00:05.100Z","action":"TOOL_CALL","entity_id":"tool_pay","actor_id":"kelly","tenant":"acme","message":"kelly called pay: denied","meta":{"call":"t/1","turn":"t","arguments":{"pin":"[REDACTED]"},"outcome":"denied","error":{"code":"denied","details":{"reason":"rule_not_met","rule":"permissions.pay.rules.few","limit":5}},"policy_inputs":{"calls":2,"task":"k1"}}}"#;
    let line = lines::entry(2, "5100-0", "A5000,1,1,3,10000,1,9;W1000,t,5000", text);
    let Some(Line::Entry(entry)) = Line::read(&line) else { unreachable!() };
    let RecordedEntry::Call(call) = RecordedEntry::entry(&entry) else { unreachable!() };
    assert_eq!((call.shard, call.position, call.tool.as_str(), call.written_ms), (2, 1, "pay", 5_100));
    assert!(matches!(call.arguments, Arguments::Hidden(_)));
    assert_eq!(call.decision.words(), "denied (permissions.pay.rules.few)");
    assert_ne!(call.decision, RecordedDecision::Passed);
    let turn = Turn::of(&[*call]).unwrap();
    assert_eq!((turn.first, turn.is_whole), (1, true));
    let decided: Vec<(i64, &DispatchDecision)> = turn.decisions.iter().map(|one| (one.at_ms, &one.what)).collect();
    assert_eq!(decided[0], (1_000, &DispatchDecision::Wait("max_calls_per_tick".into(), 5_000)));
    assert_eq!((decided.len(), decided[1].0), (2, 5_000));
}

#[test]
fn differences_are_undecidable_when_a_limit_and_a_cap_both_delay_calls() {
    let limited =
        turn("c", &[(6_000, 0, DispatchDecision::Wait("limits.few".into(), 12_000)), (12_000, 0, go(1, 1, 15_000))]);
    let few = policy(3, vec![limit(LimitBound::Calls(9), LimitWindow::Period(60_000), OnReach::Wait)]);
    let alone = differences(&few, &[turn("a", &[(1_000, 0, go(1, 1, 5_000))]), limited.clone()]);
    assert_eq!(alone, [("c/0".into(), DifferenceKind::Sooner, "limits.few".into(), Some(6_000))]);
    let capped = [
        turn("a", &[(1_000, 0, go(3, 3, 5_000))]),
        turn(
            "b",
            &[(1_100, 0, DispatchDecision::Wait("max_calls_per_tick".into(), 5_000)), (5_030, 0, go(1, 1, 10_000))],
        ),
        limited,
    ];
    let (found, summary) = replay(&few, &capped);
    let why: Vec<&String> = summary.not_decidable.keys().collect();
    assert!(
        found.is_empty() && why.len() == 1 && why[0].contains("a limit and a cap both delayed"),
        "{found:?} {why:?}"
    );
}

#[test]
fn an_agent_delayed_only_by_a_cap_stays_decidable() {
    let of = |agent: &str, turn: Turn| Turn { agent: agent.into(), ..turn };
    let policy = |calls_per_tick: u32, per: LimitKey| {
        let few = limit(LimitBound::Calls(1), LimitWindow::Period(60_000), OnReach::Wait);
        let pay = LimitMatch { tools: ["pay".to_owned()].into(), ..LimitMatch::default() };
        let few = Limit { per: BTreeSet::from([per]), matches: pay, ..few };
        let mut policy = policy(calls_per_tick, vec![few]);
        let agents = ["kelly", "fran"].map(|agent| (AgentId::new(agent).unwrap(), AgentPolicy::default()));
        policy.agents = Arc::new(agents.into());
        policy
    };
    let paying = |mut turn: Turn| {
        turn.calls.iter_mut().for_each(|call| call.tool = "pay".into());
        turn
    };
    let waits = |until_ms| DispatchDecision::Wait("limits.few".into(), until_ms);
    // The tick and the limit both delay calls of kelly; only the tick delays calls of fran.
    let turns = [
        paying(turn("p", &[(1_000, 0, go(1, 1, 5_000))])),
        paying(turn("c", &[(1_050, 0, waits(60_000)), (60_020, 0, go(1, 1, 65_000))])),
        turn("a", &[(1_060, 0, go(2, 3, 5_000)), (5_020, 2, go(3, 3, 10_000))]),
        of("fran", turn("f", &[(1_080, 0, go(3, 3, 5_000)), (5_030, 3, go(2, 2, 10_000))])),
    ];
    let (found, summary) = replay(&policy(3, LimitKey::Agent), &turns);
    assert!(found.is_empty() && summary.not_decidable.is_empty(), "the same policy: {found:#?} {summary:?}");

    let (found, summary) = replay(&policy(9, LimitKey::Agent), &turns);
    let differences: Vec<_> = found.iter().map(|one| (one.call.as_str(), one.kind, one.by_ms)).collect();
    assert_eq!(
        differences,
        [("f/3", DifferenceKind::Sooner, Some(3_950)), ("f/4", DifferenceKind::Sooner, Some(3_950))],
        "{summary:?}"
    );
    assert_eq!(summary.not_decidable.len(), 1, "kelly's calls wait for both: {summary:?}");

    // Calls of fran that wait for the same counter are undecidable too.
    let again = [(1_055, 0, waits(60_000)), (60_030, 0, waits(120_000)), (120_020, 0, go(1, 1, 125_000))];
    let mut together = turns.to_vec();
    together.insert(2, of("fran", paying(turn("g", &again))));
    let (found, summary) = replay(&policy(3, LimitKey::Tenant), &together);
    assert!(found.is_empty() && summary.not_decidable.is_empty(), "the same policy: {found:#?} {summary:?}");
    let (found, summary) = replay(&policy(9, LimitKey::Tenant), &together);
    assert!(found.is_empty() && !summary.not_decidable.is_empty(), "{found:#?} {summary:?}");
}
