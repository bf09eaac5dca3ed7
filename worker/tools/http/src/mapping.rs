//! The declared rules that map responses to outcomes. The first rule that matches decides.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_config::tools::{AnswerMeaning, OutcomeRule};
use tickfleet_tools::json::with_numbers_as_text;

#[derive(Debug, Clone, Default)]
pub(super) struct Mapping(Vec<Rule>);

#[derive(Debug, Clone)]
pub(super) struct Rule {
    status: BTreeSet<u16>,
    test: Option<(String, Test)>,
    pub(super) meaning: AnswerMeaning,
    message: Option<String>,
    retry_after: Option<String>,
}

#[derive(Debug, Clone)]
enum Test {
    OneOf(Vec<Value>),
    Present(bool),
}

impl Mapping {
    pub(super) fn new(rules: &[OutcomeRule]) -> Self {
        Self(rules.iter().map(Rule::new).collect())
    }

    /// Returns the first rule that matches. `body` is `None` if the body is not JSON.
    pub(super) fn rule(&self, status: u16, body: Option<&RawValue>) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.concerns(status) && rule.fits(body))
    }

    pub(super) fn may_succeed(&self, status: u16) -> bool {
        self.0.iter().any(|rule| rule.concerns(status) && rule.meaning == AnswerMeaning::Ok)
    }

    pub(super) fn may_fail(&self, status: u16) -> bool {
        self.0.iter().any(|rule| rule.concerns(status) && rule.meaning != AnswerMeaning::Ok)
    }
}

impl Rule {
    fn new(rule: &OutcomeRule) -> Self {
        let test = match &rule.equals {
            Some(Value::Array(values)) => Test::OneOf(values.clone()),
            Some(value) => Test::OneOf(vec![value.clone()]),
            None => Test::Present(rule.present.unwrap_or(true)),
        };
        Self {
            status: rule.status.clone(),
            test: rule.at.clone().map(|at| (at, test)),
            meaning: rule.outcome,
            message: rule.message.clone(),
            retry_after: rule.retry_after.clone(),
        }
    }

    fn concerns(&self, status: u16) -> bool {
        self.status.is_empty() || self.status.contains(&status)
    }

    fn fits(&self, body: Option<&RawValue>) -> bool {
        let Some((at, test)) = &self.test else { return true };
        let found: Option<Value> = body
            .and_then(|body| pointed(body, at))
            .and_then(|v| serde_json::from_str(&with_numbers_as_text(v.get())).ok());
        match test {
            Test::OneOf(values) => found.is_some_and(|found| values.contains(&found)),
            Test::Present(wanted) => found.is_some_and(|found| has_content(&found)) == *wanted,
        }
    }

    pub(super) fn message(&self, body: Option<&Value>) -> Option<String> {
        let found = body?.pointer(self.message.as_deref()?).filter(|found| has_content(found))?;
        Some(found.as_str().map_or_else(|| found.to_string(), str::to_owned))
    }

    /// The value may be a number or text. Fractions are rounded up.
    pub(super) fn retry_after_s(&self, body: Option<&Value>) -> Option<u64> {
        let found = body?.pointer(self.retry_after.as_deref()?)?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast saturates; seconds round up"
        )]
        let rounded_up = || found.as_f64().filter(|s| *s >= 0.0).map(|s| s.ceil() as u64);
        found.as_u64().or_else(rounded_up).or_else(|| found.as_str()?.trim().parse().ok())
    }
}

/// False for null and empty values: some services send an empty `errors` on success.
fn has_content(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Returns the value at `pointer`, with every digit preserved.
pub(super) fn pointed<'a>(whole: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let mut here = whole;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        here = if here.get().starts_with('[') {
            let items: Vec<&'a RawValue> = serde_json::from_str(here.get()).ok()?;
            items.get(token.parse::<usize>().ok()?).copied()?
        } else {
            let members: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(here.get()).ok()?;
            members.get(token.as_str()).copied()?
        };
    }
    Some(here)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    fn mapping(rules: Value) -> Mapping {
        Mapping::new(&serde_json::from_value::<Vec<OutcomeRule>>(rules).unwrap())
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let rules = mapping(json!([
            {"status": [409], "outcome": "ok"},
            {"at": "/error", "equals": ["ratelimited", "busy"], "outcome": "not_executed", "retry_after": "/wait"},
            {"status": [200], "at": "/ok", "equals": false, "outcome": "permanent", "message": "/error"},
            {"at": "/errors", "outcome": "permanent"},
            {"status": [202], "at": "/id", "present": false, "outcome": "transient"}
        ]));
        let meaning = |status, body: &str| {
            let body = RawValue::from_string(body.to_owned()).ok();
            rules.rule(status, body.as_deref()).map(|rule| rule.meaning)
        };
        use AnswerMeaning::{Ended, NotExecuted, Ok, Transient};
        use tickfleet_model::Outcome;
        assert_eq!(meaning(409, "no json"), Some(Ok));
        assert_eq!(meaning(200, r#"{"ok":false,"error":"busy"}"#), Some(NotExecuted), "in their order");
        assert_eq!(meaning(200, r#"{"ok":false,"error":"no_channel"}"#), Some(Ended(Outcome::Permanent)));
        assert_eq!(meaning(201, r#"{"ok":false}"#), None, "another status");
        assert_eq!(
            (meaning(200, r#"{"errors":[]}"#), meaning(200, r#"{"errors":[{}]}"#)),
            (None, Some(Ended(Outcome::Permanent)))
        );
        assert_eq!((meaning(202, "{}"), meaning(202, r#"{"id":1}"#)), (Some(Transient), None));
        assert_eq!(meaning(202, "no json"), Some(Transient));
        assert!(rules.may_succeed(409) && !rules.may_succeed(410) && rules.may_fail(200));
    }

    #[test]
    fn a_rule_reads_its_message_and_retry_after_from_the_body() {
        let rules = mapping(json!([{"at": "/ok", "outcome": "transient", "message": "/why", "retry_after": "/wait"}]));
        let rule = &rules.0[0];
        let said = |body: Value| (rule.message(Some(&body)), rule.retry_after_s(Some(&body)));
        assert_eq!(said(json!({"why": "busy", "wait": 7})), (Some("busy".into()), Some(7)));
        assert_eq!(said(json!({"why": {"code": 5}, "wait": "8"})), (Some(r#"{"code":5}"#.into()), Some(8)));
        assert_eq!(said(json!({"why": "", "wait": 0.2})), (None, Some(1)));
        assert_eq!(said(json!({"wait": -1})), (None, None));
    }
}
