//! The notes of a turn's log: one for each admission, for each try that failed and for each row of rests, in one field of the record. The
//! finished record keeps the log in its first line, so a note has neither blanks nor the log's own separators.

use std::fmt::Write as _;

pub use tickfleet_model::AdmissionNote;

/// Bytes of a cause that are noted.
const CAUSE_BYTES_MAX: usize = 160;

/// A try that failed and was made again later.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FailedTry {
    /// When it had failed, ms of shard time.
    pub at_ms: i64,
    /// Position of the call.
    pub position: usize,
    /// The number of the try, from 1; 0 for a question about a call that was begun, which is no try of it.
    pub attempt: u32,
    /// The time by which the next one was put off, ms.
    pub delay_ms: i64,
    /// Why it failed; the beginning where that is long.
    pub cause: String,
}

impl FailedTry {
    /// Reads the notes of a log: `R<now>,<position>,<try>,<delay>,<cause>`, which `retry.lua` writes; entries are
    /// separated by `;`, and those of another kind are left out.
    #[must_use]
    pub fn read_all(log: &str) -> Vec<Self> {
        log.split(';').filter_map(Self::read).collect()
    }

    fn read(entry: &str) -> Option<Self> {
        let mut parts = entry.strip_prefix('R')?.splitn(5, ',');
        // Lua writes large numbers as floats.
        let mut number = || parts.next()?.parse::<f64>().ok().map(|number| number as i64);
        let [at_ms, position, attempt, delay_ms] = [number()?, number()?, number()?, number()?];
        Some(Self {
            at_ms,
            position: usize::try_from(position).ok()?,
            attempt: u32::try_from(attempt).ok()?,
            delay_ms,
            cause: unescaped(parts.next().unwrap_or_default()),
        })
    }
}

/// A call was not sent, for its tool rested: once, or several times in a row.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RestNote {
    /// Since when, ms of shard time.
    pub at_ms: i64,
    /// Position of the call.
    pub position: usize,
    /// How many times in a row it was looked at, and not sent.
    pub times: u32,
    /// Until when it rested last, ms of shard time.
    pub until_ms: i64,
    /// Why the tool rested.
    pub why: String,
}

impl RestNote {
    /// Reads the notes of a log: `B<since>,<position>,<times>,<until>,<why>`, which `rest.lua` writes; entries are separated
    /// by `;`, and those of another kind are left out.
    #[must_use]
    pub fn read_all(log: &str) -> Vec<Self> {
        log.split(';').filter_map(Self::read).collect()
    }

    /// The rest that is the last thing that the log tells: nothing was tried since.
    #[must_use]
    pub fn last_of(log: &str) -> Option<Self> {
        Self::read(log.rsplit(';').next()?)
    }

    fn read(entry: &str) -> Option<Self> {
        let mut parts = entry.strip_prefix('B')?.splitn(5, ',');
        // Lua writes large numbers as floats.
        let mut number = || parts.next()?.parse::<f64>().ok().map(|number| number as i64);
        let [at_ms, position, times, until_ms] = [number()?, number()?, number()?, number()?];
        let why = unescaped(parts.next().unwrap_or_default());
        Some(Self {
            at_ms,
            position: usize::try_from(position).ok()?,
            times: u32::try_from(times).ok()?,
            until_ms,
            why,
        })
    }
}

/// A cause as a log holds it: its beginning, with what separates notes and fields written as `%XX`.
pub(crate) fn noted(cause: &str) -> String {
    let mut end = cause.len().min(CAUSE_BYTES_MAX);
    while !cause.is_char_boundary(end) {
        end -= 1;
    }
    let mut text = String::with_capacity(end + 16);
    for byte in cause[..end].bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'%' | b',' | b';') {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notes_stand_among_admissions_and_odd_ones_are_left_out() {
        let log =
            "A1000,10,10,10,5000,10,100;R1200,3,1,1000,no%20answer%2C%20%C3%A9;R1,2;Rx,1,1,1,y;A5000.0,2,2,10,1,1,1";
        let first = FailedTry { at_ms: 1_200, position: 3, attempt: 1, delay_ms: 1_000, cause: "no answer, é".into() };
        assert_eq!(FailedTry::read_all(log), [first]);
        assert_eq!(FailedTry::read_all("R1.5e3,0,2,3000,")[0].at_ms, 1_500);
    }

    #[test]
    fn a_rest_is_the_last_thing_told_until_something_is_tried() {
        let log = "A1000,1,1,10,5000,1,100;B1200,0,3,31200,lookup%20failed%205%20times%20in%20a%20row";
        let why = "lookup failed 5 times in a row".to_owned();
        let rest = RestNote { at_ms: 1_200, position: 0, times: 3, until_ms: 31_200, why };
        assert_eq!((RestNote::read_all(log), RestNote::last_of(log)), (vec![rest.clone()], Some(rest)));
        assert_eq!(RestNote::last_of(&format!("{log};R40000,0,1,1000,no%20answer")), None);
        assert_eq!((RestNote::read_all("B1,2"), RestNote::last_of("")), (Vec::new(), None));
    }

    proptest! {
        #[test]
        fn any_cause_comes_back_up_to_its_bound(cause in any::<String>(), more in "[é%,; \n]{0,200}") {
            let cause = format!("{cause}{more}");
            let text = noted(&cause);
            prop_assert!(!text.contains([' ', ',', ';', '\n']) && text.is_ascii());
            let back = unescaped(&text);
            prop_assert!(cause.starts_with(&back) && (back.len() == cause.len() || back.len() > CAUSE_BYTES_MAX - 4));
        }
    }
}
