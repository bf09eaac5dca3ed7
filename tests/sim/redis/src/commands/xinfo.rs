//! What a stream says of itself.

use super::{Args, Outcome, fail, is, no_subcommand, shown, streams};
use crate::data::group::Group;
use crate::data::stream::{Id, MAX, Stream};
use crate::db::Db;
use crate::reply::Reply;

fn map(pairs: Vec<(&str, Reply)>) -> Reply {
    Reply::Array(pairs.into_iter().flat_map(|(name, value)| [Reply::bulk(name), value]).collect())
}

fn count(number: Option<i64>) -> Reply {
    number.map_or(Reply::Nil, Reply::Int)
}

fn group(stream: &Stream, name: &[u8], group: &Group) -> Reply {
    map(vec![
        ("name", Reply::bulk(name)),
        ("consumers", Reply::int(group.consumers.len())),
        ("pending", Reply::int(group.pending.len())),
        ("last-delivered-id", group.last.reply()),
        ("entries-read", count(group.entries_read.map(|read| read as i64))),
        ("lag", count(stream.lag(group))),
    ])
}

fn consumers(group: &Group, now_ms: i64) -> Reply {
    let told = group.consumers.iter().map(|(name, consumer)| {
        map(vec![
            ("name", Reply::bulk(name)),
            ("pending", Reply::int(consumer.pending.len())),
            ("idle", Reply::Int((now_ms - consumer.seen_ms).max(0))),
        ])
    });
    Reply::Array(told.collect())
}

fn of_stream(stream: &Stream) -> Reply {
    let entry = |found: Option<(Id, &[Vec<u8>])>| found.map_or(Reply::Nil, |(id, fields)| streams::entry(id, fields));
    let mut all = stream.range(Id(0, 0)..=MAX);
    let (first, last) = (all.next(), stream.newest().and_then(|id| Some((id, stream.get(id)?))));
    map(vec![
        ("length", Reply::int(stream.len())),
        ("radix-tree-keys", Reply::int(stream.node_count())),
        ("radix-tree-nodes", Reply::int(stream.node_count() + 1)),
        ("last-generated-id", stream.last.reply()),
        ("max-deleted-entry-id", stream.max_deleted.reply()),
        ("entries-added", Reply::Int(stream.added as i64)),
        ("recorded-first-entry-id", stream.first.reply()),
        ("groups", Reply::int(stream.groups.len())),
        ("first-entry", entry(first)),
        ("last-entry", entry(last)),
    ])
}

pub(super) fn xinfo(db: &mut Db, args: Args<'_>) -> Outcome {
    let (sub, words) = (args[1], args.len());
    let fits = match () {
        () if is(sub, "STREAM") => words >= 3,
        () if is(sub, "GROUPS") => words == 3,
        () if is(sub, "CONSUMERS") => words == 4,
        () => return fail(format!("ERR unknown subcommand '{}'. Try XINFO HELP.", shown(sub))),
    };
    if !fits {
        let sub = shown(sub).to_lowercase();
        return fail(format!("ERR wrong number of arguments for 'xinfo|{sub}' command"));
    }
    let Some(stream) = db.data.get::<Stream>(args[2])? else { return fail("ERR no such key") };
    if is(sub, "STREAM") {
        return if words == 3 { Ok(of_stream(stream)) } else { no_subcommand(args) };
    }
    if is(sub, "GROUPS") {
        return Ok(Reply::Array(stream.groups.iter().map(|(name, of)| group(stream, name, of)).collect()));
    }
    match stream.groups.get(args[3]) {
        Some(group) => Ok(consumers(group, db.now_ms())),
        None => fail(format!("NOGROUP No such consumer group '{}' for key name '{}'", shown(args[3]), shown(args[2]))),
    }
}
