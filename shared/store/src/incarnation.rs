//! Names of consumers, new for each start of a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tickfleet_model::ConsumerId;

/// No name is used twice. If two processes shared a name, the fleet would not detect the death of one process.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the edge: the start's time makes the name of an incarnation unique")]
pub fn incarnation(kind: &str, name: &str) -> ConsumerId {
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let start = STARTS.fetch_add(1, Ordering::Relaxed);
    let plain: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).take(40).collect();
    let pid = std::process::id();
    // All parts are within the bounds of an ID, so the fallback is never used.
    let id = ConsumerId::new(format!("{kind}-{plain}-{pid:x}-{since:x}-{start}"));
    id.or_else(|_| ConsumerId::new(format!("{kind}-{since:x}-{start}"))).unwrap_or_else(|_| unreachable_name())
}

/// All starts of a worker share this name, in all shards. `None` if the consumer is not a worker.
#[must_use]
pub fn worker_of(consumer: &str) -> Option<&str> {
    let (rest, start) = consumer.rsplit_once('-')?;
    let (worker, since) = rest.rsplit_once('-')?;
    let is_start = !start.is_empty() && start.bytes().all(|b| b.is_ascii_digit());
    let is_since = !since.is_empty() && since.bytes().all(|b| b.is_ascii_hexdigit());
    let is_worker = worker.strip_prefix("w-").is_some_and(|name| !name.is_empty());
    (is_start && is_since && is_worker).then_some(worker)
}

#[allow(clippy::expect_used, reason = "a constant that its test checks")]
fn unreachable_name() -> ConsumerId {
    ConsumerId::new("unnamed").expect("a well-formed constant")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn starts_of_a_worker_share_its_worker_name() {
        let starts = [0, 1].map(|_| incarnation("w", "pod-7.a"));
        let workers = starts.each_ref().map(|start| worker_of(start.as_str()).unwrap());
        assert_eq!(workers[0], workers[1]);
        assert_eq!(workers[0], format!("w-pod-7.a-{:x}", std::process::id()));
        for none in ["s-pod-7-62f0a-1", "w-62f0a-1", "w-pod", "w--62f0a-1", "w-pod-x-1", ""] {
            assert_eq!(worker_of(none), None, "{none}");
        }
    }
}
