//! When keys end.

use super::{Args, Outcome, fail, is, shown};
use crate::db::Db;
use crate::number::int;
use crate::reply::Reply;

pub(super) fn expire(db: &mut Db, args: Args<'_>) -> Outcome {
    ends(db, args, 1_000, db.now_ms())
}

pub(super) fn pexpire(db: &mut Db, args: Args<'_>) -> Outcome {
    ends(db, args, 1, db.now_ms())
}

pub(super) fn pexpireat(db: &mut Db, args: Args<'_>) -> Outcome {
    ends(db, args, 1, 0)
}

fn ends(db: &mut Db, args: Args<'_>, unit_ms: i64, base_ms: i64) -> Outcome {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in &args[3..] {
        match () {
            () if is(word, "NX") => nx = true,
            () if is(word, "XX") => xx = true,
            () if is(word, "GT") => gt = true,
            () if is(word, "LT") => lt = true,
            () => return fail(format!("ERR Unsupported option {}", shown(word))),
        }
    }
    if nx && (xx || gt || lt) {
        return fail("ERR NX and XX, GT or LT options at the same time are not compatible");
    }
    if gt && lt {
        return fail("ERR GT and LT options at the same time are not compatible");
    }
    let Some(when) = int(args[2])?.checked_mul(unit_ms).and_then(|ms| ms.checked_add(base_ms)) else {
        let name = shown(args[0]).to_lowercase();
        return fail(format!("ERR invalid expire time in '{name}' command"));
    };
    let Some(entry) = db.data.entry(args[1]) else { return Ok(Reply::Int(0)) };
    let now = entry.expires_ms;
    let refused = nx && now.is_some()
        || xx && now.is_none()
        || gt && now.is_none_or(|now| when <= now)
        || lt && now.is_some_and(|now| when >= now);
    if refused {
        return Ok(Reply::Int(0));
    }
    if when <= db.now_ms() {
        db.data.remove(args[1]);
    } else {
        db.data.expire(args[1], Some(when));
    }
    db.changed(1);
    Ok(Reply::Int(1))
}

pub(super) fn persist(db: &mut Db, args: Args<'_>) -> Outcome {
    if db.data.entry(args[1]).is_none_or(|entry| entry.expires_ms.is_none()) {
        return Ok(Reply::Int(0));
    }
    db.data.expire(args[1], None);
    db.changed(1);
    Ok(Reply::Int(1))
}

fn left(db: &Db, key: &[u8]) -> i64 {
    match db.data.entry(key).map(|entry| entry.expires_ms) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => (at - db.now_ms()).max(0),
    }
}

pub(super) fn pttl(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::Int(left(db, args[1])))
}

pub(super) fn ttl(db: &mut Db, args: Args<'_>) -> Outcome {
    let left = left(db, args[1]);
    Ok(Reply::Int(if left < 0 { left } else { (left + 500) / 1_000 }))
}
