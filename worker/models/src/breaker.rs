//! Whether a provider is asked at all: not while it rests after failures, nor before the time that it named.

use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_model::retry::breaker::{Breaker as State, BreakerPermit, BreakerRejection, BreakerSettings};
use tokio::time::Instant;

/// Failures in a row after which a provider rests, and how long it rests then, before one request tries it.
const ENDURANCE: BreakerSettings = BreakerSettings { failures_max: 5, rest: Duration::from_secs(30) };

/// The breaker of one provider.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Mutex<State>,
    since: Instant,
}

/// Leave to ask once. Dropped without a word, it counts for nothing, and the next one may try.
#[derive(Debug)]
pub(crate) struct Leave<'a> {
    breaker: &'a Breaker,
    given: Option<BreakerPermit>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: Mutex::default(), since: Instant::now() }
    }
}

impl Breaker {
    /// Leave to ask now, or the time for which the provider still rests.
    pub(crate) fn leave(&self) -> Result<Leave<'_>, Duration> {
        match self.state.lock().acquire(self.since.elapsed()) {
            Ok(given) => Ok(Leave { breaker: self, given: Some(given) }),
            Err(BreakerRejection::Open(left)) => Err(left),
            Err(BreakerRejection::TrialInProgress) => Err(Duration::from_secs(1)),
        }
    }

    /// It answered, and says that nothing is left of its rate for so long.
    pub(crate) fn rest(&self, rest: Duration) {
        self.state.lock().open_for(rest, self.since.elapsed());
    }
}

impl Leave<'_> {
    /// It answered: whatever was counted is forgotten.
    pub(crate) fn answered(mut self) {
        if let Some(given) = self.given.take() {
            self.breaker.state.lock().record_success(given, self.breaker.since.elapsed());
        }
    }

    /// It failed in a way that later requests would meet too; `rest` is what it asked for.
    pub(crate) fn failed(mut self, rest: Option<Duration>) {
        if let Some(given) = self.given.take() {
            self.breaker.state.lock().record_failure(given, rest, self.breaker.since.elapsed(), ENDURANCE);
        }
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if let Some(given) = self.given.take() {
            self.breaker.state.lock().release(given);
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
        for _ in 0..ENDURANCE.failures_max {
            breaker.leave().unwrap().failed(None);
        }
        assert_eq!(breaker.leave().unwrap_err(), ENDURANCE.rest);
        tokio::time::advance(ENDURANCE.rest).await;
        let trial = breaker.leave().unwrap();
        assert!(breaker.leave().is_err(), "one request tries, no second one");
        drop(trial);
        breaker.leave().expect("a trial that was given up makes room for the next").answered();
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
}
