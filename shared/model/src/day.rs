//! Calendar days of a time zone as half-open spans of time, `[start, end)`. Days are adjacent. A repeated midnight does
//! not begin a day twice, so that a budget is reset only once.

use chrono::{DateTime, Days, MappedLocalTime, NaiveDate, NaiveTime, TimeZone};
pub use chrono_tz::Tz;

use super::suggest;

/// Instants are clamped to the years 1 to 9999, so that arithmetic cannot overflow.
const NOW_MS_MIN: i64 = -62_135_596_800_000;
const NOW_MS_MAX: i64 = 253_402_300_799_999;

/// Maximum distance of local time from UTC (ms). No zone was ever further away.
const OFFSET_MS_MAX: i64 = 26 * 3_600_000;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not an IANA time zone such as UTC or America/New_York")]
pub struct UnknownZone {
    pub found: String,
    pub suggestion: Option<String>,
}

/// An IANA name such as `Europe/Berlin`; letter case matters.
pub fn zone(name: &str) -> Result<Tz, UnknownZone> {
    name.parse().map_err(|_| UnknownZone {
        found: name.to_owned(),
        suggestion: suggest::closest(name, chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name())),
    })
}

/// Returns `(start_ms, end_ms)` with `start <= now < end`. Takes about a microsecond; callers cache the result until
/// `end_ms`.
#[must_use]
pub fn day_bounds(now_ms: i64, zone: Tz) -> (i64, i64) {
    let now_ms = now_ms.clamp(NOW_MS_MIN, NOW_MS_MAX);
    let today = DateTime::from_timestamp_millis(now_ms).unwrap_or_default().with_timezone(&zone).date_naive();
    let tomorrow = next(today);
    // Clocks that step back over midnight show the old date again after the new day has begun.
    let today = if start(tomorrow, zone) <= now_ms { tomorrow } else { today };
    (start(today, zone), end(today, zone))
}

/// A zone that moves across the date line may skip a date. Then the day ends at the start of the next existing date.
fn end(date: NaiveDate, zone: Tz) -> i64 {
    let begun = start(date, zone);
    let after = next(date);
    let end = start(after, zone);
    if end > begun { end } else { start(next(after), zone) }
}

fn next(date: NaiveDate) -> NaiveDate {
    date.checked_add_days(Days::new(1)).unwrap_or(date)
}

/// If the zone skipped `date`, returns the start of the next existing date.
fn start(date: NaiveDate, zone: Tz) -> i64 {
    match zone.from_local_datetime(&date.and_time(NaiveTime::MIN)) {
        MappedLocalTime::Single(at) | MappedLocalTime::Ambiguous(at, _) => at.timestamp_millis(),
        MappedLocalTime::None => after_gap(date, zone),
    }
}

/// Returns the start of `date` if a clock jump skipped its midnight.
fn after_gap(date: NaiveDate, zone: Tz) -> i64 {
    let midnight = date.and_time(NaiveTime::MIN).and_utc().timestamp_millis();
    let begun =
        |ms: i64| DateTime::from_timestamp_millis(ms).is_none_or(|at| at.with_timezone(&zone).date_naive() >= date);
    // The span contains one clock jump. The local date reaches `date` at the jump.
    let mut before = midnight - OFFSET_MS_MAX;
    let mut after = midnight + OFFSET_MS_MAX;
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        if begun(middle) { after = middle } else { before = middle }
    }
    after
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    use chrono_tz::TZ_VARIANTS;
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = 3_600_000;

    fn ms(text: &str) -> i64 {
        DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()
    }

    fn hours(now: &str, name: &str) -> i64 {
        let (start, end) = day_bounds(ms(now), zone(name).unwrap());
        assert_eq!((end - start) % HOUR, 0);
        (end - start) / HOUR
    }

    #[test]
    fn a_utc_day_begins_at_midnight() {
        let day = (ms("2026-11-21T00:00:00Z"), ms("2026-11-22T00:00:00Z"));
        for now in ["2026-11-21T00:00:00Z", "2026-11-21T12:34:56Z", "2026-11-21T23:59:59.999Z"] {
            assert_eq!(day_bounds(ms(now), Tz::UTC), day, "{now}");
        }
        assert_eq!(day_bounds(day.1, Tz::UTC).0, day.1);
    }

    #[test]
    fn days_have_23_and_25_hours_when_clocks_change() {
        assert_eq!(hours("2026-03-08T12:00:00Z", "America/New_York"), 23);
        assert_eq!(hours("2026-11-01T12:00:00Z", "America/New_York"), 25);
        assert_eq!(hours("2026-03-29T12:00:00Z", "Europe/Berlin"), 23);
        assert_eq!(hours("2026-11-21T12:00:00Z", "America/New_York"), 24);
    }

    #[test]
    fn a_day_without_midnight_begins_at_its_first_instant() {
        // São Paulo's clocks jumped from 2018-11-03 24:00 to 2018-11-04 01:00.
        let (start, end) = day_bounds(ms("2018-11-04T12:00:00Z"), zone("America/Sao_Paulo").unwrap());
        assert_eq!((start, end), (ms("2018-11-04T01:00:00-02:00"), ms("2018-11-05T00:00:00-02:00")));
    }

    #[test]
    fn a_skipped_date_belongs_to_no_day() {
        // Samoa went from 2011-12-29 24:00 -10 straight to 2011-12-31 00:00 +14.
        let apia = zone("Pacific/Apia").unwrap();
        let jump = ms("2011-12-31T00:00:00+14:00");
        assert_eq!(day_bounds(jump - 1, apia), (ms("2011-12-29T00:00:00-10:00"), jump));
        assert_eq!(day_bounds(jump, apia), (jump, ms("2012-01-01T00:00:00+14:00")));
    }

    #[test]
    fn a_repeated_midnight_does_not_begin_a_day_twice() {
        // In St. John's, clocks stepped back from 00:01 to 23:01 of the previous evening.
        let name = "America/St_Johns";
        let start = ms("2006-10-29T00:00:00-02:30");
        let again = ms("2006-10-28T23:30:00-03:30");
        assert!(again > start);
        assert_eq!(day_bounds(again, zone(name).unwrap()).0, start);
        assert_eq!(hours("2006-10-29T12:00:00Z", name), 25);
    }

    #[test]
    fn extreme_instants_do_not_panic() {
        for now in [i64::MIN, i64::MAX, NOW_MS_MIN, NOW_MS_MAX, 0] {
            for zone in [Tz::UTC, Tz::Pacific__Apia, Tz::America__New_York] {
                let (start, end) = day_bounds(now, zone);
                assert!(start < end);
            }
        }
    }

    #[test]
    fn a_misspelled_zone_suggests_the_intended_one() {
        assert_eq!(zone("Europe/Berlin").unwrap(), Tz::Europe__Berlin);
        assert_eq!(zone("america/new-york").unwrap_err().suggestion.as_deref(), Some("America/New_York"));
        assert_eq!(zone("Mars/Olympus").unwrap_err().suggestion, None);
    }

    #[test]
    fn consecutive_days_of_seventy_years_abut_and_last_22_to_26_hours() {
        let from = ms("1970-01-05T00:00:00Z");
        let to = ms("2040-01-01T00:00:00Z");
        for zone in TZ_VARIANTS.iter().step_by(60).chain(&[Tz::Pacific__Apia, Tz::Pacific__Kwajalein]) {
            let (mut start, mut end) = day_bounds(from, *zone);
            while end < to {
                assert!((22 * HOUR..=26 * HOUR).contains(&(end - start)), "{zone} {start}..{end}");
                let next = day_bounds(end, *zone);
                assert_eq!(next.0, end, "{zone}: the day after {start} does not begin where that one ends");
                (start, end) = next;
            }
        }
    }

    proptest! {
        #[test]
        fn now_lies_in_its_day_and_days_abut(
            now in ms("1850-01-01T00:00:00Z")..ms("2100-01-01T00:00:00Z"),
            index in 0..TZ_VARIANTS.len(),
        ) {
            let zone = TZ_VARIANTS[index];
            let (start, end) = day_bounds(now, zone);
            prop_assert!(start <= now && now < end, "{zone} {now}: {start}..{end}");
            prop_assert_eq!(day_bounds(start, zone), (start, end));
            prop_assert_eq!(day_bounds(end - 1, zone), (start, end));
            prop_assert_eq!(day_bounds(end, zone).0, end);
            prop_assert_eq!(day_bounds(start - 1, zone).1, start);
            // If a zone moves westward across the date line, one date lasts for two rotations of the Earth.
            let hours = (end - start) as f64 / HOUR as f64;
            prop_assert!((22.0..=26.0).contains(&hours) || (46.0..=50.0).contains(&hours), "{zone} {now}: {hours} h");
        }
    }
}
