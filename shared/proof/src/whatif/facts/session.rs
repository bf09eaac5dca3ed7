//! What is known of the facts of a session at a moment.

use std::collections::HashMap;

use super::{Change, May};

/// Calls that are under way in a session at most; what comes beyond is waited for by nobody, as in the fleet.
const LIVE_MAX: usize = 256;

/// Whether a fact is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Set,
    Perhaps,
    Cleared,
    /// The log does not say it.
    Unsaid,
}

/// A fact.
#[derive(Debug, Clone, Copy)]
struct Known {
    state: State,
    /// Between which moments it became so, ms.
    since: (i64, i64),
    until_ms: i64,
    /// The turn whose call made it so.
    turn: u64,
    /// What it was before that, and until when.
    before: Option<(State, i64)>,
}

/// A call that may change facts, and has not ended.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) turn: u64,
    pub(super) position: usize,
    /// Whether it has begun: those that have not are waited for only where a fact is missing.
    pub(super) entered: bool,
    pub(super) may: Vec<May>,
    /// Turns that wait for it.
    pub(super) waiters: Vec<u64>,
}

/// A session.
#[derive(Debug, Default)]
pub(super) struct Session {
    facts: HashMap<String, Known>,
    pub(super) live: Vec<Live>,
    /// Something was decided otherwise in it: what the log says of waits no longer holds.
    pub(super) is_apart: bool,
}

/// Who asks, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    pub(super) turn: u64,
    /// Between which moments, ms.
    pub(super) at: (i64, i64),
    /// It comes after all that has happened: here, it is asked at another moment than in the fleet.
    pub(super) is_moved: bool,
}

/// Whether a fact in this state lets it count as so.
fn counts(state: State, until_ms: i64, required: bool, at_ms: i64) -> Option<bool> {
    match state {
        _ if until_ms <= at_ms => Some(false),
        State::Set => Some(true),
        State::Perhaps => Some(!required),
        State::Cleared => Some(false),
        State::Unsaid => None,
    }
}

impl Session {
    /// Whether a fact is so for whoever asks; none where that is not certain. The outer one: none where it was never heard of.
    pub(super) fn is_so(&self, fact: &str, required: bool, asker: Asker) -> Option<Option<bool>> {
        let known = self.facts.get(fact)?;
        let at = |state, until_ms| {
            let (first, last) =
                (counts(state, until_ms, required, asker.at.0), counts(state, until_ms, required, asker.at.1));
            first.filter(|_| first == last)
        };
        let now = at(known.state, known.until_ms);
        // The calls of a turn come one after the other.
        if asker.is_moved || known.turn == asker.turn || known.since.1 < asker.at.0 {
            return Some(now);
        }
        let before = known.before.map_or(Some(false), |(state, until_ms)| at(state, until_ms));
        Some(now.filter(|_| now == before))
    }

    /// Changes a fact, by a call of this turn.
    pub(super) fn change(&mut self, fact: &str, change: Change, kept_ms: i64, turn: u64, at: (i64, i64)) {
        let known = self.facts.get(fact).copied();
        let was = known.map(|known| (known.state, known.until_ms)).filter(|(_, until_ms)| *until_ms > at.0);
        let state = match (change, was.map(|(state, _)| state)) {
            (Change::Set, _) | (Change::MaybeSet, Some(State::Set)) => State::Set,
            (Change::Cleared, _) => State::Cleared,
            (Change::MaybeSet | Change::MaybeCleared, Some(State::Unsaid)) => State::Unsaid,
            (Change::MaybeSet, _) | (Change::MaybeCleared, Some(State::Set)) => State::Perhaps,
            (Change::MaybeCleared, _) => return,
        };
        self.put(fact, Known { state, since: at, until_ms: at.0.saturating_add(kept_ms), turn, before: was });
    }

    /// A call may have changed a fact, or not: the log does not say it.
    pub(super) fn leave_unsaid(&mut self, may: (&str, bool), kept_ms: i64, turn: u64, at: (i64, i64)) {
        let known = self.facts.get(may.0).copied();
        let was = known.map(|known| (known.state, known.until_ms)).filter(|(_, until_ms)| *until_ms > at.0);
        match (was, may.1) {
            // What is so would be so still; what is not so cannot be cleared.
            (Some((State::Set, _)), true) | (Some((State::Cleared, _)) | None, false) => {}
            _ => {
                let until_ms = at.1.saturating_add(kept_ms);
                let known = Known { state: State::Unsaid, since: at, until_ms, turn, before: was };
                self.put(may.0, known);
            }
        }
    }

    fn put(&mut self, fact: &str, mut known: Known) {
        // Of two changes of one moment nobody knows which came first: what was before both may have been so still.
        let last = self.facts.get(fact).filter(|last| last.since.1 >= known.since.0 && last.turn != known.turn);
        known.before = last.map_or(known.before, |last| last.before);
        self.facts.insert(fact.to_owned(), known);
    }

    /// A call may change facts from now on.
    pub(super) fn comes(&mut self, turn: u64, position: usize, entered: bool, may: &[May]) {
        if may.is_empty() {
            return;
        }
        if let Some(live) = self.live.iter_mut().find(|live| (live.turn, live.position) == (turn, position)) {
            live.entered |= entered;
        } else if self.live.len() < LIVE_MAX {
            self.live.push(Live { turn, position, entered, may: may.to_vec(), waiters: Vec::new() });
        }
    }

    /// It has ended; answers who waits for it.
    pub(super) fn goes(&mut self, turn: u64, position: usize) -> Vec<u64> {
        let at = self.live.iter().position(|live| (live.turn, live.position) == (turn, position));
        at.map(|at| self.live.swap_remove(at).waiters).unwrap_or_default()
    }

    /// The call of an earlier turn that is under way and may set a fact, or clear it, if there is one.
    pub(super) fn who_may(&mut self, fact: &str, sets: bool, is_missing: bool, turn: u64) -> Option<&mut Live> {
        // All others come before a turn that changes nothing in the session.
        let number = if self.live.iter().any(|live| live.turn == turn) { turn } else { u64::MAX };
        let may = |live: &&mut Live| live.may.iter().any(|may| may.sets == sets && may.key.as_deref() == Some(fact));
        let comes_before = |live: &&mut Live| live.turn != turn && live.turn < number;
        self.live
            .iter_mut()
            .filter(|live| comes_before(live) && (live.entered || is_missing))
            .filter(may)
            .min_by_key(|live| (live.turn, live.position))
    }

    /// Whether there is still something to be known of it.
    pub(super) fn is_of_use(&mut self, now_ms: i64) -> bool {
        self.facts.retain(|_, known| known.until_ms > now_ms);
        !(self.facts.is_empty() && self.live.is_empty())
    }
}
