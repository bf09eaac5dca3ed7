//! Looking at Redis as a bystander, and reading replies.

use tickfleet_sim_redis::{Answer, Redis, Reply};
use tickfleet_store::fields::turn;

/// One shard's keys.
pub(super) struct Look<'a> {
    pub(super) redis: &'a mut Redis,
    pub(super) prefix: &'a str,
}

/// What the record of a turn says of where it is.
#[derive(Debug, Default, Clone)]
pub(super) struct Record {
    pub(super) fence: Option<String>,
    pub(super) begun: Option<String>,
    pub(super) started: Option<String>,
    pub(super) lost: Option<String>,
    pub(super) queue: Option<String>,
    pub(super) done: i64,
    pub(super) crashes: i64,
    pub(super) deadline_ms: i64,
    pub(super) is_external: bool,
}

impl Record {
    /// The position of the call that was begun.
    pub(super) fn begun_at(&self) -> Option<i64> {
        self.begun.as_deref()?.split(':').next()?.parse().ok()
    }

    /// The fence of a slice that is out; none where an ending, or nothing, is.
    pub(super) fn slice(&self) -> Option<&str> {
        self.fence.as_deref().filter(|fence| !fence.starts_with("s:"))
    }
}

impl Look<'_> {
    /// A command; the second word is a key behind the prefix.
    pub(super) fn ask(&mut self, words: &[&str]) -> Reply {
        let word = |(at, word): (usize, &&str)| match at {
            1 => format!("{}{word}", self.prefix).into_bytes(),
            _ => word.as_bytes().to_vec(),
        };
        let args: Vec<Vec<u8>> = words.iter().enumerate().map(word).collect();
        match self.redis.execute(&args) {
            Answer::Now(reply) => reply,
            Answer::Block { .. } => Reply::NilArray,
        }
    }

    /// Fields of a hash.
    pub(super) fn fields(&mut self, key: &str, names: &[&str]) -> Vec<Option<String>> {
        let mut found = match self.ask(&[&["HMGET", key], names].concat()) {
            Reply::Array(values) => values.iter().map(text).collect(),
            _ => Vec::new(),
        };
        found.resize(names.len(), None);
        found
    }

    pub(super) fn get(&mut self, key: &str) -> Option<String> {
        text(&self.ask(&["GET", key]))
    }

    pub(super) fn exists(&mut self, key: &str) -> bool {
        self.ask(&["EXISTS", key]) == Reply::Int(1)
    }

    /// Whether an entry is on a stream.
    pub(super) fn is_on(&mut self, stream: &str, entry: &str) -> bool {
        matches!(self.ask(&["XRANGE", stream, entry, entry]), Reply::Array(found) if !found.is_empty())
    }

    /// Whether somebody holds an entry.
    pub(super) fn is_held(&mut self, stream: &str, entry: &str) -> bool {
        let found = self.ask(&["XPENDING", stream, "workers", entry, entry, "1"]);
        matches!(found, Reply::Array(found) if !found.is_empty())
    }

    /// The queues that the slice of a turn may be on.
    pub(super) fn queues(queue: &str) -> [String; 2] {
        [queue.to_owned(), queue.replacen("ready:", "ready:suspect:", 1)]
    }

    pub(super) fn record(&mut self, name: &str) -> Record {
        let names = [
            turn::FENCE,
            turn::BEGUN,
            turn::STARTED,
            turn::LOST,
            turn::QUEUE,
            turn::DONE,
            turn::CRASHES,
            turn::DEADLINE_MS,
            turn::EXTERNAL_LEASE_MS,
        ];
        let mut found = self.fields(&format!("turn:{name}"), &names).into_iter();
        let mut next = || found.next().flatten();
        let (fence, begun, started, lost, queue) = (next(), next(), next(), next(), next());
        let whole = |value: Option<String>| value.and_then(|value| value.parse().ok()).unwrap_or(0);
        let (done, crashes, deadline_ms) = (whole(next()), whole(next()), whole(next()));
        Record { fence, begun, started, lost, queue, done, crashes, deadline_ms, is_external: whole(next()) > 0 }
    }
}

/// A reply's text.
pub(super) fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Reply::Status(word) => Some(word.clone()),
        Reply::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A reply's number.
pub(super) fn number(reply: Option<&Reply>) -> Option<i64> {
    text(reply?)?.parse().ok()
}

/// The members of a list.
pub(super) fn list(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) => items,
        _ => &[],
    }
}

/// The words of a list; a list in it counts as `ENDING`.
pub(super) fn words(reply: &Reply) -> Vec<String> {
    let word = |item: &Reply| match item {
        Reply::Array(_) => "ENDING".into(),
        other => text(other).unwrap_or_default(),
    };
    list(reply).iter().map(word).collect()
}
