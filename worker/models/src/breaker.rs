//! Whether a provider is asked at all: not while it rests after failures, nor before the time that it named.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures in a row after which a provider rests.
const FAILURES_MAX: u32 = 5;
/// How long it rests then, before one request tries it.
const REST: Duration = Duration::from_secs(30);
/// The longest rest that a provider can ask for: a wrong clock must not switch it off for good.
const REST_MAX: Duration = Duration::from_secs(3_600);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    until: Option<Instant>,
    /// It rests because it failed: whether it is well again, one request tries. Where it asked for a pause itself, all may
    /// ask again when that is over.
    is_worn: bool,
    /// A request is trying whether it is well again.
    trying: bool,
}

/// The breaker of one provider.
#[derive(Debug, Default)]
pub(crate) struct Breaker(Mutex<State>);

/// Leave to ask once. Dropped without a word, it counts for nothing, and the next one may try.
#[derive(Debug)]
pub(crate) struct Leave<'a> {
    breaker: &'a Breaker,
    trial: bool,
}

impl Breaker {
    /// Leave to ask now, or the time for which the provider still rests.
    pub(crate) fn leave(&self) -> Result<Leave<'_>, Duration> {
        let mut state = self.0.lock();
        let Some(until) = state.until else { return Ok(Leave { breaker: self, trial: false }) };
        let left = until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Err(left);
        }
        if !state.is_worn {
            state.until = None;
            return Ok(Leave { breaker: self, trial: false });
        }
        if state.trying {
            return Err(Duration::from_secs(1));
        }
        state.trying = true;
        Ok(Leave { breaker: self, trial: true })
    }

    /// It answered, and says that nothing is left of its rate for so long.
    pub(crate) fn rest(&self, rest: Duration) {
        let until = Instant::now() + rest.min(REST_MAX);
        let mut state = self.0.lock();
        state.until = state.until.max(Some(until));
    }
}

impl Leave<'_> {
    /// It answered: whatever was counted is forgotten. An answer to an older request does not end a rest.
    pub(crate) fn answered(self) {
        let mut state = self.breaker.0.lock();
        state.failures = 0;
        if self.trial {
            state.is_worn = false;
            // Unless it has asked for another rest with that answer.
            state.until = state.until.filter(|until| *until > Instant::now());
        }
    }

    /// It failed in a way that later requests would meet too; `rest` is what it asked for. Who says when to come again is
    /// there: that wears nobody, however many were turned away at once.
    pub(crate) fn failed(self, rest: Option<Duration>) {
        let mut state = self.breaker.0.lock();
        if rest.is_none() {
            state.failures = state.failures.saturating_add(1);
            state.is_worn |= self.trial || state.failures >= FAILURES_MAX;
        }
        if let Some(rest) = rest.or(state.is_worn.then_some(REST)) {
            let until = Instant::now() + rest.min(REST_MAX);
            state.until = state.until.max(Some(until));
        }
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if self.trial {
            self.breaker.0.lock().trying = false;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_five_failures_it_rests_and_then_one_request_tries() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            breaker.leave().unwrap().failed(None);
        }
        assert_eq!(breaker.leave().unwrap_err(), REST);
        tokio::time::advance(REST).await;
        let trial = breaker.leave().unwrap();
        assert!(breaker.leave().is_err(), "one request tries, no second one");
        drop(trial);
        breaker.leave().expect("a trial that was given up makes room for the next").failed(None);
        assert_eq!(breaker.leave().unwrap_err(), REST);
        tokio::time::advance(REST).await;
        breaker.leave().unwrap().answered();
        let (one, two) = (breaker.leave(), breaker.leave());
        assert!(one.is_ok() && two.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_nothing_left_of_its_rate_rests_although_it_answered() {
        let breaker = Breaker::default();
        for _ in 0..2 {
            let leave = breaker.leave().unwrap();
            breaker.rest(Duration::from_secs(7));
            leave.answered();
            assert_eq!(breaker.leave().unwrap_err(), Duration::from_secs(7));
            tokio::time::advance(Duration::from_secs(7)).await;
        }
        breaker.leave().unwrap().answered();
        let (one, two) = (breaker.leave(), breaker.leave());
        assert!(one.is_ok() && two.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_it_asked_for_is_over_for_everybody_and_wears_nobody() {
        let breaker = Breaker::default();
        let asked: Vec<Leave<'_>> = (0..2 * FAILURES_MAX).map(|_| breaker.leave().unwrap()).collect();
        for leave in asked {
            leave.failed(Some(Duration::from_secs(1)));
        }
        assert_eq!(breaker.leave().unwrap_err(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        let (one, two) = (breaker.leave().unwrap(), breaker.leave().unwrap());
        one.failed(None);
        assert!(breaker.leave().is_ok(), "one failure is no reason to rest");
        two.answered();
    }

    #[tokio::test(start_paused = true)]
    async fn it_rests_for_as_long_as_the_provider_asked_but_no_longer_than_an_hour() {
        let breaker = Breaker::default();
        breaker.leave().unwrap().failed(Some(Duration::from_secs(7)));
        assert_eq!(breaker.leave().unwrap_err(), Duration::from_secs(7));
        tokio::time::advance(Duration::from_secs(7)).await;
        breaker.leave().unwrap().failed(Some(Duration::MAX));
        assert_eq!(breaker.leave().unwrap_err(), REST_MAX);
    }
}
