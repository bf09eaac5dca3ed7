//! Sets.

use super::{Args, Outcome, parse};
use crate::data;
use crate::data::set::Set;
use crate::db::Db;
use crate::reply::Reply;

pub(super) fn sadd(db: &mut Db, args: Args<'_>) -> Outcome {
    let add = |set: &mut Set| args[2..].iter().filter(|member| set.add(member)).count();
    let added = db.data.make(args[1], add)?;
    db.changed(added);
    Ok(Reply::int(added))
}

pub(super) fn srem(db: &mut Db, args: Args<'_>) -> Outcome {
    let remove = |set: &mut Set| args[2..].iter().filter(|member| set.remove(member)).count();
    let removed = db.data.edit(args[1], remove)?.unwrap_or(0);
    db.changed(removed);
    Ok(Reply::int(removed))
}

pub(super) fn smembers(db: &mut Db, args: Args<'_>) -> Outcome {
    let members = db.data.get::<Set>(args[1])?.into_iter().flat_map(Set::iter);
    Ok(Reply::Array(members.map(Reply::bulk).collect()))
}

pub(super) fn sismember(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::Int(db.data.get::<Set>(args[1])?.is_some_and(|set| set.contains(args[2])).into()))
}

pub(super) fn scard(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::int(db.data.get::<Set>(args[1])?.map_or(0, Set::len)))
}

pub(super) fn sscan(db: &mut Db, args: Args<'_>) -> Outcome {
    let scan = parse::scan(args, 2)?;
    let Some(set) = db.data.get::<Set>(args[1])? else { return Ok(parse::scanned(0, Vec::new())) };
    let (next, members) =
        if set.is_small() { (0, set.iter().collect()) } else { data::scan(set.iter(), scan.cursor, scan.count) };
    let found = members.into_iter().filter(|member| scan.matches(member));
    Ok(parse::scanned(next, found.map(Reply::bulk).collect()))
}
