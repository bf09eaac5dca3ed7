/// Formats a time in UTC, to the second. `ms` is a time since the epoch.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

/// Returns an offset smaller than `period_ms`. The offset is a stable hash, so that the windows of different counters
/// do not all begin at the same moment.
#[must_use]
pub fn counter_stagger_ms(limit: &str, counter: &str, period_ms: i64) -> i64 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(limit.as_bytes());
    hash.update(b"@");
    hash.update(counter.as_bytes());
    i64::from(hash.finalize()) % period_ms.max(1)
}
