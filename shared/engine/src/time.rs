//! Points in time as results and replies show them.

/// A time for people and programs: RFC 3339 in UTC, to the second.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}
