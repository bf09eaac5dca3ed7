use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// In milliseconds since 1970. Only the test moves the time. Clones share the time.
#[derive(Debug, Clone)]
pub struct TestClock {
    now_ms: Arc<AtomicI64>,
}

impl Default for TestClock {
    /// 2026-01-05T00:00:00Z, a Monday. At this time, a day in UTC and a tick of 5 s begin.
    fn default() -> Self {
        Self::at(1_767_571_200_000)
    }
}

impl TestClock {
    #[must_use]
    pub fn at(now_ms: i64) -> Self {
        Self { now_ms: Arc::new(AtomicI64::new(now_ms)) }
    }

    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    /// A negative value moves the clock backward.
    pub fn advance(&self, ms: i64) -> i64 {
        self.now_ms.fetch_add(ms, Ordering::SeqCst) + ms
    }

    pub fn set(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }
}
