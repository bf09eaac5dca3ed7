//! JSON's escapes in any text, read without asking whether it is JSON.

/// `text` with its escapes read, and for each byte of that, and its end, where in `text` it came from. What is no
/// escape, or half of one, stays as it is.
pub(super) fn read(text: &str) -> (String, Vec<usize>) {
    let (mut plain, mut from) = (String::with_capacity(text.len()), Vec::with_capacity(text.len() + 1));
    let mut at = 0;
    while let Some(character) = text[at..].chars().next() {
        let (read, length) = escape(&text[at..]).unwrap_or((character, character.len_utf8()));
        plain.push(read);
        from.resize(plain.len(), at);
        at += length;
    }
    from.push(at);
    (plain, from)
}

/// The character of the escape that `text` begins with, and how many bytes it takes.
fn escape(text: &str) -> Option<(char, usize)> {
    let rest = text.strip_prefix('\\')?;
    let plain = match rest.as_bytes().first()? {
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        byte @ (b'"' | b'\\' | b'/') => char::from(*byte),
        b'u' => return numbered(text),
        _ => return None,
    };
    Some((plain, 2))
}

/// As [`escape`], of `\\uXXXX` or of a pair of them.
fn numbered(text: &str) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        plain.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
    };
    let first = unit(0)?;
    if let Some(character) = char::from_u32(first.into()) {
        return Some((character, 6));
    }
    let pair = char::decode_utf16([first, unit(6)?]).next()?.ok()?;
    Some((pair, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_and_every_byte_knows_where_it_came_from() {
        let (plain, from) = read(r"a\u002bé\ud83d\ude00\/\x\u12");
        assert_eq!(plain, "a+é😀/\\x\\u12");
        assert_eq!(from[..4], [0, 1, 7, 7], "é has two bytes");
        assert_eq!(from[4..9], [9, 9, 9, 9, 21]);
        assert_eq!((from.len(), from.last()), (plain.len() + 1, Some(&29)));
    }
}
