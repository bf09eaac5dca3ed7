//! The common members of all audit entries.

use super::AuditAction;
use crate::write::{Object, time};
use tickfleet_model::TenantId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Info,
    Error,
}

impl Level {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Error => "error",
        }
    }
}

pub(super) struct Head<'a> {
    /// Since the epoch, by the shard's clock.
    pub(super) timestamp_ms: i64,
    pub(super) level: Level,
    pub(super) action: AuditAction,
    pub(super) entity_type: &'static str,
    pub(super) entity_id: &'a str,
    pub(super) actor_type: &'static str,
    pub(super) actor_id: &'a str,
    pub(super) tenant: Option<&'a TenantId>,
    pub(super) message: &'a str,
}

impl Head<'_> {
    pub(super) fn entry(&self, meta: Object) -> String {
        let meta = meta.end();
        let mut entry = Object::new(512 + meta.len());
        entry.text("timestamp", &time(self.timestamp_ms));
        entry.text("level", self.level.as_str());
        entry.text("action", self.action.as_str());
        entry.text("entity_type", self.entity_type);
        entry.text("entity_id", self.entity_id);
        entry.text("actor_type", self.actor_type);
        entry.text("actor_id", self.actor_id);
        match self.tenant {
            Some(tenant) => entry.text("tenant", tenant.as_str()),
            None => entry.raw("tenant", "null"),
        }
        entry.text("message", self.message);
        entry.raw("meta", &meta);
        entry.end()
    }
}

/// Adds members to `meta`, which is the last member of each entry. A text that is not an entry stays unchanged.
/// `members` are pairs of name and JSON.
#[must_use]
pub fn with_meta(entry: &[u8], members: &[(&str, String)]) -> Vec<u8> {
    let Some(head) = entry.strip_suffix(b"}}") else { return entry.to_vec() };
    let mut text = head.to_vec();
    for (name, json) in members {
        text.extend_from_slice(format!(",\"{name}\":{json}").as_bytes());
    }
    text.extend_from_slice(b"}}");
    text
}
