//! Converts a schema to the strict subset.

use serde_json::{Map, Value, json};

use super::{HOPS_MAX, NotStrict, allows_null, resolve};

/// OpenAI's bounds.
const LEVELS_MAX: usize = 10;
const PROPERTIES_MAX: usize = 5_000;
const ENUM_VALUES_MAX: usize = 1_000;
const NAME_CHARS_MAX: usize = 120_000;

/// A grammar cannot express these keywords, so the tool cannot be strict.
const NEEDED: [&str; 11] = [
    "patternProperties",
    "prefixItems",
    "additionalItems",
    "dependentSchemas",
    "dependencies",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// The description mentions these keywords instead.
const MENTIONED: [&str; 9] = [
    "default",
    "minLength",
    "maxLength",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
    "contentEncoding",
];

const MENTIONED_BYTES_MAX: usize = 120;

const KEPT: [&str; 12] = [
    "title",
    "enum",
    "const",
    "pattern",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
    "format",
];

const FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

pub fn strict_schema(schema: &Value) -> Result<Value, NotStrict> {
    let mut walk = SchemaWalk { root: schema, properties: 0, enum_values: 0, name_chars: 0 };
    let mut strict = walk.schema(schema, "", 1)?;
    if strict.get("type").is_none_or(|kind| kind != "object") {
        return Err(refuse("", "is not a plain object"));
    }
    let mut definitions = Map::new();
    for folder in ["$defs", "definitions"] {
        for (name, definition) in schema.get(folder).and_then(Value::as_object).into_iter().flatten() {
            definitions.insert(name.clone(), walk.schema(definition, name, 1)?);
        }
    }
    if let Some(members) = strict.as_object_mut().filter(|_| !definitions.is_empty()) {
        members.insert("$defs".into(), definitions.into());
    }
    for (found, max, what) in [
        (walk.properties, PROPERTIES_MAX, "properties"),
        (walk.enum_values, ENUM_VALUES_MAX, "values in enums"),
        (walk.name_chars, NAME_CHARS_MAX, "characters in names and values"),
    ] {
        if found > max {
            return Err(refuse("", &format!("has {found} {what}; at most {max} can be strict")));
        }
    }
    Ok(strict)
}

fn refuse(at: &str, why: &str) -> NotStrict {
    NotStrict { at: at.to_owned(), why: why.to_owned() }
}

struct SchemaWalk<'a> {
    root: &'a Value,
    properties: usize,
    enum_values: usize,
    name_chars: usize,
}

impl SchemaWalk<'_> {
    fn schema(&mut self, schema: &Value, at: &str, level: usize) -> Result<Value, NotStrict> {
        let Value::Object(members) = schema else {
            return Err(refuse(at, "takes any value"));
        };
        if level > LEVELS_MAX {
            return Err(refuse(at, &format!("lies deeper than {LEVELS_MAX} levels")));
        }
        if let Some(keyword) = NEEDED.iter().find(|keyword| members.contains_key(**keyword)) {
            return Err(refuse(at, &format!("uses {keyword}")));
        }
        if members.contains_key("$ref") {
            return self.reference(members, at);
        }
        if let Some(all) = members.get("allOf").and_then(Value::as_array) {
            return self.only_one(members, all, at, level);
        }
        match types(members).as_slice() {
            [] => self.choice(members, at, level),
            [kind] => self.typed(members, kind, at, level),
            [kind, null] | [null, kind] if null == "null" => Ok(nullable(self.typed(members, kind, at, level)?)),
            kinds => self.any_type(members, kinds, at, level),
        }
    }

    fn reference(&mut self, members: &Map<String, Value>, at: &str) -> Result<Value, NotStrict> {
        let to = members.get("$ref").and_then(Value::as_str).unwrap_or_default();
        if resolve(self.root, to).is_none() {
            return Err(refuse(at, &format!("refers to {to}")));
        }
        let adds =
            |name: &String| !matches!(name.as_str(), "$ref" | "description" | "title" | "default" | "deprecated");
        if let Some(keyword) = members.keys().find(|name| adds(name)) {
            return Err(refuse(at, &format!("has {keyword} beside a reference")));
        }
        let reference = json!({"$ref": to.replace("#/definitions/", "#/$defs/")});
        Ok(match described(members) {
            Some(description) => json!({"anyOf": [reference], "description": description}),
            None => reference,
        })
    }

    /// Replaces an `allOf` with a single schema by that schema. Generators write such an `allOf` to add a description.
    fn only_one(
        &mut self,
        members: &Map<String, Value>,
        all: &[Value],
        at: &str,
        level: usize,
    ) -> Result<Value, NotStrict> {
        let [Value::Object(one)] = all else { return Err(refuse(at, "uses allOf")) };
        let mut merged = one.clone();
        for (name, value) in members.iter().filter(|(name, _)| *name != "allOf") {
            let annotation = matches!(name.as_str(), "description" | "title" | "default");
            if !annotation && merged.contains_key(name) {
                return Err(refuse(at, "uses allOf"));
            }
            merged.insert(name.clone(), value.clone());
        }
        self.schema(&merged.into(), at, level)
    }

    fn choice(&mut self, members: &Map<String, Value>, at: &str, level: usize) -> Result<Value, NotStrict> {
        let choices = ["anyOf", "oneOf"].iter().find_map(|name| members.get(*name)?.as_array());
        let Some(choices) = choices else { return Err(refuse(at, "takes any value")) };
        let choices = choices.iter().map(|one| self.schema(one, at, level)).collect::<Result<Vec<_>, _>>()?;
        let mut strict = Map::from_iter([("anyOf".to_owned(), choices.into())]);
        strict.extend(described(members).map(|text| ("description".to_owned(), text.into())));
        Ok(strict.into())
    }

    fn any_type(
        &mut self,
        members: &Map<String, Value>,
        kinds: &[String],
        at: &str,
        level: usize,
    ) -> Result<Value, NotStrict> {
        let mut choices = Vec::new();
        for kind in kinds {
            let mut one = members.clone();
            one.insert("type".into(), kind.as_str().into());
            one.shift_remove("description");
            if let Some(values) = one.get_mut("enum").and_then(Value::as_array_mut) {
                values.retain(|value| kind_of(value) == kind || kind == "number" && kind_of(value) == "integer");
                if values.is_empty() {
                    continue;
                }
            }
            choices.push(self.schema(&one.into(), at, level)?);
        }
        let mut strict = Map::from_iter([("anyOf".to_owned(), choices.into())]);
        strict.extend(members.get("description").map(|text| ("description".to_owned(), text.clone())));
        Ok(strict.into())
    }

    fn typed(&mut self, members: &Map<String, Value>, kind: &str, at: &str, level: usize) -> Result<Value, NotStrict> {
        // Next to a type, a choice only narrows the value, unless one of its schemas has `properties` or `$ref`.
        let brings = |one: &Value| one.get("properties").is_some() || one.get("$ref").is_some();
        let choices = ["anyOf", "oneOf"].iter().filter_map(|name| members.get(*name)?.as_array());
        if choices.flatten().any(brings) {
            return Err(refuse(at, "has a choice beside its properties"));
        }
        let mut strict = Map::from_iter([("type".to_owned(), kind.into())]);
        strict.extend(described(members).map(|text| ("description".to_owned(), text.into())));
        for (name, value) in members.iter().filter(|(name, _)| KEPT.contains(&name.as_str())) {
            if name == "format" && !is_known_format(value) {
                continue;
            }
            self.count(name, value);
            strict.insert(name.clone(), value.clone());
        }
        match kind {
            "object" => self.object(&mut strict, members, at, level)?,
            "array" => {
                let items = members.get("items").ok_or_else(|| refuse(at, "has items of any kind"))?;
                strict.insert("items".into(), self.schema(items, &format!("{at}[]"), level + 1)?);
            }
            _ => {}
        }
        Ok(strict.into())
    }

    fn object(
        &mut self,
        strict: &mut Map<String, Value>,
        members: &Map<String, Value>,
        at: &str,
        level: usize,
    ) -> Result<(), NotStrict> {
        let empty = Map::new();
        let properties = members.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let closed = members.get("additionalProperties").map(|more| more == &Value::Bool(false));
        // At the top level, no properties means a tool without arguments. Anywhere else, such an object accepts any
        // members.
        if closed == Some(false) || closed.is_none() && properties.is_empty() && !at.is_empty() {
            return Err(refuse(at, "takes members of any name"));
        }
        let required = members.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if let Some(name) = required.iter().filter_map(Value::as_str).find(|name| !properties.contains_key(*name)) {
            return Err(refuse(at, &format!("requires {name}, which it does not describe")));
        }
        let mut all = Map::new();
        for (name, property) in properties {
            let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            let one = self.schema(property, &path, level + 1)?;
            let is_required = required.iter().any(|required| required == name);
            let keep = is_required || allows_null(property, self.root, HOPS_MAX);
            all.insert(name.clone(), if keep { one } else { nullable(one) });
            self.properties += 1;
            self.name_chars += name.chars().count();
        }
        let names: Vec<&String> = properties.keys().collect();
        strict.insert("required".into(), json!(names));
        strict.insert("properties".into(), all.into());
        strict.insert("additionalProperties".into(), false.into());
        Ok(())
    }

    fn count(&mut self, keyword: &str, value: &Value) {
        let chars = |value: &Value| value.as_str().map_or(0, |text| text.chars().count());
        match (keyword, value) {
            ("enum", Value::Array(values)) => {
                self.enum_values += values.len();
                self.name_chars += values.iter().map(chars).sum::<usize>();
            }
            ("const", value) => self.name_chars += chars(value),
            _ => {}
        }
    }
}

fn types(members: &Map<String, Value>) -> Vec<String> {
    let named = |kind: &Value| kind.as_str().map(str::to_owned);
    match members.get("type") {
        Some(Value::Array(kinds)) => return kinds.iter().filter_map(named).collect(),
        Some(kind) => return named(kind).into_iter().collect(),
        None => {}
    }
    if members.contains_key("properties") {
        return vec!["object".into()];
    }
    let values = members.get("enum").and_then(Value::as_array);
    let values = values.map(|all| all.iter().collect::<Vec<_>>()).or_else(|| members.get("const").map(|one| vec![one]));
    let mut kinds: Vec<String> = values.into_iter().flatten().map(|value| kind_of(value).to_owned()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_known_format(format: &Value) -> bool {
    format.as_str().is_some_and(|format| FORMATS.contains(&format))
}

fn described(members: &Map<String, Value>) -> Option<String> {
    let unknown_format = members.get("format").filter(|format| !is_known_format(format)).map(|value| ("format", value));
    let mentions = MENTIONED.iter().filter_map(|name| Some((*name, members.get(*name)?)));
    let mentions = mentions.chain(unknown_format).filter(|(_, value)| !value.is_null());
    let mentions: Vec<String> = mentions
        .map(|(name, value)| (name, value.to_string()))
        .filter(|(_, text)| text.len() <= MENTIONED_BYTES_MAX)
        .map(|(name, text)| format!("{name}: {text}"))
        .collect();
    let description = members.get("description").and_then(Value::as_str);
    match (description, mentions.join(", ")) {
        (None, mentions) if mentions.is_empty() => None,
        (None, mentions) => Some(mentions),
        (Some(text), mentions) if mentions.is_empty() => Some(text.to_owned()),
        (Some(text), mentions) => Some(format!("{} ({mentions})", text.trim_end())),
    }
}

fn nullable(mut strict: Value) -> Value {
    let null = || json!({"type": "null"});
    let Some(members) = strict.as_object_mut() else { return strict };
    if let Some(choices) = members.get_mut("anyOf").and_then(Value::as_array_mut) {
        if !choices.contains(&null()) {
            choices.push(null());
        }
        return strict;
    }
    if members.contains_key("$ref") {
        let either = [strict, null()];
        return json!({ "anyOf": either });
    }
    if let Some(value) = members.shift_remove("const") {
        members.insert("enum".into(), json!([value]));
    }
    if let Some(values) = members.get_mut("enum").and_then(Value::as_array_mut)
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    if let Some(kind) = members.get("type").filter(|kind| kind.is_string() && *kind != "null").cloned() {
        members.insert("type".into(), json!([kind, "null"]));
    }
    strict
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn object(properties: Value, required: Value) -> Value {
        json!({"type": "object", "properties": properties, "required": required})
    }

    fn property(schema: Value, required: bool) -> Value {
        let names = if required { json!(["p"]) } else { json!([]) };
        strict_schema(&object(json!({"p": schema}), names)).unwrap()["properties"]["p"].clone()
    }

    fn why_not(schema: Value) -> String {
        strict_schema(&object(json!({"p": schema}), json!([]))).unwrap_err().to_string()
    }

    #[test]
    fn objects_are_closed_and_optional_properties_become_nullable() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where.", "minLength": 1},
                "limit": {"type": "integer", "default": 10, "minimum": 0},
                "inner": {"type": "object", "properties": {"x": {"type": "number"}}}
            },
            "required": ["path"]
        });
        let strict = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where. (minLength: 1)"},
                "limit": {"type": ["integer", "null"], "description": "default: 10", "minimum": 0},
                "inner": {
                    "type": ["object", "null"],
                    "properties": {"x": {"type": ["number", "null"]}},
                    "required": ["x"],
                    "additionalProperties": false
                }
            },
            "required": ["inner", "limit", "path"],
            "additionalProperties": false
        });
        let mut made = strict_schema(&schema).unwrap();
        made["required"].as_array_mut().unwrap().sort_by_key(ToString::to_string);
        assert_eq!(made, strict);
        let none = json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
        assert_eq!(strict_schema(&json!({"type": "object"})).unwrap(), none);
    }

    #[test]
    fn an_optional_property_becomes_nullable_in_every_schema_form() {
        for (schema, optional) in [
            (json!({"enum": ["a", "b"]}), json!({"type": ["string", "null"], "enum": ["a", "b", null]})),
            (json!({"const": 1}), json!({"type": ["integer", "null"], "enum": [1, null]})),
            (json!({"type": ["string", "null"]}), json!({"type": ["string", "null"]})),
            (
                json!({"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "Either."}),
                json!({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "description": "Either."}),
            ),
            (
                json!({"type": ["string", "integer"], "minimum": 3}),
                json!({"anyOf": [{"type": "string", "minimum": 3}, {"type": "integer", "minimum": 3}, {"type": "null"}]}),
            ),
            (
                json!({"type": "array", "items": {"type": "string", "format": "uri"}, "uniqueItems": true}),
                json!({"type": ["array", "null"], "description": "uniqueItems: true",
                    "items": {"type": "string", "description": "format: \"uri\""}}),
            ),
        ] {
            assert_eq!(property(schema, false), optional);
        }
        assert_eq!(property(json!({"const": 1}), true), json!({"type": "integer", "const": 1}));
    }

    #[test]
    fn recursive_references_are_kept() {
        let schema = json!({
            "type": "object",
            "properties": {
                "first": {"$ref": "#/definitions/node"},
                "mentions": {"allOf": [{"$ref": "#/definitions/node"}], "description": "A node."}
            },
            "required": ["first", "mentions"],
            "definitions": {"node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}}
        });
        let strict = strict_schema(&schema).unwrap();
        assert_eq!(strict["properties"]["first"], json!({"$ref": "#/$defs/node"}));
        let mentions = json!({"anyOf": [{"$ref": "#/$defs/node"}], "description": "A node."});
        assert_eq!(strict["properties"]["mentions"], mentions);
        let next = &strict["$defs"]["node"]["properties"]["next"];
        assert_eq!(next, &json!({"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}));
    }

    #[test]
    fn an_unsupported_schema_is_rejected_with_the_part_and_the_reason() {
        for (schema, why) in [
            (json!(true), "'p' takes any value"),
            (json!({}), "'p' takes any value"),
            (json!({"type": "object"}), "'p' takes members of any name"),
            (json!({"type": "object", "additionalProperties": {"type": "string"}}), "'p' takes members of any name"),
            (json!({"type": "array"}), "'p' has items of any kind"),
            (json!({"type": "array", "items": {"type": "object"}}), "'p[]' takes members of any name"),
            (json!({"type": "array", "prefixItems": []}), "'p' uses prefixItems"),
            (json!({"allOf": [{"type": "string"}, {"type": "string"}]}), "'p' uses allOf"),
            (json!({"$ref": "#/$defs/gone"}), "'p' refers to #/$defs/gone"),
            (
                json!({"type": "object", "properties": {}, "required": ["x"], "additionalProperties": false}),
                "'p' requires x",
            ),
        ] {
            let said = why_not(schema);
            assert!(said.starts_with(why), "{said}");
        }
        assert_eq!(strict_schema(&json!({"anyOf": []})).unwrap_err().to_string(), "the schema is not a plain object");
        let mut deep = json!({"type": "string"});
        for _ in 0..11 {
            deep = json!({"type": "array", "items": deep});
        }
        assert!(why_not(deep).contains("deeper than 10 levels"));
        let many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
        assert!(why_not(json!({"enum": many})).contains("1001 values in enums"));
    }
}
