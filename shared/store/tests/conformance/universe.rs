//! The names that games use. There are few of each kind, so that transactions conflict.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::keys::throttle_queue;
use tickfleet_core::view::Fields;
use tickfleet_core::{CounterKey, InboxKey, RecordKey, SetKey, StreamKey};

pub const RECORDS: [&str; 8] =
    ["turn:a:1", "turn:b:2", "turn:c:3", "turn:a:4", "turn:b:5", "turn:[a]:6", "done:a:1", "done:b:2"];
pub const PREFIXES: [&str; 4] = ["turn:", "turn:[a]", "done:", "nothing:"];
pub const PARTS: [&str; 3] = ["call:1", "call:2", "result"];
/// One limit for each kind of window, in the order of the variants of `Window`.
pub const LIMITS: [&str; 5] = ["tick", "day", "rolling", "permits", "budget"];
pub const COUNTERS: [&str; 4] = ["a:x", "a:w", "b:y", "c:z"];
pub const QUEUES: [&str; 3] = ["turns", "ready:normal", "ready:suspect:normal"];
pub const LOGS: [&str; 2] = ["audit", "dead"];
pub const INBOXES: [(&str, &str); 3] = [("a", "first"), ("a", "second"), ("b", "first")];
pub const TIMERS: [&str; 3] = ["turn:a:1", "turn:b:2", "throttle:tick@a:x"];
pub const MEMBERS: [&str; 4] = ["a:1", "b:2", "c:3", "a:4"];
pub const CONSUMERS: [&str; 2] = ["worker-1", "worker-2"];

/// Two indexes, the inboxes of two tenants, then the throttle queues of some counters.
pub const SETS: usize = 8;
pub const STREAMS: usize = QUEUES.len() + LOGS.len() + INBOXES.len();
pub const CONTENTS: usize = 6;

pub fn record(index: usize) -> RecordKey {
    RecordKey::new(RECORDS[index])
}

pub fn part(index: usize) -> Arc<str> {
    PARTS[index].into()
}

pub fn counter(limit: usize, counter: usize) -> CounterKey {
    CounterKey::new(LIMITS[limit], COUNTERS[counter])
}

pub fn set(index: usize) -> (SetKey, Option<CounterKey>) {
    match index {
        0 => (SetKey::new("under:a:1"), None),
        1 => (SetKey::new("index"), None),
        2 => (SetKey::new("inboxes:a"), None),
        3 => (SetKey::new("inboxes:b"), None),
        _ => {
            let counter = counter((index - 4) / 2, (index - 4) % 2);
            (throttle_queue(&counter), Some(counter))
        }
    }
}

pub fn member(index: usize) -> Arc<str> {
    MEMBERS[index].into()
}

pub fn queue(index: usize) -> StreamKey {
    StreamKey::new(QUEUES[index])
}

pub fn inbox(index: usize) -> InboxKey {
    let (tenant, inbox) = INBOXES[index];
    InboxKey { tenant: tenant.into(), inbox: inbox.into() }
}

pub fn stream(index: usize) -> StreamKey {
    match index.checked_sub(QUEUES.len()) {
        None => queue(index),
        Some(log) if log < LOGS.len() => StreamKey::new(LOGS[log]),
        Some(rest) => {
            let (tenant, inbox) = INBOXES[rest - LOGS.len()];
            StreamKey::new(format!("replies:{tenant}:{inbox}"))
        }
    }
}

pub fn content(index: usize) -> Bytes {
    let contents: [&'static [u8]; CONTENTS] =
        [b"1{\"n\":1}", b"1{\"n\":2}", b"", b"a b  c\r\n", b"\x00\xff\xfe", b"007"];
    Bytes::from_static(contents[index])
}

pub fn fields(index: usize) -> Fields {
    match index {
        0 => vec![("t".into(), content(0))],
        1 => vec![("t".into(), content(4)), ("u".into(), content(2))],
        _ => vec![("t".into(), content(5)), ("p".into(), content(3)), ("z".into(), content(1))],
    }
}
