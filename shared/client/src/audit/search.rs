//! Searches the audit log. The log has no index, because an index would add a write to every call.

use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_model::{Outcome, TenantId};
use tickfleet_protocol::AuditEntry;
use tickfleet_store::{Store, StoreError};

use super::condition::ArgumentConditions;

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
    /// Maximum number of results.
    pub found_max: usize,
    /// Maximum number of entries to read.
    pub read_max: usize,
    /// The cursor that an earlier search of the same shard returned.
    pub cursor: Option<String>,
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
pub struct SearchResult {
    /// The matching entries, newest first.
    pub entries: Vec<AuditMatch>,
    /// The number of entries read.
    pub read: usize,
    /// The cursor for the next search; `None` if the whole range was searched.
    pub cursor: Option<String>,
}

impl AuditQuery {
    /// Searches one shard.
    pub async fn search(&self, store: &Store) -> Result<SearchResult, StoreError> {
        let mut result = SearchResult::default();
        let from = self.from_ms.unwrap_or(0).max(0).to_string();
        let end = self.until_ms.map_or_else(|| "+".to_owned(), |until| until.saturating_sub(1).max(0).to_string());
        let mut until = self.cursor.as_ref().map_or(end, |cursor| format!("({cursor}"));
        while result.read < self.read_max {
            let count = PAGE.min(self.read_max - result.read);
            let page = store.log_entries_back(&until, &from, count).await?;
            for entry in &page {
                result.read += 1;
                result.cursor = Some(entry.id.clone());
                if let Some(audit) = self.fits(&entry.text) {
                    result.entries.push(AuditMatch { shard: store.shard(), id: entry.id.clone(), audit });
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
