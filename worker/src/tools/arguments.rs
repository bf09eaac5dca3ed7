//! Arguments as a model wrote them: parsed under bounds, validated against the tool's schema, explained when wrong.
//!
//! [`ValueCheck`] judges any JSON value by any schema; [`ArgumentCheck`] is one whose values are objects, as arguments
//! are; [`OutputCheck`] is one for what a tool returns. All compile, parse and validate along the same path.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use shared::model::limits;

use super::{parse, schema_cost, wording};

/// Problems named in one message: a model corrects a few at a time.
const PROBLEMS_MAX: usize = 5;
/// Bytes of a wrong value that a message quotes.
const QUOTED_BYTES_MAX: usize = 80;
/// Bytes of one problem's text.
const PROBLEM_BYTES_MAX: usize = 300;
/// Arguments longer than this are explained by their first problem alone: the validator collects every error of a value
/// before it gives the first, and a long list can have a hundred thousand.
const EXPLAINED_BYTES_MAX: usize = 16 * 1024;
/// Arguments longer than this are checked on a thread of their own: a schema within its bounds can still take long over
/// them, and the worker's other calls and heartbeats must not wait for it.
const CHECKED_IN_PLACE_BYTES_MAX: usize = 16 * 1024;
/// Longest check of arguments. Real ones take microseconds.
const CHECK_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes of a compiled `pattern`; beyond it, a pattern like `(a{1000}){1000}` eats memory.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// Why a schema cannot be used, as the rest of a sentence that begins with which schema it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It does not describe an object, as arguments are.
    #[error("must describe an object: {0}")]
    NotAnObject(String),
    /// Checking values against it could take unbounded time, or need the network.
    #[error("is refused: {0}")]
    Unbounded(String),
    /// It is not a JSON Schema.
    #[error("is not valid: {0}")]
    Invalid(String),
}

/// What a checked value is called in messages.
#[derive(Debug, Clone, Copy)]
struct Subject {
    whole: &'static str,
    /// Of the whole: `are` or `is`.
    is: &'static str,
    part: &'static str,
    missing: &'static str,
    unknown: &'static str,
    bytes_max: usize,
    /// Whether messages quote what was found: a result that is withheld shows nowhere.
    quoted: bool,
}

const ARGUMENTS: Subject = Subject {
    whole: "The arguments",
    is: "are",
    part: "Argument",
    missing: "Missing required argument",
    unknown: "Unknown argument",
    bytes_max: limits::ARGUMENTS_BYTES_MAX,
    quoted: true,
};

const OUTPUT: Subject = Subject {
    whole: "The result",
    is: "is",
    part: "Its member",
    missing: "It lacks the member",
    unknown: "It has the undeclared member",
    bytes_max: limits::OUTPUT_CHECKED_BYTES_MAX,
    quoted: false,
};

/// What is wrong with one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where (`user.emails[0]`); empty for the arguments as a whole.
    pub path: String,
    /// What was expected and what was found.
    pub message: String,
}

/// Arguments that do not parse or do not fit; at most five problems, each bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentError {
    /// The problems, in the schema's order; never empty.
    pub problems: Vec<Problem>,
}

impl ArgumentError {
    fn whole(message: String) -> Self {
        Self { problems: vec![Problem { path: String::new(), message: wording::cut(&message, PROBLEM_BYTES_MAX) }] }
    }

    /// The message for a model, at most [`limits::ERROR_BYTES_MAX`] bytes:
    /// `Missing required argument 'path' for tool 'write_file'.`
    #[must_use]
    pub fn message(&self, tool: &str) -> String {
        let tool = wording::cut(tool, limits::NAME_BYTES_MAX);
        let text = match self.problems.as_slice() {
            [one] => format!("{} for tool '{tool}'.", one.message),
            many => {
                let list: Vec<&str> = many.iter().map(|p| p.message.as_str()).collect();
                format!("The arguments for tool '{tool}' have {} problems: {}.", many.len(), list.join("; "))
            }
        };
        wording::cut(&text, limits::ERROR_BYTES_MAX)
    }

    /// The same for a program: `{"problems": [{"path", "message"}]}`.
    #[must_use]
    pub fn details(&self) -> Value {
        let problems = self.problems.iter().map(|p| serde_json::json!({"path": p.path, "message": p.message}));
        serde_json::json!({ "problems": problems.collect::<Vec<_>>() })
    }
}

/// Any schema, compiled: no network, no files, linear-time patterns, bounded cost.
#[derive(Debug, Clone)]
pub struct ValueCheck(Arc<Compiled>);

/// A tool's input schema, compiled: a [`ValueCheck`] for objects.
#[derive(Debug, Clone)]
pub struct ArgumentCheck(ValueCheck);

/// A tool's output schema, compiled: a [`ValueCheck`] for results.
#[derive(Debug, Clone)]
pub struct OutputCheck(ValueCheck);

#[derive(Debug)]
struct Compiled {
    validator: Validator,
    /// The top-level arguments that the schema names, for hints.
    names: Vec<String>,
}

/// Compiled schemas by digest. Compiling is pure, so a process-wide memory changes no answer; a reload of the
/// configuration finds the schemas that did not change. Weak: what no tool uses any more is freed.
static COMPILED: LazyLock<Mutex<HashMap<[u8; 32], Weak<Compiled>>>> = LazyLock::new(Mutex::default);

impl ArgumentCheck {
    /// Compiles `schema`, once for each content.
    ///
    /// # Errors
    /// [`SchemaError`] when it does not describe an object, and as [`ValueCheck::compile`].
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let Value::Object(members) = schema else {
            return Err(SchemaError::NotAnObject(format!("found {}", quoted(schema))));
        };
        if let Some(other) = members.get("type").filter(|t| t.as_str() != Some("object")) {
            return Err(SchemaError::NotAnObject(format!("its type is {}", quoted(other))));
        }
        ValueCheck::compile(schema).map(Self)
    }

    /// Checks `text`, the arguments as the model wrote them, and gives them back as JSON with every digit kept.
    ///
    /// # Errors
    /// [`ArgumentError`] when the text is no JSON object within bounds, or does not fit the schema.
    pub fn check(&self, text: &str) -> Result<Box<RawValue>, ArgumentError> {
        self.0.checked(text, &ARGUMENTS, true)
    }

    /// As [`Self::check`], from within a worker: nothing else waits for it, and it ends within two seconds.
    ///
    /// # Errors
    /// As [`Self::check`], and when the time was not enough.
    pub async fn check_in_time(&self, text: &str) -> Result<Box<RawValue>, ArgumentError> {
        if text.len() <= CHECKED_IN_PLACE_BYTES_MAX {
            return self.check(text);
        }
        self.check_within(text, CHECK_TIME_MAX).await
    }

    async fn check_within(&self, text: &str, limit: Duration) -> Result<Box<RawValue>, ArgumentError> {
        let check = self.clone();
        apart(text, &ARGUMENTS, limit, move |text| check.check(text)).await
    }
}

impl OutputCheck {
    /// Compiles `schema`, once for each content.
    ///
    /// # Errors
    /// As [`ValueCheck::compile`].
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        ValueCheck::compile(schema).map(Self)
    }

    /// Checks `json`, what a tool returned: nothing else waits for it, and it ends within two seconds.
    ///
    /// # Errors
    /// [`ArgumentError`] when it does not fit the schema, is not JSON within bounds, or the time was not enough.
    pub async fn check_in_time(&self, json: &str) -> Result<(), ArgumentError> {
        if json.len() <= CHECKED_IN_PLACE_BYTES_MAX {
            return self.0.checked(json, &OUTPUT, false).map(drop);
        }
        let check = self.0.clone();
        apart(json, &OUTPUT, CHECK_TIME_MAX, move |json| check.checked(json, &OUTPUT, false).map(drop)).await
    }
}

/// Checks on a thread of its own, for `limit` at most.
async fn apart<T: Send + 'static>(
    text: &str,
    subject: &Subject,
    limit: Duration,
    check: impl FnOnce(&str) -> Result<T, ArgumentError> + Send + 'static,
) -> Result<T, ArgumentError> {
    let text = text.to_owned();
    // A thread cannot be stopped. What it still does is bounded by the schema's cost and the value's size.
    let checked = tokio::task::spawn_blocking(move || check(&text));
    match tokio::time::timeout(limit, checked).await {
        Ok(Ok(checked)) => checked,
        Ok(Err(_)) => Err(ArgumentError::whole(format!("{} could not be checked", subject.whole))),
        Err(_) => {
            let message = format!("{} could not be checked within {} ms", subject.whole, limit.as_millis());
            Err(ArgumentError::whole(message))
        }
    }
}

impl ValueCheck {
    /// Compiles `schema`, once for each content.
    ///
    /// # Errors
    /// [`SchemaError`] when it is not a JSON Schema (draft 2020-12 unless `$schema` says otherwise), or could make a
    /// check expensive.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let text = schema.to_string();
        let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        if let Some(known) = compiled().get(&digest).and_then(Weak::upgrade) {
            return Ok(Self(known));
        }
        if text.len() > limits::SCHEMA_BYTES_MAX {
            let why = format!("it has {} bytes; at most {} are allowed", text.len(), limits::SCHEMA_BYTES_MAX);
            return Err(SchemaError::Unbounded(why));
        }
        let fresh = Arc::new(Compiled::new(schema)?);
        let mut all = compiled();
        // Compiled meanwhile by somebody else: theirs stays, so that one content has one schema.
        if let Some(known) = all.get(&digest).and_then(Weak::upgrade) {
            return Ok(Self(known));
        }
        all.retain(|_, weak| weak.strong_count() > 0);
        all.insert(digest, Arc::downgrade(&fresh));
        Ok(Self(fresh))
    }

    /// Checks `text`, any JSON value, and gives it back with every digit kept.
    ///
    /// # Errors
    /// [`ArgumentError`] when the text is no JSON within bounds, or does not fit the schema.
    pub fn check(&self, text: &str) -> Result<Box<RawValue>, ArgumentError> {
        self.checked(text, &ARGUMENTS, false)
    }

    fn checked(&self, text: &str, subject: &Subject, object: bool) -> Result<Box<RawValue>, ArgumentError> {
        let whole = subject.whole;
        let not_json = |why: String| ArgumentError::whole(format!("{whole} {} not valid JSON ({why})", subject.is));
        let value = parse::parse_bounded(text, subject.bytes_max).map_err(not_json)?;
        if object && !value.is_object() {
            let found = quoted(&value);
            return Err(ArgumentError::whole(format!("{whole} must be a JSON object, not {found},")));
        }
        if !self.0.validator.is_valid(&value) {
            return Err(self.explain(&value, subject, text.len() <= EXPLAINED_BYTES_MAX));
        }
        RawValue::from_string(text.trim().to_owned()).map_err(|e| not_json(e.to_string()))
    }

    fn explain(&self, value: &Value, subject: &Subject, all: bool) -> ArgumentError {
        let validator = &self.0.validator;
        let problems: Vec<Problem> = if all {
            validator.iter_errors(value).take(PROBLEMS_MAX).map(|error| self.problem(&error, subject)).collect()
        } else {
            validator.validate(value).err().iter().map(|error| self.problem(error, subject)).collect()
        };
        if problems.is_empty() {
            return ArgumentError::whole(format!("{} {} not what the schema allows", subject.whole, subject.is));
        }
        ArgumentError { problems }
    }

    fn problem(&self, error: &ValidationError<'_>, subject: &Subject) -> Problem {
        let path = dotted(error.instance_path().as_str());
        let message = match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = wording::cut(&join(&path, property.as_str().unwrap_or_default()), QUOTED_BYTES_MAX);
                format!("{} '{name}'", subject.missing)
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => self.unknown(&path, unexpected, subject),
            kind => {
                let at = error.instance_path().as_str();
                let expected = expected(kind, at).unwrap_or_else(|| format!("does not fit '{}'", kind.keyword()));
                let who = match path.as_str() {
                    "" => subject.whole.to_owned(),
                    path => format!("{} '{}'", subject.part, wording::cut(path, QUOTED_BYTES_MAX)),
                };
                if subject.quoted {
                    format!("{who} {expected}; found {}", quoted(error.instance()))
                } else {
                    format!("{who} {expected}")
                }
            }
        };
        Problem { message: wording::cut(&message, PROBLEM_BYTES_MAX), path: wording::cut(&path, PROBLEM_BYTES_MAX) }
    }

    fn unknown(&self, path: &str, unexpected: &[String], subject: &Subject) -> String {
        let unknown = subject.unknown;
        let first = unexpected.first().map(String::as_str).unwrap_or_default();
        let shown = wording::cut(&join(path, first), QUOTED_BYTES_MAX);
        // Hints are for the top level only: the names below it are not collected.
        let names = if path.is_empty() { self.0.names.as_slice() } else { &[] };
        match wording::closest(first, names.iter().map(String::as_str), 1).first() {
            Some(meant) => format!("{unknown} '{shown}', did you mean '{meant}'?"),
            None if names.is_empty() => format!("{unknown} '{shown}'"),
            None => format!("{unknown} '{shown}', expected: {}", names.join(", ")),
        }
    }
}

fn compiled() -> std::sync::MutexGuard<'static, HashMap<[u8; 32], Weak<Compiled>>> {
    // A panic elsewhere leaves the map whole: each change to it is one call.
    COMPILED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Compiled {
    fn new(schema: &Value) -> Result<Self, SchemaError> {
        schema_cost::check(schema).map_err(SchemaError::Unbounded)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
        let mut options = jsonschema::options().with_pattern_options(patterns);
        if schema.get("$schema").is_none() {
            options = options.with_draft(Draft::Draft202012);
        }
        let validator = options.build(schema).map_err(|e| {
            let text = format!("{} (at '{}')", e.masked(), e.instance_path().as_str());
            SchemaError::Invalid(wording::cut(&text, PROBLEM_BYTES_MAX))
        })?;
        let named = schema.get("properties").and_then(Value::as_object);
        let names = named.into_iter().flat_map(|p| p.keys().cloned()).collect();
        Ok(Self { validator, names })
    }
}

/// What was expected, as the rest of a sentence that begins with the argument at `pointer`. None where no better words
/// are known.
fn expected(kind: &ValidationErrorKind, pointer: &str) -> Option<String> {
    use ValidationErrorKind as K;
    Some(match kind {
        K::Type { kind: TypeKind::Single(one) } => format!("must be of type {one}"),
        K::Type { kind: TypeKind::Multiple(set) } => {
            let names: Vec<String> = set.iter().map(|t| t.to_string()).collect();
            format!("must be of type {}", names.join(" or "))
        }
        K::Enum { options } => format!("must be one of {}", quoted_up_to(options, 2 * QUOTED_BYTES_MAX)),
        K::Constant { expected_value } => format!("must be {}", quoted(expected_value)),
        K::Minimum { limit } => format!("must be at least {limit}"),
        K::Maximum { limit } => format!("must be at most {limit}"),
        K::ExclusiveMinimum { limit } => format!("must be more than {limit}"),
        K::ExclusiveMaximum { limit } => format!("must be less than {limit}"),
        K::MinLength { limit } => format!("must have at least {limit} characters"),
        K::MaxLength { limit } => format!("must have at most {limit} characters"),
        K::MinItems { limit } => format!("must have at least {limit} items"),
        K::MaxItems { limit } => format!("must have at most {limit} items"),
        K::AdditionalItems { limit } => format!("must have at most {limit} items"),
        K::MinProperties { limit } => format!("must have at least {limit} members"),
        K::MaxProperties { limit } => format!("must have at most {limit} members"),
        K::MultipleOf { multiple_of } => format!("must be a multiple of {multiple_of}"),
        K::Pattern { pattern } => format!("must match the pattern {}", wording::cut(pattern, QUOTED_BYTES_MAX)),
        K::Format { format } => format!("must be a valid {}", wording::cut(format, QUOTED_BYTES_MAX)),
        K::UniqueItems => "must not have the same item twice".to_owned(),
        K::FalseSchema => "is not allowed".to_owned(),
        K::AnyOf { context } | K::OneOfNotValid { context } => alternatives(context, pointer),
        K::OneOfMultipleValid { .. } => "fits more than one of the allowed forms and must fit exactly one".to_owned(),
        K::Not { .. } => "has a form that is not allowed".to_owned(),
        _ => return None,
    })
}

/// The first complaint of each alternative, so that a model can choose one.
fn alternatives(context: &[Vec<ValidationError<'static>>], pointer: &str) -> String {
    let first = context.iter().filter_map(|errors| errors.first()).take(3);
    let wishes: Vec<String> = first
        .map(|error| {
            let here = error.instance_path().as_str();
            let at = dotted(here.strip_prefix(pointer).unwrap_or(here));
            let wish = match error.kind() {
                ValidationErrorKind::Required { property } => format!("needs {}", quoted(property)),
                kind => expected(kind, here).unwrap_or_else(|| format!("must fit '{}'", kind.keyword())),
            };
            let wish = wording::cut(&wish, QUOTED_BYTES_MAX);
            if at.is_empty() { wish } else { format!("{} {wish}", wording::cut(&at, QUOTED_BYTES_MAX)) }
        })
        .collect();
    format!("fits none of the allowed forms ({})", wishes.join(" / "))
}

fn quoted(value: &Value) -> String {
    quoted_up_to(value, QUOTED_BYTES_MAX)
}

/// A value for a message. A long string is cut before it is written out, so that a big argument costs little.
fn quoted_up_to(value: &Value, bytes_max: usize) -> String {
    match value {
        Value::String(text) => wording::cut(&Value::from(wording::cut(text, bytes_max)).to_string(), bytes_max),
        Value::Object(members) if members.len() > bytes_max => format!("an object with {} members", members.len()),
        Value::Array(items) if items.len() > bytes_max => format!("an array of {} items", items.len()),
        other => wording::cut(&other.to_string(), bytes_max),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `/user/emails/0` → `user.emails[0]`.
fn dotted(pointer: &str) -> String {
    let mut path = String::new();
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        if !token.is_empty() && token.bytes().all(|b| b.is_ascii_digit()) && !path.is_empty() {
            path.push_str(&format!("[{token}]"));
        } else {
            path = join(&path, &token);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check() -> ArgumentCheck {
        ArgumentCheck::compile(&json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1},
                "mode": {"enum": ["append", "replace"]},
                "count": {"type": "integer", "minimum": 0},
                "owner": {"type": "object", "properties": {"emails": {"type": "array", "items": {"type": "string"}}}},
                "when": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["from"]}]}
            },
            "required": ["path"],
            "additionalProperties": false
        }))
        .unwrap()
    }

    fn message(text: &str) -> String {
        check().check(text).unwrap_err().message("write_file")
    }

    #[test]
    fn each_message_says_which_argument_and_what_was_expected() {
        assert_eq!(message("{}"), "Missing required argument 'path' for tool 'write_file'.");
        let typed = r#"Argument 'count' must be of type integer; found "three" for tool 'write_file'."#;
        assert_eq!(message(r#"{"path":"a","count":"three"}"#), typed);
        let nested = "Argument 'owner.emails[1]' must be of type string; found 7 for tool 'write_file'.";
        assert_eq!(message(r#"{"path":"a","owner":{"emails":["x",7]}}"#), nested);
        assert!(message(r#"{"path":"a","mode":"rw"}"#).contains(r#"must be one of ["append","replace"]; found "rw""#));
        assert!(message(r#"{"path":"a","cuont":1}"#).contains("Unknown argument 'cuont', did you mean 'count'?"));
        assert!(message(r#"{"path":"a","zzz":1}"#).contains("expected: count, mode, owner, path, when"));
        assert!(message(r#"{"path":"a","when":{}}"#).contains(r#"(must be of type string / needs "from")"#));
    }

    #[test]
    fn text_that_is_no_object_is_never_run_as_an_empty_one() {
        for bad in ["", "null", "[]", "\"{}\"", "{", "{\"path\":\"a\",\"path\":\"b\"}"] {
            assert!(check().check(bad).is_err(), "{bad}");
        }
        assert!(message("null").contains("must be a JSON object, not null"));
        assert!(message(r#"{"path":"a","path":"b"}"#).contains("'path' is given twice"));
    }

    #[test]
    fn integers_beyond_64_bits_pass_unchanged() {
        let text = r#" {"path":"a","count":123456789012345678901234567890} "#;
        assert_eq!(check().check(text).unwrap().get(), text.trim());
    }

    #[tokio::test]
    async fn long_arguments_are_checked_apart_and_not_for_long() {
        let check = ArgumentCheck::compile(&json!({"properties": {"x": {"uniqueItems": true}}})).unwrap();
        let long = |from: usize| json!({"x": (0..30_000).map(|n| n.max(from)).collect::<Vec<_>>()}).to_string();
        assert!(check.check_in_time(&long(0)).await.is_ok());
        let twice = check.check_in_time(&long(2)).await.unwrap_err();
        assert!(twice.message("t").contains("must not have the same item twice"), "{}", twice.message("t"));
        let late = check.check_within(&long(0), Duration::ZERO).await.unwrap_err();
        assert_eq!(late.message("t"), "The arguments could not be checked within 0 ms for tool 't'.");
    }

    #[test]
    fn every_digit_of_every_number_reaches_the_handler() {
        let decimals = ["0.1000000000000000055511151231257827", "1.10", "-0.0", "123456789.123456789123456789"];
        for number in ["18446744073709551616", "-99999999999999999999"].into_iter().chain(decimals) {
            let text = format!(r#"{{"path":"a","owner":{{"n":{number}}}}}"#);
            assert_eq!(check().check(&text).unwrap().get(), text);
        }
        assert!(
            check().check(r#"{"path":"a","owner":{"n":1E400}}"#).is_err(),
            "beyond every number that can be compared"
        );
    }

    #[test]
    fn a_huge_wrong_value_makes_a_small_message() {
        let names: String = (0..200).map(|n| format!("\"unknown_{n}_{}\":1,", "x".repeat(100))).collect();
        let text = format!("{{{names}\"path\":{}}}", json!(vec!["y".repeat(1_000); 20]));
        let error = check().check(&text).unwrap_err();
        assert!(error.message(&"t".repeat(1_000)).len() <= limits::ERROR_BYTES_MAX);
        assert!(error.details().to_string().len() < 4 * limits::ERROR_BYTES_MAX);
        assert!(error.problems.len() <= PROBLEMS_MAX);
        let long = format!(r#"{{"path":"a","owner":{{"emails":[0{}]}}}}"#, ",0".repeat(100_000));
        assert_eq!(check().check(&long).unwrap_err().problems.len(), 1, "the first problem stands for all");
    }

    #[tokio::test]
    async fn a_result_is_told_of_as_a_result() {
        let schema = json!({
            "properties": {"area": {"type": "number"}, "unit": {}}, "required": ["area", "unit"],
            "additionalProperties": false
        });
        let check = OutputCheck::compile(&schema).unwrap();
        assert!(check.check_in_time(r#"{"area":1,"unit":"m2"}"#).await.is_ok());
        let unfit = check.check_in_time(r#"{"area":"one","zone":1}"#).await.unwrap_err();
        let mut said: Vec<&str> = unfit.problems.iter().map(|problem| problem.message.as_str()).collect();
        said.sort_unstable();
        let expected = [
            "It has the undeclared member 'zone', expected: area, unit",
            "It lacks the member 'unit'",
            "Its member 'area' must be of type number",
        ];
        assert_eq!(said, expected);
        let long = format!(r#"{{"area":"{}"}}"#, "x".repeat(limits::ARGUMENTS_BYTES_MAX));
        assert_eq!(check.check_in_time(&long).await.unwrap_err().problems.len(), 1, "long, and still looked at");
        let strings = OutputCheck::compile(&json!({"type": "string"})).unwrap();
        assert!(strings.check_in_time("\"a\"").await.is_ok(), "a result need not be an object");
    }

    #[test]
    fn schemas_that_are_not_for_arguments_are_refused() {
        let compile = |schema: Value| ArgumentCheck::compile(&schema).unwrap_err();
        assert!(matches!(compile(json!(true)), SchemaError::NotAnObject(_)));
        assert!(matches!(compile(json!({"type": "string"})), SchemaError::NotAnObject(_)));
        assert!(matches!(compile(json!({"properties": {"a": {"type": "strnig"}}})), SchemaError::Invalid(_)));
        assert!(matches!(compile(json!({"properties": {"a": {"pattern": "(?=a)b"}}})), SchemaError::Invalid(_)));
        let huge = json!({"properties": {"a": {"pattern": "((a{100}){100}){100}"}}});
        assert!(matches!(compile(huge), SchemaError::Invalid(_)));
        let remote = json!({"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}});
        assert!(matches!(compile(remote), SchemaError::Unbounded(_)));
    }

    #[test]
    fn the_same_schema_is_compiled_once() {
        let (one, other) = (check(), check());
        assert!(Arc::ptr_eq(&one.0.0, &other.0.0));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_every_message_is_bounded(text in "[\\PC\u{0}-\u{1f}{}\\[\\]\",:0-9a-z]{0,200}") {
            if let Err(error) = check().check(&text) {
                prop_assert!(error.message("write_file").len() <= limits::ERROR_BYTES_MAX);
                prop_assert!(!error.problems.is_empty());
            }
        }
    }
}
