//! A YAML file as a tree. A typed deserializer would lose the locations of keys and values.

use crate::document::errors::ConfigLocation;
use crate::settings::redis_url::mask_url;
use tickfleet_model::Redactor;

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: ConfigLocation,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Boolean(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_place: ConfigLocation,
    pub(crate) node: Node,
}

impl Node {
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Mapping(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.value {
            Value::Mapping(entries) => entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node),
            _ => None,
        }
    }

    /// The text may contain secrets, so it is masked.
    pub(crate) fn describe(&self) -> String {
        const SHOWN: usize = 60;
        match &self.value {
            Value::Text(text) if text.contains("://") && text.contains('@') => format!("{:?}", mask_url(text)),
            Value::Null => "nothing".into(),
            Value::Boolean(value) => value.to_string(),
            Value::Integer(value) => value.to_string(),
            Value::Float(value) => format!("{value:?}"),
            Value::Text(text) => {
                let shown = Redactor::default().text(text).into_owned();
                match shown.chars().count() > SHOWN {
                    true => format!("{:?}…", shown.chars().take(SHOWN).collect::<String>()),
                    false => format!("{shown:?}"),
                }
            }
            Value::List(_) => "a list".into(),
            Value::Mapping(_) => "a mapping".into(),
        }
    }

    /// A null does not replace a mapping: a mapping with only comments is null in YAML.
    pub(crate) fn merge(&mut self, over: Node) {
        match (&mut self.value, over.value) {
            (Value::Mapping(_), Value::Null) => {}
            (Value::Mapping(entries), Value::Mapping(upper)) => {
                for entry in upper {
                    match entries.iter_mut().find(|below| below.key == entry.key) {
                        Some(below) => {
                            below.key_place = entry.key_place;
                            below.node.merge(entry.node);
                        }
                        None => entries.push(entry),
                    }
                }
            }
            (_, value) => *self = Node { value, place: over.place },
        }
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Boolean(value) => (*value).into(),
            Value::Integer(value) => integer_to_json(*value),
            Value::Float(value) => (*value).into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Mapping(entries) => {
                serde_json::Value::Object(entries.iter().map(|e| (e.key.clone(), e.node.to_json())).collect())
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "an integer beyond 64 bits has no exact JSON number here")]
fn integer_to_json(value: i128) -> serde_json::Value {
    match (i64::try_from(value), u64::try_from(value)) {
        (Ok(value), _) => value.into(),
        (_, Ok(value)) => value.into(),
        _ => (value as f64).into(),
    }
}

pub(crate) fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;
    use crate::document::errors::Errors;
    use crate::document::yaml::{Origin, parse};

    fn tree(text: &str) -> Node {
        parse(text, Origin::File("a.yaml"), &Errors::default()).unwrap()
    }

    #[test]
    fn merging_replaces_values_and_keeps_unnamed_keys() {
        let mut base = tree("a: {x: 1, y: [1, 2]}\nb: {z: 1}\n");
        base.merge(tree("a: {y: [3]}\nb:\nc: 1\n"));
        assert_eq!(base.to_json().to_string(), r#"{"a":{"x":1,"y":[3]},"b":{"z":1},"c":1}"#);
    }
}
