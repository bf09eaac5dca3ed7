//! A `read` tool looks up whether a call with an unknown outcome took effect.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::effect_key::at;

pub const RECONCILE_TRIES_DEFAULT: u32 = 5;
pub const RECONCILE_TRIES_MAX: u32 = 20;
pub const RECONCILE_GRACE_MS_DEFAULT: i64 = 60_000;
pub const RECONCILE_GRACE_MS_MAX: i64 = 3_600_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reconcile {
    /// A tool with the effect `read`.
    pub tool: String,
    pub arguments: BTreeMap<String, ReconcileArgument>,
    /// JSON pointer into the lookup's result: `true` if the call took effect, `false` if not.
    pub happened: String,
    /// JSON pointer to the call's output in the lookup's result. `None` means the whole result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    pub tries: u32,
    /// For this time, the request may still be in transit, so the lookup's result `false` does not count.
    pub grace_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ReconcileArgument {
    /// A JSON pointer to an argument of the call. If the call lacks the argument, the lookup omits it too.
    Of(String),
    IdempotencyKey,
    Call,
    Fixed(Value),
}

impl ReconcileArgument {
    /// A text that begins with `/` points to a call argument. A text that begins with `$` is `$idempotency_key` or
    /// `$call`, or else invalid (`None`). Any other value is a constant.
    #[must_use]
    pub fn declared(value: Value) -> Option<Self> {
        Some(match value {
            Value::String(text) if text.starts_with('/') => Self::Of(text),
            Value::String(text) if text == "$idempotency_key" => Self::IdempotencyKey,
            Value::String(text) if text == "$call" => Self::Call,
            Value::String(text) if text.starts_with('$') => return None,
            other => Self::Fixed(other),
        })
    }
}

#[derive(Debug, Clone)]
pub enum ReconcileVerdict {
    Happened(Box<RawValue>),
    NotSoFar,
    Unknown,
}

impl Reconcile {
    #[must_use]
    pub fn lookup_arguments(&self, arguments: &RawValue, idempotency_key: &str, call: &str) -> String {
        let given = |argument: &ReconcileArgument| match argument {
            // The value keeps all digits.
            ReconcileArgument::Of(pointer) => at(arguments, pointer).map(|value| value.get().to_owned()),
            ReconcileArgument::IdempotencyKey => Some(Value::from(idempotency_key).to_string()),
            ReconcileArgument::Call => Some(Value::from(call).to_string()),
            ReconcileArgument::Fixed(value) => Some(value.to_string()),
        };
        let members = self.arguments.iter().filter_map(|(name, argument)| {
            given(argument).map(|value| format!("{}:{value}", Value::from(name.as_str())))
        });
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }

    #[must_use]
    pub fn verdict(&self, answer: &RawValue) -> ReconcileVerdict {
        match at(answer, &self.happened).map(RawValue::get) {
            Some("true") => {
                let output = self.output.as_ref().and_then(|pointer| at(answer, pointer));
                ReconcileVerdict::Happened(output.unwrap_or(answer).to_owned())
            }
            Some("false") => ReconcileVerdict::NotSoFar,
            _ => ReconcileVerdict::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn only_a_boolean_lookup_answer_gives_a_verdict() {
        let reconcile = Reconcile {
            tool: "find_payment".into(),
            arguments: [
                ("key".to_owned(), ReconcileArgument::IdempotencyKey),
                ("to".to_owned(), ReconcileArgument::Of("/to".into())),
                ("text".to_owned(), ReconcileArgument::Of("/text".into())),
                ("kind".to_owned(), ReconcileArgument::Fixed("payment".into())),
            ]
            .into(),
            happened: "/found".into(),
            output: Some("/payment".into()),
            tries: RECONCILE_TRIES_DEFAULT,
            grace_ms: RECONCILE_GRACE_MS_DEFAULT,
        };
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let asked = reconcile.lookup_arguments(&raw(r#"{"to":1180591620717411303424,"amount":1e400}"#), "k1", "t1/0");
        assert_eq!(asked, r#"{"key":"k1","kind":"payment","to":1180591620717411303424}"#);
        let verdict = |answer: &str| match reconcile.verdict(&raw(answer)) {
            ReconcileVerdict::Happened(output) => output.get().to_owned(),
            ReconcileVerdict::NotSoFar => "no".into(),
            ReconcileVerdict::Unknown => "?".into(),
        };
        assert_eq!(verdict(r#"{"found":true,"payment":{"id":7.10},"sum":1e400}"#), r#"{"id":7.10}"#);
        assert_eq!(verdict(r#"{"found":true}"#), r#"{"found":true}"#);
        assert_eq!(verdict(r#"{"found":false}"#), "no");
        for odd in [r#"{"found":"false"}"#, "{}", r#"{"found":null}"#, "[]", "1"] {
            assert_eq!(verdict(odd), "?", "{odd}");
        }
    }
}
