//! Searches the audit log. The log has no index, because an index would add a write to every call.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_model::{Outcome, TenantId};
use tickfleet_protocol::AuditEntry;
use tickfleet_store::{Store, StoreError};

use super::condition::ArgumentConditions;
use crate::dead::is_entry;
use crate::{Client, Cursor, VerbError};

const PAGE: usize = 500;

/// A query. An entry must match all fields that are set.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// Only entries of this tenant.
    pub tenant: Option<TenantId>,
    /// Only entries of this agent.
    pub agent: Option<String>,
    /// Only entries about this tool, by its name: calls, approvals, pauses and switches.
    pub tool: Option<String>,
    /// Only entries with this outcome.
    pub outcome: Option<String>,
    /// Only entries that contain this text.
    pub text: Option<String>,
    /// Only calls with arguments that meet these conditions.
    pub conditions: ArgumentConditions,
    /// Start of the time range (ms by Redis' clock).
    pub from_ms: Option<i64>,
    /// End of the time range, exclusive (ms by Redis' clock).
    pub until_ms: Option<i64>,
    /// Maximum number of results per shard.
    pub found_max: usize,
    /// Maximum number of entries to read per shard.
    pub read_max: usize,
}

/// One entry that a search has found.
#[derive(Debug, Clone, Serialize)]
pub struct AuditMatch {
    /// The shard.
    pub shard: u32,
    /// The ID of the entry.
    pub id: String,
    /// The entry.
    pub audit: Box<RawValue>,
}

/// The result of a search.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AuditPage {
    /// The matching entries, the newest of each shard first.
    pub entries: Vec<AuditMatch>,
    /// The number of entries read.
    pub read: usize,
    /// The positions to continue from, one per shard. Empty if the whole time range was searched.
    pub cursors: Vec<Cursor>,
}

/// An entry of a shard. The search continues after it.
struct AuditPosition {
    shard: u32,
    entry: String,
}

impl fmt::Display for AuditPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shard, self.entry)
    }
}

impl FromStr for AuditPosition {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (shard, entry) = text.split_once(':').filter(|(_, entry)| is_entry(entry)).ok_or(())?;
        Ok(Self { shard: shard.parse().map_err(drop)?, entry: entry.to_owned() })
    }
}

impl AuditQuery {
    /// Searches the shards, or only the shard of `from`.
    pub async fn search(&self, client: &Client, from: Option<&Cursor>) -> Result<AuditPage, VerbError> {
        let from: Option<AuditPosition> = Cursor::read(from)?;
        let mut page = AuditPage::default();
        for store in client.stores() {
            let is_elsewhere = self.tenant.as_ref().is_some_and(|tenant| !store.is_home_of(tenant));
            let is_other = from.as_ref().is_some_and(|from| from.shard != store.shard());
            if !is_elsewhere && !is_other {
                let last = self.search_shard(store, from.as_ref().map(|from| from.entry.as_str()), &mut page).await?;
                let shard = store.shard();
                page.cursors.extend(last.map(|entry| Cursor::of(&AuditPosition { shard, entry })));
            }
        }
        Ok(page)
    }

    /// Returns the last entry read; `None` if the whole range was searched.
    async fn search_shard(
        &self,
        store: &Store,
        after: Option<&str>,
        page: &mut AuditPage,
    ) -> Result<Option<String>, StoreError> {
        let from = self.from_ms.unwrap_or(0).max(0).to_string();
        let end = self.until_ms.map_or_else(|| "+".to_owned(), |until| until.saturating_sub(1).max(0).to_string());
        let mut until = after.map_or(end, |entry| format!("({entry}"));
        let mut read = 0;
        let mut found = 0;
        let mut last = None;
        while read < self.read_max {
            let count = PAGE.min(self.read_max - read);
            let entries = store.log_entries_back(&until, &from, count).await?;
            for entry in &entries {
                read += 1;
                page.read += 1;
                last = Some(entry.id.clone());
                if let Some(audit) = self.fits(&entry.text) {
                    found += 1;
                    page.entries.push(AuditMatch { shard: store.shard(), id: entry.id.clone(), audit });
                }
                if found >= self.found_max {
                    return Ok(last);
                }
            }
            let Some(end) = entries.last().filter(|_| entries.len() == count) else { return Ok(None) };
            until = format!("({}", end.id);
        }
        Ok(last)
    }

    fn fits(&self, text: &str) -> Option<Box<RawValue>> {
        if self.text.as_ref().is_some_and(|wanted| !text.contains(wanted.as_str())) {
            return None;
        }
        let entry = AuditEntry::read(text)?;
        let is =
            |wanted: Option<&str>, values: &[Option<&str>]| wanted.is_none_or(|wanted| values.contains(&Some(wanted)));
        let fits = is(self.tenant.as_ref().map(TenantId::as_str), &[entry.tenant.as_deref()])
            && is(self.agent.as_deref(), &[Some(&*entry.actor_id), entry.meta.agent.as_deref()])
            && self.tool.as_deref().is_none_or(|tool| is_about(&entry, tool))
            && is(self.outcome.as_deref(), &[entry.meta.outcome.map(Outcome::as_str)])
            && self.conditions.are_met_by(&entry);
        // The text is not parsed, so that numbers keep their digits.
        fits.then(|| RawValue::from_string(text.to_owned()).ok()).flatten()
    }
}

/// Entries of calls have the tool's name. Other entries may have the ID of the tool or of a tool version.
fn is_about(entry: &AuditEntry<'_>, tool: &str) -> bool {
    let is_call = entry.is_call() && entry.meta.outcome != Some(Outcome::UnknownTool);
    let spelled = |text: &str| {
        let text = text.split('@').next().unwrap_or(text);
        text == tool || text.strip_prefix("tool_") == Some(tool)
    };
    [&*entry.entity_id, &*entry.meta.tool, &*entry.meta.tool_id].contains(&tool)
        || !is_call && spelled(&entry.entity_id)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_search_by_tool_finds_every_spelling_of_its_name() {
        let entry = |action: &str, entity: &str, outcome: &str, tool: &str| {
            format!(
                r#"{{"action":"{action}","entity_id":"{entity}","meta":{{"outcome":"{outcome}","tool":"{tool}"}}}}"#
            )
        };
        let query = AuditQuery { tool: Some("pay".into()), ..AuditQuery::default() };
        for (action, entity, outcome, tool, is_found) in [
            ("TOOL_CALL", "pay", "ok", "", true),
            ("TOOL_CALL", "tool_pay", "unknown_tool", "", true),
            ("TOOL_CALL", "tool_pay", "ok", "", false),
            ("APPROVAL", "apr-1", "", "pay", true),
            ("APPROVAL", "apr-1", "", "send", false),
            ("DISABLE_TOOL", "tool_pay@2", "", "", true),
            ("PAUSE_TOOL", "payments", "", "", false),
        ] {
            let text = entry(action, entity, outcome, tool);
            assert_eq!(query.fits(&text).is_some(), is_found, "{text}");
        }
        // The tool with this ID is no longer configured, so the ID cannot be resolved to a name.
        let by_id = AuditQuery { tool: Some("payments".into()), ..AuditQuery::default() };
        let call = r#"{"action":"TOOL_CALL","entity_id":"pay","meta":{"outcome":"ok","tool_id":"payments"}}"#;
        assert!(by_id.fits(call).is_some());
    }
}
