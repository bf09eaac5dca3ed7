//! Names of consumers, one for each start of each process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tickfleet_model::ConsumerId;

/// A fresh consumer name: what kind of process, which one, and which start of it. Never used twice, for a name
/// that two processes share hides the death of either.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the edge: the start's time makes the name of an incarnation unique")]
pub fn incarnation(kind: &str, name: &str) -> ConsumerId {
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let start = STARTS.fetch_add(1, Ordering::Relaxed);
    let plain: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).take(40).collect();
    let pid = std::process::id();
    // All parts are within the bounds of an id; the fallback only spares a panic.
    let id = ConsumerId::new(format!("{kind}-{plain}-{pid:x}-{since:x}-{start}"));
    id.or_else(|_| ConsumerId::new(format!("{kind}-{since:x}-{start}"))).unwrap_or_else(|_| unreachable_name())
}

#[allow(clippy::expect_used, reason = "a constant that its test checks")]
fn unreachable_name() -> ConsumerId {
    ConsumerId::new("unnamed").expect("a well-formed constant")
}
