//! Shortens outputs that exceed a size bound: keeps their beginning and end. No other code cuts outputs.

use std::borrow::Cow;

use serde_json::value::RawValue;

use tickfleet_model::numbers::number_across;

use super::json::{escaped_len, push_escaped, push_quoted, unescape};

/// The room for the marker and the braces around it.
const MARKER_BYTES: usize = 120;

pub(super) const CUT_OBJECT: &str = r#"{"truncated":true,"bytes":"#;

#[must_use]
pub fn is_cut_object(json: &str) -> bool {
    json.starts_with(CUT_OBJECT)
}

#[must_use]
pub fn bounded_output(json: Box<RawValue>, bytes_max: usize) -> Box<RawValue> {
    if json.get().len() <= bytes_max {
        return json;
    }
    let cut = cut_output(json.get(), bytes_max).into_owned();
    RawValue::from_string(cut).unwrap_or(json)
}

/// A string stays a string, with a marker between its head and tail. Any other value becomes an object
/// `{"truncated":true,"bytes":…,"cut_bytes":…,"head":"…","tail":"…"}` with pieces of the value's JSON text. If
/// `bytes_max` is below about 150, the result can be longer.
#[must_use]
pub fn cut_output(json: &str, bytes_max: usize) -> Cow<'_, str> {
    if json.len() <= bytes_max {
        return Cow::Borrowed(json);
    }
    let room = bytes_max.saturating_sub(MARKER_BYTES);
    let inner = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).and_then(unescape);
    let mut out = String::with_capacity(bytes_max);
    if let Some(text) = inner {
        let (head, tail) = ends(&text, room);
        let cut = text.len() - head.len() - tail.len();
        out.push('"');
        push_escaped(&mut out, head);
        out.push_str(&marker(cut, text.len()));
        push_escaped(&mut out, tail);
        out.push('"');
    } else {
        let (head, tail) = ends(json, room);
        let cut = json.len() - head.len() - tail.len();
        out.push_str(&format!(r#"{CUT_OBJECT}{},"cut_bytes":{cut},"head":"#, json.len()));
        push_quoted(&mut out, head);
        out.push_str(r#","tail":"#);
        push_quoted(&mut out, tail);
        out.push('}');
    }
    Cow::Owned(out)
}

/// No character of the marker needs an escape in JSON.
fn marker(cut: usize, bytes: usize) -> String {
    format!("[… {cut} of {bytes} bytes cut …]")
}

/// The start and the end together take at most `room` bytes in a JSON string.
fn ends(text: &str, room: usize) -> (&str, &str) {
    let head_room = room / 4 * 3;
    let mut left = head_room;
    let mut fits = |character: char| {
        left.checked_sub(escaped_len(character)).inspect(|rest| left = *rest).map(|_| character.len_utf8())
    };
    let head: usize = text.chars().map_while(&mut fits).sum();
    // Do not cut inside a number, because a part of a number is a different number.
    let head = number_across(text, head).map_or(head, |(before, _)| before);
    let (head, rest) = text.split_at_checked(head).unwrap_or((text, ""));
    left = room - head_room;
    let mut fits = |character: char| {
        left.checked_sub(escaped_len(character)).inspect(|rest| left = *rest).map(|_| character.len_utf8())
    };
    let tail: usize = rest.chars().rev().map_while(&mut fits).sum();
    let begins = text.len() - tail;
    let tail = number_across(text, begins).map_or(tail, |(_, behind)| text.len() - behind);
    (head, rest.get(rest.len() - tail..).unwrap_or_default())
}

/// The `…` at the end counts toward `chars_max`.
pub(super) fn cut_chars(text: &str, chars_max: usize) -> Cow<'_, str> {
    if text.len() <= chars_max {
        return Cow::Borrowed(text);
    }
    let mut kept = text.char_indices().skip(chars_max.saturating_sub(1));
    match (kept.next(), kept.next()) {
        (Some((end, _)), Some(_)) => {
            let end = number_across(text, end).map_or(end, |(before, _)| before);
            Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default()))
        }
        _ => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_output_is_cut_and_reports_the_missing_bytes() {
        assert!(matches!(cut_output("[1,2]", 5), Cow::Borrowed("[1,2]")));
        let long = format!("\"{}\"", "ab".repeat(500));
        let cut: String = serde_json::from_str(&cut_output(&long, 200)).unwrap();
        assert!(cut.starts_with("abab") && cut.ends_with("abab") && cut.contains("920 of 1000 bytes cut"), "{cut}");
        let list = format!("[{}0]", "\"é\",".repeat(300));
        let cut: serde_json::Value = serde_json::from_str(&cut_output(&list, 400)).unwrap();
        assert_eq!(cut["truncated"], true);
        assert_eq!(cut["bytes"], list.len());
        let shown = cut["head"].as_str().unwrap().len() + cut["tail"].as_str().unwrap().len();
        assert_eq!(cut["cut_bytes"], list.len() - shown);
    }

    #[test]
    fn a_cut_never_splits_a_number() {
        for filler in 0..24 {
            let json = format!(r#"{{"t":"{}","rows":[{}]}}"#, "x".repeat(filler), vec!["1234567"; 200].join(","));
            let cut: serde_json::Value = serde_json::from_str(&cut_output(&json, 400)).unwrap();
            for piece in ["head", "tail"] {
                let text = cut[piece].as_str().unwrap();
                let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
                assert!(numbers.clone().all(|digits| digits == "1234567"), "{piece}: {text}");
            }
            let text = format!("{} pays 1250000.75 to kim, who waits", "x".repeat(filler));
            let short = cut_chars(&text, 20);
            assert!(!short.contains("pays 1") || short.contains("1250000.75"), "{short}");
        }
    }

    proptest! {
        #[test]
        fn a_cut_output_is_json_within_its_bound(text in any::<String>(), times in 1usize..50, list in any::<bool>(), max in 150usize..900) {
            let text = text.repeat(times);
            let json = if list { serde_json::to_string(&[&text]) } else { serde_json::to_string(&text) }.unwrap();
            let cut = cut_output(&json, max);
            prop_assert!(cut.len() <= max, "{} > {max}", cut.len());
            prop_assert!(serde_json::from_str::<serde_json::Value>(&cut).is_ok(), "{cut}");
        }
    }
}
