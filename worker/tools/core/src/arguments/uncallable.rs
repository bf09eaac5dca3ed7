//! Detects valid schemas that no arguments can satisfy.

use serde_json::{Map, Value};

const DEPTH_MAX: usize = 16;

/// Considers only required members. Returns a JSON pointer into the schema, and an explanation.
pub(super) fn find(schema: &Value) -> Option<(String, String)> {
    SchemaSearch { root: schema }.object(schema, String::new(), 0)
}

struct SchemaSearch<'a> {
    root: &'a Value,
}

impl SchemaSearch<'_> {
    fn required(&self, schema: &Value, at: String, depth: usize) -> Option<(String, String)> {
        let members = match schema {
            Value::Bool(false) => return Some((at, "it is required, and its schema `false` allows no value".into())),
            Value::Object(members) => members,
            _ => return None,
        };
        if members.get("enum").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            return Some((format!("{at}/enum"), "it is required, and none of no values can be given".into()));
        }
        // The keywords of the lower and the upper bound of a schema with a single `type`.
        let pairs = match members.get("type").and_then(Value::as_str) {
            Some("string") => ["minLength", "maxLength"],
            Some("integer" | "number") => ["minimum", "maximum"],
            Some("array") => ["minItems", "maxItems"],
            Some("object") => ["minProperties", "maxProperties"],
            _ => return None,
        };
        let number = |name: &str| members.get(name).and_then(Value::as_f64);
        if let (Some(least), Some(most)) = (number(pairs[0]), number(pairs[1]))
            && least > most
        {
            let why = format!("it is required, and {} {least} is more than {} {most}", pairs[0], pairs[1]);
            return Some((format!("{at}/{}", pairs[0]), why));
        }
        if members.get("type").and_then(Value::as_str) == Some("object") {
            return self.object(schema, at, depth);
        }
        None
    }

    fn object(&self, schema: &Value, at: String, depth: usize) -> Option<(String, String)> {
        let Value::Object(members) = schema else { return None };
        if depth > DEPTH_MAX {
            return None;
        }
        let empty = Map::new();
        let properties = members.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let names = members.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (index, name) in names.iter().enumerate().filter_map(|(index, name)| Some((index, name.as_str()?))) {
            match properties.get(name) {
                Some(property) => {
                    let below = format!("{at}/properties/{}", name.replace('~', "~0").replace('/', "~1"));
                    if let Some(found) = self.required(property, below, depth + 1) {
                        return Some(found);
                    }
                }
                None if closed(members) => {
                    return Some((format!("{at}/required/{index}"), unknown(name, properties)));
                }
                None => {}
            }
        }
        if let Some(target) = members.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#')) {
            let found = self.root.pointer(target)?;
            return self.object(found, target.to_owned(), depth + 1);
        }
        let parts = members.get("allOf").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        parts.iter().enumerate().find_map(|(index, part)| self.object(part, format!("{at}/allOf/{index}"), depth + 1))
    }
}

fn closed(members: &Map<String, Value>) -> bool {
    members.get("additionalProperties") == Some(&Value::Bool(false)) && !members.contains_key("patternProperties")
}

fn unknown(name: &str, properties: &Map<String, Value>) -> String {
    let only = match properties.len() {
        0 => "no property at all".to_owned(),
        _ => properties.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    };
    format!("`{name}` is required, and `additionalProperties: false` allows only {only}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(schema: &Value) -> Option<String> {
        find(schema).map(|(at, _)| at)
    }

    #[test]
    fn an_unsatisfiable_schema_is_found_with_its_path() {
        let closed = json!({"properties": {"a": {}}, "required": ["a", "b"], "additionalProperties": false});
        let found = find(&closed);
        let why = "`b` is required, and `additionalProperties: false` allows only `a`";
        assert_eq!(found, Some(("/required/1".into(), why.into())));
        let inner = json!({"type": "object", "required": ["x"], "additionalProperties": false});
        let nested = json!({"properties": {"o/p": inner}, "required": ["o/p"]});
        assert_eq!(at(&nested).as_deref(), Some("/properties/o~1p/required/0"));
        let part = json!({"allOf": [{}, {"$ref": "#/$defs/c"}], "$defs": {"c": closed}});
        assert_eq!(at(&part).as_deref(), Some("/$defs/c/required/1"));
        let never = |schema: Value| json!({"properties": {"a": schema}, "required": ["a"]});
        assert_eq!(at(&never(json!(false))).as_deref(), Some("/properties/a"));
        assert_eq!(at(&never(json!({"enum": []}))).as_deref(), Some("/properties/a/enum"));
        let short = json!({"type": "string", "minLength": 9, "maxLength": 3});
        assert_eq!(at(&never(short)).as_deref(), Some("/properties/a/minLength"));
    }

    #[test]
    fn a_satisfiable_schema_passes() {
        let inner = json!({"type": "object", "required": ["x"], "additionalProperties": false});
        for schema in [
            json!({}),
            json!({"required": ["a"]}),
            json!({"required": ["a"], "additionalProperties": {"type": "string"}}),
            json!({"required": ["x_a"], "patternProperties": {"^x_": {}}, "additionalProperties": false}),
            json!({"properties": {"o": inner}}),
            json!({"properties": {"o": {"type": ["object", "null"], "required": ["x"], "additionalProperties": false}},
                "required": ["o"]}),
            json!({"anyOf": [inner, {}]}),
            json!({"properties": {"a": {"type": "string", "minLength": 3, "maxLength": 3}}, "required": ["a"]}),
            json!({"$ref": "#"}),
        ] {
            assert_eq!(find(&schema), None, "{schema}");
        }
    }
}
