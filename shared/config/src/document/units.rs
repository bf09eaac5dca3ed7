//! Durations (`250ms`, `5s`, `1h`) and sizes (`64KiB`) as text.

use std::time::Duration;

const DURATIONS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    parse(text, &DURATIONS).map(Duration::from_millis)
}

#[must_use]
pub fn format_duration(duration: Duration) -> String {
    format(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), &DURATIONS, "ms")
}

#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    parse(text, &SIZES)
}

#[must_use]
pub fn format_size(bytes: u64) -> String {
    format(bytes, &SIZES, "B")
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    digits.parse::<u64>().ok()?.checked_mul(*factor)
}

fn format(value: u64, units: &[(&str, u64)], smallest: &str) -> String {
    match units.iter().find(|(_, factor)| value > 0 && value.is_multiple_of(*factor)) {
        Some((name, factor)) => format!("{}{name}", value / factor),
        None => format!("{value}{smallest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_survive_a_round_trip() {
        for text in ["250ms", "5s", "90s", "2m", "1h", "36h", "7d", "0ms"] {
            assert_eq!(parse_duration(text).map(format_duration).as_deref(), Some(text), "{text}");
        }
        for text in ["1B", "64KiB", "256MiB", "3GiB", "1025B"] {
            assert_eq!(parse_size(text).map(format_size).as_deref(), Some(text), "{text}");
        }
        assert_eq!(parse_duration("24h").map(format_duration).as_deref(), Some("1d"));
    }

    #[test]
    fn an_invalid_duration_is_rejected() {
        for text in
            ["", "5", "s", "5 weeks", "-5s", "1.5s", "5S", "99999999999999999999s", "9999999999999999999d", "½h"]
        {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
