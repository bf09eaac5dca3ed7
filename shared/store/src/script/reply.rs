//! Replies as words: the one place where Redis values become ours.

use redis::Value;

use crate::StoreError;

/// The reply of one script, read front to back.
pub(crate) struct Reply {
    verb: &'static str,
    values: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(crate) fn new(verb: &'static str, value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(values) => Ok(Self { verb, values: values.into_iter() }),
            other => Err(unexpected(verb, &other)),
        }
    }

    pub(crate) fn next_value(&mut self) -> Option<Value> {
        self.values.next()
    }

    pub(crate) fn text(&mut self) -> Result<String, StoreError> {
        let value = self.values.next().unwrap_or(Value::Nil);
        text_of(&value).ok_or_else(|| unexpected(self.verb, &value))
    }

    pub(crate) fn number(&mut self) -> Result<i64, StoreError> {
        let value = self.values.next().unwrap_or(Value::Nil);
        number_of(&value).ok_or_else(|| unexpected(self.verb, &value))
    }

    pub(crate) fn rest(&mut self) -> Vec<Value> {
        self.values.by_ref().collect()
    }

    pub(crate) fn list(&mut self) -> Result<Self, StoreError> {
        let value = self.values.next().unwrap_or(Value::Nil);
        Self::new(self.verb, value)
    }
}

/// A text, whichever way Redis gave it.
pub(crate) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(n) => Some(n.to_string()),
        Value::Okay => Some("OK".into()),
        _ => None,
    }
}

/// A text moved out of its value: no copy for what is UTF-8, which all that we wrote is.
pub(crate) fn into_text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => {
            Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
        }
        other => text_of(&other),
    }
}

/// A number, whichever way Redis gave it.
pub(crate) fn number_of(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// The error for a reply that no version of the script gives.
pub(crate) fn unexpected(verb: &'static str, value: &Value) -> StoreError {
    let mut found = format!("{value:?}");
    if found.len() > 200 {
        let end = (0..=200).rev().find(|i| found.is_char_boundary(*i)).unwrap_or(0);
        found.truncate(end);
    }
    StoreError::Reply { verb, found }
}
