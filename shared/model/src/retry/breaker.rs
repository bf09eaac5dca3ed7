//! A circuit breaker stops calls to a service after several failures in a row. `now` is the time since a fixed instant.

use std::time::Duration;

/// Bounds the pause that a service requests. A service with a wrong clock must not stop calls forever.
pub const OPEN_MAX: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    pub failures_max: u32,
    pub cooldown: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    until: Option<Duration>,
    /// If true, a trial request after the pause decides. If false, the service requested the pause, and all requests
    /// are allowed after the pause.
    opened_by_failures: bool,
    trial_in_progress: bool,
}

/// Must be returned with `record_success`, `record_failure` or `release`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPermit {
    pub is_trial: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerRejection {
    Open(Duration),
    TrialInProgress,
}

impl Breaker {
    pub fn acquire(&mut self, now: Duration) -> Result<BreakerPermit, BreakerRejection> {
        let Some(until) = self.until else { return Ok(BreakerPermit { is_trial: false }) };
        let left = until.saturating_sub(now);
        if !left.is_zero() {
            return Err(BreakerRejection::Open(left));
        }
        if !self.opened_by_failures {
            self.until = None;
            return Ok(BreakerPermit { is_trial: false });
        }
        if self.trial_in_progress {
            return Err(BreakerRejection::TrialInProgress);
        }
        self.trial_in_progress = true;
        Ok(BreakerPermit { is_trial: true })
    }

    /// The service reported a used-up rate limit.
    pub fn open_for(&mut self, duration: Duration, now: Duration) {
        self.until = self.until.max(Some(now + duration.min(OPEN_MAX)));
    }

    /// If the breaker opened after the request was sent, the response does not close the breaker.
    pub fn record_success(&mut self, permit: BreakerPermit, now: Duration) {
        self.failures = 0;
        if permit.is_trial {
            self.opened_by_failures = false;
            // Keeps a pause that the service requested in this response.
            self.until = self.until.filter(|until| *until > now);
        }
        self.release(permit);
    }

    /// `named` is the requested pause of a reachable service, so the failure is not counted. Returns true if this
    /// failure opened the breaker.
    pub fn record_failure(
        &mut self,
        permit: BreakerPermit,
        named: Option<Duration>,
        now: Duration,
        settings: BreakerSettings,
    ) -> bool {
        let rested = self.is_open(now);
        if named.is_none() {
            self.failures = self.failures.saturating_add(1);
            self.opened_by_failures |= permit.is_trial || self.failures >= settings.failures_max;
        }
        if let Some(duration) = named.or(self.opened_by_failures.then_some(settings.cooldown)) {
            self.open_for(duration, now);
        }
        self.release(permit);
        !rested && self.is_open(now)
    }

    /// The outcome of the request does not show whether the service works. If the request was the trial, the next
    /// request becomes the trial.
    pub fn release(&mut self, permit: BreakerPermit) {
        if permit.is_trial {
            self.trial_in_progress = false;
        }
    }

    #[must_use]
    pub fn is_open(&self, now: Duration) -> bool {
        self.opened_by_failures || self.until.is_some_and(|until| until > now)
    }

    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    #[must_use]
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    const COOLDOWN: Duration = Duration::from_secs(30);
    const SETTINGS: BreakerSettings = BreakerSettings { failures_max: 5, cooldown: COOLDOWN };
    const AT_FIRST: Duration = Duration::from_secs(1_000);

    fn worn_out() -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=SETTINGS.failures_max {
            let permit = breaker.acquire(AT_FIRST).unwrap();
            assert_eq!(breaker.record_failure(permit, None, AT_FIRST, SETTINGS), failure == SETTINGS.failures_max);
        }
        breaker
    }

    #[test]
    fn five_failures_open_the_circuit_then_one_trial_is_admitted() {
        let mut breaker = worn_out();
        assert_eq!(breaker.acquire(AT_FIRST), Err(BreakerRejection::Open(COOLDOWN)));
        let later = AT_FIRST + COOLDOWN;
        let trial = breaker.acquire(later).unwrap();
        assert_eq!(breaker.acquire(later), Err(BreakerRejection::TrialInProgress), "one request tries, no second one");
        breaker.release(trial);
        let trial = breaker.acquire(later).expect("a trial that was given up makes room for the next");
        assert!(!breaker.record_failure(trial, None, later, SETTINGS), "it rested all the time");
        assert_eq!(breaker.acquire(later), Err(BreakerRejection::Open(COOLDOWN)));
        let trial = breaker.acquire(later + COOLDOWN).unwrap();
        breaker.record_success(trial, later + COOLDOWN);
        assert!(breaker.is_new());
    }

    #[test]
    fn a_late_success_of_an_older_request_does_not_close_the_circuit() {
        let mut breaker = Breaker::default();
        let slow = breaker.acquire(AT_FIRST).unwrap();
        for _ in 0..SETTINGS.failures_max {
            let permit = breaker.acquire(AT_FIRST).unwrap();
            breaker.record_failure(permit, None, AT_FIRST, SETTINGS);
        }
        breaker.record_success(slow, AT_FIRST);
        assert_eq!(breaker.acquire(AT_FIRST), Err(BreakerRejection::Open(COOLDOWN)));
    }

    #[test]
    fn a_requested_pause_does_not_count_toward_opening_the_circuit() {
        let mut breaker = Breaker::default();
        let asked: Vec<BreakerPermit> = (0..10).map(|_| breaker.acquire(AT_FIRST).unwrap()).collect();
        for permit in asked {
            breaker.record_failure(permit, Some(Duration::from_secs(1)), AT_FIRST, SETTINGS);
        }
        assert_eq!(breaker.acquire(AT_FIRST), Err(BreakerRejection::Open(Duration::from_secs(1))));
        let later = AT_FIRST + Duration::from_secs(1);
        let one = breaker.acquire(later).unwrap();
        assert!(!breaker.record_failure(one, None, later, SETTINGS), "one failure does not open the breaker");
        assert!(breaker.acquire(later).is_ok());
    }

    #[test]
    fn a_requested_pause_is_capped_at_one_hour() {
        let mut breaker = Breaker::default();
        let permit = breaker.acquire(AT_FIRST).unwrap();
        breaker.record_failure(permit, Some(Duration::MAX), AT_FIRST, SETTINGS);
        assert_eq!(breaker.acquire(AT_FIRST), Err(BreakerRejection::Open(OPEN_MAX)));
    }
}
