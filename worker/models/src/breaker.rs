//! A provider is not asked while its circuit breaker is open, or during a pause that the provider has requested.

use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_model::retry::breaker::{Breaker as State, BreakerPermit, BreakerRejection, BreakerSettings};
use tokio::time::Instant;

/// After `cooldown`, one request is permitted as a trial.
const SETTINGS: BreakerSettings = BreakerSettings { failures_max: 5, cooldown: Duration::from_secs(30) };

#[derive(Debug)]
pub(crate) struct ProviderBreaker {
    state: Mutex<State>,
    since: Instant,
}

/// A permit that is dropped without a result counts neither as success nor as failure.
#[derive(Debug)]
pub(crate) struct RequestPermit<'a> {
    breaker: &'a ProviderBreaker,
    given: Option<BreakerPermit>,
}

impl Default for ProviderBreaker {
    fn default() -> Self {
        Self { state: Mutex::default(), since: Instant::now() }
    }
}

impl ProviderBreaker {
    /// The error is the time after which to ask again.
    pub(crate) fn permit(&self) -> Result<RequestPermit<'_>, Duration> {
        match self.state.lock().acquire(self.since.elapsed()) {
            Ok(given) => Ok(RequestPermit { breaker: self, given: Some(given) }),
            Err(BreakerRejection::Open(left)) => Err(left),
            Err(BreakerRejection::TrialInProgress) => Err(Duration::from_secs(1)),
        }
    }

    pub(crate) fn pause(&self, pause: Duration) {
        self.state.lock().open_for(pause, self.since.elapsed());
    }
}

impl RequestPermit<'_> {
    pub(crate) fn answered(mut self) {
        if let Some(given) = self.given.take() {
            self.breaker.state.lock().record_success(given, self.breaker.since.elapsed());
        }
    }

    /// `pause` is the time that the provider asked for.
    pub(crate) fn failed(mut self, pause: Option<Duration>) {
        if let Some(given) = self.given.take() {
            self.breaker.state.lock().record_failure(given, pause, self.breaker.since.elapsed(), SETTINGS);
        }
    }
}

impl Drop for RequestPermit<'_> {
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
    async fn the_breaker_opens_after_five_failures_and_then_admits_one_trial() {
        let breaker = ProviderBreaker::default();
        for _ in 0..SETTINGS.failures_max {
            breaker.permit().unwrap().failed(None);
        }
        assert_eq!(breaker.permit().unwrap_err(), SETTINGS.cooldown);
        tokio::time::advance(SETTINGS.cooldown).await;
        let trial = breaker.permit().unwrap();
        assert!(breaker.permit().is_err(), "one request tries, no second one");
        drop(trial);
        breaker.permit().expect("a trial that was given up makes room for the next").answered();
        let one = breaker.permit();
        let two = breaker.permit();
        assert!(one.is_ok() && two.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_blocks_requests_even_after_a_success() {
        let breaker = ProviderBreaker::default();
        for _ in 0..2 {
            let permit = breaker.permit().unwrap();
            breaker.pause(Duration::from_secs(7));
            permit.answered();
            assert_eq!(breaker.permit().unwrap_err(), Duration::from_secs(7));
            tokio::time::advance(Duration::from_secs(7)).await;
        }
        breaker.permit().unwrap().answered();
        let one = breaker.permit();
        let two = breaker.permit();
        assert!(one.is_ok() && two.is_ok());
    }
}
