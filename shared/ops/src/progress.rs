use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Shows whether the loops of a process advance. Does not depend on Redis, because an outage of Redis must not restart
/// the whole fleet.
#[derive(Debug, Clone)]
pub struct Progress {
    born: Instant,
    loops: Arc<Mutex<Vec<Arc<WatchedLoop>>>>,
}

#[derive(Debug)]
struct WatchedLoop {
    name: &'static str,
    gap_ms_max: u64,
    /// Counted from `born`.
    advanced_ms: AtomicU64,
    finished: AtomicBool,
}

/// Even an idle loop calls [`Self::advanced`]. [`Self::finished`] ends the watch. Dropping the handle does not end the
/// watch, because a loop that panics also drops its handle.
#[derive(Debug, Clone)]
pub struct LoopHandle {
    born: Instant,
    watched: Arc<WatchedLoop>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopState {
    pub name: &'static str,
    /// Since the loop last advanced.
    pub age: Duration,
    pub gap_max: Duration,
}

impl LoopState {
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.age > self.gap_max
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self { born: Instant::now(), loops: Arc::default() }
    }
}

impl Progress {
    /// The registration counts as the first advance. `gap_max` is the longest normal time between two advances,
    /// including blocking reads and timeouts.
    #[must_use = "a loop whose handle is dropped is reported as stalled"]
    pub fn register(&self, name: &'static str, gap_max: Duration) -> LoopHandle {
        let watched = Arc::new(WatchedLoop {
            name,
            gap_ms_max: millis(gap_max),
            advanced_ms: AtomicU64::new(millis(self.born.elapsed())),
            finished: AtomicBool::new(false),
        });
        self.loops.lock().push(Arc::clone(&watched));
        LoopHandle { born: self.born, watched }
    }

    #[must_use]
    pub fn loops(&self) -> Vec<LoopState> {
        let now_ms = millis(self.born.elapsed());
        let mut loops = self.loops.lock();
        loops.retain(|watched| !watched.finished.load(Ordering::Relaxed));
        loops.iter().map(|watched| watched.state(now_ms)).collect()
    }

    #[must_use]
    pub fn stalled(&self) -> Vec<LoopState> {
        self.loops().into_iter().filter(LoopState::is_stalled).collect()
    }
}

impl WatchedLoop {
    fn state(&self, now_ms: u64) -> LoopState {
        // Another thread may have advanced the loop after `now_ms` was read.
        let age_ms = now_ms.saturating_sub(self.advanced_ms.load(Ordering::Relaxed));
        LoopState {
            name: self.name,
            age: Duration::from_millis(age_ms),
            gap_max: Duration::from_millis(self.gap_ms_max),
        }
    }
}

impl LoopHandle {
    pub fn advanced(&self) {
        self.watched.advanced_ms.store(millis(self.born.elapsed()), Ordering::Relaxed);
    }

    pub fn finished(self) {
        self.watched.finished.store(true, Ordering::Relaxed);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_stalls_after_its_maximum_gap() {
        let watched = WatchedLoop {
            name: "tick",
            gap_ms_max: 100,
            advanced_ms: AtomicU64::new(1_000),
            finished: AtomicBool::new(false),
        };
        assert!(!watched.state(1_100).is_stalled());
        assert!(watched.state(1_101).is_stalled());
        assert!(!watched.state(900).is_stalled(), "advanced while the probe was looking");
    }

    #[test]
    fn a_finished_loop_is_not_watched_but_a_dropped_one_is() {
        let progress = Progress::default();
        let draining = progress.register("tick", Duration::from_secs(60));
        let panicked = progress.register("lease", Duration::from_secs(60));
        draining.finished();
        drop(panicked);
        assert_eq!(progress.loops().iter().map(|state| state.name).collect::<Vec<_>>(), ["lease"]);
    }
}
