//! Parses untrusted JSON text with limits on size, nesting and the number of values.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use tickfleet_model::limits;
use tickfleet_protocol::json::replace_beyond;

/// Rejects a duplicate key: another parser might use the other value. Very long numbers are only approximate.
pub(super) fn parse_bounded(text: &str, bytes_max: usize) -> Result<Value, NotJson> {
    if text.len() > bytes_max {
        let why = format!("{} bytes; at most {bytes_max} are allowed", text.len());
        return Err(NotJson { why, breaks_off: false });
    }
    let comparable = comparable(text);
    let mut from = serde_json::Deserializer::from_str(&comparable);
    let left = Cell::new(limits::JSON_VALUES_MAX);
    let value = Bounded { at: ValuePath::Root, depth: 0, left: &left }.deserialize(&mut from)?;
    from.end()?;
    Ok(value)
}

#[derive(Debug)]
pub(super) struct NotJson {
    /// In one line, worded for a model.
    pub(super) why: String,
    pub(super) breaks_off: bool,
}

impl From<serde_json::Error> for NotJson {
    fn from(error: serde_json::Error) -> Self {
        Self { why: error.to_string(), breaks_off: error.is_eof() }
    }
}

fn comparable(text: &str) -> Cow<'_, str> {
    const LARGEST: &str = "1.7976931348623157e308";
    replace_beyond(text, |number| if number.starts_with('-') { format!("-{LARGEST}") } else { LARGEST.to_owned() })
}

/// A linked list on the stack. Only an error builds the text of the path.
#[derive(Clone, Copy)]
enum ValuePath<'a> {
    Root,
    Member(&'a ValuePath<'a>, &'a str),
    Item(&'a ValuePath<'a>, usize),
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Self::Root, name) => f.write_str(&crate::wording::cut(name, 80)),
            Self::Member(above, name) => write!(f, "{above}.{}", crate::wording::cut(name, 80)),
            Self::Item(above, index) => write!(f, "{above}[{index}]"),
        }
    }
}

#[derive(Clone, Copy)]
struct Bounded<'a> {
    at: ValuePath<'a>,
    depth: usize,
    left: &'a Cell<usize>,
}

impl Bounded<'_> {
    fn deeper<E: Error>(&self) -> Result<usize, E> {
        let depth = self.depth + 1;
        if depth > limits::JSON_DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {} levels", limits::JSON_DEPTH_MAX)));
        }
        Ok(depth)
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(D::Error::custom(format_args!("more than {} values", limits::JSON_VALUES_MAX)));
        };
        self.left.set(left);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let left = self.left;
        let mut items = Vec::new();
        while let Some(item) =
            from.next_element_seed(Bounded { at: ValuePath::Item(&self.at, items.len()), depth, left })?
        {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let left = self.left;
        let mut members = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            let at = ValuePath::Member(&self.at, &name);
            if members.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the key '{at}' is given twice")));
            }
            let value = from.next_value_seed(Bounded { at, depth, left })?;
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn parsed(text: &str) -> Result<Value, String> {
        parse_bounded(text, limits::ARGUMENTS_BYTES_MAX).map_err(|error| error.why)
    }

    #[test]
    fn a_duplicate_key_is_rejected_with_its_path() {
        let error = parsed(r#"{"a":[{"b":1},{"b":1,"b":2}]}"#).unwrap_err();
        assert!(error.starts_with("the key 'a[1].b' is given twice"), "{error}");
    }

    #[test]
    fn a_number_beyond_f64_compares_as_the_largest_f64() {
        let text = r#"{"a": 1e400, "b":[-1E+999,"1e400 \\" ],"c":90071992547409931234,"d":1e5}"#;
        let expected = r#"{"a": 1.7976931348623157e308, "b":[-1.7976931348623157e308,"1e400 \\" ],"c":90071992547409931234,"d":1e5}"#;
        assert_eq!(comparable(text), expected);
        assert!(parsed(text).is_ok());
        for same in ["", "-", "\"", "\"\\", "{\"a\":-", "nul", "[1,2]"] {
            assert!(matches!(comparable(same), Cow::Borrowed(_)), "{same}");
        }
    }

    #[test]
    fn depth_and_bytes_are_bounded() {
        let nest = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parsed(&nest(limits::JSON_DEPTH_MAX)).is_ok());
        assert!(parsed(&nest(limits::JSON_DEPTH_MAX + 1)).unwrap_err().contains("nested deeper than 64"));
        assert!(parsed(&nest(100_000)).unwrap_err().contains("nested deeper than 64"));
        let long = format!("\"{}\"", "x".repeat(limits::ARGUMENTS_BYTES_MAX));
        assert!(parsed(&long).unwrap_err().contains("at most 262144"));
    }

    #[test]
    fn the_number_of_values_is_limited() {
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
        assert!(parse_bounded(&list(limits::JSON_VALUES_MAX), limits::OUTPUT_CHECKED_BYTES_MAX).is_ok());
        let error =
            parse_bounded(&list(limits::JSON_VALUES_MAX + 1), limits::OUTPUT_CHECKED_BYTES_MAX).unwrap_err().why;
        assert!(error.contains("more than 200000 values"), "{error}");
    }

    #[test]
    fn malformed_json_is_rejected_with_its_line() {
        for bad in ["", "{\"a\":", "{} {}", "{'a':1}", "nul", "\"\\ud800\""] {
            assert!(parsed(bad).unwrap_err().contains("line 1"), "{bad}");
        }
    }
}
