//! Canonical JSON, so that equal values have equal digests.

use serde_json::Value;

use crate::document::tree::{self, Node};

pub(crate) fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in members {
                write_name(name, out);
                write_canonical(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

pub(crate) fn write_name(name: &str, out: &mut String) {
    out.push_str(&Value::from(name).to_string());
    out.push(':');
}

/// Writes the tree directly, because converting the whole tree to JSON values first would take more memory.
pub(crate) fn write_tree(node: &Node, out: &mut String) {
    match &node.value {
        tree::Value::Mapping(entries) => {
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|entry| entry.key.as_str());
            out.push('{');
            for entry in entries {
                write_name(&entry.key, out);
                write_tree(&entry.node, out);
                out.push(',');
            }
            out.push('}');
        }
        tree::Value::List(items) => {
            out.push('[');
            for item in items {
                write_tree(item, out);
                out.push(',');
            }
            out.push(']');
        }
        _ => write_canonical(&node.to_json(), out),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::document::errors::Errors;
    use crate::document::yaml::{Origin, parse};

    #[test]
    fn a_tree_and_its_json_have_the_same_canonical_text() {
        let text = "b: [1, {z: null, a: -2.5}]\na: {c: 'it''s', b: true}\nc: 18446744073709551615\nd: []\n";
        let tree = parse(text, Origin::BuiltIn("test.yaml"), &Errors::default()).unwrap();
        let mut from_tree = String::new();
        let mut from_json = String::new();
        write_tree(&tree, &mut from_tree);
        write_canonical(&tree.to_json(), &mut from_json);
        assert_eq!(from_tree, from_json);
        assert!(from_tree.starts_with(r#"{"a":{"b":true,"c":"it's",},"b":[1,{"a":-2.5,"z":null,},],"#), "{from_tree}");
    }
}
