/// UTC, to the second. `ms` is the time since the epoch.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

/// Smaller than `period_ms`. A stable hash keeps the windows of different counters from beginning at the same moment.
#[must_use]
pub fn counter_stagger_ms(limit: &str, counter: &str, period_ms: i64) -> i64 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(limit.as_bytes());
    hash.update(b"@");
    hash.update(counter.as_bytes());
    i64::from(hash.finalize()) % period_ms.max(1)
}
