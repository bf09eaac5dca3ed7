//! Checks that no window of a limit exceeded its maximum, from the debits of each admission. A counter only grows
//! within its window, so each admission has its own range of counts. After an operator's reset, later debits state a
//! new beginning of the window.

use std::collections::{BTreeMap, HashSet};

use tickfleet_model::DebitNotes;

use super::entry::CallEntry;
use super::{Claim, NameHash, name_hash};

const WHY_UNCHECKED: &str = "their debits are not in the log: they were never admitted, audit.admissions was off, \
                             an older version decided them, there were too many, or an unreadable counter \
                             was reset";

/// Tolerance for the beginning of a window. After several resets in one millisecond, each window begins one millisecond
/// after the previous window.
const RESET_MS: i64 = 10;

struct LimitDebit {
    turn: Box<str>,
    at_ms: i64,
    debited: u64,
    used: u64,
    max: u64,
}

/// By the end and the beginning of the window.
type Counter = BTreeMap<(i64, i64), Vec<LimitDebit>>;

#[derive(Default)]
pub(super) struct Limits {
    /// By shard and `limit@counter`.
    counters: BTreeMap<(u32, String), Counter>,
    /// An operator reset these unreadable counters, so each window began twice.
    recreated: HashSet<(u32, String)>,
    seen: HashSet<NameHash>,
    unchecked: u64,
}

impl Limits {
    pub(super) fn add(&mut self, shard: u32, call: &CallEntry<'_>) {
        let Some(note) = &call.admission else {
            self.unchecked += 1;
            return;
        };
        let notes = DebitNotes::read(call.admitted);
        self.unchecked += u64::from(!notes.are_stated || notes.is_cut);
        // All calls of an admission have the same notes. Only entries of older versions have no notes.
        if notes.debits.is_empty() || !self.seen.insert(name_hash(&[call.tenant(), call.turn(), call.admission_text()]))
        {
            return;
        }
        for more in notes.debits {
            let turn = call.turn().into();
            let window = (more.ends_ms, more.began_ms);
            let at_ms = note.at_ms;
            let debited = LimitDebit { turn, at_ms, debited: more.debited, used: more.used, max: more.max };
            self.counters.entry((shard, more.counter)).or_default().entry(window).or_default().push(debited);
        }
    }

    pub(super) fn recreated(&mut self, shard: u32, counter: String) {
        self.recreated.insert((shard, counter));
    }

    pub(super) fn claim(self) -> Claim {
        let mut claim = Claim::new("No window of a limit overran.", "windows", WHY_UNCHECKED);
        claim.unchecked = self.unchecked;
        for (counter, windows) in self.counters {
            let is_remade = self.recreated.contains(&counter);
            let (shard, name) = counter;
            check(&format!("{name} of shard {shard}"), windows, is_remade, &mut claim);
        }
        claim
    }
}

fn check(name: &str, windows: Counter, is_remade: bool, claim: &mut Claim) {
    let begins: Vec<(i64, i64)> = windows.keys().copied().collect();
    let mut last_end = None;
    for (at, ((end, began), mut inside)) in windows.into_iter().enumerate() {
        each(name, end, &inside, claim);
        if is_remade {
            claim.unchecked += inside.len() as u64;
            continue;
        }
        claim.checked += 1;
        // A reset begins another window with the same end. Later admissions no longer debit the earlier window.
        let until_ms = begins.get(at + 1).filter(|next| next.0 == end).map_or(end, |next| next.1);
        let is_outside = |debited: &&LimitDebit| debited.at_ms < began - RESET_MS || debited.at_ms > until_ms;
        if let Some(other) = inside.iter().find(is_outside) {
            let at_ms = other.at_ms;
            claim.violated(format!(
                "{name}: {} was admitted at {at_ms}, outside its window from {began} to {until_ms}",
                other.turn
            ));
        }
        let begins = inside.iter().map(|debited| debited.at_ms).min().unwrap_or(end);
        if last_end.is_some_and(|last| last != end && begins < last) {
            claim.violated(format!("{name}: the window that ends at {end} began before the previous window had ended"));
        }
        last_end = Some(end);
        overlaps(name, &mut inside, claim);
        let sum = inside.iter().fold(0_u64, |sum, debited| sum.saturating_add(debited.debited));
        let max = inside.iter().map(|debited| debited.max).max().unwrap_or(u64::MAX);
        if sum > max {
            claim.violated(format!("{name}: {sum} were debited in the window that ends at {end}; it allowed {max}"));
        }
    }
}

fn each(name: &str, end: i64, inside: &[LimitDebit], claim: &mut Claim) {
    for LimitDebit { turn, at_ms, used, max, .. } in inside {
        if used > max {
            claim.violated(format!("{name}: {turn} was admitted with {used} of {max} used"));
        }
        if *at_ms >= end {
            claim.violated(format!("{name}: {turn} was admitted in a window that had ended"));
        }
    }
}

/// An admission's range begins at the count before the admission and ends at the count after it.
fn overlaps(name: &str, inside: &mut [LimitDebit], claim: &mut Claim) {
    inside.sort_by_key(|debited| (debited.used, debited.at_ms));
    for pair in inside.windows(2) {
        let [one, two] = pair else { continue };
        if two.used.saturating_sub(two.debited) < one.used {
            claim.violated(format!("{name}: {} and {} were admitted with the same count", one.turn, two.turn));
        }
    }
}
