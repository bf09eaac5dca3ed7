//! Reads the fields of a message.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::value::RawValue;

use super::super::json::{Kind, Value, bounded};
use super::problem::MessageProblem;
use tickfleet_model::{Context, IdError, Priority, RejectionCode, SessionName, limits};

#[derive(Debug, Clone, Copy)]
pub(crate) enum ObjectPath {
    Message,
    Member(&'static str),
    Element(&'static str, usize),
    Inside(&'static str, usize, &'static str),
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message => Ok(()),
            Self::Member(member) => write!(f, "{member}."),
            Self::Element(list, index) => write!(f, "{list}[{index}]."),
            Self::Inside(list, index, member) => write!(f, "{list}[{index}].{member}."),
        }
    }
}

pub(crate) struct Fields<'a, 'd> {
    place: ObjectPath,
    members: Vec<(Cow<'a, str>, Value<'a, 'd>)>,
}

impl<'a, 'd> Fields<'a, 'd> {
    pub(crate) fn of(value: Option<Value<'a, 'd>>, place: ObjectPath) -> Result<Self, MessageProblem> {
        match value {
            Some(object) if object.kind() == Kind::Object => {
                let mut members = Vec::with_capacity(16);
                members.extend(object.members());
                Ok(Self { place, members })
            }
            other => {
                let what = place.to_string();
                let what = if what.is_empty() { "the message" } else { what.trim_end_matches('.') };
                let found = other.map_or("nothing", |value| value.kind().as_str());
                Err(MessageProblem::new(RejectionCode::InvalidField, format!("{what} is {found}; expected an object")))
            }
        }
    }

    pub(crate) fn only(self, allowed: &[&str]) -> Result<Self, MessageProblem> {
        match self.members.iter().find(|(key, _)| !allowed.contains(&key.as_ref())) {
            None => Ok(self),
            Some((key, _)) => {
                let key = bounded(key, limits::NAME_BYTES_MAX);
                let allowed = allowed.join(", ");
                let place = &self.place;
                Err(MessageProblem::new(
                    RejectionCode::UnknownField,
                    format!("unknown field {place}{key}; allowed are {allowed}"),
                ))
            }
        }
    }

    /// Null counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<Value<'a, 'd>> {
        self.get_or_null(name).filter(|value| value.kind() != Kind::Null)
    }

    pub(crate) fn get_or_null(&self, name: &str) -> Option<Value<'a, 'd>> {
        self.members.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }

    pub(crate) fn invalid(&self, name: &str, what: &str) -> MessageProblem {
        MessageProblem::new(RejectionCode::InvalidField, format!("{}{name}: {what}", self.place))
    }

    pub(crate) fn too_large(&self, name: &str, bytes: usize, bytes_max: usize) -> MessageProblem {
        let place = &self.place;
        MessageProblem::new(
            RejectionCode::TooLarge,
            format!("{place}{name} has {bytes} bytes; at most {bytes_max} are allowed"),
        )
    }

    pub(crate) fn missing(&self, name: &str) -> MessageProblem {
        MessageProblem::new(RejectionCode::MissingField, format!("the field {}{name} is missing", self.place))
    }

    pub(crate) fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, MessageProblem> {
        value.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn string(&self, name: &str, bytes_max: usize) -> Result<Option<Cow<'a, str>>, MessageProblem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value
            .as_str()
            .ok_or_else(|| self.invalid(name, &format!("expected a string, found {}", value.kind().as_str())))?;
        if text.len() > bytes_max {
            return Err(self.too_large(name, text.len(), bytes_max));
        }
        Ok(Some(text))
    }

    pub(crate) fn id<T>(
        &self,
        name: &str,
        new: impl FnOnce(Cow<'a, str>) -> Result<T, IdError>,
    ) -> Result<Option<T>, MessageProblem> {
        let text = self.string(name, limits::TURN_BYTES_MAX)?;
        text.map(|text| new(text).map_err(|e| self.invalid(name, &e.to_string()))).transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, MessageProblem> {
        match self.get(name) {
            None => Ok(false),
            Some(value) if value.kind() == Kind::Bool => Ok(value.text() == Some("true")),
            Some(value) => Err(self.invalid(name, &format!("expected true or false, found {}", value.kind().as_str()))),
        }
    }

    pub(crate) fn names(
        &self,
        name: &str,
        count_max: usize,
        bytes_max: usize,
    ) -> Result<Option<BTreeSet<String>>, MessageProblem> {
        let Some(list) = self.get(name) else { return Ok(None) };
        let expected =
            || self.invalid(name, &format!("expected at most {count_max} strings of 1 to {bytes_max} bytes"));
        if list.kind() != Kind::Array || list.elements().count() > count_max {
            return Err(expected());
        }
        let fits = |text: &Cow<'_, str>| (1..=bytes_max).contains(&text.len());
        let names = list.elements().map(|element| element.as_str().filter(fits).map(Cow::into_owned));
        names.collect::<Option<_>>().map(Some).ok_or_else(expected)
    }

    pub(crate) fn count(&self, name: &str) -> Result<Option<u32>, MessageProblem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.text().filter(|_| value.kind() == Kind::Number).and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| self.invalid(name, "expected a whole number from 0 to 4294967295"))
    }

    pub(crate) fn priority(&self) -> Result<Priority, MessageProblem> {
        let Some(text) = self.string("priority", limits::NAME_BYTES_MAX)? else { return Ok(Priority::default()) };
        let expected = || self.invalid("priority", &format!("{text:?} is not one of urgent, high, normal, low"));
        Priority::parse(&text).ok_or_else(expected)
    }

    /// In milliseconds since the epoch. Only the format is checked here.
    pub(crate) fn deadline(&self) -> Result<Option<i64>, MessageProblem> {
        let Some(text) = self.string("deadline", limits::NAME_BYTES_MAX)? else { return Ok(None) };
        let expected = |_| {
            let example = "expected an RFC 3339 time with an offset, as 2026-01-31T12:00:00Z";
            self.invalid("deadline", &format!("{text:?}: {example}"))
        };
        chrono::DateTime::parse_from_rfc3339(&text).map(|time| Some(time.timestamp_millis())).map_err(expected)
    }

    pub(crate) fn raw(&self, name: &str, bytes_max: usize) -> Result<Option<Box<RawValue>>, MessageProblem> {
        let Some(text) = self.get(name).and_then(|value| value.text()) else { return Ok(None) };
        if text.len() > bytes_max {
            return Err(self.too_large(name, text.len(), bytes_max));
        }
        raw_value(text).map(Some).map_err(|e| self.invalid(name, &e.to_string()))
    }

    /// All fields together have at most [`limits::CONTEXT_BYTES_MAX`] bytes.
    pub(crate) fn context(&self) -> Result<Context, MessageProblem> {
        let context = Context {
            user_context: self.raw("user_context", limits::CONTEXT_BYTES_MAX)?,
            session_data: self.raw("session_data", limits::CONTEXT_BYTES_MAX)?,
            session_id: self.id("session_id", SessionName::new)?,
            correlation_id: self.string("correlation_id", limits::CORRELATION_ID_BYTES_MAX)?.map(Cow::into_owned),
            traceparent: self.traceparent(),
            tracestate: self.tracestate(),
        };
        let raw = |value: &Option<Box<RawValue>>| value.as_ref().map_or(0, |value| value.get().len());
        let bytes = raw(&context.user_context)
            + raw(&context.session_data)
            + context.correlation_id.as_ref().map_or(0, String::len);
        if bytes > limits::CONTEXT_BYTES_MAX {
            let max = limits::CONTEXT_BYTES_MAX;
            let what = "user_context, session_data and correlation_id together";
            return Err(MessageProblem::new(
                RejectionCode::TooLarge,
                format!("{what} have {bytes} bytes; at most {max} are allowed"),
            ));
        }
        Ok(context)
    }

    /// A malformed W3C trace context is ignored, as the standard requires.
    fn traceparent(&self) -> Option<String> {
        let text = self.get("traceparent")?.as_str()?;
        super::super::traceparent::is_traceparent(&text).then(|| text.into_owned())
    }

    fn tracestate(&self) -> Option<String> {
        self.traceparent()?;
        let text = self.get("tracestate")?.as_str()?;
        is_tracestate(&text).then(|| text.into_owned())
    }
}

/// Does not fail in practice, because the scan has already checked `text`.
fn raw_value(text: &str) -> Result<Box<RawValue>, serde_json::Error> {
    RawValue::from_string(text.to_owned())
}

/// The format is a list of `key=value`, in printable ASCII.
fn is_tracestate(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= limits::TRACESTATE_BYTES_MAX
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.split(',').all(|member| member.trim().is_empty() || member.contains('='))
}
