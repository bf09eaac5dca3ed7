//! Tests of counters: how windows open, and when a counter permits a debit.

use proptest::prelude::*;
use tickfleet_core::{ConditionalDebit, CounterKey, CounterState, Window};

use crate::seam::memory::counters::{Counter, Moment};

fn conditional(amount: u64, max: u64, window: Window) -> ConditionalDebit {
    ConditionalDebit {
        counter: CounterKey::new("limit", "a"),
        amount,
        max,
        window,
        behind_queue: false,
        shadow: false,
        counters_max: 9,
    }
}

const fn at(now_ms: i64) -> Moment {
    Moment { now_ms, epoch_began_ms: 0, lease_ms: 100 }
}

const fn fixed(start_ms: i64, length_ms: i64) -> Window {
    Window::Fixed { start_ms, end_ms: start_ms + length_ms, length_ms }
}

const fn state(used: u64, ends_ms: i64, began_ms: i64) -> CounterState {
    CounterState { used, ends_ms, began_ms, queued: false }
}

fn debit(counter: &Counter, amount: u64, window: Window, moment: Moment) -> Counter {
    let debit = counter.debit(&conditional(amount, 5, window), moment);
    assert_eq!(debit.refused, None);
    debit.counter
}

#[test]
fn a_fixed_window_resets_when_it_ends() {
    let counter = debit(&Counter::default(), 5, fixed(100, 50), at(120));
    assert_eq!(counter.state, state(5, 150, 100));
    assert_eq!(counter.debit(&conditional(1, 5, fixed(100, 50)), at(149)).refused, Some(state(5, 150, 100)));
    assert_eq!(debit(&counter, 2, fixed(150, 50), at(150)).state, state(2, 200, 150));
}

#[test]
fn a_changed_window_length_does_not_reset_the_current_window() {
    let counter = debit(&Counter::default(), 5, fixed(100, 50), at(120));
    // The current window keeps its end, even if the policy changes the window's length.
    assert!(counter.debit(&conditional(1, 5, fixed(120, 20)), at(130)).refused.is_some());
    assert_eq!(debit(&counter, 1, fixed(120, 40), at(155)).state, state(1, 200, 155));
}

#[test]
fn a_day_window_continues_after_a_time_zone_change() {
    let day = |start_ms, end_ms| Window::Day { start_ms, end_ms };
    let counter = debit(&Counter::default(), 4, day(0, 1_000), at(500));
    assert_eq!(debit(&counter, 1, day(200, 1_200), at(1_100)).state, state(5, 1_200, 0));
    assert_eq!(debit(&counter, 1, day(1_000, 2_000), at(1_100)).state, state(1, 2_000, 1_000));
}

#[test]
fn a_short_window_that_began_before_a_restart_has_no_room() {
    let counter = debit(&Counter::default(), 1, fixed(100, 50), at(120));
    let restarted = Moment { epoch_began_ms: 130, ..at(140) };
    assert_eq!(counter.debit(&conditional(1, 5, fixed(100, 50)), restarted).refused, Some(state(5, 150, 100)));
    // A new counter permits no debit either, if its window began before the restart.
    assert!(Counter::default().debit(&conditional(1, 5, fixed(100, 50)), restarted).refused.is_some());
    let next = Moment { epoch_began_ms: 130, ..at(150) };
    assert_eq!(debit(&counter, 1, fixed(150, 50), next).state, state(1, 200, 150));
    let long = Window::Fixed { start_ms: 0, end_ms: 60_001, length_ms: 60_001 };
    debit(&Counter::default(), 1, long, restarted);
    debit(&Counter::default(), 1, Window::Day { start_ms: 0, end_ms: 60_001 }, restarted);
}

#[test]
fn no_permit_is_granted_within_a_lease_after_a_restart() {
    let restarted = Moment { epoch_began_ms: 130, ..at(229) };
    let refused = Counter::default().debit(&conditional(1, 5, Window::Concurrency), restarted).refused;
    assert_eq!(refused, Some(state(5, 230, 0)));
    let unbounded = Counter::default().debit(&conditional(1, u64::MAX, Window::Concurrency), restarted);
    assert_eq!(unbounded.refused, Some(state(u64::MAX, 230, 0)));
    debit(&Counter::default(), 1, Window::Concurrency, Moment { epoch_began_ms: 130, ..at(230) });
    debit(&Counter::default(), 1, Window::Total, restarted);
}

#[test]
fn a_new_window_kind_resets_usage_and_keeps_the_queue_flag() {
    let mut counter = debit(&Counter::default(), 5, fixed(100, 50), at(120));
    counter.state.queued = true;
    for window in [Window::Concurrency, Window::Total, Window::Rolling { length_ms: 80 }] {
        let after = debit(&counter, 1, window, at(130)).state;
        assert_eq!((after.used, after.queued), (1, true), "{window:?}");
    }
    let rolling = debit(&counter, 1, Window::Rolling { length_ms: 80 }, at(130));
    assert_eq!(debit(&rolling, 3, Window::Total, at(130)).state.used, 3);
}

#[test]
fn a_refund_applies_only_to_its_own_window() {
    let mut counter = debit(&Counter::default(), 5, fixed(100, 50), at(120));
    counter.add(-2, Some(150));
    counter.add(-2, Some(200));
    assert_eq!(counter.state.used, 3);
    counter.add(-9, None);
    counter.add(4, None);
    assert_eq!(counter.state.used, 4);

    let window = Window::Rolling { length_ms: 80 };
    let first = Counter::default().debit(&conditional(2, 5, window), at(5));
    assert_eq!((first.debited.used, first.debited.ends_ms), (2, 90));
    let mut counter = debit(&first.counter, 1, window, at(15));
    assert_eq!((counter.state, counter.buckets.clone()), (state(3, 90, 0), Some(vec![(90, 2), (100, 1)])));
    counter.add(-1, Some(90));
    counter.add(3, None);
    counter.add(3, Some(70));
    assert_eq!(counter.buckets, Some(vec![(90, 1), (100, 4)]));
    assert_eq!(debit(&counter, 0, window, at(90)).buckets, Some(vec![(100, 4)]));
}

proptest! {
    /// A debit counts for at least the window's length, and for at most an eighth more.
    #[test]
    fn a_rolling_counter_never_exceeds_its_bound_in_any_window(
        length_ms in 8..200_i64,
        max in 1..10_u64,
        steps in prop::collection::vec((0..60_i64, 1..4_u64), 1..60),
    ) {
        let mut counter = Counter::default();
        let mut now_ms = 1_000;
        let mut debits = Vec::<(i64, u64)>::new();
        for (step_ms, amount) in steps {
            now_ms += step_ms;
            let debit = counter.debit(&conditional(amount, max, Window::Rolling { length_ms }), at(now_ms));
            let within = |length_ms| -> u64 { debits.iter().filter(|one| one.0 > now_ms - length_ms).map(|one| one.1).sum() };
            if debit.refused.is_some() {
                let width_ms = (length_ms + 7) / 8;
                prop_assert!(within(length_ms + width_ms) + amount > max);
            } else {
                prop_assert!(within(length_ms) + amount <= max);
                debits.push((now_ms, amount));
                counter = debit.counter;
                prop_assert!(counter.buckets.as_ref().is_some_and(|buckets| buckets.len() <= 9));
            }
        }
    }

    /// Policies can change the length of the window.
    #[test]
    fn a_fixed_counter_never_exceeds_its_bound_in_a_window(
        steps in prop::collection::vec((0..60_i64, 1..4_u64, prop::sample::select(vec![20_i64, 50])), 1..60),
    ) {
        let mut counter = Counter::default();
        let mut now_ms = 1_000;
        let mut debits = Vec::<(i64, u64)>::new();
        for (step_ms, amount, length_ms) in steps {
            now_ms += step_ms;
            let start_ms = now_ms / length_ms * length_ms;
            let debit = counter.debit(&conditional(amount, 5, fixed(start_ms, length_ms)), at(now_ms));
            if debit.refused.is_none() {
                counter = debit.counter;
                debits.push((now_ms, amount));
                let began_ms = counter.state.began_ms;
                let within: u64 = debits.iter().filter(|one| one.0 >= began_ms).map(|one| one.1).sum();
                prop_assert!(within <= 5);
            }
        }
    }
}
