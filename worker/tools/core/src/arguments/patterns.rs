//! ECMA 262 patterns in schemas. Look-around and back references need backtracking, with a bounded number of steps.

use std::sync::LazyLock;

use jsonschema::{Draft, PatternOptions, ValidationOptions};
use serde_json::{Map, Value, json};

/// Bytes of a compiled pattern. A pattern such as `(a{1000}){1000}` would use too much memory.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// The maximum backtracking steps of one match. Real patterns need a few hundred steps.
const STEPS_BACK_MAX: usize = 10_000;

/// Completes a sentence that begins with `the schema`.
pub(super) const LEFT_TO_THE_TOOL: &str = "has a pattern that cannot be read here: only the tool can check it";

/// Keywords that contain data, not schemas.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "example"];

pub(super) fn engine(schema: &Value) -> ValidationOptions<'static> {
    let patterns = PatternOptions::fancy_regex()
        .backtrack_limit(STEPS_BACK_MAX)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX);
    let options = jsonschema::options().with_pattern_options(patterns);
    if schema.get("$schema").is_none() { options.with_draft(Draft::Draft202012) } else { options }
}

/// Also returns the places of the unsupported patterns. `None` if all patterns are supported.
pub(super) fn without_unread(schema: &Value) -> Option<(Value, Vec<String>)> {
    let mut readable = schema.clone();
    let mut unread = Vec::new();
    strip(&mut readable, &mut String::new(), &mut unread);
    (readable != *schema).then_some((readable, unread))
}

/// Escapes the hyphen in `[\w-.]`. In ECMA 262, this class matches a word character, a hyphen or a dot. Other engines
/// reject the hyphen.
fn literal_hyphens(pattern: &str) -> String {
    let is_class = |escape: Option<&char>| escape.is_some_and(|escape| "dDsSwW".contains(*escape));
    let mut text = String::with_capacity(pattern.len() + 8);
    let mut in_class = false;
    let mut behind_class = false;
    let characters: Vec<char> = pattern.chars().collect();
    let mut at = 0;
    while let Some(character) = characters.get(at) {
        match character {
            '\\' => {
                text.push('\\');
                text.extend(characters.get(at + 1));
                behind_class = in_class && is_class(characters.get(at + 1));
                at += 2;
                continue;
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '-' if in_class => {
                let before_class = characters.get(at + 1) == Some(&'\\') && is_class(characters.get(at + 2));
                if behind_class || before_class {
                    text.push('\\');
                }
            }
            _ => {}
        }
        text.push(*character);
        behind_class = false;
        at += 1;
    }
    text
}

fn strip(schema: &mut Value, at: &mut String, unread: &mut Vec<String>) {
    let length = at.len();
    match schema {
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                at.push_str(&format!("/{index}"));
                strip(item, at, unread);
                at.truncate(length);
            }
        }
        Value::Object(members) => {
            if let Some(Value::String(pattern)) = members.get("pattern")
                && !can_be_read(pattern)
            {
                match Some(literal_hyphens(pattern)).filter(|pattern| can_be_read(pattern)) {
                    Some(literal) => drop(members.insert("pattern".to_owned(), literal.into())),
                    None => {
                        unread.push(format!("{at}/pattern"));
                        members.shift_remove("pattern");
                    }
                }
            }
            strip_names(members, at, unread);
            for (name, member) in members.iter_mut().filter(|(name, _)| !DATA.contains(&name.as_str())) {
                at.push_str(&step(name));
                strip(member, at, unread);
                at.truncate(length);
            }
        }
        _ => {}
    }
}

/// Removes the unsupported patterns for names. The allowed names are then unknown, so the check of additional members
/// is also left to the tool.
fn strip_names(members: &mut Map<String, Value>, at: &str, unread: &mut Vec<String>) {
    let Some(Value::Object(patterns)) = members.get_mut("patternProperties") else { return };
    let odd: Vec<String> = patterns.keys().filter(|pattern| !can_be_read(pattern)).cloned().collect();
    for pattern in &odd {
        patterns.shift_remove(pattern);
        unread.push(format!("{at}/patternProperties{}", step(pattern)));
    }
    if !odd.is_empty() {
        members.shift_remove("additionalProperties");
        members.shift_remove("unevaluatedProperties");
    }
}

fn step(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn can_be_read(pattern: &str) -> bool {
    static ENGINE: LazyLock<ValidationOptions<'static>> = LazyLock::new(|| engine(&Value::Null));
    ENGINE.build(&json!({ "pattern": pattern })).is_ok()
}
