//! The limits of a turn's next calls, in the referee's world.

use std::collections::BTreeMap;

use tickfleet_tests::referee::limits::{Counter, Debit, Window};

use crate::interleavings::worlds::spec::{ENDING_LEASE_MS, LIMITS, Rows, Spec};
use crate::interleavings::worlds::world::{Name, World};

/// What the limits of a turn are looked at with.
pub(super) struct Limited<'a> {
    pub(super) rows: &'a Rows,
    /// The turn's next call.
    pub(super) next: usize,
    /// The lane that it is on, where that is a counter's.
    pub(super) own: Option<&'a Name>,
    /// Lanes of counters on which somebody waits, and whose place is the first.
    pub(super) waited: &'a BTreeMap<Name, u64>,
    /// The turn's own place; one that is new comes after all.
    pub(super) place: Option<u64>,
    pub(super) now_ms: i64,
}

/// The lane of the counter that the debit with this number is of.
pub(super) fn counter_of(rows: &Rows, spec: &Spec, next: usize, at: usize) -> Name {
    let (number, key, _) = rows.debits(spec, next).swap_remove(at);
    format!("{}@{key}", LIMITS[number])
}

impl World {
    /// What was debited, with what each counter had used before: what nothing is debited of is not written.
    pub(super) fn hold(
        &mut self,
        turn: &str,
        found: &[(usize, String, Window)],
        now_ms: i64,
        debits: impl Iterator<Item = (u64, Debit)>,
    ) {
        for ((number, key, window), (before, debit)) in found.iter().zip(debits) {
            let (name, fresh) = (format!("{}@{key}", LIMITS[*number]), debit.counter.used - before);
            if fresh == 0 {
                continue;
            }
            if *window == Window::Held {
                // Of places the counter says only that there are some.
                self.counters.insert(name.clone(), Counter { used: 0, end_ms: now_ms, began_ms: now_ms });
                self.holds.entry(turn.to_owned()).or_default().insert(name, fresh);
            } else {
                self.counters.insert(name, debit.counter);
            }
        }
    }

    /// What its calls debit of a counter, as that is now.
    pub(super) fn debit(
        &self,
        spec: &Spec,
        limited: &Limited<'_>,
        (number, key, window): &(usize, String, Window),
    ) -> Debit {
        let name = format!("{}@{key}", LIMITS[*number]);
        let limit = limited.rows.limits[*number].expect("a limit that is there");
        let mut counter = self.counters.get(&name).copied().unwrap_or_default();
        if *window == Window::Held {
            // Rule 8: for a lease after a restart, who holds one that Redis has forgotten may not have heard.
            let is_lost = self.epoch_ms > 0 && limited.now_ms < self.epoch_ms + ENDING_LEASE_MS;
            counter.used = if is_lost { limit.max.max(self.held_of(&name)) } else { self.held_of(&name) };
        }
        Debit {
            counter: counter.at(limited.now_ms, *window),
            window: *window,
            max: limit.max,
            reach: limit.reach,
            amounts: spec.amounts[*number][limited.next..].to_vec(),
            others_wait: limited.own != Some(&name)
                && limited.waited.get(&name).is_some_and(|first| limited.place.is_none_or(|place| *first < place)),
        }
    }
}
