//! Removes secrets from text, before the text is cut or written anywhere. A value is secret if its **key** names a
//! secret, or if the value has the **shape** of a known kind of secret. A list of `{"name": …, "value": …}` counts as
//! an object with these names.

mod keys;
mod shapes;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

/// Bytes that are scanned after the kept part, because a secret can cross the cut.
const MARGIN: usize = 2_048;

pub const REDACTED: &str = "[REDACTED]";

/// JSON inside JSON strings is parsed up to this depth. Deeper strings are scanned as free text.
const NESTED_JSON_MAX: usize = 3;

/// Real texts need far fewer passes.
const PASSES_MAX: usize = 8;

/// Redacting a redacted text changes nothing.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    extra: Vec<String>,
}

impl Redactor {
    /// An extra key matches every key with the same words in sequence: `iban` matches `customerIban` and `iban_2`.
    pub fn new<K: AsRef<str>>(extra_keys: impl IntoIterator<Item = K>) -> Self {
        let extra = extra_keys.into_iter().map(|key| keys::words(key.as_ref())).filter(|words| words.len() > 2);
        Self { extra: extra.collect() }
    }

    #[must_use]
    pub fn is_secret_key(&self, key: &str) -> bool {
        keys::is_secret(key, &self.extra)
    }

    /// Redacts known shapes, and the values of secret keys in `key=value` and `key: value`.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        settled(text, |text| self.once(text))
    }

    fn once<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut patch = Patch::new(text);
        shapes::redact(text, &|key| self.is_secret_key(key), &mut patch);
        patch.end()
    }

    /// Redacts JSON. Numbers and spacing stay unchanged. Incomplete JSON is redacted up to its end. Text that is not
    /// JSON is redacted as in [`Self::text`].
    #[must_use]
    pub fn json<'a>(&self, json: &'a str) -> Cow<'a, str> {
        settled(json, |json| self.nested(json, 0))
    }

    /// A secret stays hidden even if the cut splits the secret.
    #[must_use]
    pub fn head(&self, message: &[u8], bytes_max: usize) -> String {
        let window = bytes_max.saturating_mul(16) + MARGIN;
        let text = String::from_utf8_lossy(message.get(..window).unwrap_or(message));
        let mut clean = self.json(&text).into_owned();
        if message.len() > window {
            // The end of the window may split a secret, so the last `MARGIN` bytes are not returned.
            let sure = clean.len().saturating_sub(MARGIN);
            cut(&mut clean, sure);
        }
        cut(&mut clean, bytes_max);
        clean
    }

    fn nested<'a>(&self, json: &'a str, depth: usize) -> Cow<'a, str> {
        let bytes = json.as_bytes();
        let mut patch = Patch::new(json);
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => at = self.string(json, at, depth, &mut patch),
                b'{' | b'}' | b'[' | b']' | b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => at += 1,
                b'0'..=b'9' | b'-' | b'+' | b'.' | b'E' => at += 1,
                b't' | b'r' | b'u' | b'e' | b'f' | b'a' | b'l' | b's' | b'n' => at += 1,
                _ => return self.text(json),
            }
        }
        patch.end()
    }

    /// `at` is the offset of the opening quote. If the string is a key, redacts the whole member. Returns the offset at
    /// which the scan continues.
    fn string(&self, json: &str, at: usize, depth: usize, patch: &mut Patch<'_>) -> usize {
        let bytes = json.as_bytes();
        let end = string_end(bytes, at);
        let after = skip_blanks(bytes, end);
        let is_key = bytes.get(after) == Some(&b':');
        let quoted = json.get(at..end).unwrap_or_default();
        let inner = quoted.strip_prefix('"').unwrap_or_default();
        let closed = inner.ends_with('"') && end > at + 1;
        let inner = if closed { inner.get(..inner.len() - 1).unwrap_or_default() } else { inner };
        let decoded = inner.contains('\\').then(|| unescape(inner));
        let text = decoded.as_deref().unwrap_or(inner);
        if is_key && cannot_hold_a_secret(inner) {
            let value = skip_blanks(bytes, after + 1);
            return self.member(json, inner, value, patch);
        }
        let holds_json = decoded.is_some() && text.trim_start().starts_with(['{', '[']) && depth < NESTED_JSON_MAX;
        // A secret in the key may hide the key's name until the secret is redacted.
        let mut is_secret = is_key && self.is_secret_key(text);
        if let Cow::Owned(clean) = if holds_json { self.nested(text, depth + 1) } else { self.text(text) } {
            is_secret |= is_key && self.is_secret_key(&clean);
            let escaped = if decoded.is_some() { escape(&clean) } else { clean };
            patch.replace(at + 1, at + 1 + inner.len(), &escaped);
        }
        if !is_key {
            return end;
        }
        let value = skip_blanks(bytes, after + 1);
        if is_secret { redact_value(bytes, value, patch) } else { value }
    }

    /// `key` is unescaped, and `value` is the offset of the value. Returns the offset at which the scan continues.
    fn member(&self, json: &str, key: &str, value: usize, patch: &mut Patch<'_>) -> usize {
        let bytes = json.as_bytes();
        if matches!(key, "name" | "key" | "header" | "field" | "Name" | "Key")
            && let Some((name, held)) = named_value(json, value)
        {
            return if self.is_secret_key(&name) { redact_value(bytes, held, patch) } else { held };
        }
        if self.is_secret_key(key) { redact_value(bytes, value, patch) } else { value }
    }
}

/// Repeats `pass` until the text no longer changes. A replacement may complete a match of another rule
/// (`://user:[REDACTED]@`), or turn invalid JSON into valid JSON.
fn settled<'a>(text: &'a str, pass: impl Fn(&str) -> Cow<'_, str>) -> Cow<'a, str> {
    let Cow::Owned(mut clean) = pass(text) else { return Cow::Borrowed(text) };
    for _ in 0..PASSES_MAX {
        let Cow::Owned(next) = pass(&clean) else { break };
        clean = next;
    }
    Cow::Owned(clean)
}

/// Reads a named value (`"Cookie", "value": "…"`). Returns the name and the offset of the value.
fn named_value(json: &str, at: usize) -> Option<(String, usize)> {
    let bytes = json.as_bytes();
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let end = string_end(bytes, at);
    let name = json.get(at + 1..end.checked_sub(1)?)?;
    let comma = skip_blanks(bytes, end);
    let next = skip_blanks(bytes, comma + 1);
    if bytes.get(comma) != Some(&b',') {
        return None;
    }
    let rest = json.get(next..)?;
    let key = ["\"value\"", "\"Value\""].into_iter().find(|key| rest.starts_with(key))?;
    let colon = skip_blanks(bytes, next + key.len());
    (bytes.get(colon) == Some(&b':')).then(|| (unescape(name), skip_blanks(bytes, colon + 1)))
}

/// Never splits a character.
fn cut(text: &mut String, bytes_max: usize) {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
}

/// True for most keys: they are too short and simple to contain a secret.
fn cannot_hold_a_secret(key: &str) -> bool {
    key.len() < 13 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Null, booleans and the empty string stay, because they reveal nothing. Returns the offset at which the scan
/// continues.
fn redact_value(bytes: &[u8], at: usize, patch: &mut Patch<'_>) -> usize {
    let end = value_end(bytes, at);
    let value = bytes.get(at..end).unwrap_or_default();
    if !matches!(value, b"" | b"null" | b"true" | b"false" | b"\"\"" | b"\"[REDACTED]\"") {
        patch.replace(at, end, "\"[REDACTED]\"");
    }
    end
}

/// Returns the offset after the string, or the end of the text if the string is not closed.
#[must_use]
pub fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn value_end(bytes: &[u8], mut at: usize) -> usize {
    let mut open = 0usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at),
            b'{' | b'[' => {
                open += 1;
                at += 1;
            }
            b'}' | b']' | b',' if open == 0 => return at,
            b'}' | b']' => {
                open -= 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' | b'\n' if open == 0 => return at,
            _ => {
                at += 1;
                continue;
            }
        }
        if open == 0 {
            return at;
        }
    }
    bytes.len()
}

fn skip_blanks(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')).count()
}

/// An invalid escape becomes `U+FFFD`, so that a secret beside the escape is still found.
fn unescape(inner: &str) -> String {
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        text.push_str(plain);
        let (character, len) = match escaped.as_bytes().first() {
            Some(b'u') => unicode_escape(escaped),
            Some(b'b') => ('\u{8}', 1),
            Some(b'f') => ('\u{c}', 1),
            Some(b'n') => ('\n', 1),
            Some(b'r') => ('\r', 1),
            Some(b't') => ('\t', 1),
            Some(byte @ (b'"' | b'\\' | b'/')) => (char::from(*byte), 1),
            _ => (char::REPLACEMENT_CHARACTER, 0),
        };
        text.push(character);
        rest = escaped.get(len..).unwrap_or_default();
    }
    text.push_str(rest);
    text
}

/// `escaped` begins with the `u` of a `\u` escape. The second value is the number of bytes from `u`.
fn unicode_escape(escaped: &str) -> (char, usize) {
    let digits = |from: usize| {
        let digits = escaped.bytes().skip(from).take(4).take_while(u8::is_ascii_hexdigit).count();
        let unit =
            escaped.get(from..from + 4).filter(|_| digits == 4).and_then(|hex| u16::from_str_radix(hex, 16).ok());
        (unit, digits)
    };
    let (first, len) = digits(1);
    let Some(first) = first else { return (char::REPLACEMENT_CHARACTER, 1 + len) };
    if let Some(character) = char::from_u32(first.into()) {
        return (character, 5);
    }
    let second = if escaped.get(5..7) == Some("\\u") { digits(7).0 } else { None };
    match char::decode_utf16([first, second.unwrap_or_default()]).next() {
        Some(Ok(character)) => (character, 11),
        _ => (char::REPLACEMENT_CHARACTER, 5),
    }
}

/// Without the enclosing quotes.
fn escape(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

/// Replacements must be made from left to right.
struct Patch<'a> {
    text: &'a str,
    out: String,
    copied: usize,
}

impl<'a> Patch<'a> {
    const fn new(text: &'a str) -> Self {
        Self { text, out: String::new(), copied: 0 }
    }

    const fn last_end(&self) -> usize {
        self.copied
    }

    /// If the range overlaps the last replacement, only the rest of the range is replaced.
    fn replace(&mut self, start: usize, end: usize, with: &str) {
        let start = start.max(self.copied);
        if end <= start {
            return;
        }
        self.out.push_str(self.text.get(self.copied..start).unwrap_or_default());
        self.out.push_str(with);
        self.copied = end;
    }

    fn end(mut self) -> Cow<'a, str> {
        if self.copied == 0 {
            return Cow::Borrowed(self.text);
        }
        self.out.push_str(self.text.get(self.copied..).unwrap_or_default());
        Cow::Owned(self.out)
    }
}
