//! The audit log and its seals, read in order: by who seals, exports and anchors them.

use std::collections::{BTreeMap, HashMap};

use redis::Value;

use crate::connection::pool::Pool;
use crate::connection::question::Question;
use crate::script::reply::{into_text, number_of, text_of};
use crate::{Store, StoreError};

/// Heads that a stream of them keeps, about: each is borne out by those behind it.
const ANCHORS_MAX: usize = 100_000;
/// Heads that are read at once.
const ANCHORS_PAGE: usize = 1_000;

/// An entry of the audit log as it lies in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Its id.
    pub id: String,
    /// Its text; empty where it has none.
    pub text: String,
    /// What the shard wrote of its admission; empty where it wrote nothing.
    pub admitted: String,
}

/// A seal as it lies in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSeal {
    /// The id of its entry.
    pub id: String,
    /// What it says, JSON.
    pub body: String,
    /// The signature.
    pub signature: String,
}

/// Some entries of the audit log, and what the log says of itself at the same moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The entries, in order.
    pub entries: Vec<LogEntry>,
    /// Entries that were ever added.
    pub added: u64,
    /// Entries that are there.
    pub length: u64,
    /// The first one that is there.
    pub first: Option<String>,
}

impl Store {
    /// Reads up to `count` entries of the audit log behind `after`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn log_page(&self, after: &str, count: usize) -> Result<LogPage, StoreError> {
        let stream = self.keys().key("audit");
        let is_there: bool = self.connection().query(Question::AuditLog, redis::cmd("EXISTS").arg(&stream)).await?;
        if !is_there {
            return Ok(LogPage::default());
        }
        let mut pipe = redis::pipe();
        // Together: what was added and what is there are held against what was read.
        pipe.atomic();
        pipe.cmd("XRANGE").arg(&stream).arg(format!("({after}")).arg("+").arg("COUNT").arg(count);
        pipe.cmd("XINFO").arg("STREAM").arg(&stream);
        let (entries, facts): (Value, Value) = self.connection().pipeline(Question::AuditLog, &pipe).await?;
        let Value::Array(facts) = facts else { return Ok(LogPage::default()) };
        let facts: HashMap<String, &Value> =
            facts.chunks(2).filter_map(|pair| Some((text_of(pair.first()?)?, pair.get(1)?))).collect();
        let number = |name: &str| facts.get(name).and_then(|value| number_of(value)).unwrap_or(0).unsigned_abs();
        let first = facts.get("first-entry").and_then(|entry| match entry {
            Value::Array(parts) => text_of(parts.first()?),
            _ => None,
        });
        Ok(LogPage { entries: log_entries(entries), added: number("entries-added"), length: number("length"), first })
    }

    /// Reads up to `count` entries of the audit log from `from` to `until`, without asking what the log says of itself. `from`
    /// and `until` are ids, times in ms, `-` or `+`; `(` before an id leaves it out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn log_entries(&self, from: &str, until: &str, count: usize) -> Result<Vec<LogEntry>, StoreError> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.keys().key("audit")).arg(from).arg(until).arg("COUNT").arg(count);
        Ok(log_entries(self.connection().query(Question::AuditLog, &command).await?))
    }

    /// As [`Self::log_entries`], from the newest on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn log_entries_back(&self, until: &str, from: &str, count: usize) -> Result<Vec<LogEntry>, StoreError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.keys().key("audit")).arg(until).arg(from).arg("COUNT").arg(count);
        Ok(log_entries(self.connection().query(Question::AuditLog, &command).await?))
    }

    /// Reads up to `count` seals behind `after`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn seals(&self, after: &str, count: usize) -> Result<Vec<LogSeal>, StoreError> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.keys().key("seals")).arg(format!("({after}")).arg("+").arg("COUNT").arg(count);
        Ok(log_seals(self.connection().query(Question::AuditLog, &command).await?))
    }

    /// The heads of the chains of these tenants, as text; none where there is no chain yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn seal_heads(&self, tenants: &[String]) -> Result<Vec<Option<String>>, StoreError> {
        if tenants.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys().key("seal_heads")).arg(tenants);
        self.connection().query(Question::AuditLog, &command).await
    }

    /// The public keys that have signed seals, by their ids.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn seal_keys(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(self.keys().key("seal_keys"));
        self.connection().query(Question::AuditLog, &command).await
    }

    /// The seal up to which heads were anchored; none where none was.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn anchored(&self) -> Result<Option<String>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys().key("sealing")).arg("anchored");
        self.connection().query(Question::AuditLog, &command).await
    }

    /// Notes that heads were anchored up to this seal.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn note_anchored(&self, seal: &str) -> Result<(), StoreError> {
        let mut command = redis::cmd("HSET");
        command.arg(self.keys().key("sealing")).arg("anchored").arg(seal);
        self.connection().query::<i64>(Question::AuditLog, &command).await.map(drop)
    }

    /// How old the oldest entry of the audit log is that is not sealed, ms; 0 where all are.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn unsealed_ms(&self) -> Result<i64, StoreError> {
        let state = self.sealed_state().await?.unwrap_or_default();
        // The position begins with the last entry that is sealed (`sealing/position.rs` of the scheduler).
        let last = state.split(' ').next().filter(|last| !last.is_empty()).unwrap_or("0-0");
        let oldest = self.log_entries(&format!("({last}"), "+", 1).await?;
        let id_ms = |entry: &LogEntry| entry.id.split('-').next()?.parse::<i64>().ok();
        match oldest.first().and_then(id_ms) {
            // Entries have the time of Redis, not that of the shard.
            Some(written_ms) => {
                let time: (i64, i64) = self.connection().query(Question::Now, &redis::cmd("TIME")).await?;
                Ok((time.0 * 1_000 + time.1 / 1_000 - written_ms).max(0))
            }
            None => Ok(0),
        }
    }

    /// The newest seals, the newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn newest_seals(&self, count: usize) -> Result<Vec<LogSeal>, StoreError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.keys().key("seals")).arg("+").arg("-").arg("COUNT").arg(count);
        Ok(log_seals(self.connection().query(Question::AuditLog, &command).await?))
    }

    /// Keeps heads of chains in the shard's own stream of them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keep_anchors(&self, anchors: &[String]) -> Result<(), StoreError> {
        let pipe = anchors_pipe(&self.keys().key("anchors"), anchors);
        self.connection().pipeline::<Value>(Question::AuditLog, &pipe).await.map(drop)
    }

    /// How far the shard is sealed; none where it never was.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn sealed_state(&self) -> Result<Option<String>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys().key("sealing")).arg("state");
        self.connection().query(Question::AuditLog, &command).await
    }
}

fn log_entries(found: Value) -> Vec<LogEntry> {
    let entry = |(id, mut fields): (String, HashMap<String, String>)| LogEntry {
        id,
        text: fields.remove("audit").unwrap_or_default(),
        admitted: fields.remove("admitted").unwrap_or_default(),
    };
    entries_of(found).into_iter().map(entry).collect()
}

fn log_seals(found: Value) -> Vec<LogSeal> {
    let seal = |(id, mut fields): (String, HashMap<String, String>)| LogSeal {
        id,
        body: fields.remove("body").unwrap_or_default(),
        signature: fields.remove("signature").unwrap_or_default(),
    };
    entries_of(found).into_iter().map(seal).collect()
}

/// Heads of chains in a stream of any Redis.
impl Pool {
    /// Appends heads to a stream that keeps about `ANCHORS_MAX` of them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keep_anchors(&self, stream: &str, anchors: &[String]) -> Result<(), StoreError> {
        self.pipeline::<Value>("anchors", &anchors_pipe(stream, anchors)).await.map(drop)
    }

    /// The heads that a stream keeps, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn anchors(&self, stream: &str) -> Result<Vec<String>, StoreError> {
        let (mut found, mut after) = (Vec::new(), "-".to_owned());
        loop {
            let mut command = redis::cmd("XRANGE");
            command.arg(stream).arg(&after).arg("+").arg("COUNT").arg(ANCHORS_PAGE);
            let page = entries_of(self.query("anchors", &command).await?);
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = format!("({last}");
            found.extend(page.into_iter().filter_map(|(_, mut fields)| fields.remove("anchor")));
        }
    }
}

fn anchors_pipe(stream: &str, anchors: &[String]) -> redis::Pipeline {
    let mut pipe = redis::pipe();
    for anchor in anchors {
        let command = pipe.cmd("XADD").arg(stream).arg("MAXLEN").arg("~").arg(ANCHORS_MAX);
        command.arg("*").arg("anchor").arg(anchor).ignore();
    }
    pipe
}

/// Entries of a stream. What somebody else has put there is text like any other.
fn entries_of(found: Value) -> Vec<(String, HashMap<String, String>)> {
    let Value::Array(entries) = found else { return Vec::new() };
    let read = |entry: Value| {
        let Value::Array(parts) = entry else { return None };
        let mut parts = parts.into_iter();
        let id = text_of(&parts.next()?)?;
        let Value::Array(fields) = parts.next()? else { return Some((id, HashMap::new())) };
        let mut values = fields.into_iter();
        let mut named = HashMap::new();
        while let (Some(name), Some(value)) = (values.next(), values.next()) {
            named.insert(into_text(name).unwrap_or_default(), into_text(value).unwrap_or_default());
        }
        Some((id, named))
    };
    entries.into_iter().filter_map(read).collect()
}
