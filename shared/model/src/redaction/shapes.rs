//! Finds secrets in free text by their shape, or as the value of a secret key.

use super::{Patch, REDACTED};

/// The prefix, and the minimum number of token characters after it.
const PREFIXED: [(&str, usize); 24] = [
    ("sk-", 16),
    ("sk_live_", 8),
    ("sk_test_", 8),
    ("rk_live_", 8),
    ("whsec_", 16),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 16),
    ("glpat-", 16),
    ("xoxa-", 8),
    ("xoxb-", 8),
    ("xoxe-", 8),
    ("xoxo-", 8),
    ("xoxp-", 8),
    ("xoxr-", 8),
    ("xoxs-", 8),
    ("xapp-", 8),
    ("AIza", 30),
    ("hf_", 20),
    ("npm_", 30),
    ("shpat_", 16),
];

pub(super) fn redact(text: &str, is_secret_key: &dyn Fn(&str) -> bool, patch: &mut Patch<'_>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut in_word = false;
    while let Some(byte) = bytes.get(at).copied() {
        let class = CLASS[usize::from(byte)];
        let begins = class & BEGINS != 0 && (!in_word || patch.last_end() == at);
        if class & MARKS == 0 && !begins {
            in_word = class & WORD != 0;
            at += 1;
            continue;
        }
        let found = match byte {
            b':' | b'=' => assigned(text, at, is_secret_key).or_else(|| colon(bytes, at)),
            b'-' => pem(text, at),
            _ => token(bytes, at),
        };
        match found {
            Some((start, end)) => {
                if bytes.get(start..end) != Some(REDACTED.as_bytes()) {
                    patch.replace(start, end, REDACTED);
                }
                in_word = false;
                at = end.max(at + 1);
            }
            None => {
                in_word = class & WORD != 0;
                at += 1;
            }
        }
    }
}

const WORD: u8 = 1;
/// A byte that may begin a token at the start of a word.
const BEGINS: u8 = 2;
/// A byte of a secret that can start anywhere in a word.
const MARKS: u8 = 4;

/// One lookup rules out most bytes as the start of a secret.
static CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        if is_word(byte as u8) {
            table[byte] |= WORD;
        }
        if matches!(byte as u8, b's' | b'r' | b'w' | b'g' | b'x' | b'h' | b'n' | b'A' | b'e' | b'B' | b'b' | b'S') {
            table[byte] |= BEGINS;
        }
        if matches!(byte as u8, b':' | b'=' | b'-') {
            table[byte] |= MARKS;
        }
        byte += 1;
    }
    table
};

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

const fn is_token(byte: u8) -> bool {
    is_word(byte) || byte == b'-'
}

fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    let run = rest.iter().take_while(|b| is_token(**b)).count();
    let run = rest.get(..run).unwrap_or_default();
    at + run.windows(10).position(|ten| ten == b"-----BEGIN").unwrap_or(run.len())
}

fn token(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    match rest.first()? {
        b's' | b'r' | b'w' | b'g' | b'x' | b'h' | b'n' => prefixed(bytes, at),
        b'A' => aws(bytes, at).or_else(|| prefixed(bytes, at)),
        b'e' => jwt(bytes, at),
        b'B' | b'b' => bearer(bytes, at),
        b'S' if rest.starts_with(b"SG.") => {
            let end = dotted_end(bytes, at);
            (end - at >= 40).then_some((at, end))
        }
        _ => None,
    }
}

fn prefixed(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    // Rejects most words early, by their first two bytes.
    let (b"sk" | b"sh" | b"rk" | b"wh" | b"gh" | b"gi" | b"gl" | b"xo" | b"xa" | b"AI" | b"hf" | b"np") =
        rest.get(..2)?
    else {
        return None;
    };
    let (prefix, least) = PREFIXED.iter().find(|(prefix, _)| rest.starts_with(prefix.as_bytes()))?;
    let end = token_end(bytes, at);
    (end - at >= prefix.len() + least).then_some((at, end))
}

/// `AKIA` or `ASIA`, followed by 16 capitals and digits.
fn aws(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = bytes.get(at..at + 20)?;
    let fits = (rest.starts_with(b"AKIA") || rest.starts_with(b"ASIA"))
        && rest.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    fits.then(|| (at, token_end(bytes, at)))
}

/// Single dots may separate the token characters.
fn dotted_end(bytes: &[u8], at: usize) -> usize {
    let mut end = token_end(bytes, at);
    while bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(|b| is_token(*b)) {
        end = token_end(bytes, end + 1);
    }
    end
}

/// `eyJ…`, which is base64 for `{"`, with at least one dot.
fn jwt(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    if !bytes.get(at..)?.starts_with(b"eyJ") {
        return None;
    }
    let end = dotted_end(bytes, at);
    (end - at >= 20 && bytes.get(at..end)?.contains(&b'.')).then_some((at, end))
}

/// The credentials after `Bearer` or `Basic`. A short, simple word counts as prose, unless the text has only the scheme
/// and this word.
fn bearer(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let scheme = [&b"bearer"[..], b"basic"]
        .into_iter()
        .find(|scheme| bytes.get(at..at + scheme.len()).is_some_and(|word| word.eq_ignore_ascii_case(scheme)))?;
    let rest = bytes.get(at + scheme.len()..)?;
    let blanks = rest.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
    let start = at + scheme.len() + blanks;
    let credentials = bytes.get(start..)?;
    let in_credentials = |b: &&u8| is_token(**b) || matches!(b, b'.' | b'~' | b'+' | b'/' | b'=');
    let len = credentials.iter().take_while(in_credentials).count();
    let credentials = credentials.get(..len)?;
    let whole = at == 0 && start + len == bytes.len();
    let prose = len < 20 && credentials.iter().all(|b| b.is_ascii_alphabetic() || *b == b'.') && !whole;
    (blanks > 0 && len > 0 && !prose).then_some((start, start + len))
}

/// The colon may belong to a Telegram bot token, or to the password of a URL.
fn colon(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    if bytes.get(at) != Some(&b':') {
        return None;
    }
    telegram(bytes, at).or_else(|| url_password(bytes, at))
}

/// For example `123456:AA…`. The range contains the bot's number and the secret.
fn telegram(bytes: &[u8], colon: usize) -> Option<(usize, usize)> {
    let digits = bytes.get(..colon)?.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let end = token_end(bytes, colon + 1);
    let secret = bytes.get(colon + 1..end)?;
    let least = if secret.starts_with(b"AA") { 10 } else { 30 };
    (digits >= 5 && secret.len() >= least).then_some((colon - digits, end))
}

/// The password in `://user:password@`. `at` is the offset of `://`.
fn url_password(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let authority = bytes.get(at..)?.strip_prefix(b"://")?;
    let ends = |b: &u8| matches!(b, b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>') || b.is_ascii_whitespace();
    let authority = authority.get(..authority.iter().position(ends).unwrap_or(authority.len()))?;
    let user_info = authority.get(..authority.iter().rposition(|b| *b == b'@')?)?;
    let password = user_info.iter().position(|b| *b == b':')? + 1;
    (password < user_info.len()).then_some((at + 3 + password, at + 3 + user_info.len()))
}

/// Without an end line, the range extends to the end of the text.
fn pem(text: &str, at: usize) -> Option<(usize, usize)> {
    const END: &str = "PRIVATE KEY-----";
    let rest = text.get(at..)?;
    let label = rest.strip_prefix("-----BEGIN ")?;
    let header = label.find("-----")? + 5;
    if !label.get(..header)?.ends_with(END) {
        return None;
    }
    let body = label.get(header..)?;
    let begun = at + rest.len() - body.len();
    match body.find("-----END ") {
        Some(foot) => {
            let tail = body.get(foot + 9..)?;
            let closed = tail.find("-----").map_or(tail.len(), |dashes| dashes + 5);
            Some((at, begun + foot + 9 + closed))
        }
        None => Some((at, text.len())),
    }
}

/// The value after the `:` or `=` at `at`, if the key is secret.
fn assigned(text: &str, at: usize, is_secret_key: &dyn Fn(&str) -> bool) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let before = bytes.get(..at)?;
    let fluff = |b: &&u8| matches!(b, b' ' | b'\t' | b'"' | b'\'' | b'\\' | b'`');
    let key_end = at - before.iter().rev().take(8).take_while(fluff).count();
    let in_key = |b: &&u8| is_token(**b) || matches!(b, b'.' | b'$');
    let key_start = key_end - bytes.get(..key_end)?.iter().rev().take(64).take_while(in_key).count();
    let key = text.get(key_start..key_end)?;
    if key.len() < 3 || !is_secret_key(key) {
        return None;
    }
    let skipped = bytes.get(at..)?.iter().take_while(|b| matches!(b, b':' | b'=' | b'>' | b' ' | b'\t')).count();
    let (start, end) = value(bytes, at + skipped, key)?;
    (start < end).then_some((start, end))
}

/// A quoted text, a list or object in brackets, or a word.
fn value(bytes: &[u8], at: usize, key: &str) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    if rest.starts_with(REDACTED.as_bytes()) {
        return Some((at, at + REDACTED.len()));
    }
    let slashes = rest.iter().take_while(|b| **b == b'\\').count();
    match rest.get(slashes)? {
        quote @ (b'"' | b'\'' | b'`') => Some(quoted(bytes, at + slashes + 1, *quote, slashes)),
        b'[' | b'{' => Some((at, super::value_end(bytes, at + slashes))),
        _ => Some((at, word_end(bytes, at, key))),
    }
}

/// `slashes` is the number of backslashes before the opening quote.
fn quoted(bytes: &[u8], start: usize, quote: u8, slashes: usize) -> (usize, usize) {
    let mut at = start;
    let mut run = 0;
    while let Some(byte) = bytes.get(at) {
        let closes = if slashes == 0 { run % 2 == 0 } else { run == slashes };
        if *byte == quote && closes {
            return (start, at - run.min(slashes));
        }
        run = if *byte == b'\\' { run + 1 } else { 0 };
        at += 1;
    }
    (start, bytes.len())
}

/// A header's value extends to the end of the line. Any other value is one word, or two words with a scheme (`Bearer
/// x`).
fn word_end(bytes: &[u8], at: usize, key: &str) -> usize {
    let until = |at: usize, ends: &dyn Fn(u8) -> bool| {
        at + bytes.get(at..).unwrap_or_default().iter().take_while(|b| !ends(**b)).count()
    };
    let key = key.to_ascii_lowercase();
    if key.ends_with("cookie") || key.ends_with("authorization") {
        return until(at, &|b| matches!(b, b'\n' | b'\r' | b'"' | b'\''));
    }
    let ends =
        |b: u8| b.is_ascii_whitespace() || matches!(b, b',' | b';' | b'&' | b'"' | b'\'' | b')' | b'}' | b']' | b'<');
    let end = until(at, &ends);
    let word = bytes.get(at..end).unwrap_or_default();
    let schemes = [&b"bearer"[..], b"basic", b"token", b"digest"];
    if schemes.iter().any(|scheme| word.eq_ignore_ascii_case(scheme)) && bytes.get(end) == Some(&b' ') {
        return until(end + 1, &ends);
    }
    end
}
