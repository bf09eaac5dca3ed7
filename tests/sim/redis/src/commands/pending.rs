//! What consumers hold: looking, and taking it over.

use super::{Args, Outcome, Stop, fail, is, parse, shown, streams, syntax};
use crate::data::group::{Delivery, Group};
use crate::data::stream::{Id, MAX, Stream};
use crate::db::Db;
use crate::number::{int, whole};
use crate::reply::Reply;

fn group<'d>(db: &'d Db, key: &[u8], name: &[u8]) -> Result<&'d Group, Stop> {
    match db.data.get::<Stream>(key)?.and_then(|stream| stream.groups.get(name)) {
        Some(group) => Ok(group),
        None => fail(format!("NOGROUP No such key '{}' or consumer group '{}'", shown(key), shown(name))),
    }
}

fn summary(group: &Group) -> Reply {
    let (Some((first, _)), Some((last, _))) = (group.pending.first_key_value(), group.pending.last_key_value()) else {
        return Reply::Array(vec![Reply::Int(0), Reply::Nil, Reply::Nil, Reply::NilArray]);
    };
    let holders = group.consumers.iter().filter(|(_, consumer)| !consumer.pending.is_empty());
    let holders = holders
        .map(|(name, consumer)| Reply::Array(vec![Reply::bulk(name), Reply::bulk(consumer.pending.len().to_string())]));
    Reply::Array(vec![Reply::int(group.pending.len()), first.reply(), last.reply(), Reply::Array(holders.collect())])
}

pub(super) fn xpending(db: &mut Db, args: Args<'_>) -> Outcome {
    if args.len() == 3 {
        return Ok(summary(group(db, args[1], args[2])?));
    }
    if !(6..=9).contains(&args.len()) {
        return syntax();
    }
    let (mut rest, mut idle_ms) = (&args[3..], 0);
    if is(rest[0], "IDLE") {
        idle_ms = int(rest[1])?;
        if args.len() < 8 {
            return syntax();
        }
        rest = &rest[2..];
    }
    let count = usize::try_from(int(rest[2])?).unwrap_or(0);
    let (start, end) = (parse::range_start(rest[0])?, parse::range_end(rest[1])?);
    let now = db.now_ms();
    let group = group(db, args[1], args[2])?;
    if start > end {
        return Ok(Reply::Array(Vec::new()));
    }
    let told = |(id, delivery): (&Id, &Delivery)| {
        Reply::Array(vec![
            id.reply(),
            Reply::bulk(&delivery.consumer),
            Reply::Int((now - delivery.at_ms).max(0)),
            Reply::Int(delivery.count),
        ])
    };
    let is_idle = |delivery: &Delivery| idle_ms == 0 || now - delivery.at_ms >= idle_ms;
    let found: Vec<Reply> = match rest.get(3) {
        None => {
            let all = group.pending.range(start..=end).filter(|(_, delivery)| is_idle(delivery));
            all.take(count).map(told).collect()
        }
        Some(name) => {
            let ids = group.consumers.get(*name).into_iter().flat_map(|held| held.pending.range(start..=end));
            let held = ids.filter_map(|id| group.pending.get_key_value(id)).filter(|(_, delivery)| is_idle(delivery));
            held.take(count).map(told).collect()
        }
    };
    Ok(Reply::Array(found))
}

/// How entries are taken over.
#[derive(Default)]
struct Claim {
    idle_ms: i64,
    at_ms: Option<i64>,
    count: Option<i64>,
    forced: bool,
    only_ids: bool,
    last: Id,
}

fn number(text: &[u8], of: &str) -> Result<i64, Stop> {
    whole(text).map_or_else(|| fail(format!("ERR Invalid {of} argument for XCLAIM")), Ok)
}

fn claim_options(options: Args<'_>, now_ms: i64) -> Result<Claim, Stop> {
    let (mut claim, mut at) = (Claim::default(), 0);
    while let Some(word) = options.get(at) {
        let value = options.get(at + 1);
        match value {
            _ if is(word, "FORCE") => claim.forced = true,
            _ if is(word, "JUSTID") => claim.only_ids = true,
            Some(value) if is(word, "IDLE") => {
                claim.at_ms = Some(now_ms.saturating_sub(number(value, "IDLE option")?));
                at += 1;
            }
            Some(value) if is(word, "TIME") => {
                claim.at_ms = Some(number(value, "TIME option")?);
                at += 1;
            }
            Some(value) if is(word, "RETRYCOUNT") => {
                claim.count = Some(number(value, "RETRYCOUNT option")?).filter(|count| *count >= 0);
                at += 1;
            }
            Some(value) if is(word, "LASTID") => {
                claim.last = parse::strict_id(value)?;
                at += 1;
            }
            _ => return fail(format!("ERR Unrecognized XCLAIM option '{}'", shown(word))),
        }
        at += 1;
    }
    Ok(claim)
}

/// Takes one entry over, where it is idle for long enough. Answers the reply for it.
fn take(stream: &Stream, group: &mut Group, id: Id, to: &[u8], claim: &Claim, now_ms: i64) -> Option<Reply> {
    let fields = stream.get(id)?;
    let count = match group.pending.get(&id) {
        None if !claim.forced => return None,
        // One that is made counts as delivered.
        None => 1,
        Some(delivery) if claim.idle_ms > 0 && now_ms - delivery.at_ms < claim.idle_ms => return None,
        Some(delivery) => delivery.count,
    };
    let counted = claim.count.unwrap_or(if claim.only_ids { count } else { count + 1 });
    group.meet(to, now_ms);
    group.give(id, to, claim.at_ms.unwrap_or(now_ms), counted);
    Some(if claim.only_ids { id.reply() } else { streams::entry(id, fields) })
}

pub(super) fn xclaim(db: &mut Db, args: Args<'_>) -> Outcome {
    group(db, args[1], args[2])?;
    let idle_ms = number(args[4], "min-idle-time")?.max(0);
    let ids: Vec<Id> = args[5..].iter().map_while(|id| parse::plain_id(id, 0)).collect();
    let now = db.now_ms();
    let mut claim = Claim { idle_ms, ..claim_options(&args[5 + ids.len()..], now)? };
    claim.at_ms = claim.at_ms.map(|at| if (0..=now).contains(&at) { at } else { now });
    let done = db.data.edit(args[1], |stream: &mut Stream| {
        let mut group = stream.groups.remove(args[2])?;
        let mut changes = usize::from(claim.last > group.last);
        group.last = group.last.max(claim.last);
        let mut told = Vec::new();
        for id in &ids {
            if stream.get(*id).is_none() {
                changes += usize::from(group.release(*id));
                continue;
            }
            told.extend(take(stream, &mut group, *id, args[3], &claim, now));
        }
        stream.groups.insert(args[2].to_vec(), group);
        Some((changes + told.len(), told))
    })?;
    let (changes, told) = done.flatten().unwrap_or_default();
    db.changed(changes);
    Ok(Reply::Array(told))
}

pub(super) fn xautoclaim(db: &mut Db, args: Args<'_>) -> Outcome {
    let Some(idle_ms) = whole(args[4]) else { return fail("ERR Invalid min-idle-time argument for XAUTOCLAIM") };
    let start = parse::range_start(args[5])?;
    let (mut count, mut only_ids, mut at) = (100, false, 6);
    while let Some(word) = args.get(at) {
        if let Some(number) = args.get(at + 1)
            && is(word, "COUNT")
        {
            // What is no number is told as such by Redis' reading of a range, too.
            count = int(number)?;
            if !(1..=i64::MAX / 16).contains(&count) {
                return fail("ERR COUNT must be > 0");
            }
            at += 1;
        } else if is(word, "JUSTID") {
            only_ids = true;
        } else {
            return syntax();
        }
        at += 1;
    }
    group(db, args[1], args[2])?;
    let now = db.now_ms();
    let claim = Claim { idle_ms: idle_ms.max(0), only_ids, ..Claim::default() };
    let done = db.data.edit(args[1], |stream: &mut Stream| {
        let mut group = stream.groups.remove(args[2])?;
        let done = claim_from(stream, &mut group, start, count, args[3], &claim, now);
        stream.groups.insert(args[2].to_vec(), group);
        Some(done)
    })?;
    let (next, told, gone) = done.flatten().unwrap_or_default();
    db.changed(told.len() + gone.len());
    let gone = gone.into_iter().map(Id::reply).collect();
    Ok(Reply::Array(vec![next.reply(), Reply::Array(told), Reply::Array(gone)]))
}

/// Takes over what is idle from `start` on. Answers where to go on, what was taken, and which entries were gone.
fn claim_from(
    stream: &Stream,
    group: &mut Group,
    start: Id,
    mut count: i64,
    to: &[u8],
    claim: &Claim,
    now_ms: i64,
) -> (Id, Vec<Reply>, Vec<Id>) {
    let (mut told, mut gone) = (Vec::new(), Vec::new());
    let (mut attempts, mut next) = (count.saturating_mul(10), Some(start));
    while attempts > 0 && count > 0 {
        attempts -= 1;
        let Some((&id, _)) = next.and_then(|next| group.pending.range(next..=MAX).next()) else { break };
        next = id.next();
        if stream.get(id).is_none() {
            group.release(id);
            gone.push(id);
            count -= 1;
        } else if let Some(reply) = take(stream, group, id, to, claim, now_ms) {
            told.push(reply);
            count -= 1;
        }
    }
    let next = next.and_then(|next| group.pending.range(next..=MAX).next()).map(|(id, _)| *id);
    (next.unwrap_or_default(), told, gone)
}
