//! Tests the replay of calls that returned permits while they waited.

use tickfleet_model::PermitsNote;

use super::*;

fn noted(mut turn: Turn, notes: &str) -> Turn {
    turn.decisions[0].places = PermitsNote::read_all(notes);
    turn
}

#[test]
fn a_permit_returned_during_a_wait_is_free_for_other_calls() {
    let places = |max| policy(9, vec![limit(LimitBound::Concurrent(max), LimitWindow::Concurrency, OnReach::Wait)]);
    let waits = |at_ms| (at_ms, 0, DispatchDecision::Wait("limits.few".into(), 0));
    let first = over(turn("a", &[(1_000, 0, go(2, 1, 5_000))]), 1_500);
    let others = [
        over(turn("b", &[waits(1_050), (1_100, 0, go(1, 2, 5_000))]), 1_200),
        // The permit is free, but the call that returned the permit is first in the queue.
        over(turn("c", &[waits(1_250), (1_500, 0, go(1, 3, 5_000))]), 1_600),
    ];
    let all = |notes: &str| [vec![noted(first.clone(), notes)], others.to_vec()].concat();
    assert_eq!(differences(&places(1), &all("G1100,2;H1300,2")), []);
    // The call of the first turn ended without acquiring its permit again.
    assert_eq!(differences(&places(1), &all("G1100,2")), []);
    assert_eq!(differences(&places(1), &all(""))[0].0, "b/0");
}

#[test]
fn unclear_permit_history_in_the_log_is_reported_as_undecidable() {
    let places = policy(9, vec![limit(LimitBound::Concurrent(2), LimitWindow::Concurrency, OnReach::Wait)]);
    for notes in ["G1100,1;H1200,1;G1300,0", "H1100,2"] {
        let first = noted(over(turn("a", &[(1_000, 0, go(2, 2, 5_000))]), 1_500), notes);
        let (found, summary) = replay(&places, &[first]);
        assert!(found.is_empty(), "{found:?}");
        assert!(summary.not_decidable.keys().any(|why| why.contains("when waiting calls")), "{notes}: {summary:?}");
    }
}
