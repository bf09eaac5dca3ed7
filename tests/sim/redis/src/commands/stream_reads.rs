//! Streams: reads of what is new.

use super::{Args, Outcome, Stop, fail, is, parse, shown, streams, syntax};
use crate::data::group::Group;
use crate::data::stream::{Id, MAX, Stream};
use crate::db::Db;
use crate::number::whole;
use crate::reply::Reply;

/// What a read is asked for.
struct Read<'a> {
    block_ms: Option<i64>,
    count: usize,
    group: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
    keys: Args<'a>,
    ids: Args<'a>,
}

fn options<'a>(db: &Db, args: Args<'a>, of_group: bool) -> Result<Read<'a>, Stop> {
    let mut read = Read { block_ms: None, count: 0, group: None, no_ack: false, keys: &[], ids: &[] };
    let only_groups =
        |word: &str| fail(format!("ERR The {word} option is only supported by XREADGROUP. You called XREAD instead."));
    let mut at = 1;
    while let Some(word) = args.get(at) {
        let more = args.len() - at - 1;
        if is(word, "BLOCK") && more > 0 {
            if db.in_script {
                let name = shown(args[0]);
                return fail(format!("ERR {name} command is not allowed with BLOCK option from scripts"));
            }
            let Some(ms) = whole(args[at + 1]) else { return fail("ERR timeout is not an integer or out of range") };
            if ms < 0 {
                return fail("ERR timeout is negative");
            }
            read.block_ms = Some(ms);
            at += 1;
        } else if is(word, "COUNT") && more > 0 {
            read.count = usize::try_from(crate::number::int(args[at + 1])?).unwrap_or(0);
            at += 1;
        } else if is(word, "STREAMS") && more > 0 {
            let list = &args[at + 1..];
            if list.len() % 2 == 1 {
                return fail(
                    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
                );
            }
            (read.keys, read.ids) = list.split_at(list.len() / 2);
            break;
        } else if is(word, "GROUP") && more > 1 {
            if !of_group {
                return only_groups("GROUP");
            }
            read.group = Some((args[at + 1], args[at + 2]));
            at += 2;
        } else if is(word, "NOACK") {
            if !of_group {
                return only_groups("NOACK");
            }
            read.no_ack = true;
        } else {
            return syntax();
        }
        at += 1;
    }
    if read.keys.is_empty() {
        return syntax();
    }
    if of_group && read.group.is_none() {
        return fail("ERR Missing GROUP option for XREADGROUP");
    }
    Ok(read)
}

/// Which entries of a stream a read wants.
#[derive(Clone, Copy, PartialEq)]
enum From {
    /// Those after this one.
    After(Id),
    /// Those that the group has not got: `>`.
    New,
}

fn from(db: &Db, read: &Read<'_>, key: &[u8], id: &[u8]) -> Result<From, Stop> {
    let stream = db.data.get::<Stream>(key)?;
    if let Some((group, _)) = read.group
        && stream.is_none_or(|stream| !stream.groups.contains_key(group))
    {
        if db.is_retry {
            return fail(if stream.is_none() {
                "UNBLOCKED the stream key no longer exists"
            } else {
                "NOGROUP the consumer group this client was blocked on no longer exists"
            });
        }
        let (key, group) = (shown(key), shown(group));
        return fail(format!(
            "NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
        ));
    }
    match id {
        b"$" if read.group.is_some() => fail(
            "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by \
             specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.",
        ),
        b"$" => Ok(From::After(stream.map_or(Id::default(), |stream| stream.last))),
        b">" if read.group.is_none() => fail(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        ),
        b">" => Ok(From::New),
        _ => parse::strict_id(id).map(|id| if id == MAX && read.group.is_some() { From::New } else { From::After(id) }),
    }
}

/// What a blocked `XREAD` waits for: `$` becomes the id that it means now. Nothing else changes.
pub(crate) fn settled(db: &Db, args: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut settled = args.to_vec();
    let streams = args.iter().position(|word| is(word, "STREAMS")).map(|at| at + 1);
    if !args.first().is_some_and(|name| is(name, "XREAD")) {
        return settled;
    }
    let count = streams.map_or(0, |at| (args.len() - at) / 2);
    for at in streams.into_iter().flat_map(|at| at..at + count) {
        if args.get(at + count).is_some_and(|id| id == b"$") {
            let stream = db.data.get::<Stream>(&args[at]).ok().flatten();
            settled[at + count] = stream.map_or(Id::default(), |stream| stream.last).to_string().into_bytes();
        }
    }
    settled
}

pub(super) fn xread(db: &mut Db, args: Args<'_>) -> Outcome {
    let read = options(db, args, false)?;
    serve(db, &read)
}

pub(super) fn xreadgroup(db: &mut Db, args: Args<'_>) -> Outcome {
    let read = options(db, args, true)?;
    serve(db, &read)
}

fn serve(db: &mut Db, read: &Read<'_>) -> Outcome {
    let wanted = read.keys.iter().zip(read.ids).map(|(key, id)| from(db, read, key, id));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    let mut served = Vec::new();
    for (key, from) in read.keys.iter().zip(wanted) {
        let found = match read.group {
            Some(group) => of_group(db, read, key, group, from)?,
            None => of_stream(db, read, key, from)?,
        };
        served.extend(found.map(|entries| Reply::Array(vec![Reply::bulk(key), Reply::Array(entries)])));
    }
    match read.block_ms {
        _ if !served.is_empty() => Ok(Reply::Array(served)),
        Some(0) => Err(Stop::Block(None)),
        Some(ms) => Err(Stop::Block(Some(db.now_us.saturating_add(ms.saturating_mul(1_000))))),
        None => Ok(Reply::NilArray),
    }
}

const fn at_most(count: usize) -> usize {
    if count == 0 { usize::MAX } else { count }
}

fn of_stream(db: &Db, read: &Read<'_>, key: &[u8], from: From) -> Result<Option<Vec<Reply>>, Stop> {
    let From::After(after) = from else { return Ok(None) };
    let Some(stream) = db.data.get::<Stream>(key)?.filter(|stream| stream.newest() > Some(after)) else {
        return Ok(None);
    };
    let start = after.next().unwrap_or(MAX);
    let found = stream.range(start..=MAX).take(at_most(read.count));
    Ok(Some(found.map(|(id, fields)| streams::entry(id, fields)).collect()))
}

fn of_group(
    db: &mut Db,
    read: &Read<'_>,
    key: &[u8],
    (group, consumer): (&[u8], &[u8]),
    from: From,
) -> Result<Option<Vec<Reply>>, Stop> {
    let now = db.now_ms();
    let found = db.data.edit(key, |stream: &mut Stream| {
        let mut of = stream.groups.remove(group)?;
        let found = match from {
            From::After(after) => {
                of.meet(consumer, now);
                Some(history(stream, &mut of, consumer, after, read.count, now))
            }
            From::New if stream.newest() > Some(of.last) => {
                of.meet(consumer, now);
                Some(new(stream, &mut of, consumer, read, now))
            }
            From::New => None,
        };
        stream.groups.insert(group.to_vec(), of);
        found
    })?;
    let found = found.flatten();
    db.changed(usize::from(found.is_some()));
    Ok(found)
}

/// What a consumer holds already.
fn history(stream: &Stream, group: &mut Group, consumer: &[u8], after: Id, count: usize, now_ms: i64) -> Vec<Reply> {
    let held = group.consumers.get(consumer).map(|held| &held.pending);
    let start = after.next().unwrap_or(MAX);
    let ids: Vec<Id> = held.into_iter().flat_map(|ids| ids.range(start..)).take(at_most(count)).copied().collect();
    let mut told = Vec::new();
    for id in ids {
        let Some(fields) = stream.get(id) else {
            told.push(Reply::Array(vec![id.reply(), Reply::NilArray]));
            continue;
        };
        if let Some(delivery) = group.pending.get_mut(&id) {
            delivery.at_ms = now_ms;
            delivery.count += 1;
        }
        told.push(streams::entry(id, fields));
    }
    told
}

/// What nobody of the group got yet.
fn new(stream: &Stream, group: &mut Group, consumer: &[u8], read: &Read<'_>, now_ms: i64) -> Vec<Reply> {
    let start = group.last.next().unwrap_or(MAX);
    let mut told = Vec::new();
    for (id, fields) in stream.range(start..=MAX).take(at_most(read.count)) {
        group.entries_read = match group.entries_read {
            Some(read) if !stream.has_tombstones(id) => Some(read + 1),
            _ => stream.reads_up_to(id),
        };
        group.last = id;
        if !read.no_ack {
            group.give(id, consumer, now_ms, 1);
        }
        told.push(streams::entry(id, fields));
    }
    told
}
