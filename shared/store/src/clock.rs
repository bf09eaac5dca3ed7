use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Store, StoreError};

/// Estimates the time of the shard's clock between two replies of Redis.
#[derive(Debug)]
pub struct ShardClock {
    started: Instant,
    /// Shard time at `started`.
    base_ms: AtomicI64,
}

impl Default for ShardClock {
    fn default() -> Self {
        Self { started: Instant::now(), base_ms: AtomicI64::new(0) }
    }
}

impl ShardClock {
    pub fn set(&self, now_ms: i64) {
        self.base_ms.store(now_ms - self.elapsed_ms(), Ordering::Relaxed);
    }

    /// In milliseconds since the Unix epoch, late by about one network round trip.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.base_ms.load(Ordering::Relaxed) + self.elapsed_ms()
    }

    #[must_use]
    pub fn until(&self, at_ms: i64) -> Duration {
        Duration::from_millis((at_ms - self.now_ms()).max(0).unsigned_abs())
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

impl Store {
    /// Asks the store, unlike [`ShardClock::now_ms`].
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        Ok(self.seam().shard_stats().await?.shard.now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_estimate_follows_the_runtimes_clock() {
        let clock = ShardClock::default();
        clock.set(1_000);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((clock.now_ms(), clock.until(7_000)), (6_000, Duration::from_secs(1)));
    }
}
