//! Repairs JSON from other services, so that all readers can parse it. The call itself has succeeded, so the text is
//! repaired and not rejected.

use std::borrow::Cow;

use super::document::{Document, Value};
use super::error::JsonProblem;
use super::node::Kind;
use super::strings::{hex4, push_quoted};
use super::{Bounds, check};

/// If keys are equal, the last key is kept, because most readers do the same. Numbers keep all digits. `None` if `text`
/// is not JSON or is nested deeper than `depth_max`.
#[must_use]
pub fn repaired(text: &str, depth_max: usize) -> Option<Cow<'_, str>> {
    let bounds = Bounds { bytes_max: usize::MAX, depth_max };
    match check(text.as_bytes(), bounds) {
        Ok(()) => return Some(Cow::Borrowed(text)),
        Err(error) if !is_repairable(&error.problem) => return None,
        Err(_) => {}
    }
    let whole = with_whole_characters(text);
    match check(whole.as_bytes(), bounds) {
        Ok(()) => Some(whole),
        Err(error) if !matches!(error.problem, JsonProblem::DuplicateKey(_)) => None,
        Err(_) => {
            let (document, _) = Document::read(&whole, depth_max, depth_max);
            let mut written = String::with_capacity(whole.len());
            write(document.root()?, &mut written)?;
            check(written.as_bytes(), bounds).is_ok().then_some(Cow::Owned(written))
        }
    }
}

const fn is_repairable(problem: &JsonProblem) -> bool {
    matches!(problem, JsonProblem::DuplicateKey(_) | JsonProblem::LoneSurrogate)
}

fn with_whole_characters(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let unit = |at: usize| {
        let escape = bytes.get(at..)?.strip_prefix(b"\\u")?;
        hex4(escape)
    };
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += found;
        let next = match unit(at) {
            Some(0xD800..=0xDBFF) if unit(at + 6).is_some_and(|low| (0xDC00..=0xDFFF).contains(&low)) => at + 12,
            Some(0xD800..=0xDFFF) => {
                out.push_str(text.get(copied..at).unwrap_or_default());
                out.push_str("\\ufffd");
                copied = at + 6;
                copied
            }
            _ => at + 2,
        };
        at = next;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

fn write(value: Value<'_, '_>, to: &mut String) -> Option<()> {
    match value.kind() {
        Kind::Object => {
            let members: Vec<_> = value.members().collect();
            let last: std::collections::BTreeMap<&str, usize> =
                members.iter().enumerate().map(|(index, (key, _))| (key.as_ref(), index)).collect();
            to.push('{');
            let kept = members.iter().enumerate().filter(|(index, (key, _))| last.get(key.as_ref()) == Some(index));
            for (number, (_, (key, member))) in kept.enumerate() {
                if number > 0 {
                    to.push(',');
                }
                push_quoted(to, key);
                to.push(':');
                write(*member, to)?;
            }
            to.push('}');
        }
        Kind::Array => {
            to.push('[');
            for (number, item) in value.elements().enumerate() {
                if number > 0 {
                    to.push(',');
                }
                write(item, to)?;
            }
            to.push(']');
        }
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => to.push_str(value.text()?),
    }
    Some(())
}

/// Replaces only numbers beyond the range of doubles, because some readers reject such numbers.
#[must_use]
pub fn with_numbers_as_text(text: &str) -> Cow<'_, str> {
    replace_beyond(text, |number| format!("\"{number}\""))
}

/// Replaces only numbers beyond the range of doubles. Text that is not JSON is not repaired.
#[must_use]
pub fn replace_beyond(text: &str, with: impl Fn(&str) -> String) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if bytes.get(at) == Some(&b'\\') { 2 } else { 1 };
                }
                at += 1;
            }
            b'0'..=b'9' | b'-' => {
                let of_number = |b: &&u8| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let end = at + bytes.get(at..).unwrap_or_default().iter().take_while(of_number).count();
                let number = text.get(at..end).unwrap_or_default();
                if number.parse::<f64>().is_ok_and(f64::is_infinite) {
                    out.push_str(text.get(copied..at).unwrap_or_default());
                    out.push_str(&with(number));
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repair_fixes_only_lone_surrogates_and_duplicate_keys() {
        for (given, written) in [
            (r#"{"paid": true, "memo": "caf\ud83d"}"#, r#"{"paid": true, "memo": "caf\ufffd"}"#),
            (
                r#"["\udc00\ud83d\ude00\\ud83d\ud83d\ud83d\ude00"]"#,
                r#"["\ufffd\ud83d\ude00\\ud83d\ufffd\ud83d\ude00"]"#,
            ),
            (r#"{"\ud800":1}"#, r#"{"\ufffd":1}"#),
            (r#"{"a":1.10,"b":[{"c":1,"c":2}],"a":1e400}"#, r#"{"b":[{"c":2}],"a":1e400}"#),
            (r#"{"a":"\ud800","a":"\ud801"}"#, r#"{"a":"\ufffd"}"#),
            (r#"{"total": 1e400, "n": 0.10}"#, r#"{"total": 1e400, "n": 0.10}"#),
        ] {
            assert_eq!(repaired(given, 8).unwrap(), written);
        }
        for none in ["{\"a\":", "NaN", "[[[[[[[[[1]]]]]]]]]", "{} {}", "{\"a\":\"\\ud800\",}"] {
            assert_eq!(repaired(none, 8), None, "{none}");
        }
    }

    #[test]
    fn a_number_beyond_the_double_range_becomes_text() {
        assert_eq!(with_numbers_as_text(r#"[1e400,-1E999,1e5,"1e400"]"#), r#"["1e400","-1E999",1e5,"1e400"]"#);
        for same in ["", "-", "\"", "\"\\", "{\"a\":-", "nul", "[1,2]"] {
            assert!(matches!(with_numbers_as_text(same), Cow::Borrowed(_)), "{same}");
        }
    }

    proptest! {
        #[test]
        fn repaired_json_passes_the_strict_check(text in r#"(\{"[ab]":|\}|\[|\]|,|"\\\\ud8[0-9a-f]{2}"|"x"|:|1e400|[0-9]){0,20}"#) {
            if let Some(repaired) = repaired(&text, 8) {
                let bounds = Bounds { bytes_max: usize::MAX, depth_max: 8 };
                prop_assert!(check(repaired.as_bytes(), bounds).is_ok(), "{}", repaired);
            }
        }
    }
}
