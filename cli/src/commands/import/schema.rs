//! Converts the schemas of an OpenAPI document into self-contained JSON Schemas.

use serde_json::{Map, Value, json};

use super::bundle::{FILES, UNREAD};

/// Bounds the schemas in one tool's arguments, after references are resolved.
const NODES_MAX: usize = 2_000;
/// Bounds nested references, and also nested schemas.
const DEPTH_MAX: usize = 48;

/// These keywords do not constrain arguments.
const DROPPED: [&str; 10] = [
    "xml",
    "externalDocs",
    "discriminator",
    "example",
    "examples",
    "deprecated",
    "nullable",
    "readOnly",
    "writeOnly",
    "$schema",
];
/// The value of each keyword is a schema.
const SINGLE: [&str; 11] = [
    "items",
    "additionalProperties",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
];
/// The value of each keyword maps names to schemas.
const NAMED: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "$defs"];
/// The value of each keyword is a list of schemas.
const LISTED: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// These keywords can accompany a reference without constraining the value.
const REMARKS: [&str; 4] = ["description", "title", "summary", "default"];

pub(super) struct Document {
    pub(super) root: Value,
    /// True for version 3.0: its schemas differ from JSON Schema.
    pub(super) old: bool,
    pub(super) files: Vec<String>,
}

impl Document {
    /// Fails if a reference is not local, has no target, or is circular.
    pub(super) fn follow<'d>(&'d self, value: &'d Value) -> Result<&'d Value, String> {
        let mut here = value;
        for _ in 0..DEPTH_MAX {
            match here.get("$ref").and_then(Value::as_str) {
                Some(reference) => here = self.target(reference)?,
                None => return Ok(here),
            }
        }
        Err("a reference is circular".to_owned())
    }

    /// Only remarks can accompany a reference, because other members could be parameters.
    pub(super) fn whole<'d>(&'d self, value: &'d Value) -> Result<&'d Value, String> {
        let mut here = value;
        for _ in 0..DEPTH_MAX {
            let Value::Object(members) = here else { return Err("it is not an object".to_owned()) };
            let Some(reference) = members.get("$ref").and_then(Value::as_str) else { return Ok(here) };
            let remark = |name: &str| name == "$ref" || REMARKS.contains(&name) || name.starts_with("x-");
            if let Some(odd) = members.keys().find(|name| !remark(name)) {
                return Err(format!("it has {odd} beside its reference to {}", self.shown(reference)));
            }
            here = self.target(reference)?;
        }
        Err("a reference is circular".to_owned())
    }

    fn target(&self, reference: &str) -> Result<&Value, String> {
        if let Some(reason) = reference.strip_prefix(UNREAD) {
            return Err(reason.to_owned());
        }
        let pointer = reference.strip_prefix('#').ok_or_else(|| format!("{reference} is not in this document"))?;
        self.root.pointer(pointer).ok_or_else(|| format!("{} points to nothing", self.shown(reference)))
    }

    /// Shows the reference as in the original file.
    fn shown(&self, reference: &str) -> String {
        let in_file = reference.strip_prefix("#/").and_then(|rest| rest.strip_prefix(FILES)?.strip_prefix('/'));
        let Some(in_file) = in_file else { return reference.to_owned() };
        let (place, pointer) =
            in_file.split_once('/').map_or((in_file, String::new()), |(p, rest)| (p, format!("#/{rest}")));
        match place.parse::<usize>().ok().and_then(|place| self.files.get(place)) {
            Some(file) => format!("{file}{pointer}"),
            None => reference.to_owned(),
        }
    }

    /// Fails if the schema refers to itself, is too large, or uses an unsupported feature.
    pub(super) fn inlined(&self, schema: &Value) -> Result<Value, String> {
        SchemaInliner { document: self, nodes: 0, trail: Vec::new() }.schema(schema, 0)
    }
}

struct SchemaInliner<'d> {
    document: &'d Document,
    nodes: usize,
    trail: Vec<String>,
}

impl SchemaInliner<'_> {
    fn schema(&mut self, schema: &Value, depth: usize) -> Result<Value, String> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || depth > DEPTH_MAX {
            return Err(format!("its schema has more than {NODES_MAX} parts or {DEPTH_MAX} levels"));
        }
        let Value::Object(members) = schema else { return Ok(schema.clone()) };
        if let Some(odd) = ["$dynamicRef", "$recursiveRef", "$id", "$anchor"].iter().find(|k| members.contains_key(**k))
        {
            return Err(format!("its schema uses {odd}"));
        }
        match members.get("$ref").and_then(Value::as_str) {
            Some(reference) => self.reference(reference, members, depth),
            None => self.members(members, depth),
        }
    }

    fn reference(&mut self, reference: &str, members: &Map<String, Value>, depth: usize) -> Result<Value, String> {
        if self.trail.iter().any(|above| above == reference) {
            return Err(format!("{} refers to itself", self.document.shown(reference)));
        }
        let target = self.document.target(reference)?;
        self.trail.push(reference.to_owned());
        let resolved = self.schema(target, depth + 1);
        self.trail.pop();
        let mut resolved = resolved?;
        // OpenAPI 3.0 ignores the siblings of a reference.
        if self.document.old || members.len() == 1 {
            return Ok(resolved);
        }
        let mut beside = members.clone();
        beside.shift_remove("$ref");
        if let (true, Value::Object(into)) = (beside.keys().all(|key| REMARKS.contains(&key.as_str())), &mut resolved) {
            into.extend(beside);
            return Ok(resolved);
        }
        Ok(json!({ "allOf": [resolved, self.members(&beside, depth + 1)?] }))
    }

    fn members(&mut self, members: &Map<String, Value>, depth: usize) -> Result<Value, String> {
        let mut made = Map::new();
        let read_only = self.read_only(members)?;
        for (key, value) in members {
            let name = key.as_str();
            let value = match value {
                _ if DROPPED.contains(&name) || name.starts_with("x-") => continue,
                Value::Bool(_) if matches!(name, "exclusiveMinimum" | "exclusiveMaximum") => continue,
                Value::Object(named) if NAMED.contains(&name) => {
                    let kept = named.iter().filter(|(name, _)| key != "properties" || !read_only.contains(name));
                    let schemas = kept.map(|(name, schema)| Ok((name.clone(), self.schema(schema, depth + 1)?)));
                    Value::Object(schemas.collect::<Result<_, String>>()?)
                }
                Value::Array(listed) if LISTED.contains(&name) => {
                    listed.iter().map(|schema| self.schema(schema, depth + 1)).collect::<Result<_, _>>()?
                }
                Value::Array(names) if name == "required" => names
                    .iter()
                    .filter(|n| !read_only.iter().any(|r| n.as_str() == Some(r.as_str())))
                    .cloned()
                    .collect(),
                schema if SINGLE.contains(&name) => self.schema(schema, depth + 1)?,
                plain => plain.clone(),
            };
            made.insert(key.clone(), value);
        }
        if self.document.old {
            modernize(members, &mut made);
        }
        Ok(Value::Object(made))
    }

    /// Returns the properties that occur only in responses.
    fn read_only<'m>(&self, members: &'m Map<String, Value>) -> Result<Vec<&'m String>, String> {
        let mut names = Vec::new();
        for (name, property) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if self.document.follow(property)?.get("readOnly") == Some(&Value::Bool(true)) {
                names.push(name);
            }
        }
        Ok(names)
    }
}

fn modernize(members: &Map<String, Value>, made: &mut Map<String, Value>) {
    let is = |key: &str| members.get(key) == Some(&Value::Bool(true));
    for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        if is(exclusive)
            && let Some(value) = made.shift_remove(bound)
        {
            made.insert(exclusive.to_owned(), value);
        }
    }
    if !is("nullable") {
        return;
    }
    if let Some(Value::String(kind)) = made.get("type").cloned() {
        made.insert("type".to_owned(), json!([kind, "null"]));
    }
    if let Some(Value::Array(values)) = made.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn inlined(old: bool, components: Value, schema: Value) -> Result<Value, String> {
        let root = json!({ "components": { "schemas": components } });
        Document { root, old, files: Vec::new() }.inlined(&schema)
    }

    #[test]
    fn references_are_inlined_and_cycles_are_rejected() {
        let pet = json!({"type": "object", "required": ["id", "tag"], "properties": {
            "id": {"type": "integer", "readOnly": true}, "tag": {"$ref": "#/components/schemas/Tag"}}});
        let schemas = json!({"Pet": pet, "Tag": {"type": "string", "nullable": true, "example": "x"},
            "Node": {"properties": {"next": {"$ref": "#/components/schemas/Node"}}}});
        let made = inlined(true, schemas.clone(), json!({"$ref": "#/components/schemas/Pet"})).unwrap();
        let tag = json!({"type": ["string", "null"]});
        assert_eq!(made, json!({"type": "object", "required": ["tag"], "properties": {"tag": tag}}));
        for (reference, why) in [
            ("#/components/schemas/Node", "refers to itself"),
            ("#/components/schemas/None", "points to nothing"),
            ("other.yaml#/Pet", "is not in this document"),
        ] {
            let error = inlined(true, schemas.clone(), json!({ "$ref": reference })).unwrap_err();
            assert!(error.ends_with(why), "{error}");
        }
    }

    #[test]
    fn siblings_of_a_reference_apply_from_openapi_3_1() {
        let schemas = json!({"Tag": {"type": "string", "description": "old"}});
        let beside = |more: Value| {
            let mut schema = json!({"$ref": "#/components/schemas/Tag"});
            schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            (inlined(true, schemas.clone(), schema.clone()).unwrap(), inlined(false, schemas.clone(), schema).unwrap())
        };
        let tag = json!({"type": "string", "description": "old"});
        assert_eq!(
            beside(json!({"description": "new"})),
            (tag.clone(), json!({"type": "string", "description": "new"}))
        );
        assert_eq!(beside(json!({"maxLength": 3})), (tag.clone(), json!({"allOf": [tag, {"maxLength": 3}]})));
    }

    #[test]
    fn an_exponentially_growing_schema_is_rejected() {
        let mut schemas = Map::new();
        for level in 0..30 {
            let below = json!({"$ref": format!("#/components/schemas/S{}", level + 1)});
            schemas.insert(format!("S{level}"), json!({"properties": {"a": below, "b": below}}));
        }
        schemas.insert("S30".into(), json!({"type": "string"}));
        let error = inlined(false, Value::Object(schemas), json!({"$ref": "#/components/schemas/S0"})).unwrap_err();
        assert!(error.contains("more than 2000 parts"), "{error}");
    }

    #[test]
    fn openapi_3_0_exclusive_bounds_become_json_schema_bounds() {
        let made = inlined(
            true,
            json!({}),
            json!({"minimum": 1, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": false}),
        );
        assert_eq!(made, Ok(json!({"exclusiveMinimum": 1, "maximum": 5})));
    }
}
