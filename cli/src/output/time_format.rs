//! Parses times that people write, and formats times for people.

use std::time::Duration;

use chrono::DateTime;
use tickfleet_config::units::parse_duration;

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// In milliseconds since the epoch.
    At(i64),
    /// In milliseconds from now.
    In(i64),
}

impl Deadline {
    /// `2026-03-01T12:00:00Z` or `90s`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(duration) = parse_duration(text) {
            return Ok(Self::In(millis(duration)));
        }
        DateTime::parse_from_rfc3339(text)
            .map(|time| Self::At(time.timestamp_millis()))
            .map_err(|_| "expected a duration (90s, 2h) or a time (2026-03-01T12:00:00Z)".into())
    }

    /// In milliseconds since the epoch. `now_ms` is shard time.
    pub(crate) const fn at(self, now_ms: i64) -> i64 {
        match self {
            Self::At(ms) => ms,
            Self::In(ms) => now_ms.saturating_add(ms),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeArg {
    /// In milliseconds since the epoch.
    At(i64),
    /// In milliseconds before now.
    Ago(i64),
}

impl TimeArg {
    /// `2026-03-01T12:00:00Z`, or `2h` for two hours ago.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match Deadline::parse(text) {
            Ok(Deadline::At(ms)) => Ok(Self::At(ms)),
            Ok(Deadline::In(ms)) => Ok(Self::Ago(ms)),
            Err(_) => Err("expected a time (2026-03-01T12:00:00Z), or how long ago (90s, 2h)".into()),
        }
    }

    /// In milliseconds since the epoch.
    pub(crate) const fn at(self, now_ms: i64) -> i64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ms) => now_ms.saturating_sub(ms),
        }
    }
}

/// `2026-03-01 12:00:00.123 UTC`
pub(crate) fn clock(ms: i64) -> String {
    DateTime::from_timestamp_millis(ms).unwrap_or_default().format("%Y-%m-%d %H:%M:%S%.3f UTC").to_string()
}

/// `2026-03-01 12:00`, in UTC.
pub(crate) fn stamp(ms: i64) -> String {
    DateTime::from_timestamp_millis(ms).map_or_else(|| "-".into(), |time| time.format("%Y-%m-%d %H:%M").to_string())
}

/// `850 ms`, `4.2 s`, `3 min 20 s`, `5 h 10 min`, `2 days`
pub(crate) fn span(ms: i64) -> String {
    let ms = ms.max(0);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
        3_600_000..172_800_000 => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
        _ => format!("{} days", ms / 86_400_000),
    }
}

/// `in 4.2 s`, `4.2 s ago`
pub(crate) fn from_now(at_ms: i64, now_ms: i64) -> String {
    if at_ms >= now_ms { format!("in {}", span(at_ms - now_ms)) } else { format!("{} ago", span(now_ms - at_ms)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_durations_and_as_times() {
        assert_eq!(Deadline::parse("90s").map(|d| d.at(10_000)), Ok(100_000));
        assert_eq!(Deadline::parse("1970-01-01T00:00:05Z").map(|d| d.at(10_000)), Ok(5_000));
        assert!(Deadline::parse("tomorrow").is_err());
        assert_eq!(TimeArg::parse("90s").map(|past| past.at(100_000)), Ok(10_000));
        assert_eq!(TimeArg::parse("1970-01-01T00:00:05Z").map(|past| past.at(0)), Ok(5_000));
    }

    #[test]
    fn durations_are_human_readable_at_every_size() {
        let said = [7, 4_230, 61_000, 3_660_000, 260_000_000].map(span);
        assert_eq!(said, ["7 ms", "4.2 s", "1 min 1 s", "1 h 1 min", "3 days"]);
        assert_eq!([from_now(5_000, 1_000), from_now(1_000, 5_000)], ["in 4.0 s", "4.0 s ago"]);
    }
}
