use redis::Value;

use crate::StoreError;

pub(crate) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(n) => Some(n.to_string()),
        Value::Okay => Some("OK".into()),
        _ => None,
    }
}

/// Valid UTF-8 is not copied.
pub(crate) fn into_text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => {
            Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
        }
        other => text_of(&other),
    }
}

pub(crate) fn number_of(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

pub(crate) fn unexpected(verb: &'static str, value: &Value) -> StoreError {
    let mut found = format!("{value:?}");
    if found.len() > 200 {
        let end = (0..=200).rev().find(|i| found.is_char_boundary(*i)).unwrap_or(0);
        found.truncate(end);
    }
    StoreError::Reply { verb, found }
}
