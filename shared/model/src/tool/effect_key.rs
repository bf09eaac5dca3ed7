use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::TenantId;
use crate::digest::hash_of;

pub const EFFECT_WINDOW_MS_DEFAULT: i64 = 86_400_000;
pub const EFFECT_WINDOW_MS_MAX: i64 = 31 * 86_400_000;

/// Within the window, calls with equal values of the listed arguments have their effect only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectKey {
    /// JSON pointers (RFC 6901).
    pub arguments: Vec<String>,
    /// Counted from the end of a call. In this time, equal calls get that call's result.
    pub window_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EffectNote {
    pub key: String,
    pub window_ms: i64,
}

impl EffectKey {
    /// The pointer of a key argument that is missing or null.
    #[must_use]
    pub fn missing(&self, arguments: &RawValue) -> Option<&str> {
        self.arguments.iter().map(String::as_str).find(|pointer| canonical_argument(arguments, pointer).is_none())
    }

    /// Returns 64 hexadecimal characters that do not reveal the arguments. Numbers are compared as exact decimals, and
    /// objects regardless of the order of members. An error is the pointer of a key argument that is missing or null.
    pub fn hash(&self, tenant: &TenantId, tool: &str, arguments: &RawValue) -> Result<String, &str> {
        let mut values = Vec::with_capacity(self.arguments.len());
        for pointer in &self.arguments {
            values.push(canonical_argument(arguments, pointer).ok_or(pointer.as_str())?);
        }
        let parts = [tenant.as_str(), tool].into_iter().chain(self.arguments.iter().map(String::as_str));
        Ok(hash_of(parts.chain(values.iter().map(String::as_str))))
    }
}

/// Equal values give equal text. `None` if the argument is missing or null.
pub(crate) fn canonical_argument(arguments: &RawValue, pointer: &str) -> Option<String> {
    canonical(at(arguments, pointer).filter(|value| value.get().trim() != "null")?)
}

/// Equal values give equal text. `None` if the value is not JSON.
pub(crate) fn canonical(value: &RawValue) -> Option<String> {
    let mut text = String::new();
    write_canonical(value, &mut text)?;
    Some(text)
}

/// Returns the value as written, so that numbers keep all digits. `None` without a value at `pointer`.
pub(crate) fn at<'a>(value: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    pointer.split('/').skip(1).try_fold(value, |value, token| {
        let token = token.replace("~1", "/").replace("~0", "~");
        if value.get().trim_start().starts_with('[') {
            let items: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
            // RFC 6901: an index has no leading zeros.
            let index = token.parse::<usize>().ok().filter(|index| index.to_string() == token)?;
            return items.get(index).copied();
        }
        let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
        members.remove(&token)
    })
}

/// `None` if the value is not JSON. Deeply nested input was already rejected, so the recursion is bounded.
pub(crate) fn write_canonical(value: &RawValue, to: &mut String) -> Option<()> {
    let text = value.get().trim();
    match text.as_bytes().first()? {
        b'{' => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
            to.push('{');
            for (name, member) in members {
                to.push_str(&serde_json::to_string(&name).ok()?);
                to.push(':');
                write_canonical(member, to)?;
                to.push(',');
            }
            to.push('}');
        }
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            to.push('[');
            for item in items {
                write_canonical(item, to)?;
                to.push(',');
            }
            to.push(']');
        }
        b'"' => {
            let name: String = serde_json::from_str(text).ok()?;
            to.push_str(&serde_json::to_string(&name).ok()?);
        }
        b'-' | b'0'..=b'9' => write_number(text, to),
        _ => to.push_str(text),
    }
    Some(())
}

/// If the power of ten does not fit into 64 bits, the number is written unchanged.
fn write_number(text: &str, to: &mut String) {
    let (number, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    let behind = i64::try_from(digits.len() - significant.len()).ok().zip(i64::try_from(fraction.len()).ok());
    let power = power.parse::<i64>().ok().zip(behind);
    let power = power.and_then(|(power, (zeros, fraction))| power.checked_add(zeros)?.checked_sub(fraction));
    let significant = significant.trim_start_matches('0');
    match power {
        _ if significant.is_empty() => to.push('0'),
        // Writing to a String cannot fail.
        Some(power) => drop(write!(to, "{sign}{significant}e{power}")),
        None => to.push_str(text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn hash(pointers: &[&str], arguments: &str) -> Result<String, String> {
        let arguments: &RawValue = serde_json::from_str(arguments).unwrap();
        let pointers = pointers.iter().map(ToString::to_string).collect();
        let key = EffectKey { arguments: pointers, window_ms: EFFECT_WINDOW_MS_DEFAULT };
        key.hash(&TenantId::new("acme").unwrap(), "pay", arguments).map_err(str::to_owned)
    }

    #[test]
    fn equal_argument_values_have_equal_hashes() {
        let pay = |amount: &str| hash(&["/amount"], &format!(r#"{{"to":"kim","amount":{amount}}}"#)).unwrap();
        for same in ["1.0", "1e0", "10E-1", "0.1e1", "1.000"] {
            assert_eq!(pay(same), pay("1"), "{same}");
        }
        assert_eq!(pay("-0.0"), pay("0"));
        assert_eq!(pay("100"), pay("1e2"));
        for other in ["-1", "10", "1.1", "\"1\"", "0.1", "[1]", "true", "1e99999999999999999999"] {
            assert_ne!(pay(other), pay("1"), "{other}");
        }
        // A double cannot distinguish these numbers.
        assert_ne!(pay("9007199254740993"), pay("9007199254740992"));
        let named = |object: &str| hash(&["/to"], &format!(r#"{{"to":{object}}}"#)).unwrap();
        assert_eq!(named(r#"{"a":1,"b":["\u0078"]}"#), named(r#"{ "b": ["x"], "a": 1.0 }"#));
        assert_ne!(named(r#"["a","b"]"#), named(r#"["b","a"]"#));
        assert_ne!(named(r#""Kim""#), named(r#""kim""#));
    }

    #[test]
    fn only_key_arguments_affect_the_hash_and_all_are_required() {
        let keys = ["/to/iban", "/lines/0/amount", "/a~1b"];
        let call = |text: &str| {
            let rest = format!(r#""to":{{"iban":"x","name":"{text}"}},"lines":[{{"amount":1}},{text}],"a/b":true"#);
            hash(&keys, &format!("{{{rest}}}"))
        };
        assert_eq!(call("1").unwrap(), call("2").unwrap());
        assert_eq!(hash(&["/to"], r#"{"amount":1}"#), Err("/to".to_owned()));
        assert_eq!(hash(&["/to"], r#"{"to": null }"#), Err("/to".to_owned()));
        assert_eq!(hash(&["/to/00"], r#"{"to":[1]}"#), Err("/to/00".to_owned()));
        // Swapped arguments have a different effect.
        assert_ne!(hash(&["/a", "/b"], r#"{"a":"x","b":"y"}"#), hash(&["/a", "/b"], r#"{"a":"y","b":"x"}"#));
    }

    #[test]
    fn hashes_differ_by_tenant_and_tool_and_contain_no_value() {
        let key = EffectKey { arguments: vec!["/to".into()], window_ms: 1 };
        let arguments: &RawValue = serde_json::from_str(r#"{"to":"deadbeef"}"#).unwrap();
        let of = |tenant: &str, tool: &str| key.hash(&TenantId::new(tenant).unwrap(), tool, arguments).unwrap();
        assert_eq!(of("acme", "pay").len(), 64);
        assert_ne!(of("acme", "pay"), of("bolt", "pay"));
        assert_ne!(of("acme", "pay"), of("acme", "refund"));
        assert!(!of("acme", "pay").contains("deadbeef"));
    }
}
