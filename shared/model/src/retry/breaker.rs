//! A circuit breaker: whether something that failed several times in a row is asked again. Whoever has one says what time
//! it is, as the time since an instant of its own.

use std::time::Duration;

/// The longest rest that anybody can ask for: a wrong clock must not switch a service off for good.
pub const REST_MAX: Duration = Duration::from_secs(3_600);

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endurance {
    /// Failures in a row after which nothing is asked.
    pub failures_max: u32,
    /// For how long; then one request tries.
    pub rest: Duration,
}

/// The breaker of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    until: Option<Duration>,
    /// It rests because it failed: whether it is well again, one request tries. Where it asked for a pause itself, all may
    /// ask again when that is over.
    is_worn: bool,
    /// A request is trying whether it is well again.
    trying: bool,
}

/// Leave to ask once. It is given back by one of `answered`, `failed` and `unsaid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// This request tries whether the service is well again.
    pub is_trial: bool,
}

/// The service is not asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rests {
    /// It rests for so long.
    For(Duration),
    /// Its rest is over, and another request is trying it.
    UntilTried,
}

impl Breaker {
    /// Leave to ask at `now`.
    ///
    /// # Errors
    /// [`Rests`].
    pub fn leave(&mut self, now: Duration) -> Result<Leave, Rests> {
        let Some(until) = self.until else { return Ok(Leave { is_trial: false }) };
        let left = until.saturating_sub(now);
        if !left.is_zero() {
            return Err(Rests::For(left));
        }
        if !self.is_worn {
            self.until = None;
            return Ok(Leave { is_trial: false });
        }
        if self.trying {
            return Err(Rests::UntilTried);
        }
        self.trying = true;
        Ok(Leave { is_trial: true })
    }

    /// It answered, and says that nothing is left of its rate for so long.
    pub fn rest(&mut self, rest: Duration, now: Duration) {
        self.until = self.until.max(Some(now + rest.min(REST_MAX)));
    }

    /// It answered: whatever was counted is forgotten. An answer to an older request does not end a rest.
    pub fn answered(&mut self, leave: Leave, now: Duration) {
        self.failures = 0;
        if leave.is_trial {
            self.is_worn = false;
            // Unless it has asked for another rest with that answer.
            self.until = self.until.filter(|until| *until > now);
        }
        self.unsaid(leave);
    }

    /// It failed in a way that later requests would meet too; `named` is the rest that it asked for. Who says when to come
    /// again is there: that wears nobody, however many were turned away at once. Answers whether it rests from now on that
    /// did not before.
    pub fn failed(&mut self, leave: Leave, named: Option<Duration>, now: Duration, endurance: Endurance) -> bool {
        let rested = self.is_resting(now);
        if named.is_none() {
            self.failures = self.failures.saturating_add(1);
            self.is_worn |= leave.is_trial || self.failures >= endurance.failures_max;
        }
        if let Some(rest) = named.or(self.is_worn.then_some(endurance.rest)) {
            self.rest(rest, now);
        }
        self.unsaid(leave);
        !rested && self.is_resting(now)
    }

    /// The request came to nothing that says anything of the service: it counts for nothing, and the next one may try.
    pub fn unsaid(&mut self, leave: Leave) {
        if leave.is_trial {
            self.trying = false;
        }
    }

    /// Whether it rests, at `now`, or is to be tried after a rest.
    #[must_use]
    pub fn is_resting(&self, now: Duration) -> bool {
        self.is_worn || self.until.is_some_and(|until| until > now)
    }

    /// Failures in a row.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether it has nothing to remember.
    #[must_use]
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    const REST: Duration = Duration::from_secs(30);
    const ENDURANCE: Endurance = Endurance { failures_max: 5, rest: REST };
    const AT_FIRST: Duration = Duration::from_secs(1_000);

    fn worn_out() -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=ENDURANCE.failures_max {
            let leave = breaker.leave(AT_FIRST).unwrap();
            assert_eq!(breaker.failed(leave, None, AT_FIRST, ENDURANCE), failure == ENDURANCE.failures_max);
        }
        breaker
    }

    #[test]
    fn after_five_failures_it_rests_and_then_one_request_tries() {
        let mut breaker = worn_out();
        assert_eq!(breaker.leave(AT_FIRST), Err(Rests::For(REST)));
        let later = AT_FIRST + REST;
        let trial = breaker.leave(later).unwrap();
        assert_eq!(breaker.leave(later), Err(Rests::UntilTried), "one request tries, no second one");
        breaker.unsaid(trial);
        let trial = breaker.leave(later).expect("a trial that was given up makes room for the next");
        assert!(!breaker.failed(trial, None, later, ENDURANCE), "it rested all the time");
        assert_eq!(breaker.leave(later), Err(Rests::For(REST)));
        let trial = breaker.leave(later + REST).unwrap();
        breaker.answered(trial, later + REST);
        assert!(breaker.is_new());
    }

    #[test]
    fn a_late_answer_to_an_older_request_does_not_end_a_rest() {
        let mut breaker = Breaker::default();
        let slow = breaker.leave(AT_FIRST).unwrap();
        for _ in 0..ENDURANCE.failures_max {
            let leave = breaker.leave(AT_FIRST).unwrap();
            breaker.failed(leave, None, AT_FIRST, ENDURANCE);
        }
        breaker.answered(slow, AT_FIRST);
        assert_eq!(breaker.leave(AT_FIRST), Err(Rests::For(REST)));
    }

    #[test]
    fn a_pause_that_it_asked_for_is_over_for_everybody_and_wears_nobody() {
        let mut breaker = Breaker::default();
        let asked: Vec<Leave> = (0..10).map(|_| breaker.leave(AT_FIRST).unwrap()).collect();
        for leave in asked {
            breaker.failed(leave, Some(Duration::from_secs(1)), AT_FIRST, ENDURANCE);
        }
        assert_eq!(breaker.leave(AT_FIRST), Err(Rests::For(Duration::from_secs(1))));
        let later = AT_FIRST + Duration::from_secs(1);
        let one = breaker.leave(later).unwrap();
        assert!(!breaker.failed(one, None, later, ENDURANCE), "one failure is no reason to rest");
        assert!(breaker.leave(later).is_ok());
    }

    #[test]
    fn it_rests_for_as_long_as_it_was_asked_but_no_longer_than_an_hour() {
        let mut breaker = Breaker::default();
        let leave = breaker.leave(AT_FIRST).unwrap();
        breaker.failed(leave, Some(Duration::MAX), AT_FIRST, ENDURANCE);
        assert_eq!(breaker.leave(AT_FIRST), Err(Rests::For(REST_MAX)));
    }
}
