//! Tracks the known facts of a session, and the calls that may change them.

use std::collections::HashMap;

use super::{Change, PossibleChange};

/// Calls in progress that are tracked per session. No call waits for a call beyond this number. The fleet has the same
/// maximum.
const LIVE_MAX: usize = 256;

/// The times until which a fact is set: surely, perhaps, or unknown. A change that may clear the fact turns a sure
/// time into an uncertain one. A change that certainly clears the fact resets all times.
#[derive(Debug, Clone, Copy, Default)]
struct FactState {
    surely_ms: i64,
    perhaps_ms: i64,
    /// Until this time, it is unknown whether the fact is set.
    unknown_ms: i64,
    /// True if a call in the log certainly cleared the fact, so changes from before the log do not matter.
    was_cleared: bool,
}

#[derive(Debug, Clone, Copy)]
struct KnownFact {
    now: FactState,
    /// The earliest and latest possible time of the fact's last change (ms).
    since: (i64, i64),
    kept_until_ms: i64,
    /// The turn whose call made the last change.
    turn: u64,
    before: FactState,
}

#[derive(Debug)]
pub(super) struct LiveCall {
    pub(super) turn: u64,
    pub(super) position: usize,
    /// False before the call begins. Other turns wait for such a call only if a required fact is missing.
    pub(super) entered: bool,
    pub(super) may: Vec<PossibleChange>,
    pub(super) waiters: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Session {
    facts: HashMap<String, KnownFact>,
    pub(super) live: Vec<LiveCall>,
    /// True if a call in this session was decided differently, so recorded waits no longer apply.
    pub(super) is_apart: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct EvaluationTime {
    pub(super) turn: u64,
    /// The earliest and latest possible time of the evaluation (ms).
    pub(super) at: (i64, i64),
    /// True if the replay evaluates at another time than the fleet did. The replay's time is later than all events so
    /// far.
    pub(super) is_moved: bool,
}

impl FactState {
    /// Returns true if the fact counts as set. A fact that is perhaps set counts as set only if the condition forbids
    /// it (`required` is false). `None` if the log does not show whether the fact is set.
    fn counts(self, required: bool, at_ms: i64) -> Option<bool> {
        let is_so = self.surely_ms > at_ms || !required && self.perhaps_ms > at_ms;
        if is_so || self.unknown_ms <= at_ms { Some(is_so) } else { None }
    }

    /// The result of [`Self::counts`] at both times. `None` if the two results differ.
    fn counts_between(self, required: bool, at: (i64, i64)) -> Option<bool> {
        let first = self.counts(required, at.0);
        let last = self.counts(required, at.1);
        first.filter(|_| first == last)
    }

    fn last_ms(self) -> i64 {
        self.surely_ms.max(self.perhaps_ms).max(self.unknown_ms)
    }
}

impl Session {
    /// Returns whether the fact is set. The inner `None` means that the log does not show this. The outer `None` means
    /// that the log does not set the fact, but the fact may have been set before the log began.
    pub(super) fn is_so(&self, fact: &str, required: bool, time: EvaluationTime) -> Option<Option<bool>> {
        let known = self.facts.get(fact)?;
        let mut is_so = known.now.counts_between(required, time.at);
        let mut was_cleared = known.now.was_cleared;
        // The calls of one turn run one after the other, so only the order of other turns' changes is uncertain.
        if !time.is_moved && known.turn != time.turn && known.since.1 >= time.at.0 {
            let before = known.before.counts_between(required, time.at);
            is_so = is_so.filter(|_| is_so == before);
            was_cleared &= known.before.was_cleared;
        }
        if is_so == Some(false) && !was_cleared { None } else { Some(is_so) }
    }

    pub(super) fn change(&mut self, fact: &str, change: Change, kept_ms: i64, turn: u64, at: (i64, i64)) {
        let was = self.facts.get(fact).map(|known| known.now).unwrap_or_default();
        let until_ms = at.0.saturating_add(kept_ms);
        let now = match change {
            Change::Set => FactState { surely_ms: was.surely_ms.max(until_ms), ..was },
            Change::MaybeSet => FactState { perhaps_ms: was.perhaps_ms.max(until_ms), ..was },
            Change::Cleared => FactState { was_cleared: true, ..FactState::default() },
            Change::MaybeCleared if was.surely_ms <= at.0 => return,
            Change::MaybeCleared => FactState { surely_ms: 0, perhaps_ms: was.perhaps_ms.max(was.surely_ms), ..was },
        };
        self.put(fact, now, until_ms, turn, at);
    }

    /// Marks a fact as unknown, because the log does not show whether the call changed the fact.
    pub(super) fn mark_unknown(&mut self, may: (&str, bool), kept_ms: i64, turn: u64, at: (i64, i64)) {
        let was = self.facts.get(may.0).map(|known| known.now).unwrap_or_default();
        let now = match may.1 {
            true => FactState { unknown_ms: was.unknown_ms.max(at.1.saturating_add(kept_ms)), ..was },
            // A fact that is not set cannot be cleared.
            false if was.last_ms() <= at.0 => return,
            false => FactState { surely_ms: 0, perhaps_ms: 0, unknown_ms: was.last_ms(), ..was },
        };
        self.put(may.0, now, 0, turn, at);
    }

    fn put(&mut self, fact: &str, now: FactState, kept_until_ms: i64, turn: u64, since: (i64, i64)) {
        let last = self.facts.get(fact);
        // The order of two changes at the same time is unknown. So the state before both changes is kept as the earlier
        // state.
        let is_of_one_moment = |last: &&KnownFact| last.since.1 >= since.0 && last.turn != turn;
        let both = last.filter(is_of_one_moment).map(|last| last.before);
        let before = both.or(last.map(|last| last.now)).unwrap_or_default();
        let kept_until_ms = kept_until_ms.max(now.last_ms());
        self.facts.insert(fact.to_owned(), KnownFact { now, since, kept_until_ms, turn, before });
    }

    pub(super) fn add_call(&mut self, turn: u64, position: usize, entered: bool, may: &[PossibleChange]) {
        if may.is_empty() {
            return;
        }
        if let Some(live) = self.live.iter_mut().find(|live| (live.turn, live.position) == (turn, position)) {
            live.entered |= entered;
        } else if self.live.len() < LIVE_MAX {
            self.live.push(LiveCall { turn, position, entered, may: may.to_vec(), waiters: Vec::new() });
        }
    }

    pub(super) fn remove_call(&mut self, turn: u64, position: usize) -> Vec<u64> {
        let at = self.live.iter().position(|live| (live.turn, live.position) == (turn, position));
        at.map(|at| self.live.swap_remove(at).waiters).unwrap_or_default()
    }

    /// Returns a begun call that belongs to another turn and can set the fact (if `sets`) or clear it. If the fact is
    /// missing, calls of earlier turns that have not begun are included.
    pub(super) fn call_to_wait_for(
        &mut self,
        fact: &str,
        sets: bool,
        is_missing: bool,
        turn: u64,
    ) -> Option<&mut LiveCall> {
        // A turn that cannot change facts of the session is ordered after all other turns.
        let number = if self.live.iter().any(|live| live.turn == turn) { turn } else { u64::MAX };
        let may =
            |live: &&mut LiveCall| live.may.iter().any(|may| may.sets == sets && may.key.as_deref() == Some(fact));
        let counts = |live: &&mut LiveCall| live.turn != turn && (live.entered || is_missing && live.turn < number);
        self.live.iter_mut().filter(counts).filter(may).min_by_key(|live| (live.turn, live.position))
    }

    pub(super) fn is_of_use(&mut self, now_ms: i64) -> bool {
        self.facts.retain(|_, known| known.kept_until_ms > now_ms);
        !(self.facts.is_empty() && self.live.is_empty())
    }
}
