//! The worker's own view of its lease: whether the lease is certainly valid.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Invariant 7: nothing may be sent to the outside if the last confirmed heartbeat was *sent* too long ago.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    origin: Instant,
    lease: Duration,
    sent_ms: AtomicU64,
    term: AtomicU64,
}

pub(crate) const STEP: Duration = Duration::from_millis(10);

impl LeaseClock {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { origin: Instant::now(), lease, sent_ms: AtomicU64::new(0), term: AtomicU64::new(0) }
    }

    /// The current time of this clock, in ms. Call this before a heartbeat is sent, and pass the time to
    /// [`Self::confirm`] after the reply.
    pub(crate) fn sending(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    pub(crate) fn confirm(&self, sent_ms: u64) {
        self.sent_ms.fetch_max(sent_ms, Ordering::Relaxed);
    }

    /// The next incarnation gets a new name, because other processes may consider the old one dead.
    pub(crate) fn forget(&self) {
        self.term.fetch_add(1, Ordering::Relaxed);
        self.sent_ms.store(0, Ordering::Relaxed);
    }

    /// The number of the incarnation. Other workers may take slices that were leased in an earlier incarnation.
    pub(crate) fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    pub(crate) fn is_new(&self) -> bool {
        self.age().is_none()
    }

    /// If the lease is too old for sending, waits for the next heartbeat, because this worker still holds the slice.
    /// False if the lease of `term` is over.
    pub(crate) async fn wait_until_valid(&self, term: u64) -> bool {
        loop {
            if self.term() != term || self.is_lost() {
                return false;
            }
            if self.is_fresh() {
                return true;
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// A call may be sent to the outside only while more than a quarter of the lease is left.
    pub(crate) fn is_fresh(&self) -> bool {
        self.age().is_some_and(|age| age < self.lease * 3 / 4)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.age().is_none_or(|age| age >= self.lease)
    }

    fn age(&self) -> Option<Duration> {
        match self.sent_ms.load(Ordering::Relaxed) {
            0 => None,
            sent => Some(Duration::from_millis(self.sending().saturating_sub(sent))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_runs_from_the_send_time_of_its_heartbeat() {
        let lease_clock = LeaseClock::new(Duration::from_secs(8));
        assert!(lease_clock.is_lost() && !lease_clock.is_fresh(), "before the first heartbeat");
        let sent = lease_clock.sending();
        tokio::time::advance(Duration::from_secs(5)).await;
        lease_clock.confirm(sent);
        assert!(lease_clock.is_fresh());
        // The clock counts whole milliseconds, and counts the first millisecond as passed. So the test needs one more.
        tokio::time::advance(Duration::from_millis(1_001)).await;
        assert!(!lease_clock.is_fresh() && !lease_clock.is_lost(), "within the margin");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(lease_clock.is_lost());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_lease_waits_for_a_heartbeat_and_an_old_term_fails() {
        let lease_clock = std::sync::Arc::new(LeaseClock::new(Duration::from_secs(8)));
        let term = lease_clock.term();
        lease_clock.confirm(lease_clock.sending());
        tokio::time::advance(Duration::from_secs(7)).await;
        let waiting = tokio::spawn({
            let lease_clock = lease_clock.clone();
            async move { lease_clock.wait_until_valid(term).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "old, but not over");
        lease_clock.confirm(lease_clock.sending());
        assert!(waiting.await.unwrap());
        lease_clock.forget();
        lease_clock.confirm(lease_clock.sending());
        assert!(!lease_clock.wait_until_valid(term).await && lease_clock.wait_until_valid(lease_clock.term()).await);
    }
}
