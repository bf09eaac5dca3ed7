//! Resolves escaped characters of JSON, URLs and HTML, including nested escapes.

const NESTED_MAX: usize = 8;

pub(super) const fn begins(byte: u8) -> bool {
    matches!(byte, b'\\' | b'%' | b'&' | b'+')
}

/// Calls `read` for each reading of the escape, with the decoded bytes and the escape's length in `text`.
pub(super) fn readings(text: &[u8], at: usize, read: &mut dyn FnMut(&[u8], usize)) {
    let tail = text.get(at..).unwrap_or_default();
    match tail.first() {
        Some(b'\\') => json_escape(tail, read),
        Some(b'%') => percent_escape(tail, read),
        Some(b'&') => html_entity(tail, 1, read),
        Some(b'+') => read(b" ", 1),
        _ => {}
    }
}

pub(super) fn resolved(text: &[u8], at: usize) -> Option<(u8, usize)> {
    let mut longest: Option<(u8, usize)> = None;
    readings(text, at, &mut |unit, length| {
        if let [byte] = unit
            && longest.is_none_or(|(_, before)| length > before)
        {
            longest = Some((*byte, length));
        }
    });
    longest
}

/// The escape may be in a nested JSON string, so a run of backslashes has several readings.
fn json_escape(tail: &[u8], read: &mut dyn FnMut(&[u8], usize)) {
    let run = tail.iter().take(NESTED_MAX + 1).take_while(|byte| **byte == b'\\').count();
    for doubled in [2, 4, 8].into_iter().filter(|doubled| *doubled <= run) {
        read(b"\\", doubled);
    }
    // Each level of nesting doubles the backslashes and adds one before a quote. Longer runs are nested too deeply to
    // be read.
    if run > NESTED_MAX {
        return;
    }
    let Some(letter) = tail.get(run) else { return };
    let plain = match letter {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x8,
        b'f' => 0xc,
        b'"' | b'/' | b'\'' => *letter,
        b'x' => {
            if let Some(byte) = hex_byte(tail, run + 1) {
                read(&[byte], run + 3);
            }
            return;
        }
        b'u' => return numbered_escape(tail, run, read),
        _ => return,
    };
    read(&[plain], run + 1);
}

/// For `\uXXXX` with `run` backslashes, including surrogate pairs.
fn numbered_escape(tail: &[u8], run: usize, read: &mut dyn FnMut(&[u8], usize)) {
    let unit = |from: usize| {
        let slashes = tail.get(from..from + run)?.iter().all(|byte| *byte == b'\\');
        let is_unit = slashes && tail.get(from + run) == Some(&b'u');
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

/// `%2F`, and also `%252F` (a URL inside a URL).
fn percent_escape(tail: &[u8], read: &mut dyn FnMut(&[u8], usize)) {
    for at in (0..NESTED_MAX).map(|nested| 1 + 2 * nested) {
        if let Some(byte) = hex_byte(tail, at) {
            read(&[byte], at + 2);
        }
        if tail.get(at..at + 2) != Some(b"25") {
            return;
        }
    }
}

/// `ampersand` is the length of the `&`, which may be nested in other HTML. As in browsers, the `;` is optional.
fn html_entity(tail: &[u8], ampersand: usize, read: &mut dyn FnMut(&[u8], usize)) {
    let mut at = ampersand;
    for _ in 0..NESTED_MAX {
        let Some(rest) = tail.get(at..) else { return };
        let end = |length: usize| length + usize::from(rest.get(length) == Some(&b';'));
        if rest.first() == Some(&b'#') {
            return numeric_reference(rest, &mut |unit, length| read(unit, at + end(length)));
        }
        let is_named = |(name, _): &&(&str, u8)| {
            rest.get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()))
        };
        for (name, character) in HTML_ENTITIES.iter().filter(is_named) {
            read(&[*character], at + end(name.len()));
        }
        if !rest.get(..3).is_some_and(|name| name.eq_ignore_ascii_case(b"amp")) {
            return;
        }
        at += end(3);
    }
}

/// `#65` or `#x41`. If the `;` is missing, the last digits may be ordinary text, so each prefix is a reading.
fn numeric_reference(rest: &[u8], read: &mut dyn FnMut(&[u8], usize)) {
    let (radix, from) =
        if rest.get(1).is_some_and(|letter| letter.eq_ignore_ascii_case(&b'x')) { (16, 2) } else { (10, 1) };
    let mut number = 0_u32;
    // `#x0010FFFF` is the longest reference that is read.
    for (at, byte) in rest.iter().enumerate().skip(from).take(8) {
        let Some(digit) = char::from(*byte).to_digit(radix) else { return };
        number = number.saturating_mul(radix).saturating_add(digit);
        if let Some(character) = char::from_u32(number) {
            read(character.encode_utf8(&mut [0; 4]).as_bytes(), at + 1);
        }
    }
}

/// The ASCII characters that are neither letters nor digits.
const HTML_ENTITIES: [(&str, u8); 32] = [
    ("amp", b'&'),
    ("apos", b'\''),
    ("ast", b'*'),
    ("bsol", b'\\'),
    ("colon", b':'),
    ("comma", b','),
    ("commat", b'@'),
    ("dollar", b'$'),
    ("equals", b'='),
    ("excl", b'!'),
    ("grave", b'`'),
    ("gt", b'>'),
    ("hat", b'^'),
    ("lbrace", b'{'),
    ("lcub", b'{'),
    ("lowbar", b'_'),
    ("lpar", b'('),
    ("lsqb", b'['),
    ("lt", b'<'),
    ("num", b'#'),
    ("percnt", b'%'),
    ("period", b'.'),
    ("plus", b'+'),
    ("quest", b'?'),
    ("quot", b'"'),
    ("rbrace", b'}'),
    ("rcub", b'}'),
    ("rpar", b')'),
    ("rsqb", b']'),
    ("semi", b';'),
    ("sol", b'/'),
    ("vert", b'|'),
];

fn hex_byte(text: &[u8], at: usize) -> Option<u8> {
    hex_digits(text, at, 2).and_then(|byte| u8::try_from(byte).ok())
}

fn hex_digits(text: &[u8], at: usize, count: usize) -> Option<u32> {
    let digits = text.get(at..at + count)?;
    digits.iter().try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}
