use tickfleet_core::CounterKey;
use tickfleet_core::turn::limit::{ResolvedLimit, WindowKind};
use tickfleet_model::day::{Tz, zone};

use crate::time::counter_stagger_ms;

/// Returns the counter and the offset (ms) of its windows. The offset is shorter than a window. It is 0 for windows
/// without a fixed length.
#[must_use]
pub fn counter_of(resolved: &ResolvedLimit, key: &str) -> (CounterKey, i64) {
    let stagger_ms = match resolved.window {
        WindowKind::Fixed { length_ms } => counter_stagger_ms(&resolved.name, key, length_ms),
        WindowKind::Day { .. } | WindowKind::Rolling { .. } | WindowKind::Concurrency | WindowKind::Total => 0,
    };
    (CounterKey::new(&*resolved.name, key), stagger_ms)
}

/// The configuration's check has ruled out unknown names.
#[must_use]
pub fn known_zone(name: &str) -> Tz {
    zone(name).unwrap_or(Tz::UTC)
}
