//! Preserves numbers that the protocol library would round. Before parsing, each long number becomes a text with a
//! secret mark. In the output, each such text becomes the original number again.

use std::borrow::Cow;
use std::sync::OnceLock;

use ring::rand::{SecureRandom, SystemRandom};
use serde::de::IgnoredAny;
use tickfleet_model::hex;
use tickfleet_model::redaction::string_end;

/// A fraction with at most this many digits is always exact.
const DIGITS_EXACT: usize = 15;

fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| {
        let mut bytes = [0_u8; 16];
        // Without random bytes, senders could guess the mark. Their texts would become numbers, which is harmless.
        let _ = SystemRandom::new().fill(&mut bytes);
        format!("tickfleet-number-{}", hex(&bytes))
    })
}

pub(super) fn guarded(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let mut guarded = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at),
            b'0'..=b'9' | b'-' => {
                let of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let end = at + bytes[at..].iter().take_while(of_number).count();
                let number = &json[at..end];
                if is_rounded(number) {
                    guarded.push_str(&json[copied..at]);
                    guarded.extend(["\"", mark(), number, "\""]);
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    guarded.push_str(&json[copied..]);
    Cow::Owned(guarded)
}

pub(super) fn restored(json: &str) -> Cow<'_, str> {
    let mut restored = String::new();
    let mut left = json;
    while let Some(found) = left.find(mark()) {
        let after = &left[found + mark().len()..];
        let end = after.find('"').unwrap_or(after.len());
        let is_whole = left[..found].ends_with('"') && is_number(&after[..end]) && after[end..].starts_with('"');
        if is_whole {
            restored.push_str(&left[..found - 1]);
            restored.push_str(&after[..end]);
            left = &after[end + 1..];
        } else {
            restored.push_str(&left[..found + mark().len()]);
            left = after;
        }
    }
    if restored.is_empty() {
        return Cow::Borrowed(json);
    }
    restored.push_str(left);
    Cow::Owned(restored)
}

fn is_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn is_rounded(number: &str) -> bool {
    if !is_number(number) {
        return false;
    }
    if !number.contains(['.', 'e', 'E']) {
        return number.parse::<i64>().is_err() && number.parse::<u64>().is_err();
    }
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let significant = digits.trim_matches('0').len();
    let value = number.parse::<f64>().unwrap_or(f64::INFINITY);
    significant > DIGITS_EXACT || !value.is_finite() || (value == 0.0 && significant > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::Value;

    use super::*;

    #[test]
    fn oversized_numbers_keep_every_digit_and_others_are_unchanged() {
        let json = r#"{"a":123456789012345678901234567890,"b":[-1180591620717411303424,0.12345678901234567890123,1e400],"c":"1180591620717411303424 \" 1e400"}"#;
        let guarded = guarded(json);
        let value: Value = serde_json::from_str(&guarded).unwrap();
        assert_eq!(restored(&value.to_string()), json);
        for same in [
            r#"{"a":18446744073709551615,"b":-9223372036854775808,"c":1.5,"d":2e10,"e":0.0}"#,
            "[1e,--1,01,1180591620717411303424x",
            "\"1180591620717411303424",
        ] {
            let got = super::guarded(same);
            assert!(matches!(got, Cow::Borrowed(_)) || same.ends_with('x'), "{same}: {got}");
        }
    }

    #[test]
    fn a_marker_inside_other_text_is_unchanged() {
        for text in [format!("{{\"a\":\"x{}12\"}}", mark()), format!("{{\"a\":\"{}1x\"}}", mark()), mark().to_owned()] {
            assert_eq!(restored(&text), text);
        }
    }
}
