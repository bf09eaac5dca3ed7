//! Limits repeated log lines. While Redis is unavailable, every loop of every process would log the same line twenty
//! times a second.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// Minimum time between two equal warnings or errors in the log.
const EVERY: Duration = Duration::from_secs(10);
/// The code has far fewer log statements.
const REMEMBERED_MAX: usize = 4_096;

/// Passes the first of several equal warnings or errors, and then one per [`EVERY`]. Lines of lower levels always
/// pass.
#[derive(Debug, Default)]
pub(super) struct RepeatFilter {
    seen: Mutex<HashMap<u64, Instant>>,
}

impl RepeatFilter {
    fn is_news(&self, line: u64, now: Instant) -> bool {
        let mut seen = self.seen.lock();
        if seen.get(&line).is_some_and(|last| now.duration_since(*last) < EVERY) {
            return false;
        }
        if seen.len() >= REMEMBERED_MAX {
            seen.retain(|_, last| now.duration_since(*last) < EVERY);
            // Repeated lines are better than unbounded memory.
            if seen.len() >= REMEMBERED_MAX {
                seen.clear();
            }
        }
        seen.insert(line, now);
        true
    }
}

struct LineHasher(DefaultHasher);

impl Visit for LineHasher {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        field.name().hash(&mut self.0);
        format!("{value:?}").hash(&mut self.0);
    }
}

impl<S: Subscriber> Filter<S> for RepeatFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let mut line = LineHasher(DefaultHasher::new());
        event.metadata().callsite().hash(&mut line.0);
        event.record(&mut line);
        self.is_news(line.0.finish(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    struct Counting(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Counting {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn equal_warnings_are_logged_once_per_ten_seconds() {
        let lines = Arc::new(AtomicUsize::new(0));
        let subscriber =
            tracing_subscriber::registry().with(Counting(lines.clone()).with_filter(RepeatFilter::default()));
        let _default = tracing::subscriber::set_default(subscriber);
        let warn = |error: &str| tracing::warn!(error, "failed to fire timers");
        for _ in 0..20 {
            warn("OOM");
        }
        assert_eq!(lines.load(Ordering::Relaxed), 1);
        warn("no answer");
        assert_eq!(lines.load(Ordering::Relaxed), 2, "another line");
        tokio::time::advance(EVERY).await;
        warn("OOM");
        assert_eq!(lines.load(Ordering::Relaxed), 3, "it still is so");
        for _ in 0..3 {
            tracing::info!("policy in force");
        }
        assert_eq!(lines.load(Ordering::Relaxed), 6, "what is no trouble is not held back");
    }

    #[test]
    fn remembered_warnings_are_bounded() {
        let repeats = RepeatFilter::default();
        let now = Instant::now();
        for line in 0..3 * REMEMBERED_MAX as u64 {
            assert!(repeats.is_news(line, now));
        }
        assert!(repeats.seen.lock().len() <= REMEMBERED_MAX);
    }
}
