//! What validating against a schema can cost, told before it is used.
//!
//! A short schema can ask for exponential work: definitions that each use the one before twice. So a schema is walked
//! the way a validator walks it, every `$ref` followed, and refused when the walk does not end within a bound.

use serde_json::{Map, Value};
use shared::model::limits;

/// Subschemas that a walk may meet, every use of a definition counted anew. Real tools stay below a few hundred.
const SUBSCHEMAS_MAX: usize = 4_000;
/// Longest chain of subschemas and references.
const CHAIN_MAX: usize = 2 * limits::JSON_DEPTH_MAX;

/// One step from an instance to a part of it, as a schema names it.
#[derive(Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    AnyMember,
    Item(usize),
    AnyItem,
}

impl Step {
    /// Whether both steps can lead to the same part of an instance.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Member(a), Self::Member(b)) => a == b,
            (Self::Item(a), Self::Item(b)) => a == b,
            (Self::Member(_) | Self::AnyMember, Self::Member(_) | Self::AnyMember)
            | (Self::Item(_) | Self::AnyItem, Self::Item(_) | Self::AnyItem) => true,
            _ => false,
        }
    }
}

/// Checks that validation against `schema` costs no more than a small multiple of the instance's size.
///
/// # Errors
/// Why not, in words: too many subschemas, a reference that is not local, a recursion that doubles its work.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut walk = Walk { root: schema, met: 0, open: Vec::new(), steps: Vec::new(), returns: Vec::new() };
    walk.schema(schema, 0)
}

struct Walk<'a> {
    root: &'a Value,
    met: usize,
    /// References being followed: target, and how many steps led to it.
    open: Vec<(&'a str, usize)>,
    /// Steps from the root to here.
    steps: Vec<Step>,
    /// Places where an open reference is used again: target, the steps since it was opened.
    returns: Vec<(&'a str, Vec<Step>)>,
}

impl<'a> Walk<'a> {
    fn schema(&mut self, schema: &'a Value, chain: usize) -> Result<(), String> {
        self.met += 1;
        if self.met > SUBSCHEMAS_MAX {
            return Err(format!("it expands to more than {SUBSCHEMAS_MAX} subschemas"));
        }
        if chain > CHAIN_MAX {
            return Err(format!("it is nested deeper than {CHAIN_MAX} levels"));
        }
        let Value::Object(members) = schema else { return Ok(()) };
        self.foreign(members, chain)?;
        if let Some(target) = members.get("$ref") {
            self.reference(target.as_str().ok_or("a $ref is not a string")?, chain)?;
        }
        for (keyword, value) in members {
            self.keyword(keyword, value, chain)?;
        }
        Ok(())
    }

    fn keyword(&mut self, keyword: &str, value: &'a Value, chain: usize) -> Result<(), String> {
        match (keyword, value) {
            ("allOf" | "anyOf" | "oneOf", Value::Array(parts)) => {
                parts.iter().try_for_each(|part| self.schema(part, chain + 1))
            }
            ("not" | "if" | "then" | "else", part) => self.schema(part, chain + 1),
            ("dependentSchemas" | "dependencies", Value::Object(parts)) => {
                parts.values().try_for_each(|part| self.schema(part, chain + 1))
            }
            ("properties", Value::Object(parts)) => {
                parts.iter().try_for_each(|(name, part)| self.below(Step::Member(name.clone()), part, chain))
            }
            ("patternProperties", Value::Object(parts)) => {
                parts.values().try_for_each(|part| self.below(Step::AnyMember, part, chain))
            }
            ("additionalProperties" | "unevaluatedProperties" | "propertyNames", part) => {
                self.below(Step::AnyMember, part, chain)
            }
            ("prefixItems" | "items", Value::Array(parts)) => {
                parts.iter().enumerate().try_for_each(|(at, part)| self.below(Step::Item(at), part, chain))
            }
            ("items" | "additionalItems" | "unevaluatedItems" | "contains", part) => {
                self.below(Step::AnyItem, part, chain)
            }
            _ => Ok(()),
        }
    }

    fn below(&mut self, step: Step, schema: &'a Value, chain: usize) -> Result<(), String> {
        self.steps.push(step);
        let walked = self.schema(schema, chain + 1);
        self.steps.pop();
        walked
    }

    fn reference(&mut self, target: &'a str, chain: usize) -> Result<(), String> {
        if let Some(&(_, opened_at)) = self.open.iter().rev().find(|(open, _)| *open == target) {
            return self.back(target, opened_at);
        }
        let pointer = target.strip_prefix('#').filter(|p| p.is_empty() || p.starts_with('/'));
        let pointer = pointer.ok_or_else(|| format!("$ref '{target}' is not a local JSON pointer ('#/$defs/name')"))?;
        let found = self.root.pointer(&percent_decoded(pointer));
        let found = found.ok_or_else(|| format!("$ref '{target}' points at nothing"))?;
        self.open.push((target, self.steps.len()));
        let walked = self.schema(found, chain + 1);
        self.open.pop();
        self.returns.retain(|(other, _)| *other != target);
        walked
    }

    /// A definition uses itself. Once per part of the instance is a tree; twice is exponential in its depth.
    fn back(&mut self, target: &'a str, opened_at: usize) -> Result<(), String> {
        let since = self.steps[opened_at..].to_vec();
        if since.is_empty() {
            return Err(format!("$ref '{target}' refers to itself without end"));
        }
        let meets = |other: &[Step]| since.len() == other.len() && since.iter().zip(other).all(|(a, b)| a.meets(b));
        if self.returns.iter().any(|(other, steps)| *other == target && meets(steps)) {
            return Err(format!("$ref '{target}' is used twice on the same part of its own instance"));
        }
        self.returns.push((target, since));
        Ok(())
    }

    fn foreign(&self, members: &Map<String, Value>, chain: usize) -> Result<(), String> {
        let refused = ["$dynamicRef", "$recursiveRef"].into_iter().find(|k| members.contains_key(*k));
        if let Some(keyword) = refused.or_else(|| (chain > 0 && members.contains_key("$id")).then_some("a nested $id"))
        {
            return Err(format!("{keyword} is not supported"));
        }
        Ok(())
    }
}

/// A JSON pointer in a URI fragment may be percent-encoded.
fn percent_decoded(pointer: &str) -> String {
    let bytes = pointer.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = (byte == b'%').then(|| pointer.get(at + 1..at + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_that_doubles_its_work_at_every_level_is_refused() {
        let mut definitions = json!({"a0": {"type": "object"}});
        for level in 1..30 {
            let below = format!("#/$defs/a{}", level - 1);
            definitions[format!("a{level}")] = json!({"allOf": [{"$ref": below}, {"$ref": below}]});
        }
        let error = check(&json!({"$ref": "#/$defs/a29", "$defs": definitions})).unwrap_err();
        assert!(error.contains("more than 4000"), "{error}");
    }

    #[test]
    fn a_tree_may_refer_to_itself_but_not_twice_to_the_same_part() {
        let node = |parts: Value| json!({"$ref": "#/$defs/node", "$defs": {"node": parts}});
        let reference = json!({"$ref": "#/$defs/node"});
        let tree = json!({"properties": {"left": reference, "right": reference}});
        assert_eq!(check(&node(tree)), Ok(()));
        let any_json = json!({"anyOf": [{"items": reference}, {"additionalProperties": reference}]});
        assert_eq!(check(&node(any_json)), Ok(()));
        let list = json!({"properties": {"next": reference}});
        let used_twice = json!({"properties": {"a": reference, "b": reference}, "$defs": {"node": list}});
        assert_eq!(check(&used_twice), Ok(()), "two uses from outside are two lists");

        let doubled = json!({"anyOf": [{"properties": {"child": reference}}, {"properties": {"child": reference}}]});
        assert!(check(&node(doubled)).unwrap_err().contains("used twice"));
        let wild = json!({"properties": {"child": reference}, "patternProperties": {"^c": reference}});
        assert!(check(&node(wild)).unwrap_err().contains("used twice"));
        assert!(check(&node(json!({"allOf": [reference]}))).unwrap_err().contains("without end"));
    }

    #[test]
    fn references_out_of_the_schema_are_refused() {
        for target in ["https://example.com/s.json", "other.json#/a", "file:///etc/passwd", "#name", "#/$defs/none"] {
            assert!(check(&json!({"properties": {"a": {"$ref": target}}})).is_err(), "{target}");
        }
    }
}
