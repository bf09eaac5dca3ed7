//! Keys, whatever they hold.

use super::{Args, Outcome, fail, is, parse};
use crate::data;
use crate::db::Db;
use crate::number::{int, whole};
use crate::reply::Reply;

pub(super) fn del(db: &mut Db, args: Args<'_>) -> Outcome {
    let removed = args[1..].iter().filter(|key| db.data.remove(key)).count();
    db.changed(removed);
    Ok(Reply::int(removed))
}

pub(super) fn exists(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::int(args[1..].iter().filter(|key| db.data.entry(key).is_some()).count()))
}

pub(super) fn kind(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::Status(db.data.value(args[1]).map_or("none", data::Value::name).into()))
}

pub(super) fn keys(db: &mut Db, args: Args<'_>) -> Outcome {
    let found = db.data.names().filter(|name| parse::glob(args[1], name));
    Ok(Reply::Array(found.map(Reply::bulk).collect()))
}

pub(super) fn scan(db: &mut Db, args: Args<'_>) -> Outcome {
    let scan = parse::scan(args, 1)?;
    let (next, found) = data::scan(db.data.names(), scan.cursor, scan.count);
    let of_kind =
        |name: &&[u8]| scan.kind.is_none_or(|kind| db.data.value(name).is_some_and(|value| is(kind, value.name())));
    let found = found.into_iter().filter(|name| scan.matches(name)).filter(of_kind);
    Ok(parse::scanned(next, found.map(Reply::bulk).collect()))
}

pub(super) fn dbsize(db: &mut Db, _: Args<'_>) -> Outcome {
    Ok(Reply::int(db.data.len()))
}

pub(super) fn flush(db: &mut Db, _: Args<'_>) -> Outcome {
    db.changed(db.data.len().max(1));
    db.data.clear();
    Ok(Reply::ok())
}

/// The dump of a value is a number under which the server keeps it: dumps go back into the server they come from.
pub(super) fn dump(db: &mut Db, args: Args<'_>) -> Outcome {
    let Some(entry) = db.data.entry(args[1]) else { return Ok(Reply::Nil) };
    let value = entry.value.clone();
    db.dumps.push(value);
    Ok(Reply::bulk((db.dumps.len() - 1).to_string()))
}

pub(super) fn restore(db: &mut Db, args: Args<'_>) -> Outcome {
    let replaces = args[4..].iter().any(|word| is(word, "REPLACE"));
    if !replaces && db.data.entry(args[1]).is_some() {
        return fail("BUSYKEY Target key name already exists.");
    }
    let ttl = int(args[2])?;
    if ttl < 0 {
        return fail("ERR Invalid TTL value, must be >= 0");
    }
    let Some(value) = whole(args[3]).and_then(|at| db.dumps.get(usize::try_from(at).ok()?)).cloned() else {
        return fail("ERR DUMP payload version or checksum are wrong");
    };
    db.data.put_shared(args[1], value);
    if ttl > 0 {
        db.data.expire(args[1], Some(db.now_ms() + ttl));
    }
    db.changed(1);
    Ok(Reply::ok())
}
