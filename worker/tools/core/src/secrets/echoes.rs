//! Finds secrets in text that a service sent back, in every encoding in which it may echo them.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use crate::percent::{SECRET_KEEPS, percent_encoded};

/// Shorter values are not searched for: they would match everywhere.
const SECRET_BYTES_MIN: usize = 4;
/// Readings of one position that are followed, per byte of the secret: text with nested escapes costs linear time.
const STEPS_PER_BYTE: usize = 16;

/// The values and encoded values that must not appear in a text.
///
/// Base64 and hexadecimal forms are listed; JSON escapes, percent-encoding and HTML entities are decoded while
/// matching, because encoders differ in which characters they escape and in which case.
pub(super) struct Echoes {
    wanted: BTreeSet<Vec<u8>>,
    /// True for each byte that one of them may begin with, as itself or escaped.
    begins: [bool; 256],
}

impl Echoes {
    pub(super) fn of<'a>(secrets: impl Iterator<Item = &'a str>) -> Self {
        let mut wanted = BTreeSet::new();
        for secret in secrets.filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            wanted.insert(secret.as_bytes().to_vec());
            wanted.insert(hexadecimal(secret, b"0123456789abcdef"));
            wanted.insert(hexadecimal(secret, b"0123456789ABCDEF"));
            // Basic authentication of OAuth 2 encodes a percent-encoded password.
            for text in [secret.to_owned(), percent_encoded(secret, ""), percent_encoded(secret, SECRET_KEEPS)] {
                wanted.extend((0..3).flat_map(|before| base64_within(text.as_bytes(), before)));
            }
        }
        let mut begins = [false; 256];
        for first in wanted.iter().filter_map(|wanted| wanted.first()).chain(b"\\%&+") {
            begins[usize::from(*first)] = true;
        }
        Self { wanted, begins }
    }

    /// Byte ranges of `text` that show a secret, in order. Only their starts may lie before the end of the range before.
    pub(super) fn found(&self, text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::<(usize, usize)>::new();
        if self.wanted.is_empty() {
            return found;
        }
        for (at, byte) in text.bytes().enumerate() {
            if !self.begins[usize::from(byte)] || !text.is_char_boundary(at) {
                continue;
            }
            let Some(end) = self.wanted.iter().filter_map(|wanted| end_of(wanted, text, at)).max() else { continue };
            match found.last_mut() {
                Some(last) if at < last.1 => last.1 = last.1.max(end),
                _ => found.push((whole_escape(text.as_bytes(), at), end)),
            }
        }
        found
    }
}

/// Returns the start of the escape that `at` lies in: a cut inside an escape would break the JSON around it.
fn whole_escape(bytes: &[u8], at: usize) -> usize {
    let slashes = bytes.iter().take(at).rev().take_while(|byte| **byte == b'\\').count();
    at - slashes % 2
}

fn hexadecimal(secret: &str, digits: &[u8; 16]) -> Vec<u8> {
    secret.bytes().flat_map(|byte| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]).collect()
}

/// Returns the characters of base64 that `secret` alone decides when it follows `before` other bytes (modulo 3), in both
/// alphabets.
fn base64_within(secret: &[u8], before: usize) -> [Vec<u8>; 2] {
    let padded = [vec![0; before], secret.to_vec()].concat();
    // Without the characters that hold bits of what is before, and without the last one if it holds bits of what follows.
    let (from, to) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
    let cut = |text: String| text.as_bytes().get(from..to).unwrap_or_default().to_vec();
    [cut(STANDARD_NO_PAD.encode(&padded)), cut(URL_SAFE_NO_PAD.encode(&padded))]
}

/// The longest end of `wanted` in `text` when it begins at `start`, plain or escaped.
fn end_of(wanted: &[u8], text: &str, start: usize) -> Option<usize> {
    let (mut open, mut longest, mut steps) = (vec![(start, 0)], None, wanted.len() * STEPS_PER_BYTE);
    while let Some((at, matched)) = open.pop() {
        let Some(rest) = wanted.get(matched..).filter(|rest| !rest.is_empty()) else {
            longest = longest.max(Some(at));
            continue;
        };
        if steps == 0 {
            break;
        }
        steps -= 1;
        let Some(tail) = text.get(at..) else { continue };
        let Some(plain) = tail.chars().next() else { continue };
        let mut read = |unit: &[u8], length: usize| {
            if rest.starts_with(unit) {
                open.push((at + length, matched + unit.len()));
            }
        };
        match plain {
            '\\' => json_escape(tail, &mut read),
            '%' => percent_escape(tail, &mut read),
            '&' => html_entity(tail, 1, &mut read),
            '+' => read(b" ", 1),
            _ => {}
        }
        read(plain.encode_utf8(&mut [0; 4]).as_bytes(), plain.len_utf8());
    }
    longest
}

/// Reads the JSON escape that `tail` begins with, also of a string inside a string. A run of backslashes has several readings.
fn json_escape(tail: &str, read: &mut dyn FnMut(&[u8], usize)) {
    let run = tail.bytes().take_while(|byte| *byte == b'\\').count();
    for doubled in [2, 4, 8].into_iter().filter(|doubled| *doubled <= run) {
        read(b"\\", doubled);
    }
    // Each level of nesting doubles a backslash, and adds one before a quote.
    if run > 8 {
        return;
    }
    let Some(letter) = tail.as_bytes().get(run) else { return };
    let plain = match letter {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x8,
        b'f' => 0xc,
        b'"' | b'/' | b'\'' => *letter,
        b'x' => {
            if let Some(byte) = hex_digits(tail, run + 1, 2).and_then(|byte| u8::try_from(byte).ok()) {
                read(&[byte], run + 3);
            }
            return;
        }
        b'u' => return numbered_escape(tail, run, read),
        _ => return,
    };
    read(&[plain], run + 1);
}

/// As [`json_escape`], for `\uXXXX` behind `run` backslashes, and for a pair of surrogates.
fn numbered_escape(tail: &str, run: usize, read: &mut dyn FnMut(&[u8], usize)) {
    let unit = |from: usize| {
        let slashes = tail.as_bytes().get(from..from + run)?.iter().all(|byte| *byte == b'\\');
        let is_unit = slashes && tail.as_bytes().get(from + run) == Some(&b'u');
        is_unit.then(|| hex_digits(tail, from + run + 1, 4)).flatten()
    };
    let length = run + 5;
    let Some(first) = unit(0) else { return };
    if first == u32::from(b'&') {
        html_entity(tail, length, read);
    }
    if let Some(character) = char::from_u32(first) {
        return read(character.encode_utf8(&mut [0; 4]).as_bytes(), length);
    }
    let pair = unit(length).and_then(|second| {
        let pair = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
        char::decode_utf16(pair).next()?.ok()
    });
    if let Some(character) = pair {
        read(character.encode_utf8(&mut [0; 4]).as_bytes(), 2 * length);
    }
}

/// Reads `%2F`, and `%252F` of an address inside an address.
fn percent_escape(tail: &str, read: &mut dyn FnMut(&[u8], usize)) {
    let mut at = 1;
    loop {
        if let Some(byte) = hex_digits(tail, at, 2).and_then(|byte| u8::try_from(byte).ok()) {
            read(&[byte], at + 2);
        }
        match tail.get(at..at + 2) {
            Some("25") => at += 2,
            _ => return,
        }
    }
}

/// Reads the HTML entity whose `&` takes the first `ampersand` bytes of `tail`, also of HTML inside HTML.
fn html_entity(tail: &str, ampersand: usize, read: &mut dyn FnMut(&[u8], usize)) {
    let mut at = ampersand;
    loop {
        let Some(rest) = tail.get(at..) else { return };
        // `#x10FFFF` is the longest that counts.
        let Some(end) = rest.bytes().take(9).position(|byte| byte == b';') else { return };
        let name = &rest[..end];
        let number = name.strip_prefix('#').and_then(|number| match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => number.parse().ok(),
        });
        let named = || HTML_ENTITIES.iter().find(|(known, _)| *known == name).map(|(_, character)| *character);
        if let Some(character) = number.and_then(char::from_u32).or_else(named) {
            read(character.encode_utf8(&mut [0; 4]).as_bytes(), at + end + 1);
        }
        if name != "amp" {
            return;
        }
        at += end + 1;
    }
}

/// Names of HTML's entities for characters of ASCII that are neither letters nor digits.
const HTML_ENTITIES: [(&str, char); 32] = [
    ("amp", '&'),
    ("apos", '\''),
    ("ast", '*'),
    ("bsol", '\\'),
    ("colon", ':'),
    ("comma", ','),
    ("commat", '@'),
    ("dollar", '$'),
    ("equals", '='),
    ("excl", '!'),
    ("grave", '`'),
    ("gt", '>'),
    ("Hat", '^'),
    ("lbrace", '{'),
    ("lcub", '{'),
    ("lowbar", '_'),
    ("lpar", '('),
    ("lsqb", '['),
    ("lt", '<'),
    ("num", '#'),
    ("percnt", '%'),
    ("period", '.'),
    ("plus", '+'),
    ("quest", '?'),
    ("quot", '"'),
    ("rbrace", '}'),
    ("rcub", '}'),
    ("rpar", ')'),
    ("rsqb", ']'),
    ("semi", ';'),
    ("sol", '/'),
    ("vert", '|'),
];

fn hex_digits(text: &str, at: usize, count: usize) -> Option<u32> {
    let digits = text.get(at..at + count).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(secret: &str, text: &str) -> Vec<String> {
        Echoes::of([secret].into_iter()).found(text).into_iter().map(|(from, to)| text[from..to].to_owned()).collect()
    }

    #[test]
    fn every_escape_is_read_alone_and_nested() {
        let secret = "a/+\"é😀";
        for echo in [
            r#"a/+"é😀"#,
            r#"\u0061\/\u002B\"\u00e9\ud83d\uDE00"#,
            r#"a\\/+\\\"é\\ud83d\\ude00"#,
            "a%2F%2b%22%C3%a9%f0%9F%98%80",
            "%2561%252f+%22é😀",
            "a&#x2F;&#43;&quot;&#xE9;&#128512;",
            "a&amp;#47;&plus;&amp;amp;quot;é😀",
            r"a/+\u0026quot;é😀",
        ] {
            assert_eq!(shown(secret, &format!("é{echo}é")), [echo], "{echo}");
        }
        for other in ["a/ \"é😀", r"a/+\u12", "a%2", "a&quot", "a/+\"é"] {
            assert!(shown(secret, other).is_empty(), "{other}");
        }
    }

    #[test]
    fn base64_is_found_wherever_the_secret_lies_in_it() {
        let secret = "s3cr?t>~value";
        for (before, after) in [("", ""), ("u", ""), ("me:", "x"), ("me", "yz"), ("user:", "zzz")] {
            let whole = format!("{before}{secret}{after}");
            for text in [STANDARD_NO_PAD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
                let left = text.len() - shown(secret, &text).first().map_or(0, String::len);
                let around = (before.len() + after.len()) * 8 / 6 + 3;
                assert!(left <= around, "{text}: {left} characters are left, {around} belong to what is around");
            }
        }
    }

    #[test]
    fn a_found_secret_never_splits_an_escape() {
        assert_eq!(shown(r"a\b\", r#""a\\b\\\"x""#), [r"a\\b\\"]);
        assert_eq!(shown("nabc", r#""\nabc""#), [r"\nabc"]);
    }
}
