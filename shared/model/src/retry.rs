//! Delays between retries.

pub mod breaker;

use std::time::Duration;

use backoff::backoff::Backoff;

use super::limits;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryDelays {
    waits: Vec<Duration>,
}

impl Default for RetryDelays {
    /// 1 s, 3 s and 9 s.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), 3.0, 3)
    }
}

impl RetryDelays {
    #[must_use]
    pub fn new(waits: Vec<Duration>) -> Self {
        Self { waits }
    }

    /// Each wait is `factor` times the previous wait, at most one hour. There is no jitter, because the documentation
    /// states the exact waits.
    #[must_use]
    pub fn exponential(first: Duration, factor: f64, retries: usize) -> Self {
        let mut policy = backoff::ExponentialBackoff {
            current_interval: first,
            initial_interval: first,
            randomization_factor: 0.0,
            multiplier: factor,
            max_interval: Duration::from_secs(3_600),
            max_elapsed_time: None,
            ..backoff::ExponentialBackoff::default()
        };
        Self { waits: (0..retries).map_while(|_| policy.next_backoff()).collect() }
    }

    /// Does not count the first attempt.
    #[must_use]
    pub fn retries(&self) -> usize {
        self.waits.len()
    }

    /// Longest time of the attempts from number `attempt` (from 1) on, including waits. One attempt takes at most
    /// `each`.
    #[must_use]
    pub fn longest_from(&self, attempt: u32, each: Duration) -> Duration {
        let waits = self.waits.get((attempt as usize).saturating_sub(1)..).unwrap_or_default();
        let tries = u32::try_from(waits.len()).unwrap_or(u32::MAX).saturating_add(1);
        waits.iter().fold(each.saturating_mul(tries), |all, wait| all.saturating_add(*wait))
    }

    /// Decides after a transient failure of attempt number `attempt` (from 1). The wait is never shorter than
    /// `retry_after`. The failure is final if `retry_after` exceeds [`limits::RETRY_AFTER_MS_MAX`], or if the wait is
    /// longer than `left`.
    #[must_use]
    pub fn decide(&self, attempt: u32, retry_after: Option<Duration>, left: Duration) -> RetryDecision {
        let Some(wait) = self.waits.get((attempt as usize).saturating_sub(1)).copied() else {
            return RetryDecision::NoRetry(NoRetryReason::TriesUsedUp);
        };
        let floor = retry_after.unwrap_or_default();
        if floor > Duration::from_millis(limits::RETRY_AFTER_MS_MAX) {
            return RetryDecision::NoRetry(NoRetryReason::RetryAfterTooLong);
        }
        let wait = wait.max(floor);
        if wait >= left {
            RetryDecision::NoRetry(NoRetryReason::DeadlineFirst)
        } else {
            RetryDecision::RetryAfter(wait)
        }
    }
}

/// Waits between attempts that have no maximum number. Each wait is twice the previous wait. The longest repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoublingDelay {
    first: Duration,
    longest: Duration,
    doublings: u32,
}

impl DoublingDelay {
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, doublings: 0 }
    }

    #[must_use]
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.after(self.doublings);
        self.doublings = self.doublings.saturating_add(1);
        wait
    }

    /// The wait after this number of doublings.
    #[must_use]
    pub fn after(&self, doublings: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.longest)
    }

    /// The next wait is the first one again.
    pub const fn reset(&mut self) {
        self.doublings = 0;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    RetryAfter(Duration),
    NoRetry(NoRetryReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRetryReason {
    TriesUsedUp,
    /// Longer than [`limits::RETRY_AFTER_MS_MAX`].
    RetryAfterTooLong,
    DeadlineFirst,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Duration = Duration::from_secs(3_600);

    #[test]
    fn the_default_ladder_waits_1_3_and_9_seconds_then_gives_up() {
        let retry_delays = RetryDelays::default();
        let waits: Vec<_> = (1..=4).map(|attempt| retry_delays.decide(attempt, None, FAR)).collect();
        let secs = |s| RetryDecision::RetryAfter(Duration::from_secs(s));
        assert_eq!(waits, [secs(1), secs(3), secs(9), RetryDecision::NoRetry(NoRetryReason::TriesUsedUp)]);
    }

    #[test]
    fn a_doubling_delay_stops_growing_at_its_longest_wait_and_can_start_again() {
        let mut delay = DoublingDelay::new(Duration::from_secs(1), Duration::from_secs(5));
        let waits: Vec<u64> = (0..5).map(|_| delay.next_wait().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        delay.reset();
        assert_eq!((delay.next_wait().as_secs(), delay.after(u32::MAX).as_secs()), (1, 5));
    }

    #[test]
    fn longest_from_adds_remaining_waits_and_run_times() {
        let retry_delays = RetryDelays::default();
        let secs = Duration::from_secs;
        let left: Vec<_> = (1..=5).map(|attempt| retry_delays.longest_from(attempt, secs(30))).collect();
        assert_eq!(left, [secs(133), secs(102), secs(69), secs(30), secs(30)]);
        assert_eq!(RetryDelays::new(Vec::new()).longest_from(1, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn retry_after_is_a_floor_and_bounded() {
        let retry_delays = RetryDelays::default();
        let after = |s| Some(Duration::from_secs(s));
        assert_eq!(retry_delays.decide(1, after(7), FAR), RetryDecision::RetryAfter(Duration::from_secs(7)));
        assert_eq!(retry_delays.decide(3, after(7), FAR), RetryDecision::RetryAfter(Duration::from_secs(9)));
        assert_eq!(retry_delays.decide(1, after(61), FAR), RetryDecision::NoRetry(NoRetryReason::RetryAfterTooLong));
        assert_eq!(
            retry_delays.decide(1, after(7), Duration::from_secs(5)),
            RetryDecision::NoRetry(NoRetryReason::DeadlineFirst)
        );
    }
}
