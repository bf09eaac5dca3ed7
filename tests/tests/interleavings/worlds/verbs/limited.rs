//! The limits of a turn's next calls, in the referee's world.

use std::collections::BTreeMap;

use tickfleet_tests::referee::limits::{self, Counter, Debit, Reach, Stopped, Window};
use tickfleet_tests::referee::{Answer, Event, Fence, Verdict};

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
        let mut first_place = None;
        for ((number, key, window), (before, debit)) in found.iter().zip(debits) {
            let (name, fresh) = (format!("{}@{key}", LIMITS[*number]), debit.counter.used - before);
            if fresh == 0 {
                continue;
            }
            if *window == Window::Held {
                // Of places the counter says only that there are some.
                self.counters.insert(name.clone(), Counter { used: 0, end_ms: now_ms, began_ms: now_ms });
                first_place.get_or_insert_with(|| name.clone());
                self.holds.entry(turn.to_owned()).or_default().insert(name, fresh);
            } else {
                self.counters.insert(name, debit.counter);
            }
        }
        self.first_places.extend(first_place.map(|first| (turn.to_owned(), first)));
    }

    /// What `wait` answers where a call waits for somebody else's.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn wait(&mut self, raw_ms: i64, name: &str, of: (Fence, usize), delay_ms: i64) -> Result<Answer, String> {
        let now_ms = self.clock(raw_ms);
        let gives = self.holds.contains_key(name);
        let event = Event::Wait { fence: of.0, position: of.1, delay_ms, gives };
        let answer = self.apply(name, event, now_ms)?;
        if answer == Answer::Ok && gives {
            // It stands behind those that waited by then.
            self.seq += 1;
            let seq = self.seq;
            let first = self.first_places.get(name).cloned();
            if let Some(turn) = self.turns.get_mut(name) {
                (turn.seq, turn.back) = (Some(seq), first);
            }
        }
        Ok(answer)
    }

    /// How many of the next `wanted` calls go out of a turn that gave its places back: of what it debits, places alone count, and
    /// it is refused by nothing but what can never be. Answers also which debit stops it, or cuts it short.
    pub(super) fn take_again(
        &mut self,
        (name, spec): (&str, &Spec),
        wanted: usize,
        limited: &Limited<'_>,
    ) -> (Verdict, Option<usize>) {
        let all = limited.rows.debits(spec, limited.next);
        let numbers: Vec<usize> = (0..all.len()).filter(|at| all[*at].2 == Window::Held).collect();
        let found: Vec<_> = numbers.iter().map(|at| all[*at].clone()).collect();
        let mut debits: Vec<Debit> = found.iter().map(|debit| self.debit(spec, limited, debit)).collect();
        for debit in debits.iter_mut().filter(|debit| debit.reach == Reach::Reject) {
            debit.reach = Reach::Wait;
        }
        let before: Vec<u64> = debits.iter().map(|debit| debit.counter.used).collect();
        let (fits, cut, stopped) = limits::fit(&debits, wanted, self.epoch_ms);
        let number = |at: usize| numbers[at];
        let verdict = match stopped {
            Some(Stopped::Behind(at)) => Verdict::WaitFor(number(at), None),
            Some(Stopped::Wait(at, until_ms)) => Verdict::WaitFor(number(at), Some(until_ms)),
            Some(Stopped::Refused(reason, info, calls)) => Verdict::Refuse(reason, info, calls.min(wanted)),
            None => {
                limits::debit(&mut debits, fits);
                self.hold(name, &found, limited.now_ms, before.into_iter().zip(debits));
                Verdict::Dispatch(fits)
            }
        };
        (verdict, cut.map(number))
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
