//! An approver may change only certain arguments of a call, and only to narrower values.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use crate::tool::effect_key::{at, canonical};

/// JSON pointer → value.
pub type NarrowedValues = BTreeMap<String, Box<RawValue>>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NarrowError {
    #[error("the arguments of the call cannot be read")]
    Unreadable,
    #[error("the call has no argument at '{0}'")]
    Absent(String),
    #[error("the argument at '{pointer}' may not be changed; {may}")]
    NotAllowed { pointer: String, may: String },
    #[error(
        "the argument at '{pointer}' may only become narrower, but {found} is not narrower than {was}: expected a \
         number between 0 and the requested one, or a list or object with fewer members"
    )]
    Wider {
        pointer: String,
        /// Cut if too long for the message.
        was: String,
        /// Cut if too long for the message.
        found: String,
    },
}

/// Each pointer must be in `may` and in the call. A number may move toward 0, and a list or object may lose members.
/// All other text stays exactly as written.
pub fn narrow(arguments: &str, may: &BTreeSet<String>, values: &NarrowedValues) -> Result<String, NarrowError> {
    let mut text = arguments.trim().to_owned();
    for (pointer, value) in values {
        if !may.contains(pointer) {
            return Err(not_allowed(pointer.clone(), may));
        }
        let whole: &RawValue = serde_json::from_str(&text).map_err(|_| NarrowError::Unreadable)?;
        let found = at(whole, pointer).ok_or_else(|| NarrowError::Absent(pointer.clone()))?;
        if !is_narrower(found.get(), value.get()) {
            let was = shown(found.get());
            let found = shown(value.get());
            return Err(NarrowError::Wider { pointer: pointer.clone(), was, found });
        }
        // `found` is a slice of the text, so the difference of the addresses is the offset.
        let begins = found.get().as_ptr().addr().wrapping_sub(text.as_ptr().addr());
        let ends = begins.wrapping_add(found.get().len());
        let (Some(before), Some(behind)) = (text.get(..begins), text.get(ends..)) else {
            return Err(NarrowError::Unreadable);
        };
        text = [before, value.get(), behind].concat();
    }
    Ok(text)
}

/// Numbers are compared as exact decimals, and objects regardless of member order.
#[must_use]
pub fn is_same(one: &RawValue, other: &RawValue) -> bool {
    canonical(one).is_some_and(|one| canonical(other) == Some(one))
}

fn not_allowed(pointer: String, may: &BTreeSet<String>) -> NarrowError {
    let names: Vec<&str> = may.iter().map(String::as_str).collect();
    let may = if names.is_empty() { "nothing may".to_owned() } else { format!("these may: {}", names.join(", ")) };
    NarrowError::NotAllowed { pointer, may }
}

fn shown(value: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut shown: String = value.trim().chars().take(CHARS_MAX).collect();
    if shown.len() < value.trim().len() {
        shown.push('…');
    }
    shown
}

/// Equal values count as narrower.
fn is_narrower(was: &str, now: &str) -> bool {
    let was = was.trim();
    let now = now.trim();
    if was == now {
        return true;
    }
    match (was.as_bytes().first(), now.as_bytes().first()) {
        (Some(b'['), Some(b'[')) => {
            let (Ok(was), Ok(now)) = (list(was), list(now)) else { return false };
            // The remaining members must be in the same order.
            let mut left = was.iter();
            now.iter().all(|now| left.any(|was| is_same(was, now)))
        }
        (Some(b'{'), Some(b'{')) => {
            let (Ok(was), Ok(now)) = (object(was), object(now)) else { return false };
            now.iter().all(|(name, now)| was.get(name).is_some_and(|was| is_same(was, now)))
        }
        // Some callers write amounts as strings to prevent rounding.
        (Some(b'"'), Some(b'"')) => match (serde_json::from_str::<String>(was), serde_json::from_str::<String>(now)) {
            (Ok(was), Ok(now)) => was == now || is_less(&was, &now),
            _ => false,
        },
        _ => is_less(was, now),
    }
}

fn list(text: &str) -> serde_json::Result<Vec<&RawValue>> {
    serde_json::from_str(text)
}

fn object(text: &str) -> serde_json::Result<BTreeMap<String, &RawValue>> {
    serde_json::from_str(text)
}

fn is_less(was: &str, now: &str) -> bool {
    match (WrittenNumber::of(was), WrittenNumber::of(now)) {
        (Some(was), Some(now)) => {
            let is_zero = now.digits.is_empty();
            is_zero || now.negative == was.negative && (now.magnitude, &now.digits) <= (was.magnitude, &was.digits)
        }
        _ => false,
    }
}

/// `digits` has no leading or trailing zeros. `magnitude` is the power of ten of the first digit.
struct WrittenNumber {
    negative: bool,
    magnitude: i64,
    digits: String,
}

impl WrittenNumber {
    fn of(text: &str) -> Option<Self> {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse().ok()?;
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = [whole, fraction].concat();
        let significant = digits.trim_start_matches('0');
        if significant.is_empty() {
            return Some(Self { negative, magnitude: i64::MIN, digits: String::new() });
        }
        let zeros = digits.len() - significant.len();
        let magnitude = i64::try_from(whole.len()).ok()? - i64::try_from(zeros).ok()? + i64::from(exponent);
        Some(Self { negative, magnitude, digits: significant.trim_end_matches('0').to_owned() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const CALL: &str = r#" {"amount": 12345678901234567890.10, "to": {"name": "kim", "iban":"x"}, "lines": [1, 2]} "#;

    fn may(pointers: &[&str]) -> BTreeSet<String> {
        pointers.iter().map(ToString::to_string).collect()
    }

    fn values(pairs: &[(&str, &str)]) -> NarrowedValues {
        pairs.iter().map(|(at, value)| ((*at).to_owned(), serde_json::from_str(value).unwrap())).collect()
    }

    #[test]
    fn narrowing_changes_allowed_arguments_and_keeps_other_text() {
        let allowed = may(&["/amount", "/to/name", "/lines/1", "/to"]);
        let narrowed = |pairs: &[(&str, &str)]| narrow(CALL, &allowed, &values(pairs)).unwrap();
        assert_eq!(narrowed(&[]), CALL.trim());
        assert_eq!(
            narrowed(&[("/lines/1", "1.50"), ("/to/name", "\"kim\"")]),
            r#"{"amount": 12345678901234567890.10, "to": {"name": "kim", "iban":"x"}, "lines": [1, 1.50]}"#
        );
        assert_eq!(
            narrowed(&[("/amount", "4"), ("/to", r#"{"name":"kim"}"#)]),
            r#"{"amount": 4, "to": {"name":"kim"}, "lines": [1, 2]}"#
        );
    }

    #[test]
    fn a_value_may_only_become_narrower() {
        for (was, now) in [
            ("700", "700"),
            ("700", "0"),
            ("700", "699.99"),
            ("700", "7e2"),
            ("-700", "-1"),
            ("12345678901234567890.10", "12345678901234567890.09"),
            ("1e400", "5e399"),
            (r#""700.00""#, r#""650""#),
            ("[1, 2, 3]", "[1,3]"),
            ("[1, 2, 3]", "[]"),
            (r#"[{"id": 1, "n": 5}, {"id": 2, "n": 5}]"#, r#"[{"n": 5, "id": 2}]"#),
            (r#"{"a": 1, "b": 2}"#, r#"{"b":2}"#),
            ("true", "true"),
        ] {
            assert!(is_narrower(was, now), "{was} -> {now}");
        }
        for (was, now) in [
            ("700", "701"),
            ("700", "9001"),
            ("700", "-1"),
            ("-700", "1"),
            ("700", "\"400\""),
            ("700", "\"much\""),
            ("700", "null"),
            ("700", "[400]"),
            ("12345678901234567890.10", "12345678901234567890.11"),
            ("5e399", "1e400"),
            (r#""700.00""#, r#""701""#),
            (r#""kim""#, r#""eve""#),
            ("[1, 2, 3]", "[3, 1]"),
            ("[1, 2]", "[1, 2, 2]"),
            // Members of a list must stay equal, because a smaller number could be a different account.
            ("[1002, 1003]", "[17]"),
            (r#"[{"id": 1, "n": 5}]"#, r#"[{"id": 1, "n": 3}]"#),
            (r#"{"account": 88001234, "n": 1}"#, r#"{"account": 12345}"#),
            (r#"{"a": 1}"#, r#"{"a": 1, "b": 0}"#),
            ("false", "true"),
        ] {
            assert!(!is_narrower(was, now), "{was} -> {now}");
        }
    }

    #[test]
    fn values_compare_by_every_digit() {
        let same =
            |one: &str, other: &str| is_same(serde_json::from_str(one).unwrap(), serde_json::from_str(other).unwrap());
        assert!(same(r#"{"/amount": 5.10, "/to": "kim"}"#, r#"{"/to":"kim","/amount":5.1}"#));
        assert!(!same("9007199254740993", "9007199254740992") && !same("0.1", "0.10000000000000000001"));
    }

    #[test]
    fn narrowing_rejects_forbidden_absent_or_wider_arguments() {
        let refused = |pairs: &[(&str, &str)]| narrow(CALL, &may(&["/amount", "/note"]), &values(pairs)).unwrap_err();
        let other = refused(&[("/amount", "1"), ("/to/iban", "\"y\"")]);
        assert_eq!(other.to_string(), "the argument at '/to/iban' may not be changed; these may: /amount, /note");
        assert_eq!(refused(&[("/note", "1")]), NarrowError::Absent("/note".into()));
        assert_eq!(
            refused(&[("/amount", "\"much\"")]).to_string(),
            "the argument at '/amount' may only become narrower, but \"much\" is not narrower than \
             12345678901234567890.10: \
             expected a number between 0 and the requested one, or a list or object with fewer members"
        );
        assert_eq!(narrow("no JSON", &may(&["/a"]), &values(&[("/a", "1")])), Err(NarrowError::Unreadable));
    }
}
