//! Reports arguments that fit a tool's schema but not its struct.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use serde_path_to_error::{Path, Segment};

use super::arguments::{found, is_secret};

/// The error is for a model, so it has no position in the text (`line 1 column 77`).
pub(super) fn read<Args: DeserializeOwned>(arguments: &RawValue) -> Result<Args, String> {
    // Parse again with paths, but only after a failure.
    serde_json::from_str(arguments.get()).map_err(|error| {
        let mut again = serde_json::Deserializer::from_str(arguments.get());
        match serde_path_to_error::deserialize::<_, Args>(&mut again) {
            Err(error) => message_for(error.path(), error.inner(), arguments.get()),
            Ok(_) => format!("The arguments cannot be read: {}.", reason(&error)),
        }
    })
}

fn message_for(path: &Path, error: &serde_json::Error, text: &str) -> String {
    let named = path.to_string();
    if named == "." {
        return format!("The arguments cannot be read: {}.", reason(error));
    }
    let value = serde_json::from_str::<Value>(text).unwrap_or_default();
    let at = path.iter().try_fold(&value, |value, segment| match segment {
        Segment::Seq { index } => value.get(index),
        Segment::Map { key } => value.get(key),
        Segment::Enum { .. } | Segment::Unknown => Some(value),
    });
    let found = at.map(|value| format!("; found {}", found(&named, value))).unwrap_or_default();
    // serde's own message would quote the secret value.
    let reason = if is_secret(&named) { "it has another form".to_owned() } else { reason(error) };
    format!("Argument '{}' cannot be read: {reason}{found}.", super::wording::cut(&named, 80))
}

fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::tests::arguments;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only read")]
    struct Booking {
        when: chrono::DateTime<chrono::Utc>,
        guests: Vec<Guest>,
        password: Option<u8>,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only read")]
    struct Guest {
        age: u8,
    }

    fn message(value: Value) -> String {
        read::<Booking>(&arguments(value)).unwrap_err()
    }

    #[test]
    fn a_parse_error_names_the_argument_and_its_value() {
        let text = message(json!({"when": "tomorrow at ten", "guests": []}));
        let expected = r#"Argument 'when' cannot be read: input contains invalid characters; found "tomorrow at ten"."#;
        assert_eq!(text, expected);
        let when = "2026-01-01T10:00:00Z";
        let text = message(json!({"when": when, "guests": [{"age": 7}, {"age": 700}]}));
        assert!(text.starts_with("Argument 'guests[1].age' cannot be read: invalid value: integer `700`"), "{text}");
        assert!(text.ends_with("; found 700."), "{text}");
        assert_eq!(message(json!({"when": when})), "The arguments cannot be read: missing field `guests`.");
        let text = message(json!({"when": when, "guests": [], "password": "hunter2"}));
        assert_eq!(text, "Argument 'password' cannot be read: it has another form; found another text.");
    }
}
