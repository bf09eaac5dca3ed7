//! Normalizes integers: in JSON Schema, a whole number is an integer in any notation (`5.0`, `5e0`).

use std::borrow::Cow;

use serde_json::Value as Schema;
use tickfleet_model::limits;
use tickfleet_protocol::json::{Document, Kind, Value, push_quoted};

/// A longer number stays unchanged.
const DIGITS_MAX: usize = 400;
/// Longest chain of references and combined schemas.
const HOPS_MAX: usize = 16;
const SCHEMAS_MAX: usize = 256;

pub(super) fn are_declared(schema: &Schema) -> bool {
    match schema {
        Schema::Object(members) => members
            .iter()
            .any(|(name, value)| if name == "type" && is_integer(value) { true } else { are_declared(value) }),
        Schema::Array(items) => items.iter().any(are_declared),
        _ => false,
    }
}

/// `text` must fit `schema`. Only whole numbers are rewritten, and all other bytes stay the same.
pub(super) fn as_integers<'a>(schema: &Schema, text: &'a str) -> Cow<'a, str> {
    if !text.contains(['.', 'e', 'E']) {
        return Cow::Borrowed(text);
    }
    let (document, problem) = Document::read(text, limits::JSON_DEPTH_MAX, limits::JSON_DEPTH_MAX);
    let Some(root) = document.root().filter(|_| problem.is_none()) else { return Cow::Borrowed(text) };
    rewritten(root, &applying(&[schema], schema), schema).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// `None` if nothing changes. All of `schemas` apply to the value.
fn rewritten(value: Value<'_, '_>, schemas: &[&Schema], root: &Schema) -> Option<String> {
    if schemas.is_empty() {
        return None;
    }
    match value.kind() {
        Kind::Number => {
            let types = schemas.iter().filter_map(|schema| schema.get("type"));
            if types.into_iter().any(is_integer) { whole(value.text()?) } else { None }
        }
        Kind::Object => {
            let members: Vec<_> = value.members().collect();
            let parts = members.iter().map(|(name, member)| {
                let below = applying(&of_member(schemas, name), root);
                rewritten(*member, &below, root)
            });
            let parts: Vec<Option<String>> = parts.collect();
            parts.iter().any(Option::is_some).then(|| {
                let mut text = String::from("{");
                for ((name, member), part) in members.iter().zip(parts) {
                    if text.len() > 1 {
                        text.push(',');
                    }
                    push_quoted(&mut text, name);
                    text.push(':');
                    text.push_str(part.as_deref().or(member.text()).unwrap_or("null"));
                }
                text.push('}');
                text
            })
        }
        Kind::Array => {
            let items: Vec<_> = value.elements().collect();
            let part = |(index, item): (usize, &Value<'_, '_>)| {
                rewritten(*item, &applying(&of_item(schemas, index), root), root)
            };
            let parts: Vec<Option<String>> = items.iter().enumerate().map(part).collect();
            parts.iter().any(Option::is_some).then(|| {
                let texts =
                    items.iter().zip(&parts).map(|(item, part)| part.as_deref().or(item.text()).unwrap_or("null"));
                format!("[{}]", texts.collect::<Vec<_>>().join(","))
            })
        }
        Kind::Null | Kind::Bool | Kind::String => None,
    }
}

/// True if `kind`, the value of a `type` keyword, permits integers but no other numbers.
fn is_integer(kind: &Schema) -> bool {
    match kind {
        Schema::String(one) => one == "integer",
        Schema::Array(several) => {
            several.iter().any(|one| one == "integer") && several.iter().all(|one| one != "number")
        }
        _ => false,
    }
}

fn applying<'a>(schemas: &[&'a Schema], root: &'a Schema) -> Vec<&'a Schema> {
    let mut found: Vec<&Schema> = Vec::new();
    let mut open: Vec<(&Schema, usize)> = schemas.iter().map(|schema| (*schema, 0)).collect();
    while let Some((schema, hops)) = open.pop() {
        if hops > HOPS_MAX || found.len() >= SCHEMAS_MAX || found.iter().any(|other| std::ptr::eq(*other, schema)) {
            continue;
        }
        found.push(schema);
        if let Some(target) = schema.get("$ref").and_then(Schema::as_str).and_then(|target| target.strip_prefix('#')) {
            open.extend(root.pointer(&crate::percent::percent_decoded(target)).map(|target| (target, hops + 1)));
        }
        for word in ["allOf", "anyOf", "oneOf"] {
            let parts = schema.get(word).and_then(Schema::as_array).into_iter().flatten();
            open.extend(parts.map(|part| (part, hops + 1)));
        }
        for word in ["if", "then", "else"] {
            open.extend(schema.get(word).map(|part| (part, hops + 1)));
        }
    }
    found
}

/// Returns the schemas of the member. `schemas` apply to the object that contains the member.
fn of_member<'a>(schemas: &[&'a Schema], name: &str) -> Vec<&'a Schema> {
    let of_one = |schema: &&'a Schema| {
        let declared = schema.get("properties").and_then(|properties| properties.get(name));
        declared.or_else(|| schema.get("additionalProperties"))
    };
    schemas.iter().filter_map(of_one).collect()
}

/// Returns the schemas of the item. `schemas` apply to the list that contains the item.
fn of_item<'a>(schemas: &[&'a Schema], index: usize) -> Vec<&'a Schema> {
    let of_one = |schema: &&'a Schema| {
        let items = schema.get("items");
        let first = schema.get("prefixItems").or_else(|| items.filter(|items| items.is_array()));
        let rest = items.filter(|items| !items.is_array()).or_else(|| schema.get("additionalItems"));
        first.and_then(|first| first.get(index)).or(rest)
    };
    schemas.iter().filter_map(of_one).collect()
}

/// `None` if the number is already an integer, is not whole, or has too many digits.
fn whole(text: &str) -> Option<String> {
    let (number, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (before, behind) = number.split_once('.').unwrap_or((number, ""));
    if before.len() == number.len() && text.len() == sign.len() + number.len() {
        return None;
    }
    let digits = format!("{before}{behind}");
    if digits.bytes().all(|digit| digit == b'0') {
        return Some("0".to_owned());
    }
    let power: i64 = power.parse().ok()?;
    let behind = i64::try_from(behind.len()).ok()?;
    // Zeros to append to the digits. If negative, that many digits are cut off.
    let zeros = power.checked_sub(behind)?;
    let digits = if zeros < 0 {
        let cut = digits.len().checked_sub(usize::try_from(zeros.unsigned_abs()).ok()?)?;
        let (whole, fraction) = digits.split_at_checked(cut)?;
        fraction.bytes().all(|digit| digit == b'0').then(|| whole.to_owned())?
    } else {
        let zeros = usize::try_from(zeros).ok().filter(|zeros| zeros + digits.len() <= DIGITS_MAX)?;
        digits + &"0".repeat(zeros)
    };
    let digits = digits.trim_start_matches('0');
    Some(if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_number_becomes_an_integer_if_the_schema_declares_one() {
        let schema = json!({
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "x": {"type": "number"},
                "opt": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "or_text": {"type": ["integer", "string"]},
                "any": {},
                "list": {"type": "array", "items": {"$ref": "#/$defs/count"}},
                "pair": {"prefixItems": [{"type": "string"}, {"type": "integer"}]},
                "map": {"additionalProperties": {"type": "integer"}},
            },
            "$defs": {"count": {"allOf": [{"type": "integer"}]}},
        });
        for (given, written) in [
            (r#"{"n": 5.0}"#, r#"{"n":5}"#),
            (r#"{"n":-5.00e0,"x":5.0}"#, r#"{"n":-5,"x":5.0}"#),
            (r#"{"n":1.5e1}"#, r#"{"n":15}"#),
            (r#"{"n":500e-2}"#, r#"{"n":5}"#),
            (r#"{"n":-0.0}"#, r#"{"n":0}"#),
            (r#"{"n":1e21,"opt":2.0,"or_text":3.0}"#, r#"{"n":1000000000000000000000,"opt":2,"or_text":3}"#),
            (
                r#"{"list":[1.0,2],"pair":["a",3.0],"map":{"k\n":4.0}}"#,
                r#"{"list":[1,2],"pair":["a",3],"map":{"k\n":4}}"#,
            ),
            (r#"{"n":123456789012345678901234567890.0}"#, r#"{"n":123456789012345678901234567890}"#),
        ] {
            assert_eq!(as_integers(&schema, given), written);
        }
        for same in [r#"{"n": 5, "x": 0.10}"#, r#"{"any":5.0,"x":1e400}"#, r#"{"n":1e999999}"#, r#"{"n":"5.0"}"#] {
            assert_eq!(as_integers(&schema, same), same);
        }
        assert!(are_declared(&schema) && !are_declared(&json!({"properties": {"type": {"type": "number"}}})));
    }
}
