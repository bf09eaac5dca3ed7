//! Unescapes and escapes JSON strings.

use std::borrow::Cow;

pub(super) static ENDS_RUN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};

/// `None` if an escape is broken or is a lone surrogate.
#[must_use]
pub fn unescape(inner: &str) -> Option<Cow<'_, str>> {
    let Some(first) = inner.find('\\') else { return Some(Cow::Borrowed(inner)) };
    let mut text = String::with_capacity(inner.len());
    let (plain, mut rest) = inner.split_at_checked(first)?;
    text.push_str(plain);
    while let Some(after) = rest.strip_prefix('\\') {
        let escape = after.chars().next()?;
        rest = after.get(escape.len_utf8()..)?;
        match escape {
            '"' | '\\' | '/' => text.push(escape),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'u' => {
                let (character, used) = unicode_escape(rest.as_bytes())?;
                text.push(character);
                rest = rest.get(used..)?;
            }
            _ => return None,
        }
        let (plain, escaped) = rest.split_at_checked(rest.find('\\').unwrap_or(rest.len()))?;
        text.push_str(plain);
        rest = escaped;
    }
    Some(Cow::Owned(text))
}

/// `after` follows the `u`. Returns the character, and the bytes of the escape after the `u`: 4, or 10 for a pair.
fn unicode_escape(after: &[u8]) -> Option<(char, usize)> {
    let high = hex4(after)?;
    match high {
        0xD800..=0xDBFF => {
            let low = after.get(4..).and_then(|rest| rest.strip_prefix(b"\\u")).and_then(hex4)?;
            let low = low.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
            char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + low).map(|c| (c, 10))
        }
        _ => char::from_u32(high).map(|c| (c, 4)),
    }
}

pub(super) fn hex4(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.get(..4)?;
    digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
}

pub fn push_quoted(to: &mut String, text: &str) {
    to.push('"');
    push_escaped(to, text);
    to.push('"');
}

pub(crate) fn push_escaped(to: &mut String, text: &str) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if !ENDS_RUN[usize::from(byte)] {
            continue;
        }
        // The byte at `at` is ASCII, so the slice ends at a character boundary.
        to.push_str(text.get(from..at).unwrap_or_default());
        push_escape(to, byte);
        from = at + 1;
    }
    to.push_str(text.get(from..).unwrap_or_default());
}

fn push_escape(to: &mut String, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' => to.push_str("\\\""),
        b'\\' => to.push_str("\\\\"),
        b'\n' => to.push_str("\\n"),
        b'\r' => to.push_str("\\r"),
        b'\t' => to.push_str("\\t"),
        _ => {
            to.push_str("\\u00");
            to.push(char::from(HEX[usize::from(byte >> 4) & 15]));
            to.push(char::from(HEX[usize::from(byte) & 15]));
        }
    }
}

pub(crate) const fn escaped_len(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        '\0'..='\x1f' => 6,
        other => other.len_utf8(),
    }
}

/// The result has at most `bytes_max` bytes, and then `…` if the rest was cut.
pub(crate) fn bounded(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", prefix(text, bytes_max)))
}

pub(crate) fn prefix(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_valid_escape_is_decoded() {
        assert_eq!(unescape(r#"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00x"#).unwrap(), "\"\\/\u{8}\u{c}\n\r\té😀x");
        for bad in [r"\", r"\x", r"\u12", r"\ud800", r"\udc00", r"\ud800\u0041", r"\ud800\n"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_quoted_string_reads_back(text in any::<String>()) {
            let mut quoted = String::new();
            push_quoted(&mut quoted, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text.clone());
            prop_assert_eq!(unescape(&quoted[1..quoted.len() - 1]).unwrap(), text.clone());
            prop_assert_eq!(quoted.len() - 2, text.chars().map(escaped_len).sum::<usize>());
        }

        #[test]
        fn unescape_agrees_with_serde(inner in r#"(\\u[0-9a-dA-D]{4}|\\[nrt"\\/bfux]|[a-z]){0,12}"#) {
            let serde = serde_json::from_str::<String>(&format!("\"{inner}\"")).ok();
            prop_assert_eq!(unescape(&inner).map(Cow::into_owned), serde);
        }
    }
}
