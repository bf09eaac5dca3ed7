//! Reads the audit log and its seals in order, for exporters, sealers and anchors.

use std::collections::BTreeMap;

use redis::Value as Reply;
use tickfleet_core::audit::seal::{self, Sealing};
use tickfleet_core::{EntryId, Query, Value, keys};

use super::range_of;
use crate::connection::pool::Pool;
use crate::reads::{age, field, text};
use crate::script::reply::{into_text, text_of};
use crate::seam::inspect::{Entry, Range};
use crate::{Store, StoreError};

/// The approximate maximum length of a stream of chain heads. A chain head is the last seal of a tenant's chain.
const ANCHORS_MAX: usize = 100_000;
const ANCHORS_PAGE: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    pub id: String,
    pub text: String,
    pub admitted: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSeal {
    pub id: String,
    pub body: String,
    pub signature: String,
}

/// The entries and the counts are from the same moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPage {
    pub entries: Vec<LogEntry>,
    /// Number of entries that were ever added.
    pub added: u64,
    pub length: u64,
    pub first: Option<String>,
}

impl Store {
    pub async fn log_page(&self, after: &str, count: usize) -> Result<LogPage, StoreError> {
        let range = Range::after(EntryId::new(after), count);
        let (entries, state) = self.seam().page(&keys::audit(), &range).await?;
        Ok(LogPage {
            entries: log_entries(entries),
            added: state.added,
            length: state.length,
            first: state.first.map(|first| first.to_string()),
        })
    }

    /// Each bound is an ID, a time in ms, `-` (the oldest entry) or `+` (the newest). `(` before an ID excludes that
    /// entry.
    pub async fn log_entries(&self, from: &str, until: &str, count: usize) -> Result<Vec<LogEntry>, StoreError> {
        Ok(log_entries(self.seam().entries(&keys::audit(), &range_of(from, until, count)).await?))
    }

    pub async fn log_entries_back(&self, until: &str, from: &str, count: usize) -> Result<Vec<LogEntry>, StoreError> {
        let range = Range { newest_first: true, ..range_of(from, until, count) };
        Ok(log_entries(self.seam().entries(&keys::audit(), &range).await?))
    }

    pub async fn seals(&self, after: &str, count: usize) -> Result<Vec<LogSeal>, StoreError> {
        let range = range_of(&format!("({after}"), "+", count);
        Ok(self.seam().entries(&seal::seals(), &range).await?.into_iter().map(log_seal).collect())
    }

    pub async fn newest_seals(&self, count: usize) -> Result<Vec<LogSeal>, StoreError> {
        let range = Range { newest_first: true, ..range_of("-", "+", count) };
        Ok(self.seam().entries(&seal::seals(), &range).await?.into_iter().map(log_seal).collect())
    }

    /// In the order of `tenants`; `None` for a tenant without a chain.
    pub async fn seal_heads(&self, tenants: &[String]) -> Result<Vec<Option<String>>, StoreError> {
        let heads = tenants.iter().map(|tenant| seal::head(tenant)).collect();
        match self.query(Query::Parts(seal::key(), heads)).await? {
            Value::Parts(parts) => Ok(parts.into_iter().map(|head| head.map(|head| text(&head))).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// By key ID.
    pub async fn seal_keys(&self) -> Result<BTreeMap<String, String>, StoreError> {
        Ok(self.sealing().await?.map(|sealing| sealing.keys).unwrap_or_default())
    }

    /// The last seal at which the chain heads were copied to external storage. `None` before the first copy.
    pub async fn anchored(&self) -> Result<Option<String>, StoreError> {
        Ok(self.sealing().await?.map(|sealing| sealing.anchored).filter(|anchored| !anchored.is_empty()))
    }

    /// The age of the oldest entry without a seal. 0 if all entries are sealed.
    pub async fn unsealed_ms(&self) -> Result<i64, StoreError> {
        let state = self.sealed_state().await?.unwrap_or_default();
        // The position begins with the ID of the last sealed entry (`sealing/position.rs` of the scheduler).
        let last = state.split(' ').next().filter(|last| !last.is_empty()).unwrap_or("0-0");
        let oldest = self.seam().entries(&keys::audit(), &Range::after(EntryId::new(last), 1)).await?;
        match oldest.first() {
            // The ID contains the time by the store's clock, not shard time.
            Some((id, _)) => Ok(age(Some(id), self.seam().shard_stats().await?.clock_ms)),
            None => Ok(0),
        }
    }

    pub async fn sealed_state(&self) -> Result<Option<String>, StoreError> {
        Ok(self.sealing().await?.map(|sealing| sealing.state).filter(|state| !state.is_empty()))
    }

    async fn sealing(&self) -> Result<Option<Sealing>, StoreError> {
        Ok(self.record_of(&seal::key()).await?.map(|stored| stored.value))
    }
}

fn log_seal((id, fields): Entry) -> LogSeal {
    LogSeal { id: id.to_string(), body: field(&fields, "body"), signature: field(&fields, "signature") }
}

fn log_entries(entries: Vec<Entry>) -> Vec<LogEntry> {
    let entry = |(id, fields): Entry| LogEntry {
        id: id.to_string(),
        text: field(&fields, "audit"),
        admitted: field(&fields, "admitted"),
    };
    entries.into_iter().map(entry).collect()
}

/// These methods use a [`Pool`], because streams of chain heads may be on a Redis server outside the fleet.
impl Pool {
    pub async fn keep_anchors(&self, stream: &str, anchors: &[String]) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        for anchor in anchors {
            let command = pipe.cmd("XADD").arg(stream).arg("MAXLEN").arg("~").arg(ANCHORS_MAX);
            command.arg("*").arg("anchor").arg(anchor).ignore();
        }
        self.pipeline::<Reply>("anchors", &pipe).await.map(drop)
    }

    /// The oldest first.
    pub async fn anchors(&self, stream: &str) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        let mut after = "-".to_owned();
        loop {
            let mut command = redis::cmd("XRANGE");
            command.arg(stream).arg(&after).arg("+").arg("COUNT").arg(ANCHORS_PAGE);
            let page = anchors_of(self.query("anchors", &command).await?);
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = format!("({last}");
            found.extend(page.into_iter().filter_map(|(_, anchor)| anchor));
        }
    }
}

fn anchors_of(found: Reply) -> Vec<(String, Option<String>)> {
    let Reply::Array(entries) = found else { return Vec::new() };
    let read = |entry: Reply| {
        let Reply::Array(parts) = entry else { return None };
        let mut parts = parts.into_iter();
        let id = text_of(&parts.next()?)?;
        let Reply::Array(fields) = parts.next()? else { return Some((id, None)) };
        let mut values = fields.into_iter();
        let mut anchor = None;
        while let (Some(name), Some(value)) = (values.next(), values.next()) {
            if text_of(&name).as_deref() == Some("anchor") {
                anchor = into_text(value);
            }
        }
        Some((id, anchor))
    };
    entries.into_iter().filter_map(read).collect()
}
