//! What several commands read alike: ids, patterns, options of scans.

use super::{Args, Stop, fail, is, syntax};
use crate::data::stream::{Id, MAX};
use crate::number::int;
use crate::reply::Reply;

fn half(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// An id without `-` and `+`; where its second half is missing, that is `seq`. None where it is no id.
pub(super) fn plain_id(text: &[u8], seq: u64) -> Option<Id> {
    match text.iter().position(|b| *b == b'-') {
        _ if text.len() > 127 => None,
        None => Some(Id(half(text)?, seq)),
        Some(at) => Some(Id(half(&text[..at])?, half(&text[at + 1..])?)),
    }
}

/// An id without `-` and `+`.
pub(super) fn strict_id(text: &[u8]) -> Result<Id, Stop> {
    plain_id(text, 0).map_or_else(bad_id, Ok)
}

pub(super) fn bad_id<T>() -> Result<T, Stop> {
    fail("ERR Invalid stream ID specified as stream command argument")
}

/// An id, `-`, `+`.
pub(super) fn loose_id(text: &[u8], seq: u64) -> Result<Id, Stop> {
    match text {
        b"-" => Ok(Id(0, 0)),
        b"+" => Ok(MAX),
        _ => plain_id(text, seq).map_or_else(bad_id, Ok),
    }
}

/// The first id of a range: `(` leaves it out.
pub(super) fn range_start(text: &[u8]) -> Result<Id, Stop> {
    let Some(after) = text.strip_prefix(b"(").filter(|after| !after.is_empty()) else { return loose_id(text, 0) };
    let id = plain_id(after, 0).map_or_else(bad_id, Ok)?;
    id.next().map_or_else(|| fail("ERR invalid start ID for the interval"), Ok)
}

/// The last id of a range: `(` leaves it out.
pub(super) fn range_end(text: &[u8]) -> Result<Id, Stop> {
    let Some(before) = text.strip_prefix(b"(").filter(|before| !before.is_empty()) else {
        return loose_id(text, u64::MAX);
    };
    let id = plain_id(before, u64::MAX).map_or_else(bad_id, Ok)?;
    id.previous().map_or_else(|| fail("ERR invalid end ID for the interval"), Ok)
}

/// What a scan is asked for.
pub(super) struct Scan<'a> {
    pub(super) cursor: u64,
    pub(super) count: usize,
    pattern: Option<&'a [u8]>,
    pub(super) kind: Option<&'a [u8]>,
}

impl Scan<'_> {
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob(pattern, name))
    }
}

/// Reads a scan's cursor and the options behind it.
pub(super) fn scan<'a>(args: Args<'a>, cursor: usize) -> Result<Scan<'a>, Stop> {
    let Some(at) = std::str::from_utf8(args[cursor]).ok().and_then(|text| text.parse().ok()) else {
        return fail("ERR invalid cursor");
    };
    let mut scan = Scan { cursor: at, count: 10, pattern: None, kind: None };
    for option in args[cursor + 1..].chunks(2) {
        match option {
            [word, count] if is(word, "COUNT") => {
                let count = int(count)?;
                if count < 1 {
                    return syntax();
                }
                scan.count = count as usize;
            }
            [word, pattern] if is(word, "MATCH") => scan.pattern = Some(pattern),
            [word, kind] if is(word, "TYPE") && cursor == 1 => scan.kind = Some(kind),
            _ => return syntax(),
        }
    }
    Ok(scan)
}

/// A scan's answer.
pub(super) fn scanned(cursor: u64, found: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::bulk(cursor.to_string()), Reply::Array(found)])
}

/// Whether a name matches a pattern of `*`, `?`, `[…]` and `\`.
pub(super) fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => glob(rest, name) || !name.is_empty() && glob(pattern, &name[1..]),
        (_, []) | ([], _) => false,
        ([b'?', rest @ ..], [_, tail @ ..]) => glob(rest, tail),
        ([b'[', rest @ ..], [byte, tail @ ..]) => {
            let (within, rest) = class(rest, *byte);
            within && glob(rest, tail)
        }
        ([b'\\', literal, rest @ ..], [byte, tail @ ..]) | ([literal, rest @ ..], [byte, tail @ ..]) => {
            literal == byte && glob(rest, tail)
        }
    }
}

/// Whether a byte is in the class that `pattern` begins with, and what follows the class.
fn class(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let (not, mut rest) = pattern.strip_prefix(b"^").map_or((false, pattern), |rest| (true, rest));
    let mut within = false;
    loop {
        match rest {
            [] => break,
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [b'\\', literal, after @ ..] => {
                within |= *literal == byte;
                rest = after;
            }
            [low, b'-', high, after @ ..] => {
                within |= (*low.min(high)..=*low.max(high)).contains(&byte);
                rest = after;
            }
            [literal, after @ ..] => {
                within |= *literal == byte;
                rest = after;
            }
        }
    }
    (within != not, rest)
}
