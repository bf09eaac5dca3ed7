//! Makes characters visible that are hidden or reorder the text around them. Otherwise, a call could look different
//! from the executed text.

use std::borrow::Cow;
use std::fmt::Write as _;

/// True for controls except tab and line feed, bidirectional marks, zero-width and filler characters, variation
/// selectors and tags.
#[must_use]
pub const fn is_hidden(character: char) -> bool {
    matches!(character,
        '\0'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{34f}' | '\u{61c}'
        | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Combining marks beyond this number on one letter become escapes. No script needs more.
const MARKS_MAX: usize = 3;

/// Many such marks on one letter would cover other lines.
const fn is_mark(character: char) -> bool {
    matches!(character,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Replaces hidden characters and excess combining marks with JSON escapes (`\u202e`), so the meaning of JSON stays the
/// same.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|character| is_hidden(character) || is_mark(character)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut marks = 0;
    for character in text.chars() {
        marks = if is_mark(character) { marks + 1 } else { 0 };
        if is_hidden(character) || marks > MARKS_MAX {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_others_unchanged() {
        for (text, shown) in [
            ("pay \u{202e}001\u{202c} eur", "pay \\u202e001\\u202c eur"),
            ("ev\u{200b}e\u{2066}\u{feff}", "ev\\u200be\\u2066\\ufeff"),
            ("tag \u{e0041}\u{1b}[8m\r", "tag \\udb40\\udc41\\u001b[8m\\u000d"),
        ] {
            assert_eq!(visible(text), shown);
        }
        let pile = format!("9{}00", "\u{336}".repeat(5));
        assert_eq!(visible(&pile), "9\u{336}\u{336}\u{336}\\u0336\\u033600");
        let marked = "Vie\u{302}\u{323}t";
        assert_eq!(visible(marked), marked);
        let plain = "Zażółć gęślą, שלום, 你好 🙂\n\ttab";
        assert!(matches!(visible(plain), Cow::Borrowed(same) if same == plain));
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let json = serde_json::to_string("a\u{202e}b\u{e0041}").unwrap();
        let shown = visible(&json);
        assert!(shown.is_ascii());
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), "a\u{202e}b\u{e0041}");
    }
}
