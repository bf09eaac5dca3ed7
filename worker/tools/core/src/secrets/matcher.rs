//! Finds secrets in text that a service returned, in any encoding. The search decodes the text instead of encoding the
//! secret, because encoders differ in the characters that they escape.

use std::collections::BTreeSet;

use encoding_rs::WINDOWS_1252;

use super::encodings::Encoding;
use super::escapes;

/// Shorter secrets are not searched for, because they would match everywhere.
const SECRET_BYTES_MIN: usize = 4;
/// Secrets of this length match in any case of letters, because hosts, headers and databases change the case.
const CASELESS_BYTES_MIN: usize = 8;
/// The maximum depth of nested encodings.
const ENCODED_MAX: usize = 2;
/// Comparisons from one position of the text, per byte of the secret. Keeps the cost linear for nested escapes.
const STEPS_PER_BYTE: usize = 16;

pub(super) struct SecretMatcher {
    wanted: Vec<Vec<u8>>,
    by_first: [Vec<usize>; 256],
    shortest: usize,
}

impl SecretMatcher {
    pub(super) fn of<'a>(secrets: impl Iterator<Item = &'a str>) -> Self {
        let wanted: BTreeSet<Vec<u8>> =
            secrets.filter(|secret| secret.len() >= SECRET_BYTES_MIN).flat_map(in_character_sets).collect();
        let wanted: Vec<_> = wanted.into_iter().filter(|value| value.len() >= SECRET_BYTES_MIN).collect();
        let mut by_first = [const { Vec::new() }; 256];
        for (number, first) in wanted.iter().enumerate().filter_map(|(number, value)| Some((number, *value.first()?))) {
            by_first[usize::from(first)].push(number);
        }
        for (number, value) in wanted.iter().enumerate().filter(|(_, value)| value.len() >= CASELESS_BYTES_MIN) {
            let Some(first) = value.first().filter(|first| first.is_ascii_alphabetic()) else { continue };
            by_first[usize::from(first ^ 0x20)].push(number);
        }
        let shortest = wanted.iter().map(Vec::len).min().unwrap_or_default();
        Self { wanted, by_first, shortest }
    }

    /// Returns the byte ranges of the secrets in order, without overlaps, and at character boundaries.
    pub(super) fn found(&self, text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        if self.wanted.is_empty() {
            return found;
        }
        self.search(text.as_bytes(), 0, &|span| span, &mut found);
        for (from, to) in &mut found {
            *from = whole_escape(text.as_bytes(), *from);
            while !text.is_char_boundary(*from) {
                *from -= 1;
            }
            while !text.is_char_boundary(*to) {
                *to += 1;
            }
        }
        found.sort_unstable();
        found.dedup_by(|next, before| {
            let overlaps = next.0 < before.1;
            if overlaps {
                before.1 = before.1.max(next.1);
            }
            overlaps
        });
        found
    }

    /// Searches the text and the decoded bytes of its encoded parts. `place` maps a range of this text to a range of
    /// the whole text.
    fn search(
        &self,
        text: &[u8],
        encoded: usize,
        place: &dyn Fn((usize, usize)) -> (usize, usize),
        found: &mut Vec<(usize, usize)>,
    ) {
        found.extend(self.spans(text).into_iter().map(place));
        if encoded == ENCODED_MAX {
            return;
        }
        for encoding in Encoding::ALL {
            encoding.each_run(text, self.shortest, &mut |run| {
                for phase in 0..encoding.phases() {
                    let inner = |span| place(run.span(encoding, phase, span));
                    self.search(&run.decoded(encoding, phase), encoded + 1, &inner, found);
                }
            });
        }
    }

    fn spans(&self, text: &[u8]) -> Vec<(usize, usize)> {
        let mut spans = Vec::<(usize, usize)>::new();
        for (at, byte) in text.iter().enumerate() {
            let mut end = self.end_from(*byte, text, at);
            if escapes::begins(*byte) {
                escapes::readings(text, at, &mut |unit, _| {
                    if let Some(first) = unit.first().filter(|first| *first != byte) {
                        end = end.max(self.end_from(*first, text, at));
                    }
                });
            }
            match (end, spans.last_mut()) {
                (None, _) => {}
                (Some(end), Some(last)) if at < last.1 => last.1 = last.1.max(end),
                (Some(end), _) => spans.push((at, end)),
            }
        }
        spans
    }

    fn end_from(&self, first: u8, text: &[u8], at: usize) -> Option<usize> {
        self.by_first[usize::from(first)].iter().filter_map(|number| end_of(self.wanted.get(*number)?, text, at)).max()
    }
}

/// Returns the forms of the secret: unchanged, and as a program with a wrong character set would read or write it.
fn in_character_sets(secret: &str) -> Vec<Vec<u8>> {
    let mut all = vec![secret.as_bytes().to_vec()];
    if secret.is_ascii() {
        return all;
    }
    // UTF-8 read as a single-byte character set.
    all.push(WINDOWS_1252.decode_without_bom_handling(secret.as_bytes()).0.into_owned().into_bytes());
    all.push(secret.bytes().map(char::from).collect::<String>().into_bytes());
    // Text in a single-byte character set, read as UTF-8.
    if let (bytes, _, false) = WINDOWS_1252.encode(secret) {
        all.extend([String::from_utf8_lossy(&bytes).into_owned().into_bytes(), bytes.into_owned()]);
    }
    if secret.bytes().filter(u8::is_ascii).count() >= SECRET_BYTES_MIN {
        all.push(
            secret
                .chars()
                .map(|character| if character.is_ascii() { character } else { '?' })
                .collect::<String>()
                .into_bytes(),
        );
    }
    all
}

/// Moves `at` to the start of the escape: a cut inside a backslash escape would break the surrounding JSON.
fn whole_escape(bytes: &[u8], at: usize) -> usize {
    let slashes = bytes.iter().take(at).rev().take_while(|byte| **byte == b'\\').count();
    at - slashes % 2
}

/// The end of the longest match, plain or escaped.
fn end_of(wanted: &[u8], text: &[u8], start: usize) -> Option<usize> {
    let is_same = |byte: u8, wanted_byte: u8| {
        byte == wanted_byte || wanted.len() >= CASELESS_BYTES_MIN && byte.eq_ignore_ascii_case(&wanted_byte)
    };
    let mut open = Vec::new();
    let mut longest = None;
    let mut steps = wanted.len() * STEPS_PER_BYTE;
    let mut next = Some((start, 0));
    while let Some((at, matched)) = next {
        next = None;
        if matched == wanted.len() {
            longest = longest.max(Some(at));
        } else if let Some(byte) = text.get(at).filter(|_| steps > 0) {
            steps -= 1;
            if escapes::begins(*byte) {
                escapes::readings(text, at, &mut |unit, length| {
                    let rest = wanted.get(matched..matched + unit.len()).unwrap_or_default();
                    if rest.len() == unit.len() && unit.iter().zip(rest).all(|(byte, wanted)| is_same(*byte, *wanted)) {
                        open.push((at + length, matched + unit.len()));
                    }
                });
            }
            if wanted.get(matched).is_some_and(|wanted_byte| is_same(*byte, *wanted_byte)) {
                next = Some((at + 1, matched + 1));
            } else if *byte == 0 && matched > 0 {
                // In UTF-16, each ASCII letter has a zero byte next to it.
                next = Some((at + 1, matched));
            }
        }
        next = next.or_else(|| open.pop());
    }
    longest
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};

    use super::*;

    fn shown(secret: &str, text: &str) -> Vec<String> {
        SecretMatcher::of([secret].into_iter())
            .found(text)
            .into_iter()
            .map(|(from, to)| text[from..to].to_owned())
            .collect()
    }

    #[test]
    fn a_secret_is_found_under_single_and_nested_escapes() {
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
    fn a_secret_is_found_at_any_offset_in_base64() {
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
    fn a_match_never_splits_an_escape() {
        assert_eq!(shown(r"a\b\", r#""a\\b\\\"x""#), [r"a\\b\\"]);
        assert_eq!(shown("nabc", r#""\nabc""#), [r"\nabc"]);
    }

    #[test]
    fn a_secret_is_found_in_wrapped_nested_and_separated_encodings() {
        let secret = "s3cr?t>~va\"lue";
        let base64 = |text: &str| STANDARD.encode(text);
        let hex = |separator: &str| {
            let digits = |byte: u8| if byte.is_multiple_of(2) { format!("{byte:02x}") } else { format!("{byte:02X}") };
            secret.bytes().map(digits).collect::<Vec<_>>().join(separator)
        };
        let lines = |text: &str, end: &str| {
            let lines = text.as_bytes().chunks(7).map(|line| String::from_utf8_lossy(line).into_owned());
            lines.collect::<Vec<_>>().join(end)
        };
        let whole = base64(&format!("{{\"user\":\"kim\",\"key\":{},\"more\":1}}", serde_json::json!(secret)));
        let wide: Vec<u8> = secret.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let numbers = secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>();
        for echo in [
            lines(&base64(secret), "\n"),
            lines(&base64(&format!("x{secret}")), "\r\n"),
            lines(&base64(secret), "\\r\\n"),
            lines(&base64(secret), "\\\\n  "),
            base64(secret).replace('/', "\\/").replace('=', "%3D"),
            whole.clone(),
            lines(&whole, "\n"),
            base64(&base64(secret)),
            base64(&hex(" ")),
            base64(&format!("b={}", secret.replace('"', "&#34").replace('>', "%3e"))),
            STANDARD.encode(wide),
            hex(""),
            hex(" "),
            hex(":"),
            hex("-"),
            hex("\\n"),
            hex(", 0x"),
            format!("\\x{}", hex("\\x")),
            numbers.join(","),
            numbers.join(", "),
            secret.bytes().map(|byte| format!("&#{byte}")).collect(),
            secret.bytes().map(|byte| format!("&#x{byte:x}")).collect(),
            secret.bytes().map(|byte| format!("&#X{byte:X};")).collect(),
            secret.replace('"', "&QUOT").replace('>', "&gt"),
            secret.to_ascii_uppercase(),
            secret.to_ascii_uppercase().replace('>', "%3e").replace('?', "%3F"),
        ] {
            let text = format!("{{\"a\": \"{echo}\"}}");
            let left = text.len() - shown(secret, &text).iter().map(String::len).sum::<usize>();
            let around = if echo == whole || echo == lines(&whole, "\n") { 64 } else { 4 };
            assert!(left <= r#"{"a": ""}"#.len() + around, "{text}: {:?}", shown(secret, &text));
        }
    }

    #[test]
    fn a_non_ascii_secret_is_found_in_other_charsets() {
        let secret = "pässwörd€";
        let (windows, _, _) = WINDOWS_1252.encode(secret);
        let percent: String = windows.iter().map(|byte| format!("%{byte:02x}")).collect();
        for echo in [
            secret.to_owned(),
            "pÃ¤sswÃ¶rdâ‚¬".to_owned(),
            "p\u{c3}\u{a4}ssw\u{c3}\u{b6}rd\u{e2}\u{82}\u{ac}".to_owned(),
            "p\u{fffd}ssw\u{fffd}rd\u{fffd}".to_owned(),
            "p?ssw?rd?".to_owned(),
            percent,
            "p&#xe4ssw&#246;rd&#8364".to_owned(),
            r"p\xe4ssw\xf6rd\x80".to_owned(),
            STANDARD.encode(&windows),
            STANDARD.encode(secret),
        ] {
            assert_eq!(shown(secret, &format!("<{echo}>")).concat().trim_end_matches('='), echo.trim_end_matches('='));
        }
        assert!(shown("日本", "x?? \u{fffd}\u{fffd}").is_empty(), "too little of it is left");
    }

    #[test]
    fn text_without_a_secret_has_no_match() {
        let words = "the quick brown fox 41:42 d3ad beef [1, 2, 3] jumps over the lazy dog\n";
        for text in [words.repeat(200), STANDARD.encode(words.repeat(50)), "00:11:22 ".repeat(500)] {
            assert!(shown("swordfish-41", &text).is_empty());
            assert!(shown("pin4", &text).is_empty());
        }
        assert!(shown("pin4", "PIN4 pin 4").is_empty(), "the case of short values makes a difference");
        assert!(shown("abc", "abc YWJj 616263").is_empty(), "values below the least length are not looked for");
    }

    #[test]
    fn a_long_text_is_searched_to_the_end() {
        let secrets: Vec<String> =
            (10..30).map(|number| format!("{number}-abcdefghijklmnopqrstuvwxyz-{number}")).collect();
        for unit in ["\\", "%25", "&amp;", "QUJDREVGR0hJSktMTU5P", "4142434445464748", "65,66,67,", "10-abc\\\\n"] {
            let text = unit.repeat((256 << 10) / unit.len());
            // With superlinear growth, the search would take longer than nextest allows.
            assert!(SecretMatcher::of(secrets.iter().map(String::as_str)).found(&text).is_empty(), "{unit}");
        }
    }
}
