//! Checks arguments as a model wrote them, and results of tools, against limits and schemas.

mod explain;
mod integers;
mod parse;
mod patterns;
mod schema_cost;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tickfleet_config::{SchemaProblem, SchemaUse};
use tickfleet_model::limits;
use tickfleet_protocol::is_cut;

use explain::{ARGUMENTS, CheckedValueName, OUTPUT, quoted};
pub use explain::{ArgumentError, Problem};
pub(super) use explain::{found, is_secret};

/// If arguments are longer than this, only the first problem is explained. A long list can have a hundred thousand
/// errors.
const EXPLAINED_BYTES_MAX: usize = 16 * 1024;
/// Longer arguments are checked on a separate thread, so that they do not delay calls and heartbeats.
const CHECKED_IN_PLACE_BYTES_MAX: usize = 16 * 1024;
/// The time limit for a check. Checks of real arguments take microseconds.
const CHECK_TIME_MAX: Duration = Duration::from_secs(2);

/// Why a schema cannot be used. The text continues a sentence that begins with `the schema`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The schema does not describe an object. Arguments are always an object.
    #[error("must describe an object: {0}")]
    NotAnObject(String),
    /// A check against the schema could take unbounded time or need the network.
    #[error("is rejected: {why} (at '{at}')")]
    Unbounded {
        /// The place in the schema.
        at: String,
        /// The reason.
        why: String,
    },
    /// The schema is not a valid JSON Schema.
    #[error("is not valid: {why} (at '{at}')")]
    Invalid {
        /// The place in the schema.
        at: String,
        /// The reason.
        why: String,
    },
}

impl SchemaError {
    /// Returns the problem and its place in the schema.
    #[must_use]
    pub fn into_problem(self) -> SchemaProblem {
        match self {
            Self::NotAnObject(why) => SchemaProblem { at: String::new(), why: format!("describes an object ({why})") },
            Self::Unbounded { at, why } => SchemaProblem { at, why: format!("costs little to check ({why})") },
            Self::Invalid { at, why } => SchemaProblem { at, why: format!("is valid ({why})") },
        }
    }
}

/// Checks a tool's schema when a configuration is loaded. Returns the parts that the check leaves to the tool.
pub fn check_schema(schema: &Value, which: SchemaUse) -> Result<Vec<SchemaProblem>, SchemaProblem> {
    let checked = match which {
        SchemaUse::Arguments => ArgumentCheck::compile(schema).map(|check| check.0),
        SchemaUse::Output => OutputCheck::compile(schema).map(|check| check.0),
    };
    let warning = |at: &String| SchemaProblem { at: at.clone(), why: patterns::LEFT_TO_THE_TOOL.to_owned() };
    checked.map(|check| check.0.unread.iter().map(warning).collect()).map_err(SchemaError::into_problem)
}

/// A compiled schema. Checks use no network and no files, and take a bounded number of steps.
#[derive(Debug, Clone)]
pub struct ValueCheck(Arc<CompiledSchema>);

/// A tool's compiled input schema.
#[derive(Debug, Clone)]
pub struct ArgumentCheck(ValueCheck);

/// A tool's compiled output schema.
#[derive(Debug, Clone)]
pub struct OutputCheck(ValueCheck);

#[derive(Debug)]
struct CompiledSchema {
    validator: Validator,
    /// For hints: the top-level arguments that the schema names.
    names: Vec<String>,
    /// The schema, if it declares integers.
    whole_numbers: Option<Value>,
    /// The places of patterns that no available engine supports. These patterns are not checked.
    unread: Vec<String>,
}

/// The references are weak: a schema is freed when no tool uses it.
static COMPILED: LazyLock<Mutex<HashMap<[u8; 32], Weak<CompiledSchema>>>> = LazyLock::new(Mutex::default);

impl ArgumentCheck {
    /// Compiles `schema`, which must describe an object.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let Value::Object(members) = schema else {
            return Err(SchemaError::NotAnObject(format!("found {}", quoted(schema))));
        };
        if let Some(other) = members.get("type").filter(|t| t.as_str() != Some("object")) {
            return Err(SchemaError::NotAnObject(format!("its type is {}", quoted(other))));
        }
        ValueCheck::compile(schema).map(Self)
    }

    /// Checks `text`, the arguments as the model wrote them, and preserves every digit. A declared integer `5.0`
    /// becomes `5`. Empty text and `null` count as an empty object, because some providers write them.
    pub fn check(&self, text: &str) -> Result<Box<RawValue>, ArgumentError> {
        let text = if matches!(text.trim_ascii(), "" | "null") { "{}" } else { text };
        self.0.checked(text, &ARGUMENTS, true)
    }

    /// Like [`Self::check`], but does not block other work, and returns within two seconds.
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
    /// Compiles `schema`.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        ValueCheck::compile(schema).map(Self)
    }

    /// Checks `json`, the result of a tool. Does not block other work, and returns within two seconds.
    pub async fn check_in_time(&self, json: &str) -> Result<(), ArgumentError> {
        if json.len() <= CHECKED_IN_PLACE_BYTES_MAX {
            return self.0.checked(json, &OUTPUT, false).map(drop);
        }
        let check = self.0.clone();
        apart(json, &OUTPUT, CHECK_TIME_MAX, move |json| check.checked(json, &OUTPUT, false).map(drop)).await
    }
}

async fn apart<T: Send + 'static>(
    text: &str,
    subject: &CheckedValueName,
    limit: Duration,
    check: impl FnOnce(&str) -> Result<T, ArgumentError> + Send + 'static,
) -> Result<T, ArgumentError> {
    let text = text.to_owned();
    // A blocking thread continues after the timeout. The schema's cost and the value's size limit its remaining work.
    let checked = tokio::task::spawn_blocking(move || check(&text));
    match tokio::time::timeout(limit, checked).await {
        Ok(Ok(checked)) => checked,
        Ok(Err(_)) => Err(ArgumentError::whole(&format!("{} could not be checked", subject.whole))),
        Err(_) => {
            let message = format!("{} could not be checked within {} ms", subject.whole, limit.as_millis());
            Err(ArgumentError::whole(&message))
        }
    }
}

impl ValueCheck {
    /// Compiles `schema`, once per distinct schema. Rejects a schema if checks could be expensive.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let text = schema.to_string();
        let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        if let Some(known) = compiled().get(&digest).and_then(Weak::upgrade) {
            return Ok(Self(known));
        }
        if text.len() > limits::SCHEMA_BYTES_MAX {
            let why = format!("it has {} bytes; at most {} are allowed", text.len(), limits::SCHEMA_BYTES_MAX);
            return Err(SchemaError::Unbounded { at: String::new(), why });
        }
        let fresh = Arc::new(CompiledSchema::new(schema)?);
        let mut all = compiled();
        // Another thread may have compiled the same schema meanwhile. Use that result, so that each schema is in memory
        // once.
        if let Some(known) = all.get(&digest).and_then(Weak::upgrade) {
            return Ok(Self(known));
        }
        all.retain(|_, weak| weak.strong_count() > 0);
        all.insert(digest, Arc::downgrade(&fresh));
        Ok(Self(fresh))
    }

    /// Checks `text`, any JSON value, and returns it with every digit preserved.
    pub fn check(&self, text: &str) -> Result<Box<RawValue>, ArgumentError> {
        self.checked(text, &ARGUMENTS, false)
    }

    fn checked(&self, text: &str, subject: &CheckedValueName, object: bool) -> Result<Box<RawValue>, ArgumentError> {
        let whole = subject.whole;
        let not_json = |why: String| ArgumentError::whole(&format!("{whole} {} not valid JSON ({why})", subject.is));
        let value = parse::parse_bounded(text, subject.bytes_max).map_err(|error| {
            let is_cut = object && (error.breaks_off || is_cut(text));
            ArgumentError { is_cut, ..not_json(error.why) }
        })?;
        if object && !value.is_object() {
            let found = quoted(&value);
            return Err(ArgumentError::whole(&format!("{whole} must be a JSON object, not {found},")));
        }
        if !self.0.validator.is_valid(&value)
            && let Some(error) = self.explain(&value, subject, text.len() <= EXPLAINED_BYTES_MAX)
        {
            return Err(error);
        }
        let text = match &self.0.whole_numbers {
            Some(schema) => integers::as_integers(schema, text.trim()),
            None => Cow::Borrowed(text.trim()),
        };
        RawValue::from_string(text.into_owned()).map_err(|e| not_json(e.to_string()))
    }

    /// Explains why the value does not fit. `None` if the only errors are patterns that took too many steps: the value
    /// may be valid.
    fn explain(&self, value: &Value, subject: &CheckedValueName, all: bool) -> Option<ArgumentError> {
        let validator = &self.0.validator;
        let names = &self.0.names;
        let mut errors = validator.iter_errors(value).filter(|error| !is_engine_error(error)).peekable();
        errors.peek()?;
        Some(if all { explain::all(errors, names, subject) } else { explain::all(errors.take(1), names, subject) })
    }
}

/// True if a pattern took too many steps, or the regex engine failed. The tool then decides whether the value matches.
fn is_engine_error(error: &ValidationError<'_>) -> bool {
    use ValidationErrorKind::{BacktrackLimitExceeded, RegexEngineFailure};
    matches!(error.kind(), BacktrackLimitExceeded { .. } | RegexEngineFailure { .. })
}

fn compiled() -> MutexGuard<'static, HashMap<[u8; 32], Weak<CompiledSchema>>> {
    // After a panic the map is still consistent: each change of the map is a single call.
    COMPILED.lock()
}

impl CompiledSchema {
    fn new(schema: &Value) -> Result<Self, SchemaError> {
        schema_cost::check(schema).map_err(|(at, why)| SchemaError::Unbounded { at, why })?;
        let options = patterns::engine(schema);
        let invalid = |e: ValidationError<'_>| {
            let at = e.instance_path().as_str().to_owned();
            SchemaError::Invalid { at, why: explain::of_schema(&e) }
        };
        let (validator, unread) = match options.build(schema) {
            Ok(validator) => (validator, Vec::new()),
            // The rest of the schema still applies if no engine supports a pattern.
            Err(error) => match patterns::without_unread(schema) {
                Some((readable, unread)) => (options.build(&readable).map_err(invalid)?, unread),
                None => return Err(invalid(error)),
            },
        };
        for at in &unread {
            tracing::warn!(at, "a schema {}", patterns::LEFT_TO_THE_TOOL);
        }
        let named = schema.get("properties").and_then(Value::as_object);
        let names = named.into_iter().flat_map(|p| p.keys().cloned()).collect();
        let whole_numbers = integers::are_declared(schema).then(|| schema.clone());
        Ok(Self { validator, names, whole_numbers, unread })
    }
}

#[cfg(test)]
mod tests;
