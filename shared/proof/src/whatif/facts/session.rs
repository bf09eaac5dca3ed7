//! What is known of the facts of a session at a moment.

use std::collections::HashMap;

use super::{Change, May};

/// Calls that are under way in a session at most; what comes beyond is waited for by nobody, as in the fleet.
const LIVE_MAX: usize = 256;

/// Until when a fact is so, ms; as in the fleet, only what clears it for certain ends that earlier.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    surely_ms: i64,
    perhaps_ms: i64,
    /// The log does not say whether it is.
    unsaid_ms: i64,
    /// It was cleared for certain: what the log does not have counts no more.
    was_cleared: bool,
}

/// A fact.
#[derive(Debug, Clone, Copy)]
struct Known {
    now: Standing,
    /// Between which moments it became so, ms.
    since: (i64, i64),
    /// For how long this is kept, ms.
    kept_until_ms: i64,
    /// The turn whose call made it so.
    turn: u64,
    /// What it was before that.
    before: Standing,
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

impl Standing {
    /// Whether a fact counts as so at a moment; none where the log does not say it.
    fn counts(self, required: bool, at_ms: i64) -> Option<bool> {
        let is_so = self.surely_ms > at_ms || !required && self.perhaps_ms > at_ms;
        if is_so || self.unsaid_ms <= at_ms { Some(is_so) } else { None }
    }

    /// As [`Self::counts`], where it is the same at both moments.
    fn counts_between(self, required: bool, at: (i64, i64)) -> Option<bool> {
        let (first, last) = (self.counts(required, at.0), self.counts(required, at.1));
        first.filter(|_| first == last)
    }

    fn last_ms(self) -> i64 {
        self.surely_ms.max(self.perhaps_ms).max(self.unsaid_ms)
    }
}

impl Session {
    /// Whether a fact is so for whoever asks; none where that is not certain. The outer one: none where nothing that the log
    /// has makes it so, and nothing says that it was not so before.
    pub(super) fn is_so(&self, fact: &str, required: bool, asker: Asker) -> Option<Option<bool>> {
        let known = self.facts.get(fact)?;
        let mut is_so = known.now.counts_between(required, asker.at);
        let mut was_cleared = known.now.was_cleared;
        // The calls of a turn come one after the other.
        if !asker.is_moved && known.turn != asker.turn && known.since.1 >= asker.at.0 {
            let before = known.before.counts_between(required, asker.at);
            is_so = is_so.filter(|_| is_so == before);
            was_cleared &= known.before.was_cleared;
        }
        if is_so == Some(false) && !was_cleared { None } else { Some(is_so) }
    }

    /// Changes a fact, by a call of this turn.
    pub(super) fn change(&mut self, fact: &str, change: Change, kept_ms: i64, turn: u64, at: (i64, i64)) {
        let was = self.facts.get(fact).map(|known| known.now).unwrap_or_default();
        let until_ms = at.0.saturating_add(kept_ms);
        let now = match change {
            Change::Set => Standing { surely_ms: was.surely_ms.max(until_ms), ..was },
            Change::MaybeSet => Standing { perhaps_ms: was.perhaps_ms.max(until_ms), ..was },
            Change::Cleared => Standing { was_cleared: true, ..Standing::default() },
            Change::MaybeCleared if was.surely_ms <= at.0 => return,
            Change::MaybeCleared => Standing { surely_ms: 0, perhaps_ms: was.perhaps_ms.max(was.surely_ms), ..was },
        };
        self.put(fact, now, until_ms, turn, at);
    }

    /// A call may have changed a fact, or not: the log does not say it.
    pub(super) fn leave_unsaid(&mut self, may: (&str, bool), kept_ms: i64, turn: u64, at: (i64, i64)) {
        let was = self.facts.get(may.0).map(|known| known.now).unwrap_or_default();
        let now = match may.1 {
            true => Standing { unsaid_ms: was.unsaid_ms.max(at.1.saturating_add(kept_ms)), ..was },
            // What is not so cannot be cleared.
            false if was.last_ms() <= at.0 => return,
            false => Standing { surely_ms: 0, perhaps_ms: 0, unsaid_ms: was.last_ms(), ..was },
        };
        self.put(may.0, now, 0, turn, at);
    }

    fn put(&mut self, fact: &str, now: Standing, kept_until_ms: i64, turn: u64, since: (i64, i64)) {
        let last = self.facts.get(fact);
        // Of two changes of one moment nobody knows which came first: what was before both may have been so still.
        let is_of_one_moment = |last: &&Known| last.since.1 >= since.0 && last.turn != turn;
        let both = last.filter(is_of_one_moment).map(|last| last.before);
        let before = both.or(last.map(|last| last.now)).unwrap_or_default();
        let kept_until_ms = kept_until_ms.max(now.last_ms());
        self.facts.insert(fact.to_owned(), Known { now, since, kept_until_ms, turn, before });
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

    /// The call that is waited for, if there is one: one of another turn that has begun and may set or clear a fact; where that is
    /// missing, also one of an earlier turn that has not begun.
    pub(super) fn who_may(&mut self, fact: &str, sets: bool, is_missing: bool, turn: u64) -> Option<&mut Live> {
        // All others come before a turn that changes nothing in the session.
        let number = if self.live.iter().any(|live| live.turn == turn) { turn } else { u64::MAX };
        let may = |live: &&mut Live| live.may.iter().any(|may| may.sets == sets && may.key.as_deref() == Some(fact));
        let counts = |live: &&mut Live| live.turn != turn && (live.entered || is_missing && live.turn < number);
        self.live.iter_mut().filter(counts).filter(may).min_by_key(|live| (live.turn, live.position))
    }

    /// Whether there is still something to be known of it.
    pub(super) fn is_of_use(&mut self, now_ms: i64) -> bool {
        self.facts.retain(|_, known| known.kept_until_ms > now_ms);
        !(self.facts.is_empty() && self.live.is_empty())
    }
}
