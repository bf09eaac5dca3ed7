//! Reads the rate limits that a provider reports. The provider is not asked until a used-up limit resets.

use std::time::Duration;

use chrono::DateTime;
use reqwest::header::HeaderMap;

const LEFT_AND_RESET: [(&str, &str); 4] = [
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
];

/// Returns the longest time until a used-up limit resets.
pub(crate) fn used_up(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let of = |(left, reset): &(&str, &str)| {
        text(left).filter(|left| *left == "0")?;
        let reset = text(reset)?;
        // Compares with the provider's own clock, in the `Date` header.
        let until = || {
            let reset = DateTime::parse_from_rfc3339(reset).ok()?;
            let date = text("date")?;
            (reset - DateTime::parse_from_rfc2822(date).ok()?).to_std().ok()
        };
        length(reset).or_else(until)
    };
    LEFT_AND_RESET.iter().filter_map(of).max()
}

/// Parses `1s`, `6m0s`, `120ms`, or a number of seconds.
fn length(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let number: f64 = rest[..unit_at].parse().ok()?;
        let behind = &rest[unit_at..];
        let number_at = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        seconds += number
            * match &behind[..number_at] {
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                _ => return None,
            };
        rest = &behind[number_at..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        given.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn an_exhausted_rate_limit_returns_the_time_until_its_reset() {
        let requests = |reset| [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", reset)];
        for (reset, ms) in [("1s", 1_000), ("6m0s", 360_000), ("120ms", 120), ("1h2m3.5s", 3_723_500), ("7", 7_000)] {
            assert_eq!(used_up(&headers(&requests(reset))), Some(Duration::from_millis(ms)), "{reset}");
        }
        for odd in ["soon", "-1s", "5d", "s", "1e400s"] {
            assert_eq!(used_up(&headers(&requests(odd))), None, "{odd}");
        }
        let anthropic = [
            ("anthropic-ratelimit-tokens-remaining", "0"),
            ("anthropic-ratelimit-tokens-reset", "2026-01-05T00:00:09Z"),
            ("date", "Mon, 05 Jan 2026 00:00:02 GMT"),
        ];
        assert_eq!(used_up(&headers(&anthropic)), Some(Duration::from_secs(7)));
        let left = [("x-ratelimit-remaining-requests", "1"), ("x-ratelimit-reset-requests", "1s")];
        assert_eq!(used_up(&headers(&left)), None);
    }
}
