//! Sends queries as a pipeline of plain commands, and parses the replies.

use std::sync::Arc;

use redis::{Cmd, RedisResult, Value as Reply, cmd};
use tickfleet_core::view::Fields;
use tickfleet_core::{EntryId, Query, StreamKey, Value};

use super::encode::{field_of, hash_of, name_of};
use super::reply::{bytes, counter_state};
use crate::script::reply::{into_text, number_of};
use crate::seam::GROUP;

pub(super) fn command(prefix: &str, query: &Query) -> Cmd {
    let key = |key: &dyn std::fmt::Display| format!("{prefix}{key}");
    let parts = |key: &dyn std::fmt::Display| format!("{prefix}parts:{key}");
    let start = |word: &str, key: String| cmd(word).arg(key).to_owned();
    match query {
        Query::Record(record) => start("GET", key(record)),
        Query::Parts(record, names) => {
            let mut command = start("HMGET", parts(record));
            names.iter().for_each(|name| {
                command.arg(name.as_bytes());
            });
            // HMGET needs at least one name, so use another command with an empty result.
            if names.is_empty() { start("HLEN", parts(record)) } else { command }
        }
        Query::AllParts(record) => start("HGETALL", parts(record)),
        Query::Counter(counter) => {
            start("HGET", format!("{prefix}counters:{}", hash_of(&counter.limit))).arg(field_of(counter)).to_owned()
        }
        Query::First { set, upto, count } => {
            let mut command = start("ZRANGE", key(set));
            match upto {
                Some(upto) => command.arg("-inf").arg(*upto).arg("BYSCORE").arg("LIMIT").arg(0).arg(*count),
                None => command.arg("-inf").arg("+inf").arg("BYSCORE").arg("LIMIT").arg(0).arg(*count),
            };
            command.arg("WITHSCORES").to_owned()
        }
        Query::Score(set, member) => start("ZSCORE", key(set)).arg(member.as_bytes()).to_owned(),
        Query::Size(set) => start("ZCARD", key(set)),
        Query::Entry(stream, entry) => start("XRANGE", key(stream)).arg(entry.as_str()).arg(entry.as_str()).to_owned(),
        Query::Holder(stream, entry) => pending(key(stream)).arg(entry.as_str()).arg(entry.as_str()).arg(1).to_owned(),
        Query::Holds { stream, consumer, count } => {
            pending(key(stream)).arg("-").arg("+").arg(*count).arg(consumer.as_bytes()).to_owned()
        }
        Query::Entries { stream, after, count } => {
            let from = after.as_ref().map_or_else(|| "-".to_owned(), |after| format!("({after}"));
            start("XRANGE", key(stream)).arg(from).arg("+").arg("COUNT").arg(*count).to_owned()
        }
    }
}

fn pending(key: String) -> Cmd {
    cmd("XPENDING").arg(key).arg(GROUP).to_owned()
}

/// A key of another type counts as absent, and so does a stream without a group. The guards of a transaction report
/// such keys.
pub(super) fn answer(query: &Query, reply: RedisResult<Reply>) -> Value {
    let reply = reply.unwrap_or(Reply::Nil);
    match query {
        Query::Record(_) => Value::Record(bytes(reply)),
        Query::Parts(_, names) => {
            let mut found = list(reply).into_iter().map(bytes);
            Value::Parts(names.iter().map(|_| found.next().flatten()).collect())
        }
        Query::AllParts(_) => Value::AllParts(all_parts(reply)),
        Query::Counter(_) => Value::Counter(bytes(reply).as_deref().and_then(counter_state)),
        Query::First { .. } => Value::Members(members(reply)),
        Query::Score(..) => Value::Score(parse_score(&reply)),
        Query::Size(_) => Value::Size(number_of(&reply).and_then(|size| u64::try_from(size).ok()).unwrap_or_default()),
        Query::Entry(..) => Value::Entry(entries(reply).into_iter().next().map(|(_, fields)| fields)),
        Query::Holder(..) => {
            let first = list(reply).into_iter().next().map(list).unwrap_or_default();
            Value::Holder(first.into_iter().nth(1).and_then(into_text).map(Arc::from))
        }
        Query::Holds { .. } => {
            let held = list(reply).into_iter().filter_map(|one| list(one).into_iter().next());
            Value::Holds(held.filter_map(into_text).map(EntryId::new).collect())
        }
        Query::Entries { .. } => Value::Entries(entries(reply)),
    }
}

pub(super) fn list(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(values) | Reply::Set(values) => values,
        Reply::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => Vec::new(),
    }
}

fn all_parts(reply: Reply) -> Vec<(Arc<str>, bytes::Bytes)> {
    let mut values = list(reply).into_iter();
    let mut parts = Vec::new();
    while let (Some(name), Some(value)) = (values.next(), values.next()) {
        parts.extend(into_text(name).map(Arc::from).zip(bytes(value)));
    }
    parts.sort();
    parts
}

/// RESP3 replies with pairs, RESP2 with a flat list.
pub(super) fn members(reply: Reply) -> Vec<(Arc<str>, u64)> {
    let flat = list(reply).into_iter().flat_map(|value| match value {
        Reply::Array(pair) => pair,
        other => vec![other],
    });
    let mut values = flat.into_iter();
    let mut members = Vec::new();
    while let (Some(member), Some(score)) = (values.next(), values.next()) {
        members.extend(into_text(member).map(Arc::from).zip(parse_score(&score)));
    }
    members
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of doubles saturate")]
fn parse_score(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Double(score) => Some(*score as u64),
        Reply::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<f64>().ok().map(|score| score as u64),
        other => number_of(other).and_then(|score| u64::try_from(score).ok()),
    }
}

pub(super) fn entries(reply: Reply) -> Vec<(EntryId, Fields)> {
    list(reply).into_iter().filter_map(entry).collect()
}

fn entry(reply: Reply) -> Option<(EntryId, Fields)> {
    let Reply::Array(parts) = reply else { return None };
    let mut parts = parts.into_iter();
    let id = into_text(parts.next()?)?;
    let mut words = list(parts.next()?).into_iter();
    let mut fields = Fields::new();
    while let (Some(name), Some(value)) = (words.next().and_then(bytes), words.next().and_then(bytes)) {
        fields.push((name_of(&name), value));
    }
    Some((EntryId::new(id), fields))
}

pub(super) fn taken_entries(prefix: &str, reply: Reply) -> Vec<(StreamKey, Vec<(EntryId, Fields)>)> {
    let mut values = list(reply).into_iter();
    let mut found = Vec::new();
    while let Some(value) = values.next() {
        let (name, list) = match value {
            Reply::Array(pair) => {
                let mut pair = pair.into_iter();
                (pair.next(), pair.next())
            }
            name => (Some(name), values.next()),
        };
        let (Some(name), Some(list)) = (name.and_then(into_text), list) else { continue };
        found.push((StreamKey::new(name.strip_prefix(prefix).unwrap_or(&name)), entries(list)));
    }
    found
}
