//! Permits that calls returned while one of them waited for a turn or an approval, and then took again, as recorded.

use tickfleet_core::turn::limit::WindowKind;

use super::{GAVE_BACK, Next, Replay, whose};
use crate::whatif::turns::{Decision, Turn, What};

/// A time in which some calls of a slice hold permits.
struct Stretch {
    from: usize,
    upto: usize,
    since_ms: i64,
    until_ms: i64,
}

/// The times in which calls of a slice held permits; `None` if the log does not show them. `ends_ms` is the end of the
/// slice.
fn stretches(turn: &Turn, decision: &Decision, ends_ms: i64) -> Option<Vec<Stretch>> {
    let What::Go(calls, note) = &decision.what else { return None };
    let end = decision.first + calls;
    // A slice that begins by taking permits again had returned them before, which the note does not show.
    if usize::try_from(note.calls).ok()? != *calls || decision.places.first()?.again {
        return None;
    }
    let (mut found, mut next) = (Vec::new(), decision.first);
    // The calls that hold permits now, and since when.
    let mut holding = Some((decision.first, end, decision.at_ms));
    for place in &decision.places {
        let before = holding.take();
        if place.again {
            if let Some((from, upto, since_ms)) = before {
                // These calls ran before the others, and have ended by now.
                let until_ms = turn.calls.get(upto.checked_sub(1)?)?.over_ms?;
                found.push(Stretch { from, upto, since_ms, until_ms });
            }
            let upto = next + place.calls;
            holding = Some((next, upto, place.at_ms));
            next = upto;
        } else {
            if let Some((from, upto, since_ms)) = before {
                found.push(Stretch { from, upto, since_ms, until_ms: place.at_ms });
            }
            next = end.checked_sub(place.calls).filter(|_| place.calls > 0)?;
        }
    }
    if let Some((from, upto, since_ms)) = holding {
        found.push(Stretch { from, upto, since_ms, until_ms: ends_ms });
    }
    found.iter().all(|stretch| stretch.upto <= end).then_some(found)
}

impl Replay<'_> {
    /// Schedules the recorded returns and acquisitions of permits, for calls that are dispatched. `places` has the
    /// permits that they take first. Returns false if they did not return any before their end, or if the times are
    /// unknown.
    pub(super) fn with_gaps(
        &mut self,
        turn: &Turn,
        (first, calls): (usize, usize),
        places: &[(String, u64)],
        (now_ms, ends_ms): (i64, i64),
    ) -> bool {
        let about = |decision: &&Decision| {
            matches!(&decision.what, What::Go(count, _) if decision.first < first + calls && first < decision.first + count)
                && !decision.places.is_empty()
        };
        let Some(decision) = turn.decisions.iter().find(about) else { return false };
        let later_ms = now_ms - decision.at_ms;
        let is_all = decision.first == first && matches!(&decision.what, What::Go(count, _) if *count == calls);
        let Some(stretches) = is_all.then(|| stretches(turn, decision, ends_ms - later_ms)).flatten() else {
            self.summary.cannot_say(GAVE_BACK, calls as u64);
            return false;
        };
        let mut before_ms = None;
        for stretch in &stretches {
            let since_ms = stretch.since_ms + later_ms;
            let taken = match before_ms.replace(stretch.until_ms + later_ms) {
                None => places.to_vec(),
                Some(stood_ms) => {
                    self.stand_in_line(places, stood_ms, since_ms);
                    let taken = self.taken(turn, (stretch.from, stretch.upto), since_ms);
                    for (counter, count) in &taken {
                        self.at(since_ms, 1, 0, Next::Take(counter.clone(), *count));
                    }
                    taken
                }
            };
            for (counter, count) in taken {
                self.at(stretch.until_ms + later_ms, 0, 0, Next::Free(counter, count));
            }
        }
        // A slice that ended without taking its permits again queued for them until then.
        if let Some(stood_ms) = before_ms.filter(|_| decision.places.last().is_some_and(|last| !last.again)) {
            self.stand_in_line(places, stood_ms, ends_ms.max(stood_ms));
        }
        true
    }

    /// Turns that come between these times may have queued behind calls that need these permits again.
    fn stand_in_line(&mut self, places: &[(String, u64)], from_ms: i64, upto_ms: i64) {
        for (counter, _) in places {
            self.at(from_ms, 0, 0, Next::Line(counter.clone(), true));
            self.at(upto_ms, 0, 0, Next::Line(counter.clone(), false));
        }
    }

    /// The permits that these calls take if they are dispatched together.
    fn taken(&mut self, turn: &Turn, (from, upto): (usize, usize), now_ms: i64) -> Vec<(String, u64)> {
        let fleet = self.fleet;
        let Ok(whose) = whose(&fleet, turn) else { return Vec::new() };
        let (sides, _) = self.books.sides(&fleet, &whose, turn, from, now_ms);
        let held = sides.into_iter().filter(|side| side.debit.row.window == WindowKind::Held);
        let counted = held.map(|side| (side.counter, side.debit.sum(upto - from)));
        counted.filter(|(_, places)| *places > 0).collect()
    }
}
