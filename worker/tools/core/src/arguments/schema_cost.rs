//! Estimates the cost of validating against a schema. A short schema can require exponential work, for example
//! definitions that each use the previous one twice.

use std::collections::HashMap;

use serde_json::{Map, Value};
use tickfleet_model::limits;

use crate::percent::percent_decoded;

/// Each use of a definition counts. Real tools have at most a few hundred subschemas.
const SUBSCHEMAS_MAX: usize = 4_000;
/// A part is, for example, an item of a list. 256 KiB of arguments have up to 100,000 parts.
const WEIGHT_PER_PART_MAX: usize = 512;
/// A pattern examines every character.
const PATTERN_WEIGHT: usize = 8;
/// Listed values that weigh as much as one subschema. A list of only strings is hashed and has no weight.
const VALUES_PER_WEIGHT: usize = 16;
const CHAIN_MAX: usize = 2 * limits::JSON_DEPTH_MAX;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Step {
    Member(String),
    AnyMember,
    Item(usize),
    AnyItem,
}

impl Step {
    const fn repeats(&self) -> bool {
        matches!(self, Self::AnyMember | Self::AnyItem)
    }

    /// True if both steps can lead to the same part of an instance.
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

/// Fails if validation can cost too much. The error is the place (a JSON pointer) and the reason.
pub(super) fn check(schema: &Value) -> Result<(), (String, String)> {
    let mut walk = Walk {
        root: schema,
        met: 0,
        open: Vec::new(),
        steps: Vec::new(),
        returns: Vec::new(),
        weights: HashMap::new(),
        place: String::new(),
    };
    walk.schema(schema, 0).map_err(|why| (walk.place, why))
}

struct Walk<'a> {
    root: &'a Value,
    met: usize,
    /// References that the walk is inside of: the target, and the length of `steps` at the reference.
    open: Vec<(&'a str, usize)>,
    steps: Vec<Step>,
    /// Recursive uses of open references: the target, and the steps from the reference to the use.
    returns: Vec<(&'a str, Vec<Step>)>,
    /// The weight of each repeated part, by the steps that lead to the part.
    weights: HashMap<Vec<Step>, usize>,
    /// A JSON pointer. After a failure, the place of the failure.
    place: String,
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
        self.weigh(members)?;
        if let Some(target) = members.get("$ref") {
            let target = target.as_str().ok_or("a $ref is not a string")?;
            self.at("/$ref", |walk| walk.reference(target, chain))?;
        }
        for (keyword, value) in members {
            self.keyword(keyword, value, chain)?;
        }
        Ok(())
    }

    fn weigh(&mut self, members: &Map<String, Value>) -> Result<(), String> {
        if !self.steps.iter().any(Step::repeats) {
            return Ok(());
        }
        let patterns = usize::from(members.contains_key("pattern"))
            + members.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        let values = members
            .get("enum")
            .and_then(Value::as_array)
            .map_or(0, |values| if values.iter().all(Value::is_string) { 0 } else { values.len() / VALUES_PER_WEIGHT });
        let weight = self.weights.entry(self.steps.clone()).or_default();
        *weight += 1 + patterns * PATTERN_WEIGHT + values;
        if *weight > WEIGHT_PER_PART_MAX {
            return Err(format!(
                "the subschemas for each item of a list, or for any member of an object, weigh more than \
                 {WEIGHT_PER_PART_MAX} (a subschema counts 1, a pattern {PATTERN_WEIGHT}, {VALUES_PER_WEIGHT} listed \
                 values 1)"
            ));
        }
        Ok(())
    }

    fn keyword(&mut self, keyword: &str, value: &'a Value, chain: usize) -> Result<(), String> {
        match (keyword, value) {
            ("allOf" | "anyOf" | "oneOf", Value::Array(parts)) => {
                self.each(keyword, parts.iter().enumerate(), |walk, _, part| walk.schema(part, chain + 1))
            }
            ("not" | "if" | "then" | "else", part) => {
                self.at(&format!("/{keyword}"), |walk| walk.schema(part, chain + 1))
            }
            ("dependentSchemas" | "dependencies", Value::Object(parts)) => {
                self.each(keyword, parts, |walk, _, part| walk.schema(part, chain + 1))
            }
            ("properties", Value::Object(parts)) => {
                self.each(keyword, parts, |walk, name, part| walk.below(Step::Member(name.clone()), part, chain))
            }
            ("patternProperties", Value::Object(parts)) => {
                self.each(keyword, parts, |walk, _, part| walk.below(Step::AnyMember, part, chain))
            }
            ("additionalProperties" | "unevaluatedProperties" | "propertyNames", part) => {
                self.at(&format!("/{keyword}"), |walk| walk.below(Step::AnyMember, part, chain))
            }
            ("prefixItems" | "items", Value::Array(parts)) => {
                let parts = parts.iter().enumerate();
                self.each(keyword, parts, |walk, at, part| walk.below(Step::Item(at), part, chain))
            }
            ("items" | "additionalItems" | "unevaluatedItems" | "contains", part) => {
                self.at(&format!("/{keyword}"), |walk| walk.below(Step::AnyItem, part, chain))
            }
            _ => Ok(()),
        }
    }

    fn each<Name: ToString>(
        &mut self,
        keyword: &str,
        parts: impl IntoIterator<Item = (Name, &'a Value)>,
        mut walk: impl FnMut(&mut Self, Name, &'a Value) -> Result<(), String>,
    ) -> Result<(), String> {
        parts.into_iter().try_for_each(|(name, part)| {
            let token = name.to_string().replace('~', "~0").replace('/', "~1");
            self.at(&format!("/{keyword}/{token}"), |this| walk(this, name, part))
        })
    }

    fn at(&mut self, below: &str, walk: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let here = self.place.len();
        self.place.push_str(below);
        walk(self)?;
        self.place.truncate(here);
        Ok(())
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
        let from = std::mem::replace(&mut self.place, pointer.to_owned());
        let walked = self.schema(found, chain + 1);
        if walked.is_ok() {
            self.place = from;
        }
        self.open.pop();
        self.returns.retain(|(other, _)| *other != target);
        walked
    }

    /// Records a recursive use of a definition. Two uses for the same part of an instance would require exponential
    /// work.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    fn check(schema: &Value) -> Result<(), String> {
        super::check(schema).map_err(|(_, why)| why)
    }

    #[test]
    fn a_schema_with_exponential_references_is_rejected() {
        let mut definitions = json!({"a0": {"type": "object"}});
        for level in 1..30 {
            let below = format!("#/$defs/a{}", level - 1);
            definitions[format!("a{level}")] = json!({"allOf": [{"$ref": below}, {"$ref": below}]});
        }
        let error = check(&json!({"$ref": "#/$defs/a29", "$defs": definitions})).unwrap_err();
        assert!(error.contains("more than 4000"), "{error}");
    }

    #[test]
    fn a_small_schema_that_doubles_by_any_keyword_is_rejected() {
        let pair = |word: &str, below: &Value| match word {
            "if" => json!({"if": below, "then": below}),
            "not" => json!({"not": below, "allOf": [below]}),
            "dependentSchemas" => json!({"dependentSchemas": {"a": below, "b": below}}),
            _ => json!({word: [below, below]}),
        };
        for word in ["allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"] {
            let mut definitions = json!({"a0": {"type": "object"}});
            for level in 1..16 {
                let below = json!({"$ref": format!("#/$defs/a{}", level - 1)});
                definitions[format!("a{level}")] = pair(word, &below);
            }
            let schema = json!({"$ref": "#/$defs/a15", "$defs": definitions});
            assert!(schema.to_string().len() <= 1_500, "{word}: {}", schema.to_string().len());
            assert!(check(&schema).unwrap_err().contains("more than 4000"), "{word}");
        }
    }

    #[test]
    fn per_item_checks_have_a_lower_cost_limit() {
        let alternatives = |part: fn(usize) -> Value| json!({"anyOf": (0..600).map(part).collect::<Vec<_>>()});
        let values = alternatives(|n| json!({"const": n}));
        assert_eq!(check(&json!({"properties": {"x": values}})), Ok(()));
        for many in ["items", "additionalProperties", "contains", "unevaluatedItems", "propertyNames"] {
            assert!(
                check(&json!({"properties": {"x": {many: values}}})).unwrap_err().contains("weigh more than"),
                "{many}"
            );
        }
        let patterns =
            json!({"items": {"allOf": (0..65).map(|n| json!({"pattern": format!("^{n}")})).collect::<Vec<_>>()}});
        assert!(check(&patterns).unwrap_err().contains("weigh more than"));
        let numbers = |count: usize| json!({"items": {"enum": (0..count).collect::<Vec<_>>()}});
        assert_eq!(check(&numbers(5_000)), Ok(()));
        assert!(check(&numbers(10_000)).is_err());
        let names = json!({"items": {"enum": (0..10_000).map(|n| n.to_string()).collect::<Vec<_>>()}});
        assert_eq!(check(&names), Ok(()), "names are looked up by a digest");
        let row = json!({"items": {"properties": (0..1_000).map(|n| (n.to_string(), json!({"type": "string"})))
            .collect::<Map<_, _>>()}});
        assert_eq!(check(&row), Ok(()), "each member has a schema of its own");
    }

    #[test]
    fn a_recursive_schema_may_not_check_one_value_twice() {
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
    fn a_rejected_keyword_is_reported_with_its_path() {
        let place = |schema: Value| super::check(&schema).unwrap_err().0;
        let remote = json!({"properties": {"a/b": {"items": [{}, {"$ref": "http://x.test/"}]}}});
        assert_eq!(place(remote), "/properties/a~1b/items/1/$ref");
        let inside = json!({"allOf": [{}, {"$ref": "#/$defs/d"}], "$defs": {"d": {"not": {"$dynamicRef": "#x"}}}});
        assert_eq!(place(inside), "/$defs/d/not");
    }

    #[test]
    fn external_and_unresolvable_references_are_rejected() {
        for target in ["https://example.com/s.json", "other.json#/a", "file:///etc/passwd", "#name", "#/$defs/none"] {
            assert!(check(&json!({"properties": {"a": {"$ref": target}}})).is_err(), "{target}");
        }
    }
}
