//! Hashes.

use super::{Args, Outcome, fail, parse};
use crate::data;
use crate::data::hash::Hash;
use crate::db::Db;
use crate::number::{int, whole};
use crate::reply::Reply;

pub(super) fn hset(db: &mut Db, args: Args<'_>) -> Outcome {
    if args.len() % 2 == 1 {
        return fail("ERR wrong number of arguments for 'hset' command");
    }
    let set = |hash: &mut Hash| args[2..].chunks_exact(2).filter(|pair| hash.set(pair[0], pair[1])).count();
    let new = db.data.make(args[1], set)?;
    db.changed(args.len() / 2 - 1);
    Ok(Reply::int(new))
}

pub(super) fn hsetnx(db: &mut Db, args: Args<'_>) -> Outcome {
    if db.data.get::<Hash>(args[1])?.is_some_and(|hash| hash.get(args[2]).is_some()) {
        return Ok(Reply::Int(0));
    }
    db.data.make(args[1], |hash: &mut Hash| hash.set(args[2], args[3]))?;
    db.changed(1);
    Ok(Reply::Int(1))
}

pub(super) fn hget(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::bulk_or_nil(db.data.get::<Hash>(args[1])?.and_then(|hash| hash.get(args[2]))))
}

pub(super) fn hstrlen(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::int(db.data.get::<Hash>(args[1])?.and_then(|hash| hash.get(args[2])).map_or(0, <[u8]>::len)))
}

pub(super) fn hmget(db: &mut Db, args: Args<'_>) -> Outcome {
    let hash = db.data.get::<Hash>(args[1])?;
    let value = |field: &&[u8]| Reply::bulk_or_nil(hash.and_then(|hash| hash.get(field)));
    Ok(Reply::Array(args[2..].iter().map(value).collect()))
}

pub(super) fn hdel(db: &mut Db, args: Args<'_>) -> Outcome {
    // Redis stops looking once the hash is empty, which comes to the same.
    let remove = |hash: &mut Hash| args[2..].iter().filter(|field| hash.remove(field)).count();
    let removed = db.data.edit(args[1], remove)?.unwrap_or(0);
    db.changed(removed);
    Ok(Reply::int(removed))
}

pub(super) fn hincrby(db: &mut Db, args: Args<'_>) -> Outcome {
    let by = int(args[3])?;
    let number = match db.data.get::<Hash>(args[1])?.and_then(|hash| hash.get(args[2])).map(whole) {
        None => 0,
        Some(Some(number)) => number,
        Some(None) => return fail("ERR hash value is not an integer"),
    };
    let Some(sum) = number.checked_add(by) else { return fail("ERR increment or decrement would overflow") };
    db.data.make(args[1], |hash: &mut Hash| hash.set(args[2], sum.to_string().as_bytes()))?;
    db.changed(1);
    Ok(Reply::Int(sum))
}

pub(super) fn hlen(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::int(db.data.get::<Hash>(args[1])?.map_or(0, Hash::len)))
}

pub(super) fn hexists(db: &mut Db, args: Args<'_>) -> Outcome {
    let is_there = db.data.get::<Hash>(args[1])?.is_some_and(|hash| hash.get(args[2]).is_some());
    Ok(Reply::Int(is_there.into()))
}

pub(super) fn hgetall(db: &mut Db, args: Args<'_>) -> Outcome {
    let pairs = db.data.get::<Hash>(args[1])?.into_iter().flat_map(Hash::iter);
    Ok(Reply::Array(pairs.flat_map(|(field, value)| [Reply::bulk(field), Reply::bulk(value)]).collect()))
}

pub(super) fn hkeys(db: &mut Db, args: Args<'_>) -> Outcome {
    let pairs = db.data.get::<Hash>(args[1])?.into_iter().flat_map(Hash::iter);
    Ok(Reply::Array(pairs.map(|(field, _)| Reply::bulk(field)).collect()))
}

pub(super) fn hvals(db: &mut Db, args: Args<'_>) -> Outcome {
    let pairs = db.data.get::<Hash>(args[1])?.into_iter().flat_map(Hash::iter);
    Ok(Reply::Array(pairs.map(|(_, value)| Reply::bulk(value)).collect()))
}

pub(super) fn hscan(db: &mut Db, args: Args<'_>) -> Outcome {
    let scan = parse::scan(args, 2)?;
    let Some(hash) = db.data.get::<Hash>(args[1])? else { return Ok(parse::scanned(0, Vec::new())) };
    let (next, fields) = if hash.is_small() {
        (0, hash.iter().map(|(field, _)| field).collect())
    } else {
        data::scan(hash.iter().map(|(field, _)| field), scan.cursor, scan.count)
    };
    let found = fields.into_iter().filter(|field| scan.matches(field));
    let pair = |field| [Reply::bulk(field), Reply::bulk_or_nil(hash.get(field))];
    Ok(parse::scanned(next, found.flat_map(pair).collect()))
}
