//! Sorted sets.

use super::{Args, Outcome, Stop, fail, is, parse, syntax};
use crate::data;
use crate::data::zset::Zset;
use crate::db::Db;
use crate::number::{float, g17, int};
use crate::reply::Reply;

const NO_FLOAT: &str = "ERR value is not a valid float";

#[derive(Default, Clone, Copy)]
struct How {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
    changed: bool,
    by: bool,
}

pub(super) fn zadd(db: &mut Db, args: Args<'_>) -> Outcome {
    let (mut how, mut at) = (How::default(), 2);
    while let Some(word) = args.get(at) {
        match () {
            () if is(word, "NX") => how.nx = true,
            () if is(word, "XX") => how.xx = true,
            () if is(word, "GT") => how.gt = true,
            () if is(word, "LT") => how.lt = true,
            () if is(word, "CH") => how.changed = true,
            () if is(word, "INCR") => how.by = true,
            () => break,
        }
        at += 1;
    }
    add(db, args[1], &args[at..], how)
}

pub(super) fn zincrby(db: &mut Db, args: Args<'_>) -> Outcome {
    add(db, args[1], &args[2..], How { by: true, ..How::default() })
}

/// Redis keeps small sorted sets as text, where 0 has no sign.
fn unsigned_zero(score: f64) -> f64 {
    if score == 0.0 { 0.0 } else { score }
}

fn add(db: &mut Db, key: &[u8], pairs: Args<'_>, how: How) -> Outcome {
    if pairs.is_empty() || pairs.len() % 2 == 1 {
        return syntax();
    }
    if how.nx && how.xx {
        return fail("ERR XX and NX options at the same time are not compatible");
    }
    if how.nx && (how.gt || how.lt) || how.gt && how.lt {
        return fail("ERR GT, LT, and/or NX options at the same time are not compatible");
    }
    if how.by && pairs.len() > 2 {
        return fail("ERR INCR option supports a single increment-element pair");
    }
    let scores: Option<Vec<f64>> = pairs.iter().step_by(2).map(|score| float(score).map(unsigned_zero)).collect();
    let Some(scores) = scores else { return fail(NO_FLOAT) };
    if db.data.get::<Zset>(key)?.is_none() && how.xx {
        return Ok(if how.by { Reply::Nil } else { Reply::Int(0) });
    }
    let members = pairs.iter().skip(1).step_by(2);
    let (mut added, mut updated, mut last) = (0, 0, None);
    let mut not_a_number = false;
    db.data.make(key, |zset: &mut Zset| {
        for (score, member) in scores.iter().zip(members) {
            let held = zset.score(member);
            let score = held.filter(|_| how.by).map_or(*score, |held| held + score);
            if score.is_nan() {
                not_a_number = true;
                return;
            }
            let refused = match held {
                None => how.xx,
                Some(held) => how.nx || how.gt && score <= held || how.lt && score >= held,
            };
            if refused {
                continue;
            }
            last = Some(score);
            added += usize::from(held.is_none());
            updated += usize::from(held.is_some_and(|held| held != score));
            if held != Some(score) {
                zset.set(member, score);
            }
        }
    })?;
    db.changed(added + updated);
    Ok(match () {
        () if not_a_number => return fail("ERR resulting score is not a number (NaN)"),
        () if how.by => Reply::bulk_or_nil(last.map(g17)),
        () if how.changed => Reply::int(added + updated),
        () => Reply::int(added),
    })
}

pub(super) fn zrem(db: &mut Db, args: Args<'_>) -> Outcome {
    let remove = |zset: &mut Zset| args[2..].iter().filter(|member| zset.remove(member)).count();
    let removed = db.data.edit(args[1], remove)?.unwrap_or(0);
    db.changed(removed);
    Ok(Reply::int(removed))
}

pub(super) fn zscore(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::bulk_or_nil(db.data.get::<Zset>(args[1])?.and_then(|zset| zset.score(args[2])).map(g17)))
}

pub(super) fn zcard(db: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::int(db.data.get::<Zset>(args[1])?.map_or(0, Zset::len)))
}

pub(super) fn zrank(db: &mut Db, args: Args<'_>) -> Outcome {
    let rank = db.data.get::<Zset>(args[1])?.and_then(|zset| zset.iter().position(|(_, member)| member == args[2]));
    Ok(rank.map_or(Reply::Nil, Reply::int))
}

/// Scores from one to another, each with or without itself.
struct Scores {
    min: f64,
    without_min: bool,
    max: f64,
    without_max: bool,
}

impl Scores {
    fn read(min: &[u8], max: &[u8]) -> Result<Self, Stop> {
        let bound = |text: &[u8]| match text.strip_prefix(b"(") {
            Some(text) => float(text).map(|score| (score, true)),
            None => float(text).map(|score| (score, false)),
        };
        match (bound(min), bound(max)) {
            (Some((min, without_min)), Some((max, without_max))) => Ok(Self { min, without_min, max, without_max }),
            _ => fail("ERR min or max is not a float"),
        }
    }

    fn of<'z>(&self, zset: &'z Zset) -> Vec<(f64, &'z [u8])> {
        let within = |(score, _): &(f64, &[u8])| !self.without_min || *score > self.min;
        let before_end =
            |(score, _): &(f64, &[u8])| if self.without_max { *score < self.max } else { *score <= self.max };
        zset.from(self.min).filter(within).take_while(before_end).collect()
    }
}

/// What a range is asked for.
#[derive(Default)]
struct Asked {
    by_score: bool,
    reverse: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

fn range(db: &Db, args: Args<'_>, mut asked: Asked, is_fixed: bool) -> Outcome {
    let mut at = 4;
    while let Some(word) = args.get(at) {
        if is(word, "WITHSCORES") {
            asked.with_scores = true;
        } else if let (true, Some(offset), Some(count)) = (is(word, "LIMIT"), args.get(at + 1), args.get(at + 2)) {
            asked.limit = Some((int(offset)?, int(count)?));
            at += 2;
        } else if !is_fixed && is(word, "REV") {
            asked.reverse = true;
        } else if !is_fixed && is(word, "BYSCORE") {
            asked.by_score = true;
        } else {
            return syntax();
        }
        at += 1;
    }
    if asked.limit.is_some() && !asked.by_score {
        return fail("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
    }
    let empty = Zset::default();
    let found = if asked.by_score {
        let (min, max) = if asked.reverse { (args[3], args[2]) } else { (args[2], args[3]) };
        let scores = Scores::read(min, max)?;
        let mut found = scores.of(db.data.get::<Zset>(args[1])?.unwrap_or(&empty));
        if asked.reverse {
            found.reverse();
        }
        let (offset, count) = asked.limit.unwrap_or((0, -1));
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        found.into_iter().skip(offset).take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
    } else {
        let (start, stop) = (int(args[2])?, int(args[3])?);
        by_rank(db.data.get::<Zset>(args[1])?.unwrap_or(&empty), start, stop, asked.reverse)
    };
    let told = |(score, member): (f64, &[u8])| {
        std::iter::once(Reply::bulk(member)).chain(asked.with_scores.then(|| Reply::Bulk(g17(score))))
    };
    Ok(Reply::Array(found.into_iter().flat_map(told).collect()))
}

fn by_rank(zset: &Zset, start: i64, stop: i64, reverse: bool) -> Vec<(f64, &[u8])> {
    let length = zset.len() as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
    let (start, stop) = (place(start).max(0), place(stop).min(length - 1));
    if start > stop {
        return Vec::new();
    }
    let (skip, take) = (start as usize, (stop - start + 1) as usize);
    if reverse {
        zset.iter().rev().skip(skip).take(take).collect()
    } else {
        zset.iter().skip(skip).take(take).collect()
    }
}

pub(super) fn zrange(db: &mut Db, args: Args<'_>) -> Outcome {
    range(db, args, Asked::default(), false)
}

pub(super) fn zrevrange(db: &mut Db, args: Args<'_>) -> Outcome {
    range(db, args, Asked { reverse: true, ..Asked::default() }, true)
}

pub(super) fn zrangebyscore(db: &mut Db, args: Args<'_>) -> Outcome {
    range(db, args, Asked { by_score: true, ..Asked::default() }, true)
}

pub(super) fn zrevrangebyscore(db: &mut Db, args: Args<'_>) -> Outcome {
    range(db, args, Asked { by_score: true, reverse: true, ..Asked::default() }, true)
}

pub(super) fn zcount(db: &mut Db, args: Args<'_>) -> Outcome {
    let scores = Scores::read(args[2], args[3])?;
    Ok(Reply::int(db.data.get::<Zset>(args[1])?.map_or(0, |zset| scores.of(zset).len())))
}

pub(super) fn zremrangebyscore(db: &mut Db, args: Args<'_>) -> Outcome {
    let scores = Scores::read(args[2], args[3])?;
    let removed = db.data.edit(args[1], |zset: &mut Zset| {
        let going: Vec<Vec<u8>> = scores.of(zset).into_iter().map(|(_, member)| member.to_vec()).collect();
        going.iter().filter(|member| zset.remove(member)).count()
    })?;
    let removed = removed.unwrap_or(0);
    db.changed(removed);
    Ok(Reply::int(removed))
}

pub(super) fn zscan(db: &mut Db, args: Args<'_>) -> Outcome {
    let scan = parse::scan(args, 2)?;
    let Some(zset) = db.data.get::<Zset>(args[1])? else { return Ok(parse::scanned(0, Vec::new())) };
    let members = zset.iter().map(|(_, member)| member);
    let (next, members) =
        if zset.is_small() { (0, members.collect()) } else { data::scan(members, scan.cursor, scan.count) };
    let found = members.into_iter().filter(|member| scan.matches(member));
    let pair = |member| [Reply::bulk(member), Reply::bulk_or_nil(zset.score(member).map(g17))];
    Ok(parse::scanned(next, found.flat_map(pair).collect()))
}
