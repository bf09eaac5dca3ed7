//! While a call waits for a turn or an approval, the calls of its slice return their permits. Later the calls acquire
//! permits again.

use tickfleet_core::turn::limit::WindowKind;

use super::{GAVE_BACK, Replay, ReplayEvent, caller_of};
use crate::whatif::turns::{Decision, DispatchDecision, Turn};

struct PermitInterval {
    from: usize,
    upto: usize,
    since_ms: i64,
    until_ms: i64,
}

/// `ends_ms` is the end of the slice. `None` if the log does not show when the calls held permits.
fn intervals(turn: &Turn, decision: &Decision, ends_ms: i64) -> Option<Vec<PermitInterval>> {
    let DispatchDecision::Go(calls, note) = &decision.what else { return None };
    let end = decision.first + calls;
    // If the first note reports that permits were acquired again, the log lacks the note that they were returned.
    if usize::try_from(note.calls).ok()? != *calls || decision.places.first()?.again {
        return None;
    }
    let mut found = Vec::new();
    let mut next = decision.first;
    // The first call, the index after the last call, and the time of the acquisition (ms).
    let mut holding = Some((decision.first, end, decision.at_ms));
    for place in &decision.places {
        let before = holding.take();
        if place.again {
            if let Some((from, upto, since_ms)) = before {
                // The calls before `upto` ran before the other calls of the slice, and have already ended.
                let until_ms = turn.calls.get(upto.checked_sub(1)?)?.over_ms?;
                found.push(PermitInterval { from, upto, since_ms, until_ms });
            }
            let upto = next + place.calls;
            holding = Some((next, upto, place.at_ms));
            next = upto;
        } else {
            if let Some((from, upto, since_ms)) = before {
                found.push(PermitInterval { from, upto, since_ms, until_ms: place.at_ms });
            }
            next = end.checked_sub(place.calls).filter(|_| place.calls > 0)?;
        }
    }
    if let Some((from, upto, since_ms)) = holding {
        found.push(PermitInterval { from, upto, since_ms, until_ms: ends_ms });
    }
    found.iter().all(|interval| interval.upto <= end).then_some(found)
}

impl Replay<'_> {
    /// Returns false if the calls kept all permits until they ended, or if the times are unknown.
    pub(super) fn with_gaps(
        &mut self,
        turn: &Turn,
        (first, calls): (usize, usize),
        permits: &[(String, u64)],
        (now_ms, ends_ms): (i64, i64),
    ) -> bool {
        let about = |decision: &&Decision| {
            let DispatchDecision::Go(count, _) = &decision.what else { return false };
            let overlaps = decision.first < first + calls && first < decision.first + count;
            overlaps && !decision.places.is_empty()
        };
        let Some(decision) = turn.decisions.iter().find(about) else { return false };
        let later_ms = now_ms - decision.at_ms;
        let is_all =
            decision.first == first && matches!(&decision.what, DispatchDecision::Go(count, _) if *count == calls);
        let Some(intervals) = is_all.then(|| intervals(turn, decision, ends_ms - later_ms)).flatten() else {
            self.summary.count_undecidable(GAVE_BACK, calls as u64);
            return false;
        };
        let mut before_ms = None;
        for interval in &intervals {
            let since_ms = interval.since_ms + later_ms;
            let taken = match before_ms.replace(interval.until_ms + later_ms) {
                None => permits.to_vec(),
                Some(freed_ms) => {
                    self.queue_for_permits(permits, freed_ms, since_ms);
                    let taken = self.taken(turn, (interval.from, interval.upto), since_ms);
                    for (counter, count) in &taken {
                        self.at(since_ms, 1, 0, ReplayEvent::Take(counter.clone(), *count));
                    }
                    taken
                }
            };
            for (counter, count) in taken {
                self.at(interval.until_ms + later_ms, 0, 0, ReplayEvent::Free(counter, count));
            }
        }
        // A slice can end before it acquires its permits again. Then the slice queues for permits until it ends.
        if let Some(freed_ms) = before_ms.filter(|_| decision.places.last().is_some_and(|last| !last.again)) {
            self.queue_for_permits(permits, freed_ms, ends_ms.max(freed_ms));
        }
        true
    }

    fn queue_for_permits(&mut self, permits: &[(String, u64)], from_ms: i64, upto_ms: i64) {
        for (counter, _) in permits {
            self.at(from_ms, 0, 0, ReplayEvent::Line(counter.clone(), true));
            self.at(upto_ms, 0, 0, ReplayEvent::Line(counter.clone(), false));
        }
    }

    fn taken(&mut self, turn: &Turn, (from, upto): (usize, usize), now_ms: i64) -> Vec<(String, u64)> {
        let fleet = self.fleet;
        let Ok(caller) = caller_of(&fleet, turn) else { return Vec::new() };
        let (counter_debits, _) = self.ledger.limit_debits(&fleet, &caller, turn, from, now_ms);
        let held = counter_debits
            .into_iter()
            .filter(|counter_debit| counter_debit.debit.limit.window == WindowKind::Concurrency);
        let counted = held.map(|counter_debit| (counter_debit.counter, counter_debit.debit.sum(upto - from)));
        counted.filter(|(_, permits)| *permits > 0).collect()
    }
}
