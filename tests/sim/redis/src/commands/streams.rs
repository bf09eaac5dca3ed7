//! Streams: writing, ranges, trimming.

use super::{Args, Outcome, Stop, fail, is, parse, syntax};
use crate::data::stream::{Id, MAX, Stream, Trim};
use crate::db::Db;
use crate::number::int;
use crate::reply::Reply;

/// Entries that an approximate trim removes at most, where nothing else is asked for.
const TRIMMED_MAX: u64 = 10_000;

/// The id that an entry is to get.
#[derive(Clone, Copy)]
enum Wanted {
    /// `*`
    Any,
    /// `ms-*`
    Within(u64),
    This(Id),
}

/// What precedes the fields of `XADD`, or follows the key of `XTRIM`.
struct Options {
    trim: Option<Trim>,
    is_about: bool,
    limit: Option<u64>,
    makes_none: bool,
    wanted: Wanted,
    /// Where the id stands.
    at: usize,
}

fn wanted(text: &[u8]) -> Result<Wanted, Stop> {
    match text.strip_suffix(b"-*") {
        Some(ms) if !ms.contains(&b'-') => Ok(Wanted::Within(parse::strict_id(ms)?.0)),
        _ => Ok(Wanted::This(parse::strict_id(text)?)),
    }
}

impl Options {
    /// Reads `MAXLEN` or `MINID` at `self.at`, leaves `at` on its last word.
    fn read_trim(&mut self, args: Args<'_>) -> Result<(), Stop> {
        if self.trim.is_some() {
            return fail("ERR syntax error, MAXLEN and MINID options at the same time are not compatible");
        }
        let word = args[self.at];
        self.is_about = false;
        if self.at + 2 < args.len() && matches!(args[self.at + 1], b"~" | b"=") {
            self.is_about = args[self.at + 1] == b"~";
            self.at += 1;
        }
        self.at += 1;
        self.trim = Some(if is(word, "MAXLEN") {
            let Ok(most) = u64::try_from(int(args[self.at])?) else {
                return fail("ERR The MAXLEN argument must be >= 0.");
            };
            Trim::Length(most)
        } else {
            Trim::Before(parse::strict_id(args[self.at])?)
        });
        Ok(())
    }

    fn read(args: Args<'_>, adds: bool) -> Result<Self, Stop> {
        let mut options =
            Self { trim: None, is_about: false, limit: None, makes_none: false, wanted: Wanted::Any, at: 2 };
        while let Some(word) = args.get(options.at) {
            let has_more = options.at + 1 < args.len();
            if adds && *word == b"*" {
                break;
            } else if has_more && (is(word, "MAXLEN") || is(word, "MINID")) {
                options.read_trim(args)?;
            } else if has_more && is(word, "LIMIT") {
                options.at += 1;
                let Ok(limit) = u64::try_from(int(args[options.at])?) else {
                    return fail("ERR The LIMIT argument must be >= 0.");
                };
                options.limit = Some(limit);
            } else if adds && is(word, "NOMKSTREAM") {
                options.makes_none = true;
            } else if adds {
                options.wanted = wanted(word)?;
                break;
            } else {
                return syntax();
            }
            options.at += 1;
        }
        if options.trim.is_none() && options.limit.is_some_and(|limit| limit > 0) {
            return fail("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy");
        }
        if options.trim.is_none() && !adds {
            return fail("ERR syntax error, XTRIM must be called with a trimming strategy");
        }
        if options.limit.is_some() && !options.is_about {
            return fail("ERR syntax error, LIMIT cannot be used without the special ~ option");
        }
        Ok(options)
    }

    fn apply(&self, stream: &mut Stream) -> u64 {
        let limit = self.is_about.then(|| self.limit.unwrap_or(TRIMMED_MAX));
        self.trim.map_or(0, |trim| stream.trim(trim, limit))
    }
}

pub(super) fn xadd(db: &mut Db, args: Args<'_>) -> Outcome {
    let options = Options::read(args, true)?;
    let fields = args.get(options.at + 1..).unwrap_or_default();
    if fields.is_empty() || fields.len() % 2 == 1 {
        return fail("ERR wrong number of arguments for 'xadd' command");
    }
    if matches!(options.wanted, Wanted::This(Id(0, 0))) {
        return fail("ERR The ID specified in XADD must be greater than 0-0");
    }
    let held = db.data.get::<Stream>(args[1])?;
    if held.is_none() && options.makes_none {
        return Ok(Reply::Nil);
    }
    let last = held.map_or(Id::default(), |stream| stream.last);
    if last == MAX {
        return fail("ERR The stream has exhausted the last possible ID, unable to add more items");
    }
    let now = u64::try_from(db.now_ms()).unwrap_or(0);
    let id = match options.wanted {
        Wanted::Any if now > last.0 => Some(Id(now, 0)),
        Wanted::Any => last.next(),
        Wanted::Within(ms) if ms == last.0 => last.1.checked_add(1).map(|seq| Id(ms, seq)),
        Wanted::Within(ms) => Some(Id(ms, 0)),
        Wanted::This(id) => Some(id),
    };
    // So Redis says, although they are not.
    let Some(id) = id else { return fail("ERR Elements are too large to be stored") };
    let Some(id) = Some(id).filter(|id| *id > last) else {
        return fail("ERR The ID specified in XADD is equal or smaller than the target stream top item");
    };
    db.data.make(args[1], |stream: &mut Stream| {
        stream.add(id, fields.iter().map(|text| text.to_vec()).collect());
        options.apply(stream)
    })?;
    db.changed(1);
    db.note_appended(args[1], fields);
    Ok(id.reply())
}

pub(super) fn xtrim(db: &mut Db, args: Args<'_>) -> Outcome {
    let options = Options::read(args, false)?;
    let trimmed = db.data.edit(args[1], |stream: &mut Stream| options.apply(stream))?.unwrap_or(0);
    db.changed(trimmed as usize);
    Ok(Reply::Int(trimmed as i64))
}

pub(super) fn xdel(db: &mut Db, args: Args<'_>) -> Outcome {
    if db.data.get::<Stream>(args[1])?.is_none() {
        return Ok(Reply::Int(0));
    }
    let ids = args[2..].iter().map(|id| parse::strict_id(id)).collect::<Result<Vec<_>, _>>()?;
    let deleted = db.data.edit(args[1], |stream: &mut Stream| stream.delete(&ids))?.unwrap_or(0);
    db.changed(deleted);
    Ok(Reply::int(deleted))
}

pub(super) fn xlen(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::int(db.data.get::<Stream>(args[1])?.map_or(0, Stream::len)))
}

/// An entry as replies tell it.
pub(super) fn entry(id: Id, fields: &[Vec<u8>]) -> Reply {
    Reply::Array(vec![id.reply(), Reply::Array(fields.iter().map(Reply::bulk).collect())])
}

fn range(db: &Db, args: Args<'_>, start: &[u8], end: &[u8], reverse: bool) -> Outcome {
    let (start, end) = (parse::range_start(start)?, parse::range_end(end)?);
    let mut count = None;
    for option in args[4..].chunks(2) {
        match option {
            [word, number] if is(word, "COUNT") => count = Some(usize::try_from(int(number)?).unwrap_or(0)),
            _ => return syntax(),
        }
    }
    let Some(stream) = db.data.get::<Stream>(args[1])? else { return Ok(Reply::Array(Vec::new())) };
    if count == Some(0) {
        return Ok(Reply::NilArray);
    }
    let (found, count) = (stream.range(start..=end), count.unwrap_or(usize::MAX));
    let told = |(id, fields): (Id, &[Vec<u8>])| entry(id, fields);
    Ok(Reply::Array(if reverse {
        found.rev().take(count).map(told).collect()
    } else {
        found.take(count).map(told).collect()
    }))
}

pub(super) fn xrange(db: &mut Db, args: Args<'_>) -> Outcome {
    range(db, args, args[2], args[3], false)
}

pub(super) fn xrevrange(db: &mut Db, args: Args<'_>) -> Outcome {
    range(db, args, args[3], args[2], true)
}
