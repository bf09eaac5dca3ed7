//! The settings of seals.

use super::{HOUR, MILLISECOND, duration, plain_name};
use crate::document::reader::{Cursor, Section};
use crate::settings::{AnchorPlace, SealKey, SealSettings};

pub(super) fn seal(mut s: Section<'_>) -> SealSettings {
    let anchored = s.required("anchor").and_then(|c| anchor(&c).map(|place| (place, c)));
    let elsewhere = s.required("anchor_redis").and_then(|c| secret_place(&c, "a Redis URL"));
    if let Some((AnchorPlace::Stream(stream), cursor)) = &anchored
        && stream.is_some() != elsewhere.is_some()
    {
        cursor.refuse("stream (of the fleet's own Redis), or stream:KEY together with seal.anchor_redis");
    }
    let seal = SealSettings {
        key: s.required("key").and_then(|c| secret_place(&c, "the secret key")),
        key_id: s.required("key_id").and_then(|c| plain_name(&c)).unwrap_or_default(),
        every: duration(&mut s, "every", 100 * MILLISECOND, HOUR),
        anchor: anchored.map(|(place, _)| place).unwrap_or_default(),
        anchor_redis: elsewhere,
    };
    s.close();
    seal
}

/// An invalid text may be the secret itself, so the error does not show it.
fn secret_place(cursor: &Cursor<'_>, what: &str) -> Option<SealKey> {
    let text = cursor.text()?;
    let named = |name: &str| !name.is_empty();
    match text.split_once(':') {
        _ if text.is_empty() => None,
        Some(("env", name)) if named(name) => Some(SealKey::Env(name.to_owned())),
        Some(("file", path)) if path.starts_with('/') => Some(SealKey::File(path.to_owned())),
        _ => {
            let expected = format!("nothing, env:NAME of a variable or file:/PATH of a file that holds {what}");
            cursor.errors.push(&cursor.node.place, &cursor.path, "something else (not shown)", expected);
            None
        }
    }
}

fn anchor(cursor: &Cursor<'_>) -> Option<AnchorPlace> {
    let text = cursor.text()?;
    match text.split_once(':') {
        None if text.is_empty() => Some(AnchorPlace::None),
        None if text == "log" => Some(AnchorPlace::Log),
        None if text == "stream" => Some(AnchorPlace::Stream(None)),
        Some(("stream", key)) if !key.is_empty() => Some(AnchorPlace::Stream(Some(key.to_owned()))),
        Some(("file", path)) if path.starts_with('/') => Some(AnchorPlace::File(path.to_owned())),
        _ => {
            cursor.refuse("nothing, log, stream, stream:KEY, or file:/PATH of a file that lines are appended to");
            None
        }
    }
}
