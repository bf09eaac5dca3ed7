//! Limits: counters that calls debit by amounts, and what becomes of calls that one has no room for.

use super::Reason;
use super::budget::next_window_end;

/// Windows of more than this go on after a restart of Redis, ms.
const LOST_MS: i64 = 60_000;

/// What one counter of a limit has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counter {
    /// Calls, or amounts.
    pub used: u64,
    /// When it begins anew, ms.
    pub end_ms: i64,
    /// When it began, ms.
    pub began_ms: i64,
}

/// How a counter's windows follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// They have a length, and begin at a place in it, ms.
    Period(i64, i64),
    /// A day, from and to, ms.
    Day(i64, i64),
    /// It has none: calls give back what they hold.
    Held,
}

/// Who waits for a place looks again after this long, ms.
const LOOK_MS: i64 = 5_000;

impl Counter {
    /// The counter as it is now: begun anew if its end has come, and only then (rule 1).
    #[must_use]
    pub fn at(self, now_ms: i64, window: Window) -> Self {
        if now_ms < self.end_ms {
            return self;
        }
        let (began_ms, end_ms) = match window {
            Window::Period(length, stagger) => {
                let end_ms = next_window_end(now_ms, stagger, length, self.end_ms);
                (now_ms.min(end_ms - length), end_ms)
            }
            // The time zone has changed: what is left of this day is no day of its own.
            Window::Day(start_ms, end_ms) if start_ms < self.end_ms && self.end_ms < end_ms => {
                return Self { end_ms, ..self };
            }
            Window::Day(start_ms, end_ms) => (start_ms, end_ms),
            // What is used is what is held; whoever looks fills it in.
            Window::Held => return Self { end_ms: now_ms + LOOK_MS, ..self },
        };
        Self { used: 0, end_ms, began_ms }
    }
}

/// What becomes of calls that a limit has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// They wait.
    Wait,
    /// They end.
    Reject,
    /// Nothing.
    Shadow,
}

/// What a turn's next calls debit of one counter.
#[derive(Debug, Clone)]
pub struct Debit {
    /// The counter, as it is now.
    pub counter: Counter,
    /// How its windows follow each other.
    pub window: Window,
    /// The most that it may reach.
    pub max: u64,
    /// What becomes of the rest.
    pub reach: Reach,
    /// Per call; none where the call does not say its amount.
    pub amounts: Vec<Option<u64>>,
    /// Whether others wait for it, who come first.
    pub others_wait: bool,
}

/// What stops a turn's next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It waits behind others for this debit's counter.
    Behind(usize),
    /// It waits for this debit's counter, until this instant at least, ms.
    Wait(usize, i64),
    /// So many calls end for this reason; the number is when there is room, ms.
    Refused(Reason, i64, usize),
}

impl Debit {
    fn left(&self, epoch_ms: i64) -> u64 {
        // Rule 8: the last debits of a short window that began before Redis restarted may be lost.
        let is_lost =
            matches!(self.window, Window::Period(length, _) if length <= LOST_MS && self.counter.began_ms < epoch_ms);
        if is_lost { 0 } else { self.max.saturating_sub(self.counter.used) }
    }

    /// How many of the first `k` calls fit.
    fn fits(&self, k: usize, epoch_ms: i64) -> usize {
        let mut left = self.left(epoch_ms);
        for (at, amount) in self.amounts.iter().take(k).enumerate() {
            match amount {
                Some(amount) if *amount <= left => left -= amount,
                _ => return at,
            }
        }
        k
    }

    /// Why calls end that are stopped here, and how many from the first on; none where they wait.
    fn refusal(&self, epoch_ms: i64) -> Option<(Reason, usize)> {
        let all_alike = self.amounts.iter().all(|amount| amount.is_some() && *amount == self.amounts[0]);
        let (all, first) = (self.amounts.len(), self.amounts[0]);
        let reason = match first {
            None => return Some((Reason::NoAmount, 1)),
            Some(first) if first > self.max => Reason::OverLimit,
            Some(_) if self.reach == Reach::Reject => Reason::LimitReached,
            Some(_) => return None,
        };
        if all_alike {
            return Some((reason, all));
        }
        let left = self.left(epoch_ms);
        let too_much = |amount: &&Option<u64>| amount.is_some_and(|amount| amount > left);
        let more = self.amounts[1..].iter().take_while(too_much).count();
        Some((reason, if reason == Reason::LimitReached { 1 + more } else { 1 }))
    }
}

/// How many of the next `k` calls all counters have room for, which of them cuts them short, and what stops the first,
/// where one does. Debits nothing.
#[must_use]
pub fn fit(debits: &[Debit], k: usize, epoch_ms: i64) -> (usize, Option<usize>, Option<Stopped>) {
    let is_behind = |debit: &Debit| debit.others_wait && debit.reach != Reach::Shadow && debit.amounts[0] != Some(0);
    if let Some(at) = debits.iter().position(is_behind) {
        return (0, Some(at), Some(Stopped::Behind(at)));
    }
    let (mut k, mut stop) = (k, None);
    for (at, debit) in debits.iter().enumerate().filter(|(_, debit)| debit.reach != Reach::Shadow) {
        let fits = debit.fits(k, epoch_ms);
        if fits < k {
            (k, stop) = (fits, Some(at));
        }
    }
    let Some(at) = stop.filter(|_| k == 0) else { return (k, stop, None) };
    let end_ms = debits[at].counter.end_ms;
    let info = if debits[at].window == Window::Held { 0 } else { end_ms };
    let stopped = match debits[at].refusal(epoch_ms) {
        Some((reason, calls)) => Stopped::Refused(reason, info, calls),
        None => Stopped::Wait(at, end_ms),
    };
    (0, stop, Some(stopped))
}

/// Debits the first `k` calls everywhere.
pub fn debit(debits: &mut [Debit], k: usize) {
    for debit in debits {
        debit.counter.used += debit.amounts.iter().take(k).flatten().sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that a counter allows as soon as it allows it, with windows of these lengths, each from a moment on; answers when.
    fn taken(windows: &[(i64, Window)], until_ms: i64) -> Vec<i64> {
        let (mut counter, mut at) = (Counter::default(), Vec::new());
        for now_ms in 1..until_ms {
            let window =
                windows.iter().rev().find(|(from_ms, _)| *from_ms <= now_ms).map_or(Window::Held, |(_, it)| *it);
            counter = counter.at(now_ms, window);
            if counter.used == 0 {
                counter.used = 1;
                at.push(now_ms);
            }
        }
        at
    }

    #[test]
    fn a_counter_opens_twice_at_most_in_a_windows_time_whatever_length_it_gets_and_when() {
        for (first, second, third) in
            [(60, 100, 60), (10, 360, 10), (100, 30, 70), (7, 5, 11), (60, 30, 120), (24, 1, 24)]
        {
            for change in 1..second.max(first) {
                let windows = [
                    (0, Window::Period(first, 3)),
                    (500 + change, Window::Period(second, 1)),
                    (1_500 + 3 * change, Window::Period(third, 3)),
                ];
                let at = taken(&windows, 3_500);
                for three in at.windows(3).filter(|three| three[0] > first) {
                    // The length in force when the last of the three came; the windows of the one before run on to their end.
                    let length =
                        windows.iter().rev().find(|(from_ms, _)| *from_ms <= three[1]).map_or(0, |(_, it)| match it {
                            Window::Period(length, _) => *length,
                            _ => 0,
                        });
                    assert!(
                        three[2] - three[0] >= length,
                        "{first} {second} {third} {change}: {three:?} within {length}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_day_that_a_new_zone_cuts_goes_on_to_the_end_of_the_new_ones() {
        let day = |zone: i64, now_ms: i64| {
            let start_ms = (now_ms - zone).div_euclid(24) * 24 + zone;
            Window::Day(start_ms, start_ms + 24)
        };
        for (from, to) in [(0, 1), (0, 23), (5, 0), (11, 13)] {
            for change in 100..124 {
                let (mut counter, mut at) = (Counter::default(), Vec::new());
                for now_ms in 1..300 {
                    counter = counter.at(now_ms, day(if now_ms < change { from } else { to }, now_ms));
                    if counter.used == 0 {
                        counter.used = 1;
                        at.push(now_ms);
                    }
                }
                let three = at.windows(3).find(|three| three[0] > 24 && three[2] - three[0] < 24);
                assert_eq!(three, None, "{from} {to} {change}: {at:?}");
                assert!(at.windows(2).all(|two| two[1] - two[0] <= 48), "{at:?}");
            }
        }
    }

    #[test]
    fn windows_of_one_length_keep_their_boundaries_also_after_a_while_without_calls() {
        let window = Window::Period(60, 3);
        let first = Counter::default().at(100, window);
        assert_eq!((first.began_ms, first.end_ms), (63, 123));
        for (now_ms, end_ms) in [(123, 183), (130, 183), (200, 243), (1_000, 1_023)] {
            let next = first.at(now_ms, window);
            assert_eq!((next.began_ms, next.end_ms, next.used), (end_ms - 60, end_ms, 0), "{now_ms}");
        }
    }
}
