//! Searching the audit log. It has no index, for that would cost every call a write: a search reads entries, the newest
//! first, as many as it may, and says how far it looked and where to go on.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_model::TenantId;
use tickfleet_protocol::json::with_numbers_as_text;
use tickfleet_store::{Store, StoreError};

/// Entries that are read at once.
const PAGE: usize = 500;

/// What is looked for; all that is given has to fit.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// Entries of this tenant.
    pub tenant: Option<TenantId>,
    /// Of this agent.
    pub agent: Option<String>,
    /// Of this tool, by its name.
    pub tool: Option<String>,
    /// With this outcome.
    pub outcome: Option<String>,
    /// With this text anywhere in them.
    pub text: Option<String>,
    /// Written from this time on, ms by Redis' clock.
    pub from_ms: Option<i64>,
    /// Written before this time, ms.
    pub until_ms: Option<i64>,
    /// Entries that are found at most.
    pub found_max: usize,
    /// Entries that are read at most.
    pub read_max: usize,
    /// Where an earlier search of the same shard ended.
    pub cursor: Option<String>,
}

/// An entry that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    /// The shard.
    pub shard: u32,
    /// Its id.
    pub id: String,
    /// What it says.
    pub audit: Box<RawValue>,
}

/// What a search came to.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SearchResult {
    /// The entries, the newest first.
    pub entries: Vec<Found>,
    /// Entries that were read.
    pub read: usize,
    /// Where to go on; none where all of the time was searched.
    pub cursor: Option<String>,
}

impl AuditQuery {
    /// Searches one shard.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn search(&self, store: &Store) -> Result<SearchResult, StoreError> {
        let mut result = SearchResult::default();
        let from = self.from_ms.unwrap_or(0).max(0).to_string();
        let end = self.until_ms.map_or_else(|| "+".to_owned(), |until| (until - 1).max(0).to_string());
        let mut until = self.cursor.as_ref().map_or(end, |cursor| format!("({cursor}"));
        while result.read < self.read_max {
            let count = PAGE.min(self.read_max - result.read);
            let page = store.log_entries_back(&until, &from, count).await?;
            for entry in &page {
                result.read += 1;
                result.cursor = Some(entry.id.clone());
                if let Some(audit) = self.fits(&entry.text) {
                    result.entries.push(Found { shard: store.shard(), id: entry.id.clone(), audit });
                }
                if result.entries.len() >= self.found_max {
                    return Ok(result);
                }
            }
            let Some(last) = page.last().filter(|_| page.len() == count) else {
                result.cursor = None;
                break;
            };
            until = format!("({}", last.id);
        }
        Ok(result)
    }

    fn fits(&self, text: &str) -> Option<Box<RawValue>> {
        if self.text.as_ref().is_some_and(|wanted| !text.contains(wanted.as_str())) {
            return None;
        }
        let entry: Value = serde_json::from_str(&with_numbers_as_text(text)).ok()?;
        let is = |wanted: Option<&str>, places: &[&str]| {
            wanted
                .is_none_or(|wanted| places.iter().any(|at| entry.pointer(at).and_then(Value::as_str) == Some(wanted)))
        };
        let fits = is(self.tenant.as_ref().map(TenantId::as_str), &["/tenant"])
            && is(self.agent.as_deref(), &["/actor_id", "/meta/agent"])
            && is(self.tool.as_deref(), &["/entity_id"])
            && is(self.outcome.as_deref(), &["/meta/outcome"]);
        // The text itself: numbers keep their digits.
        fits.then(|| RawValue::from_string(text.to_owned()).ok()).flatten()
    }
}
