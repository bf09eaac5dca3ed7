//! The limits of a turn's next calls, in the referee's world.

use std::collections::BTreeSet;

use tickfleet_tests::referee::limits::{Debit, Window};

use crate::interleavings::worlds::spec::{LIMITS, Rows, Spec};
use crate::interleavings::worlds::world::{Name, World};

/// What the limits of a turn are looked at with.
pub(super) struct Limited<'a> {
    pub(super) rows: &'a Rows,
    /// The turn's next call.
    pub(super) next: usize,
    /// The lane that it is on, where that is a counter's.
    pub(super) own: Option<&'a Name>,
    /// Lanes of counters on which somebody waited when the script began.
    pub(super) waited: &'a BTreeSet<Name>,
    pub(super) now_ms: i64,
}

/// The lane of the counter that the debit with this number is of.
pub(super) fn counter_of(rows: &Rows, spec: &Spec, next: usize, at: usize) -> Name {
    let (number, key, _) = rows.debits(spec, next).swap_remove(at);
    format!("{}@{key}", LIMITS[number])
}

impl World {
    /// What its calls debit of a counter, as that is now.
    pub(super) fn debit(
        &self,
        spec: &Spec,
        limited: &Limited<'_>,
        (number, key, window): &(usize, String, Window),
    ) -> Debit {
        let name = format!("{}@{key}", LIMITS[*number]);
        let limit = limited.rows.limits[*number].expect("a limit that is there");
        Debit {
            counter: self.counters.get(&name).copied().unwrap_or_default().at(limited.now_ms, *window),
            window: *window,
            max: limit.max,
            reach: limit.reach,
            amounts: spec.amounts[*number][limited.next..].to_vec(),
            others_wait: limited.own != Some(&name) && limited.waited.contains(&name),
        }
    }
}
