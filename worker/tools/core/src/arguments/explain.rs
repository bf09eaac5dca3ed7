//! Explains the problems of a value to a model: the argument, the expected value and the found value.

use std::sync::LazyLock;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use serde_json::Value;
use tickfleet_model::{Redactor, limits};
use tickfleet_protocol::cut_response;

use crate::wording;

/// A model corrects only a few problems in one step.
pub(super) const PROBLEMS_MAX: usize = 5;
const QUOTED_BYTES_MAX: usize = 80;
/// The maximum bytes of a list of values or names. Further entries are only counted.
const LISTED_BYTES_MAX: usize = 320;
const PROBLEM_BYTES_MAX: usize = 640;
const PATH_BYTES_MAX: usize = 300;
const ALTERNATIVES_MAX: usize = 3;

#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedValueName {
    pub(super) whole: &'static str,
    /// The verb after `whole`: `are` or `is`.
    pub(super) is: &'static str,
    part: &'static str,
    /// The singular and the plural form. The same applies to `unknown`.
    missing: [&'static str; 2],
    unknown: [&'static str; 2],
    pub(super) bytes_max: usize,
    /// Values of results are not quoted, because a withheld result must not appear in messages.
    quoted: bool,
}

pub(super) const ARGUMENTS: CheckedValueName = CheckedValueName {
    whole: "The arguments",
    is: "are",
    part: "Argument",
    missing: ["Missing required argument", "Missing required arguments"],
    unknown: ["Unknown argument", "Unknown arguments"],
    bytes_max: limits::ARGUMENTS_BYTES_MAX,
    quoted: true,
};

pub(super) const OUTPUT: CheckedValueName = CheckedValueName {
    whole: "The result",
    is: "is",
    part: "Its member",
    missing: ["It lacks the member", "It lacks the members"],
    unknown: ["It has the undeclared member", "It has the undeclared members"],
    bytes_max: limits::OUTPUT_CHECKED_BYTES_MAX,
    quoted: false,
};

/// The problem with one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path of the argument (`user.emails[0]`). Empty if the problem concerns the arguments as a whole.
    pub path: String,
    /// The expected and the found value, in words.
    pub message: String,
}

/// Arguments that do not parse or do not fit the schema. Contains at most five problems, each of bounded length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentError {
    /// In the schema's order. Never empty.
    pub problems: Vec<Problem>,
    /// True if there are more problems.
    pub more: bool,
    /// True if the arguments end in the middle because the model's response was cut off.
    pub is_cut: bool,
}

impl ArgumentError {
    pub(super) fn whole(message: &str) -> Self {
        let message = wording::cut(message, PROBLEM_BYTES_MAX);
        Self { problems: vec![Problem { path: String::new(), message }], more: false, is_cut: false }
    }

    /// Returns the message for a model, at most [`limits::ERROR_BYTES_MAX`] bytes.
    #[must_use]
    pub fn message(&self, tool: &str) -> String {
        if self.is_cut {
            return cut_response(tool);
        }
        let tool = wording::cut(tool, limits::NAME_BYTES_MAX);
        let text = match self.problems.as_slice() {
            [one] if !self.more => format!("{} for tool '{tool}'.", one.message),
            many => {
                let list: Vec<&str> = many.iter().map(|p| p.message.as_str()).collect();
                let (than, these) = if self.more { ("more than ", ", these first") } else { ("", "") };
                let count = many.len();
                format!("The arguments for tool '{tool}' have {than}{count} problems{these}: {}.", list.join("; "))
            }
        };
        wording::cut(&text, limits::ERROR_BYTES_MAX)
    }

    /// Returns JSON: `{"problems": [{"path", "message"}]}`, with `"more": true` and `"reason": "cut"` where they apply.
    #[must_use]
    pub fn details(&self) -> Value {
        let problems = self.problems.iter().map(|p| serde_json::json!({"path": p.path, "message": p.message}));
        let mut details = serde_json::json!({ "problems": problems.collect::<Vec<_>>() });
        if self.more {
            details["more"] = true.into();
        }
        if self.is_cut {
            details["reason"] = "cut".into();
        }
        details
    }
}

/// `names` are the top-level names that the schema declares.
pub(super) fn all<'e>(
    errors: impl Iterator<Item = ValidationError<'e>>,
    names: &[String],
    subject: &CheckedValueName,
) -> ArgumentError {
    let mut missing: Vec<(String, Vec<String>)> = Vec::new();
    let mut problems: Vec<(Option<usize>, Problem)> = Vec::new();
    let mut more = false;
    for error in errors {
        let path = dotted(error.instance_path().as_str());
        let room = problems.len() < PROBLEMS_MAX;
        if let ValidationErrorKind::Required { property } = error.kind() {
            let name = join(&path, property.as_str().unwrap_or_default());
            match missing.iter_mut().find(|(at, _)| *at == path) {
                Some((_, lacking)) => lacking.push(name),
                None if room => {
                    problems.push((Some(missing.len()), problem(&path, "")));
                    missing.push((path, vec![name]));
                }
                None => more = true,
            }
        } else if room {
            problems.push((None, problem(&path, &message(&error, &path, names, subject))));
        } else {
            more = true;
        }
    }
    let text = |(lacking, problem): (Option<usize>, Problem)| match lacking.and_then(|at| missing.get(at)) {
        Some((path, lacking)) => {
            let what = subject.missing[usize::from(lacking.len() > 1)];
            self::problem(path, &format!("{what} {}", listed_names(lacking)))
        }
        None => problem,
    };
    let problems: Vec<Problem> = problems.into_iter().map(text).collect();
    if problems.is_empty() {
        return ArgumentError::whole(&format!("{} {} not what the schema allows", subject.whole, subject.is));
    }
    ArgumentError { problems, more, is_cut: false }
}

fn problem(path: &str, message: &str) -> Problem {
    Problem { message: wording::cut(message, PROBLEM_BYTES_MAX), path: wording::cut(path, PATH_BYTES_MAX) }
}

fn message(error: &ValidationError<'_>, path: &str, names: &[String], subject: &CheckedValueName) -> String {
    if let ValidationErrorKind::AdditionalProperties { unexpected }
    | ValidationErrorKind::UnevaluatedProperties { unexpected } = error.kind()
    {
        return unknown(path, unexpected, names, subject);
    }
    let expected = expected(error).unwrap_or_else(|| format!("does not fit '{}'", error.kind().keyword()));
    let who = match path {
        "" => subject.whole.to_owned(),
        path => format!("{} '{}'", subject.part, wording::cut(path, QUOTED_BYTES_MAX)),
    };
    if subject.quoted {
        format!("{who} {expected}; found {}", found(path, error.instance()))
    } else {
        format!("{who} {expected}")
    }
}

fn unknown(path: &str, unexpected: &[String], names: &[String], subject: &CheckedValueName) -> String {
    // Names are suggested only at the top level, because the names below are not collected.
    let names = if path.is_empty() { names } else { &[] };
    let meant = |name: &str| wording::closest(name, names.iter().map(String::as_str), 1).first().copied();
    let expected = || listed(names.iter().map(|name| wording::cut(name, QUOTED_BYTES_MAX)), LISTED_BYTES_MAX / 2);
    if let [name] = unexpected {
        let what = subject.unknown[0];
        let shown = wording::cut(&join(path, name), QUOTED_BYTES_MAX);
        return match meant(name) {
            Some(meant) => format!("{what} '{shown}', did you mean '{meant}'?"),
            None if names.is_empty() => format!("{what} '{shown}'"),
            None => format!("{what} '{shown}', expected: {}", expected()),
        };
    }
    let one = |name: &String| {
        let shown = wording::cut(&join(path, name), QUOTED_BYTES_MAX);
        match meant(name) {
            Some(meant) => format!("'{shown}' (did you mean '{meant}'?)"),
            None => format!("'{shown}'"),
        }
    };
    let text = format!("{} {}", subject.unknown[1], listed(unexpected.iter().map(one), LISTED_BYTES_MAX));
    if names.is_empty() { text } else { format!("{text}, expected: {}", expected()) }
}

/// A predicate for the argument's name, such as `must be of type string`. `None` if the error has no wording.
fn expected(error: &ValidationError<'_>) -> Option<String> {
    use ValidationErrorKind as K;
    let has = |count: usize| format!("has {count}");
    let value = error.instance();
    let characters = || has(value.as_str().map_or(0, |text| text.chars().count()));
    let items = || has(value.as_array().map_or(0, Vec::len));
    let members = || has(value.as_object().map_or(0, serde_json::Map::len));
    Some(match error.kind() {
        K::Type { kind: TypeKind::Single(one) } => format!("must be of type {one}"),
        K::Type { kind: TypeKind::Multiple(set) } => {
            let names: Vec<String> = set.iter().map(|t| t.to_string()).collect();
            format!("must be of type {}", names.join(" or "))
        }
        K::Constant { expected_value } => format!("must be {}", quoted(expected_value)),
        K::Minimum { limit } => format!("must be at least {limit}"),
        K::Maximum { limit } => format!("must be at most {limit}"),
        K::ExclusiveMinimum { limit } => format!("must be more than {limit}"),
        K::ExclusiveMaximum { limit } => format!("must be less than {limit}"),
        K::MinLength { limit } => format!("must have at least {limit} characters and {}", characters()),
        K::MaxLength { limit } => format!("must have at most {limit} characters and {}", characters()),
        K::MinItems { limit } => format!("must have at least {limit} items and {}", items()),
        K::MaxItems { limit } => format!("must have at most {limit} items and {}", items()),
        K::AdditionalItems { limit } => format!("must have at most {limit} items and {}", items()),
        K::MinProperties { limit } => format!("must have at least {limit} members and {}", members()),
        K::MaxProperties { limit } => format!("must have at most {limit} members and {}", members()),
        K::MultipleOf { multiple_of } => format!("must be a multiple of {multiple_of}"),
        K::Pattern { pattern } => format!("must match the pattern {}", wording::cut(pattern, QUOTED_BYTES_MAX)),
        K::Format { format } => format!("must be a valid {}", wording::cut(format, QUOTED_BYTES_MAX)),
        K::UniqueItems => "must not have the same item twice".to_owned(),
        K::FalseSchema => "is not allowed".to_owned(),
        K::Enum { .. } | K::AnyOf { .. } | K::OneOfNotValid { .. } => match (allowed(error), error.kind()) {
            (Some(values), _) => format!("must be one of [{}]", listed(values.iter().map(quoted), LISTED_BYTES_MAX)),
            (None, K::AnyOf { context } | K::OneOfNotValid { context }) => {
                alternatives(context, error.instance_path().as_str())
            }
            (None, _) => return None,
        },
        K::OneOfMultipleValid { .. } => "fits more than one of the allowed forms and must fit exactly one".to_owned(),
        K::Not { .. } => "has a form that is not allowed".to_owned(),
        _ => return None,
    })
}

/// The allowed values of an enum or a constant. Schemas also use a `oneOf` of `const` as an enum with a description for
/// each value.
fn allowed(error: &ValidationError<'_>) -> Option<Vec<Value>> {
    use ValidationErrorKind as K;
    match error.kind() {
        K::Enum { options } => options.as_array().cloned(),
        K::Constant { expected_value } => Some(vec![Value::clone(expected_value)]),
        K::Type { kind: TypeKind::Single(jsonschema::JsonType::Null) } => Some(vec![Value::Null]),
        K::AnyOf { context } | K::OneOfNotValid { context } => {
            let mut values: Vec<Value> = Vec::new();
            for errors in context {
                let here = errors.iter().filter(|inner| inner.instance_path() == error.instance_path());
                values.extend(here.filter_map(allowed).next()?);
            }
            Some(values)
        }
        _ => None,
    }
}

fn alternatives(context: &[Vec<ValidationError<'static>>], pointer: &str) -> String {
    let wish = |error: &ValidationError<'_>| {
        let here = error.instance_path().as_str();
        let at = dotted(here.strip_prefix(pointer).unwrap_or(here));
        let wish = match error.kind() {
            ValidationErrorKind::Required { property } => format!("needs {}", quoted(property)),
            kind => expected(error).unwrap_or_else(|| format!("must fit '{}'", kind.keyword())),
        };
        let wish = wording::cut(&wish, 2 * QUOTED_BYTES_MAX);
        if at.is_empty() { wish } else { format!("{} {wish}", wording::cut(&at, QUOTED_BYTES_MAX)) }
    };
    let wishes: Vec<String> = context.iter().filter_map(|errors| errors.first()).map(wish).collect();
    let more = match wishes.len().saturating_sub(ALTERNATIVES_MAX) {
        0 => String::new(),
        more => format!(" / and {more} more"),
    };
    let shown = wishes.iter().take(ALTERNATIVES_MAX).map(String::as_str).collect::<Vec<_>>().join(" / ");
    format!("fits none of the allowed forms ({shown}{more})")
}

pub(super) fn of_schema(error: &ValidationError<'_>) -> String {
    let words = expected(error).map(|expected| format!("{} {expected}", quoted(error.instance())));
    wording::cut(&words.unwrap_or_else(|| error.masked().to_string()), PROBLEM_BYTES_MAX)
}

/// Describes a wrong value. Names only the kind of a secret value, because more people and systems see messages than
/// arguments.
pub fn found(path: &str, value: &Value) -> String {
    let secret = is_secret(path);
    match value {
        Value::String(_) if secret => "another text".to_owned(),
        Value::Null | Value::Bool(_) => quoted(value),
        _ if secret => "another value".to_owned(),
        _ => quoted(value),
    }
}

/// True if any part of the path marks a secret.
pub fn is_secret(path: &str) -> bool {
    static SECRETS: LazyLock<Redactor> = LazyLock::new(Redactor::default);
    path.split(['.', '[', ']']).any(|part| SECRETS.is_secret_key(part))
}

pub(super) fn quoted(value: &Value) -> String {
    quoted_up_to(value, QUOTED_BYTES_MAX)
}

/// Cuts a long string before serializing it, so that a large argument costs little.
fn quoted_up_to(value: &Value, bytes_max: usize) -> String {
    match value {
        Value::String(text) => wording::cut(&Value::from(wording::cut(text, bytes_max)).to_string(), bytes_max),
        Value::Object(members) if members.len() > bytes_max => format!("an object with {} members", members.len()),
        Value::Array(items) if items.len() > bytes_max => format!("an array of {} items", items.len()),
        other => wording::cut(&other.to_string(), bytes_max),
    }
}

fn listed_names(names: &[String]) -> String {
    listed(names.iter().map(|name| format!("'{}'", wording::cut(name, QUOTED_BYTES_MAX))), LISTED_BYTES_MAX)
}

fn listed(items: impl Iterator<Item = String>, bytes_max: usize) -> String {
    let mut text = String::new();
    let mut left_out = 0usize;
    for item in items {
        if left_out > 0 || (!text.is_empty() && text.len() + item.len() > bytes_max) {
            left_out += 1;
            continue;
        }
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&item);
    }
    if left_out > 0 {
        text.push_str(&format!(" and {left_out} more"));
    }
    text
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `/user/emails/0` becomes `user.emails[0]`.
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
