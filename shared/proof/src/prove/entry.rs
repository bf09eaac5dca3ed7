//! Reads the parts of an audit entry that the checks need.

use chrono::DateTime;
use tickfleet_model::AdmissionNote;
use tickfleet_protocol::audit::entry::{AuditMeta, CALL_ACTION};
use tickfleet_protocol::{AuditEffect, AuditEntry};

use crate::seal::EntryId;

pub(super) struct CallEntry {
    pub(super) id: EntryId,
    pub(super) tenant: String,
    pub(super) agent: String,
    /// `<turn>/<position>`.
    pub(super) call: String,
    pub(super) turn: String,
    pub(super) tool: String,
    /// By the shard's clock.
    pub(super) ended_ms: i64,
    /// Of the last attempt.
    pub(super) duration_ms: i64,
    pub(super) outcome: String,
    /// Set if this call got the outcome of an equal call.
    pub(super) repeats: Option<String>,
    pub(super) effect: Option<AuditEffect>,
    pub(super) admission: Option<AdmissionNote>,
    /// Includes the notes that follow the admission.
    pub(super) admitted: String,
}

pub(super) enum EntryRead {
    Call(Box<CallEntry>),
    /// An operator reset this unreadable counter (`limit@counter`).
    Remade(String),
    Other,
}

impl EntryRead {
    pub(super) fn of(id: EntryId, admitted: &str, text: &str) -> Self {
        let Some(entry) = AuditEntry::read(text) else { return Self::Other };
        if entry.action == "LIMIT_RESET" {
            let AuditMeta { limit, counter, window_ends_ms, .. } = entry.meta;
            return if window_ends_ms.is_none() { Self::Remade(format!("{limit}@{counter}")) } else { Self::Other };
        }
        CallEntry::of(id, admitted, entry).map_or(Self::Other, |call| Self::Call(Box::new(call)))
    }
}

impl CallEntry {
    /// Leaves out the notes after the admission, because the notes differ between versions of the fleet.
    pub(super) fn admission_text(&self) -> &str {
        self.admitted.split(';').next().unwrap_or_default()
    }

    fn of(id: EntryId, admitted: &str, entry: AuditEntry<'_>) -> Option<Self> {
        if entry.action != CALL_ACTION {
            return None;
        }
        let agent = entry.agent().to_owned();
        let meta = entry.meta;
        Some(Self {
            id,
            tenant: entry.tenant.unwrap_or_default(),
            agent,
            call: meta.call.into_owned(),
            turn: meta.turn.into_owned(),
            tool: entry.entity_id.into_owned(),
            ended_ms: DateTime::parse_from_rfc3339(&entry.timestamp).ok()?.timestamp_millis(),
            duration_ms: i64::try_from(meta.duration_ms).unwrap_or(i64::MAX),
            outcome: meta.outcome.into_owned(),
            repeats: meta.repeats,
            effect: meta.effect,
            admission: AdmissionNote::read(admitted),
            admitted: admitted.to_owned(),
        })
    }
}
