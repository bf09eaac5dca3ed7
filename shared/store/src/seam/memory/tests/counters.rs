//! Properties of counters. The conformance suite compares their outcomes with those of the store on Redis.

use proptest::prelude::*;
use tickfleet_core::{ConditionalDebit, CounterKey, Window};

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
