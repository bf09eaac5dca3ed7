//! Tests replays of logs that lack data.

use super::*;

#[test]
fn a_sum_limit_without_recorded_arguments_is_undecidable() {
    let mut one = turn("a", &[(1_000, 0, DispatchDecision::Refuse(1, Some("limits.few".into())))]);
    one.calls[0].arguments = None;
    let sum = LimitBound::Sum { argument: "/amount".into(), max: 5 };
    let policy = policy(3, vec![limit(sum, LimitWindow::Day, OnReach::Reject)]);
    let (found, summary) = replay(&policy, &[one]);
    assert!(found.is_empty() && summary.not_decidable.len() == 1, "{found:?} {summary:?}");
}

const HOUR_MS: i64 = 3_600_000;

#[test]
fn a_limit_with_shared_counters_is_undecidable_until_they_expire() {
    let mut few = limit(LimitBound::Calls(1), LimitWindow::Period(60_000), OnReach::Reject);
    let one = turn("a", &[(1_000, 0, go(1, 1, 5_000))]);
    let mut other = turn("b", &[(1_100, 0, DispatchDecision::Refuse(1, Some("limits.few".into())))]);
    other.agent = "stan".into();
    let later = |id, at_ms| {
        let mut later = turn(id, &[(at_ms, 0, DispatchDecision::Refuse(1, Some("limits.few".into())))]);
        later.agent = "stan".into();
        later
    };
    // A counter is kept for a day after the end of its window.
    let turns = [one, other, later("c", 2 * HOUR_MS), later("d", 30 * HOUR_MS)];
    let with = |limit: Limit| {
        let mut policy = policy(3, vec![limit]);
        let agents = ["kelly", "stan"].map(|agent| (AgentId::new(agent).unwrap(), AgentPolicy::default()));
        policy.agents = Arc::new(agents.into());
        replay(&policy, &turns)
    };
    let (found, summary) = with(few.clone());
    assert_eq!((found.len(), summary.not_decidable.len()), (3, 0), "its own counter has room: {found:?} {summary:?}");
    few.keys_max = 1;
    let (found, summary) = with(few);
    assert!(summary.not_decidable.keys().any(|why| why.contains("keys_max")), "{summary:?}");
    let calls: Vec<&str> = found.iter().map(|one| one.call.as_str()).collect();
    assert_eq!(calls, ["d/0"], "until the counters are deleted, they may be shared: {found:?}");
}

#[test]
fn a_slice_cut_short_by_an_undecidable_limit_stays_cut_short() {
    let mut few = limit(LimitBound::Calls(9), LimitWindow::Period(1_000), OnReach::Wait);
    few.per = BTreeSet::from([LimitKey::User]);
    let mut known = limit(LimitBound::Calls(2), LimitWindow::Period(1_000), OnReach::Wait);
    known.name = "known".into();
    let turns = [
        // The entries do not state the turn's user.
        turn("a", &[(1_000, 0, go(1, 1, 5_000)), (2_020, 1, go(1, 2, 5_000))]),
        turn("b", &[(2_100, 0, DispatchDecision::Wait("limits.few".into(), 4_500)), (4_510, 0, go(1, 3, 5_000))]),
    ];
    let (found, summary) = replay(&policy(3, vec![few.clone(), known.clone()]), &turns);
    assert!(found.is_empty() && summary.not_decidable.len() == 1, "{found:?} {summary:?}");
    known.bound = LimitBound::Calls(1);
    let (found, _) = replay(&policy(3, vec![few.clone(), known]), &turns);
    assert!(found.is_empty(), "{found:?}");
    few.mode = LimitMode::Shadow;
    let (found, summary) = replay(&policy(3, vec![few]), &turns);
    let calls: Vec<&str> = found.iter().map(|one| one.call.as_str()).collect();
    assert_eq!((calls, summary.not_decidable.len()), (vec!["a/1", "b/0"], 0), "{found:?} {summary:?}");
}

/// The entries do not state users, so only the limit for each agent can be evaluated.
fn by_user_and_by_agent(known: u64, on_reach: OnReach) -> Policy {
    let mut by_user = limit(LimitBound::Calls(9), LimitWindow::Period(1_000), OnReach::Wait);
    by_user.per = BTreeSet::from([LimitKey::User]);
    let mut by_agent = limit(LimitBound::Calls(known), LimitWindow::Period(1_000), on_reach);
    by_agent.name = "known".into();
    policy(9, vec![by_agent, by_user])
}

#[test]
fn a_later_wait_does_not_explain_why_a_slice_was_cut_short() {
    let rest = DispatchDecision::Wait("limits.known".into(), 3_000);
    let turns = [
        turn("a", &[(1_000, 0, go(1, 1, 5_000)), (2_500, 1, rest), (3_010, 1, go(1, 2, 5_000))]),
        turn("b", &[(2_400, 0, go(2, 3, 5_000))]),
    ];
    let (found, summary) = replay(&by_user_and_by_agent(2, OnReach::Wait), &turns);
    assert!(found.is_empty() && !summary.not_decidable.is_empty(), "{found:?} {summary:?}");
}

#[test]
fn a_slice_that_no_longer_waits_does_not_grow() {
    let turns = [turn(
        "a",
        &[
            (2_000, 0, DispatchDecision::Wait("limits.known".into(), 9_000)),
            (9_010, 0, go(1, 1, 10_000)),
            (9_200, 1, DispatchDecision::Wait("limits.few".into(), 12_000)),
            (12_010, 1, go(2, 2, 15_000)),
        ],
    )];
    let (found, summary) = replay(&by_user_and_by_agent(9, OnReach::Wait), &turns);
    let differences: Vec<(&str, Option<i64>)> = found.iter().map(|one| (one.call.as_str(), one.by_ms)).collect();
    assert_eq!((differences, summary.not_decidable.len()), (vec![("a/0", Some(7_010))], 1), "{found:?} {summary:?}");
    let turns = [turn(
        "a",
        &[
            (2_000, 0, DispatchDecision::Wait("limits.known".into(), 3_000)),
            (3_010, 0, DispatchDecision::Wait("limits.few".into(), 9_000)),
            (9_010, 0, go(3, 1, 10_000)),
        ],
    )];
    let (found, summary) = replay(&by_user_and_by_agent(9, OnReach::Wait), &turns);
    assert!(found.is_empty() && summary.not_decidable.len() == 1, "{found:?} {summary:?}");
}

#[test]
fn a_rejected_call_does_not_wait_for_an_undecidable_limit() {
    let turns = [
        turn("a", &[(1_000, 0, go(1, 1, 5_000))]),
        turn("b", &[(1_100, 0, DispatchDecision::Wait("limits.few".into(), 4_500)), (4_510, 0, go(1, 2, 5_000))]),
    ];
    let (found, _) = replay(&by_user_and_by_agent(1, OnReach::Reject), &turns);
    let differences: Vec<(&str, DifferenceKind)> = found.iter().map(|one| (one.call.as_str(), one.kind)).collect();
    assert_eq!(differences, [("b/0", DifferenceKind::Capped)], "{found:?}");
}

#[test]
fn a_limit_that_ignores_the_next_call_did_not_cut_the_slice() {
    let sum = LimitBound::Sum { argument: "/amount".into(), max: 5 };
    let mut paid = limit(sum, LimitWindow::Day, OnReach::Wait);
    paid.matches.tools = vec!["pay".parse().unwrap()];
    let mut turns = [turn("a", &[(1_000, 0, go(1, 1, 5_000)), (2_020, 1, go(2, 3, 5_000))])];
    turns[0].calls[2].tool = "pay".into();
    turns[0].calls[2].arguments = None;
    let (found, summary) = replay(&policy(9, vec![paid]), &turns);
    assert_eq!((found[0].call.as_str(), found[0].kind), ("a/1", DifferenceKind::Sooner), "{found:?} {summary:?}");
}
