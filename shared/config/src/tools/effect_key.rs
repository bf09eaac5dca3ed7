//! `effect_key` and `effect_window` of a tool.

use std::time::Duration;

use serde_json::Value;
use tickfleet_model::tool::{EFFECT_WINDOW_MS_DEFAULT, EFFECT_WINDOW_MS_MAX};
use tickfleet_model::{Effect, EffectKey};

use crate::document::reader::{Cursor, Section};

const ARGUMENTS_MAX: usize = 16;

pub(crate) fn read(s: &mut Section<'_>, schema: Option<&Value>, effect: Option<Effect>) -> Option<EffectKey> {
    let key = s.optional("effect_key");
    let window = s.optional("effect_window");
    of(key.as_ref(), window.as_ref(), schema, effect)
}

/// An unknown (`None`) schema or effect is not checked.
pub(crate) fn of(
    key: Option<&Cursor<'_>>,
    window: Option<&Cursor<'_>>,
    schema: Option<&Value>,
    effect: Option<Effect>,
) -> Option<EffectKey> {
    let most = Duration::from_millis(EFFECT_WINDOW_MS_MAX.unsigned_abs());
    let read = window.and_then(|c| c.duration(Duration::from_secs(1), most));
    let Some(key) = key else {
        if let Some(window) = window {
            window.refuse("an effect_key beside it: a window is the time for which the key holds");
        }
        return None;
    };
    if effect.is_some_and(|effect| effect != Effect::Once) {
        key.refuse("no effect_key, or `effect: once`: any other tool may run again");
    }
    let arguments: Vec<String> = key.items().iter().filter_map(|item| argument(item, schema)).collect();
    let distinct: std::collections::BTreeSet<&String> = arguments.iter().collect();
    if key.items().is_empty() || key.items().len() > ARGUMENTS_MAX || distinct.len() < arguments.len() {
        key.refuse(format!("1 to {ARGUMENTS_MAX} arguments, each once, such as [/to, /amount]"));
    }
    let window_ms = read.and_then(|window| i64::try_from(window.as_millis()).ok()).unwrap_or(EFFECT_WINDOW_MS_DEFAULT);
    Some(EffectKey { arguments, window_ms })
}

fn argument(item: &Cursor<'_>, schema: Option<&Value>) -> Option<String> {
    let pointer = item.some_text()?;
    let Some(name) = pointer.strip_prefix('/').and_then(|rest| rest.split('/').next()) else {
        item.refuse("a JSON pointer such as /amount");
        return None;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    let Some(schema) = schema else { return Some(pointer) };
    let required = schema.get("required").and_then(Value::as_array);
    if !required.is_some_and(|required| required.iter().any(|other| *other == name)) {
        item.refuse("a JSON pointer to an argument that input_schema.required lists: every call must have it");
    }
    Some(pointer)
}
