//! Reads the parts of an audit entry that the checks need.

use tickfleet_model::AdmissionNote;
use tickfleet_protocol::{AuditAction, AuditEntry, AuditMeta};

use crate::seal::EntryId;

pub(super) struct CallEntry<'a> {
    pub(super) id: EntryId,
    /// By the shard's clock.
    pub(super) ended_ms: i64,
    pub(super) admission: Option<AdmissionNote>,
    /// Includes the notes that follow the admission.
    pub(super) admitted: &'a str,
    pub(super) entry: AuditEntry<'a>,
}

pub(super) enum EntryRead<'a> {
    Call(Box<CallEntry<'a>>),
    /// An operator reset this unreadable counter (`limit@counter`).
    Remade(String),
    Other,
}

impl<'a> EntryRead<'a> {
    pub(super) fn of(id: EntryId, admitted: &'a str, text: &'a str) -> Self {
        let Some(entry) = AuditEntry::read(text) else { return Self::Other };
        match (entry.action, entry.timestamp_ms()) {
            (Some(AuditAction::LimitReset), _) if entry.meta.window_ends_ms.is_none() => {
                let AuditMeta { limit, counter, .. } = entry.meta;
                Self::Remade(format!("{limit}@{counter}"))
            }
            (Some(AuditAction::ToolCall), Some(ended_ms)) => {
                let admission = AdmissionNote::read(admitted);
                Self::Call(Box::new(CallEntry { id, ended_ms, admission, admitted, entry }))
            }
            _ => Self::Other,
        }
    }
}

impl CallEntry<'_> {
    pub(super) fn tenant(&self) -> &str {
        self.entry.tenant()
    }

    /// `<turn>/<position>`.
    pub(super) fn call(&self) -> &str {
        &self.entry.meta.call
    }

    pub(super) fn turn(&self) -> &str {
        &self.entry.meta.turn
    }

    /// Leaves out the notes after the admission, because the notes differ between versions of the fleet.
    pub(super) fn admission_text(&self) -> &str {
        self.admitted.split(';').next().unwrap_or_default()
    }
}
