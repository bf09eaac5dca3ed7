//! Conditions on the arguments of calls, such as `amount > 100 and customer = "c-17"`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::value::RawValue;
use tickfleet_model::number::Number;
use tickfleet_model::redaction::REDACTED;
use tickfleet_protocol::AuditEntry;
use tickfleet_protocol::cut::is_cut_object;

const BYTES_MAX: usize = 1_000;
const CONDITIONS_MAX: usize = 16;

/// Conditions on the arguments of a call. A call must meet all of them.
///
/// A condition is a name, an operator (`=`, `!=`, `<`, `<=`, `>`, `>=`) and a JSON value. `and` joins conditions.
/// `order.amount` selects a member of an object. A missing argument, an object, a list or a removed secret matches no
/// condition. If argument and value have different types, only `!=` matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArgumentConditions(Vec<Condition>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    /// The name of the argument comes first, then the names of nested members.
    path: Vec<String>,
    operator: Operator,
    value: Scalar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd)]
enum Scalar {
    Number(Number),
    Text(String),
    Bool(bool),
    Null,
}

impl ArgumentConditions {
    /// Returns true if every call matches.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// If an approver changed the arguments, checks the changed arguments.
    #[must_use]
    pub(super) fn are_met_by(&self, entry: &AuditEntry<'_>) -> bool {
        let arguments = entry.meta.approved_arguments().or(entry.meta.arguments);
        self.is_empty()
            || arguments.is_some_and(|arguments| {
                !is_cut_object(arguments.get()) && self.0.iter().all(|condition| condition.is_met_by(arguments))
            })
    }

    /// A call must then meet the conditions of `self` and `other`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl Condition {
    fn is_met_by(&self, arguments: &RawValue) -> bool {
        let mut value = arguments;
        for name in &self.path {
            let Ok(mut members) = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(value.get()) else {
                return false;
            };
            let Some(member) = members.remove(name.as_str()) else { return false };
            value = member;
        }
        Scalar::read(value.get()).is_some_and(|found| self.operator.holds(&found, &self.value))
    }
}

impl Operator {
    const ALL: [(&'static str, Self); 6] = [
        ("!=", Self::NotEqual),
        ("<=", Self::AtMost),
        (">=", Self::AtLeast),
        ("=", Self::Equal),
        ("<", Self::Less),
        (">", Self::Greater),
    ];

    fn holds(self, found: &Scalar, wanted: &Scalar) -> bool {
        let is_same_type = std::mem::discriminant(found) == std::mem::discriminant(wanted);
        match self {
            Self::Equal => found == wanted,
            Self::NotEqual => found != wanted,
            Self::Less => is_same_type && found < wanted,
            Self::AtMost => is_same_type && found <= wanted,
            Self::Greater => is_same_type && found > wanted,
            Self::AtLeast => is_same_type && found >= wanted,
        }
    }

    const fn orders(self) -> bool {
        !matches!(self, Self::Equal | Self::NotEqual)
    }
}

impl Scalar {
    /// `None` for objects, lists, redacted text, and numbers with more than 38 digits.
    fn read(json: &str) -> Option<Self> {
        match json {
            "null" => Some(Self::Null),
            "true" | "false" => Some(Self::Bool(json == "true")),
            _ if json.starts_with('"') => {
                let text: String = serde_json::from_str(json).ok()?;
                (!text.contains(REDACTED)).then_some(Self::Text(text))
            }
            _ if json.starts_with(['{', '[']) => None,
            _ => serde_json::from_str::<&RawValue>(json).ok().and_then(|_| Number::parse(json)).map(Self::Number),
        }
    }
}

impl FromStr for ArgumentConditions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("expected at most {BYTES_MAX} bytes, found {}", text.len()));
        }
        let mut rest = Rest(text.trim());
        let mut conditions = Vec::new();
        loop {
            conditions.push(rest.condition()?);
            if conditions.len() > CONDITIONS_MAX {
                return Err(format!("expected at most {CONDITIONS_MAX} conditions"));
            }
            if rest.0.is_empty() {
                return Ok(Self(conditions));
            }
            rest.and()?;
        }
    }
}

struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn condition(&mut self) -> Result<Condition, String> {
        let path = self.path()?;
        let found = Operator::ALL.into_iter().find(|(sign, _)| self.0.starts_with(sign));
        let Some((sign, operator)) = found else {
            return Err(self.expected(&format!("=, !=, <, <=, > or >= after {}", path.join("."))));
        };
        self.skip(sign.len());
        let value = self.value()?;
        if operator.orders() && matches!(value, Scalar::Bool(_) | Scalar::Null) {
            return Err(format!(
                "expected a number or a text in double quotes after {sign}; true, false and null have no order"
            ));
        }
        Ok(Condition { path, operator, value })
    }

    fn path(&mut self) -> Result<Vec<String>, String> {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
        let end = self.0.find(|c| !is_part(c)).unwrap_or(self.0.len());
        let (name, _) = self.0.split_at(end);
        let path: Vec<String> = name.split('.').map(ToOwned::to_owned).collect();
        if path.iter().any(String::is_empty) {
            return Err(self.expected("the name of an argument, such as amount or order.amount"));
        }
        self.skip(end);
        Ok(path)
    }

    fn value(&mut self) -> Result<Scalar, String> {
        const EXPECTED: &str = "a number, a text in double quotes, true, false or null";
        let mut values = serde_json::Deserializer::from_str(self.0).into_iter::<&RawValue>();
        let Some(Ok(value)) = values.next() else { return Err(self.expected(EXPECTED)) };
        let end = values.byte_offset();
        let Some(scalar) = Scalar::read(value.get()) else { return Err(self.expected(EXPECTED)) };
        self.skip(end);
        Ok(scalar)
    }

    fn and(&mut self) -> Result<(), String> {
        let is_word = self.0.get(..3).is_some_and(|word| word.eq_ignore_ascii_case("and"))
            && self.0.get(3..).is_some_and(|rest| rest.starts_with(char::is_whitespace));
        if !is_word {
            return Err(self.expected("the end or `and`"));
        }
        self.skip(3);
        Ok(())
    }

    fn skip(&mut self, bytes: usize) {
        self.0 = self.0.get(bytes..).unwrap_or_default().trim_start();
    }

    fn expected(&self, what: &str) -> String {
        let found: String = self.0.chars().take(20).collect();
        if found.is_empty() {
            format!("expected {what}, found the end")
        } else {
            format!("expected {what}, found {found:?}")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn meets(conditions: &str, arguments: &str) -> bool {
        let text = format!(r#"{{"action":"TOOL_CALL","meta":{{"arguments":{arguments}}}}}"#);
        conditions.parse::<ArgumentConditions>().unwrap().are_met_by(&AuditEntry::read(&text).unwrap())
    }

    #[test]
    fn a_call_must_meet_all_conditions() {
        let arguments = r#"{"amount":150.50,"customer":"c-17","order":{"lines":3},"urgent":true,"note":null}"#;
        for (conditions, is_met) in [
            ("amount > 100", true),
            ("amount>100 and customer=\"c-17\"", true),
            ("amount > 100 AND customer = \"c-18\"", false),
            ("amount = 150.5", true),
            ("amount = 1.505e2", true),
            ("amount >= 150.500000000000000000001", false),
            ("amount <= 150.5 and amount < 150.50001", true),
            ("customer != \"c-18\"", true),
            ("customer >= \"c-1\" and customer < \"c-2\"", true),
            ("order.lines = 3", true),
            ("order = 3", false),
            ("urgent = true and note = null", true),
            ("urgent != false", true),
        ] {
            assert_eq!(meets(conditions, arguments), is_met, "{conditions}");
        }
    }

    #[test]
    fn a_missing_mistyped_or_redacted_argument_meets_no_condition() {
        let arguments = r#"{"amount":"150","token":"[REDACTED]","header":"Bearer [REDACTED]","list":[1]}"#;
        for conditions in
            ["price != 1", "amount > 100", "token != \"x\"", "header != \"x\"", "list != 1", "amount.x = 1"]
        {
            assert!(!meets(conditions, arguments), "{conditions}");
        }
        assert!(meets("amount != 150 and amount != null", arguments), "a text is no number");
        assert!(!meets("amount = 1", "\"amount = 1\""), "the arguments are no JSON object");
        assert!(!meets("truncated = true", r#"{"truncated":true,"bytes":9000,"cut_bytes":1,"head":"{","tail":"}"}"#));
    }

    #[test]
    fn large_numbers_keep_their_digits() {
        assert!(meets("id = 9007199254740993", r#"{"id":9007199254740993}"#));
        assert!(!meets("id = 9007199254740992", r#"{"id":9007199254740993}"#));
    }

    #[test]
    fn an_approved_argument_overrides_the_original() {
        let text = r#"{"action":"TOOL_CALL","meta":{"arguments":{"amount":700},"approval":{"id":"a","arguments":{"amount":400}}}}"#;
        let met =
            |text_of: &str| text_of.parse::<ArgumentConditions>().unwrap().are_met_by(&AuditEntry::read(text).unwrap());
        assert!(met("amount = 400") && !met("amount = 700"));
    }

    #[test]
    fn an_error_names_what_was_expected() {
        for (conditions, expected) in [
            ("", "the name of an argument"),
            ("= 1", "the name of an argument"),
            ("a..b = 1", "the name of an argument"),
            ("amount", "=, !=, <, <=, > or >= after amount, found the end"),
            ("amount ~ 1", "found \"~ 1\""),
            ("amount >", "a number, a text in double quotes, true, false or null, found the end"),
            ("customer = c-17", "a text in double quotes"),
            ("customer = 'c-17'", "a text in double quotes"),
            ("amount > [1]", "a number"),
            ("amount > true", "have no order"),
            ("amount > 1 or amount < 0", "the end or `and`, found \"or amount < 0\""),
            ("amount > 1 and", "the end or `and`"),
        ] {
            let error = conditions.parse::<ArgumentConditions>().unwrap_err();
            assert!(error.contains(expected), "{conditions:?}: {error}");
        }
        let long = vec!["a = 1"; 17].join(" and ");
        assert!(long.parse::<ArgumentConditions>().unwrap_err().contains("at most 16"));
        assert!(" ".repeat(2_000).parse::<ArgumentConditions>().unwrap_err().contains("at most 1000 bytes"));
    }
}
