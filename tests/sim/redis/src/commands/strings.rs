//! Strings.

use super::{Args, Outcome, Stop, fail, is, syntax};
use crate::data::Value;
use crate::db::Db;
use crate::number::{int, whole};
use crate::reply::Reply;

pub(super) fn get(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::bulk_or_nil(db.data.get::<Vec<u8>>(args[1])?))
}

pub(super) fn mget(db: &mut Db, args: Args<'_>) -> Outcome {
    let text = |key: &&[u8]| Reply::bulk_or_nil(db.data.get::<Vec<u8>>(key).ok().flatten());
    Ok(Reply::Array(args[1..].iter().map(text).collect()))
}

pub(super) fn strlen(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::int(db.data.get::<Vec<u8>>(args[1])?.map_or(0, Vec::len)))
}

/// The options of `SET`.
#[derive(Default)]
struct Options {
    is_new: bool,
    is_old: bool,
    keeps_ttl: bool,
    answers_old: bool,
    ends_ms: Option<i64>,
}

fn options(args: Args<'_>, now_ms: i64) -> Result<Options, Stop> {
    let (mut options, mut at) = (Options::default(), 0);
    // The word, and the number behind it: read when the options are, as a whole, right.
    let mut end: Option<(&[u8], &[u8])> = None;
    while let Some(word) = args.get(at) {
        let timed = ["EX", "PX", "EXAT", "PXAT"].iter().any(|unit| is(word, unit));
        if is(word, "NX") && !options.is_old {
            options.is_new = true;
        } else if is(word, "XX") && !options.is_new {
            options.is_old = true;
        } else if is(word, "GET") {
            options.answers_old = true;
        } else if is(word, "KEEPTTL") && end.is_none() {
            options.keeps_ttl = true;
        } else if let Some(number) = args.get(at + 1)
            && timed
            && !options.keeps_ttl
            && end.is_none_or(|(before, _)| before.eq_ignore_ascii_case(word))
        {
            end = Some((word, number));
            at += 1;
        } else {
            return syntax();
        }
        at += 1;
    }
    if let Some((word, number)) = end {
        let seconds = is(word, "EX") || is(word, "EXAT");
        let base = if is(word, "EX") || is(word, "PX") { now_ms } else { 0 };
        let length = Some(int(number)?).filter(|n| *n > 0).and_then(|n| n.checked_mul(if seconds { 1_000 } else { 1 }));
        let Some(ends) = length.and_then(|ms| ms.checked_add(base)) else {
            return fail("ERR invalid expire time in 'set' command");
        };
        options.ends_ms = Some(ends);
    }
    Ok(options)
}

pub(super) fn set(db: &mut Db, args: Args<'_>) -> Outcome {
    let options = options(&args[3..], db.now_ms())?;
    let key = args[1];
    let old = if options.answers_old { db.data.get::<Vec<u8>>(key)?.cloned() } else { None };
    let answer = |done| match (options.answers_old, done) {
        (true, _) => Reply::bulk_or_nil(old.as_ref()),
        (false, true) => Reply::ok(),
        (false, false) => Reply::Nil,
    };
    let held = db.data.entry(key);
    if (options.is_new && held.is_some()) || (options.is_old && held.is_none()) {
        return Ok(answer(false));
    }
    let kept = held.and_then(|entry| entry.expires_ms).filter(|_| options.keeps_ttl);
    db.data.put(key, Value::Text(args[2].to_vec()));
    db.changed(1);
    db.data.expire(key, options.ends_ms.or(kept));
    Ok(answer(true))
}

pub(super) fn append(db: &mut Db, args: Args<'_>) -> Outcome {
    let length = db.data.make(args[1], |text: &mut Vec<u8>| {
        text.extend_from_slice(args[2]);
        text.len()
    })?;
    db.changed(1);
    Ok(Reply::int(length))
}

pub(super) fn getrange(db: &mut Db, args: Args<'_>) -> Outcome {
    let (start, end) = (int(args[2])?, int(args[3])?);
    let empty = Vec::new();
    let text = db.data.get::<Vec<u8>>(args[1])?.unwrap_or(&empty);
    let length = text.len() as i64;
    if start < 0 && end < 0 && start > end {
        return Ok(Reply::bulk(b""));
    }
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (place(start), place(end).min(length - 1));
    let part = if start > end { None } else { text.get(start as usize..=end as usize) };
    Ok(Reply::bulk(part.unwrap_or_default()))
}

pub(super) fn setrange(db: &mut Db, args: Args<'_>) -> Outcome {
    let at = int(args[2])?;
    if at < 0 {
        return fail("ERR offset is out of range");
    }
    let at = at as usize;
    let held = db.data.get::<Vec<u8>>(args[1])?.map(Vec::len);
    if args[3].is_empty() {
        return Ok(Reply::int(held.unwrap_or(0)));
    }
    if at + args[3].len() > 512 << 20 {
        return fail("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    }
    let length = db.data.make(args[1], |text: &mut Vec<u8>| {
        let end = at + args[3].len();
        text.resize(text.len().max(end), 0);
        if let Some(part) = text.get_mut(at..end) {
            part.copy_from_slice(args[3]);
        }
        text.len()
    })?;
    db.changed(1);
    Ok(Reply::int(length))
}

fn add(db: &mut Db, key: &[u8], by: i64) -> Outcome {
    let number = match db.data.get::<Vec<u8>>(key)? {
        None => 0,
        Some(text) => int(text)?,
    };
    let Some(sum) = number.checked_add(by) else { return fail("ERR increment or decrement would overflow") };
    db.data.make(key, |text: &mut Vec<u8>| *text = sum.to_string().into_bytes())?;
    db.changed(1);
    Ok(Reply::Int(sum))
}

pub(super) fn incr(db: &mut Db, args: Args<'_>) -> Outcome {
    add(db, args[1], 1)
}

pub(super) fn decr(db: &mut Db, args: Args<'_>) -> Outcome {
    add(db, args[1], -1)
}

pub(super) fn incrby(db: &mut Db, args: Args<'_>) -> Outcome {
    let Some(by) = whole(args[2]) else { return fail("ERR value is not an integer or out of range") };
    add(db, args[1], by)
}
