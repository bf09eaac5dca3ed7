//! Tracks the known facts of a session, and the calls that may change them.

use std::collections::HashMap;

use super::{Change, PossibleChange};

/// Maximum number of tracked calls per session, as in the fleet. No call waits for further calls.
const LIVE_MAX: usize = 256;

/// A change that may clear the fact turns `certain_until_ms` into `possible_until_ms`. A change that certainly clears the fact resets
/// all times.
#[derive(Debug, Clone, Copy, Default)]
struct FactState {
    certain_until_ms: i64,
    possible_until_ms: i64,
    /// Until this time, it is unknown whether the fact is set.
    unknown_ms: i64,
    /// A call in the log cleared the fact, so changes from before the log do not matter.
    was_cleared: bool,
}

#[derive(Debug, Clone, Copy)]
struct KnownFact {
    now: FactState,
    /// Earliest and latest possible time of the last change (ms).
    since: (i64, i64),
    kept_until_ms: i64,
    /// A call of this turn made the last change.
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
    /// A call in this session was decided differently, so recorded waits no longer apply.
    pub(super) is_apart: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct EvaluationTime {
    pub(super) turn: u64,
    /// Earliest and latest possible time of the evaluation (ms).
    pub(super) at: (i64, i64),
    /// True if the replay evaluates at another time than the fleet. This time is later than all events so far.
    pub(super) is_moved: bool,
}

impl FactState {
    /// A fact that is perhaps set counts as set only for a condition that forbids the fact (`required` is false).
    /// `None` if the log does not show the fact.
    fn counts(self, required: bool, at_ms: i64) -> Option<bool> {
        let is_so = self.certain_until_ms > at_ms || !required && self.possible_until_ms > at_ms;
        if is_so || self.unknown_ms <= at_ms { Some(is_so) } else { None }
    }

    /// `None` if the results at the two times differ.
    fn counts_between(self, required: bool, at: (i64, i64)) -> Option<bool> {
        let first = self.counts(required, at.0);
        let last = self.counts(required, at.1);
        first.filter(|_| first == last)
    }

    fn last_ms(self) -> i64 {
        self.certain_until_ms.max(self.possible_until_ms).max(self.unknown_ms)
    }
}

impl Session {
    /// The inner `None` means that the log does not show the fact. The outer `None` means that the fact may be from
    /// before the log.
    pub(super) fn is_so(&self, fact: &str, required: bool, time: EvaluationTime) -> Option<Option<bool>> {
        let known = self.facts.get(fact)?;
        let mut is_so = known.now.counts_between(required, time.at);
        let mut was_cleared = known.now.was_cleared;
        // Calls of one turn run one after the other, so only changes by other turns have an uncertain order.
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
            Change::Set => FactState { certain_until_ms: was.certain_until_ms.max(until_ms), ..was },
            Change::MaybeSet => FactState { possible_until_ms: was.possible_until_ms.max(until_ms), ..was },
            Change::Cleared => FactState { was_cleared: true, ..FactState::default() },
            Change::MaybeCleared if was.certain_until_ms <= at.0 => return,
            Change::MaybeCleared => FactState {
                certain_until_ms: 0,
                possible_until_ms: was.possible_until_ms.max(was.certain_until_ms),
                ..was
            },
        };
        self.put(fact, now, until_ms, turn, at);
    }

    /// The log does not show whether the call changed the fact.
    pub(super) fn mark_unknown(&mut self, may: (&str, bool), kept_ms: i64, turn: u64, at: (i64, i64)) {
        let was = self.facts.get(may.0).map(|known| known.now).unwrap_or_default();
        let now = match may.1 {
            true => FactState { unknown_ms: was.unknown_ms.max(at.1.saturating_add(kept_ms)), ..was },
            // A fact that is not set cannot be cleared.
            false if was.last_ms() <= at.0 => return,
            false => FactState { certain_until_ms: 0, possible_until_ms: 0, unknown_ms: was.last_ms(), ..was },
        };
        self.put(may.0, now, 0, turn, at);
    }

    fn put(&mut self, fact: &str, now: FactState, kept_until_ms: i64, turn: u64, since: (i64, i64)) {
        let last = self.facts.get(fact);
        // Two changes at the same time have an unknown order, so the earlier state is from before both changes.
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

    /// If `sets` is false, returns a call that can clear the fact. If the fact is missing, calls of earlier turns that
    /// have not begun count too.
    pub(super) fn call_to_wait_for(
        &mut self,
        fact: &str,
        sets: bool,
        is_missing: bool,
        turn: u64,
    ) -> Option<&mut LiveCall> {
        // A turn that cannot change facts of the session comes after all other turns.
        let number = if self.live.iter().any(|live| live.turn == turn) { turn } else { u64::MAX };
        let may =
            |live: &&mut LiveCall| live.may.iter().any(|may| may.sets == sets && may.key.as_deref() == Some(fact));
        let counts = |live: &&mut LiveCall| live.turn != turn && (live.entered || is_missing && live.turn < number);
        self.live.iter_mut().filter(counts).filter(may).min_by_key(|live| (live.turn, live.position))
    }

    pub(super) fn is_needed(&mut self, now_ms: i64) -> bool {
        self.facts.retain(|_, known| known.kept_until_ms > now_ms);
        !(self.facts.is_empty() && self.live.is_empty())
    }
}
