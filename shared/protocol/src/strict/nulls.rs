//! Removes the nulls that a strict model sends for arguments that it omits.

use std::borrow::Cow;

use serde_json::Value as Schema;

use super::super::json::{Document, Kind, Value, push_quoted};
use super::{HOPS_MAX, allows_null, resolve};
use tickfleet_model::limits;

/// Removes a null if its member is optional in `schema` and `schema` does not allow null there. All other bytes stay
/// unchanged, and so does text that is not JSON.
#[must_use]
pub fn without_nulls<'a>(schema: &Schema, arguments: &'a str) -> Cow<'a, str> {
    if !arguments.contains("null") {
        return Cow::Borrowed(arguments);
    }
    let (document, problem) = Document::read(arguments, limits::JSON_DEPTH_MAX, limits::JSON_DEPTH_MAX);
    let root = document.root().filter(|_| problem.is_none());
    root.and_then(|value| strip(value, schema, schema)).map_or(Cow::Borrowed(arguments), Cow::Owned)
}

fn strip(value: Value<'_, '_>, schema: &Schema, root: &Schema) -> Option<String> {
    let schema = plain(schema, root)?;
    match value.kind() {
        Kind::Object => strip_object(value, schema, root),
        Kind::Array => strip_array(value, schema.get("items")?, root),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => None,
    }
}

fn strip_object(object: Value<'_, '_>, schema: &Schema, root: &Schema) -> Option<String> {
    let properties = schema.get("properties")?.as_object()?;
    let required = |name: &str| {
        let names = schema.get("required").and_then(Schema::as_array);
        names.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let mut changed = false;
    let mut text = String::from("{");
    for (key, value) in object.members() {
        let property = properties.get(key.as_ref());
        let dropped = |property: &Schema| !required(&key) && !allows_null(property, root, HOPS_MAX);
        if value.kind() == Kind::Null && property.is_some_and(dropped) {
            changed = true;
            continue;
        }
        let inner = property.and_then(|property| strip(value, property, root));
        changed |= inner.is_some();
        if text.len() > 1 {
            text.push(',');
        }
        push_quoted(&mut text, &key);
        text.push(':');
        text.push_str(inner.as_deref().or(value.text()).unwrap_or("null"));
    }
    text.push('}');
    changed.then_some(text)
}

fn strip_array(array: Value<'_, '_>, items: &Schema, root: &Schema) -> Option<String> {
    let stripped: Vec<_> = array.elements().map(|element| (element, strip(element, items, root))).collect();
    stripped.iter().any(|(_, stripped)| stripped.is_some()).then(|| {
        let part = |(element, stripped): &(Value<'_, '_>, Option<String>)| {
            stripped.clone().unwrap_or_else(|| element.text().unwrap_or("null").to_owned())
        };
        format!("[{}]", stripped.iter().map(part).collect::<Vec<_>>().join(","))
    })
}

fn plain<'a>(schema: &'a Schema, root: &'a Schema) -> Option<&'a Schema> {
    let mut schema = schema;
    for _ in 0..HOPS_MAX {
        if let Some(to) = schema.get("$ref").and_then(Schema::as_str) {
            schema = resolve(root, to)?;
            continue;
        }
        let choice = ["anyOf", "oneOf", "allOf"].iter().find_map(|name| schema.get(name)?.as_array());
        let Some(choice) = choice.filter(|_| schema.get("properties").is_none()) else { return Some(schema) };
        let is_null = |schema: &Schema| schema.get("type").is_some_and(|kind| kind == "null");
        let mut rest = choice.iter().filter(|schema| !is_null(schema));
        schema = rest.next().filter(|_| rest.next().is_none())?;
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_nulls_for_omitted_optional_properties_are_dropped() {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "limit": {"type": "integer"},
                "note": {"type": ["string", "null"]},
                "any": true,
                "mode": {"enum": ["a", null]},
                "kind": {"enum": ["a", "b"]},
                "inner": {"anyOf": [{"$ref": "#/$defs/inner"}, {"type": "null"}]},
                "list": {"type": "array", "items": {"$ref": "#/$defs/inner"}}
            },
            "required": ["path"],
            "$defs": {"inner": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"$ref": "#/$defs/inner"}}}}
        });
        for (given, kept) in [
            (r#"{"path":"a", "limit":null}"#, r#"{"path":"a"}"#),
            (r#"{"limit":null,"path":null}"#, r#"{"path":null}"#),
            (r#"{"note":null,"any":null,"mode":null,"kind":null}"#, r#"{"note":null,"any":null,"mode":null}"#),
            (r#"{"other":null, "path":"null"}"#, r#"{"other":null, "path":"null"}"#),
            (r#"{"inner":null,"list":[{"x":1.10,"y":null}, null]}"#, r#"{"inner":null,"list":[{"x":1.10},null]}"#),
            (r#"{"inner":{"x":null,"y":{"y":null}},"limit":1e400}"#, r#"{"inner":{"y":{}},"limit":1e400}"#),
            (r#"{"limit":null,"#, r#"{"limit":null,"#),
            (r#"[null]"#, "[null]"),
        ] {
            assert_eq!(without_nulls(&schema, given), kept);
        }
    }
}
