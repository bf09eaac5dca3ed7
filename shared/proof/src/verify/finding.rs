//! The problems of an export and their locations.

use std::fmt;

use serde::Serialize;

use crate::seal::{ChainName, EntryId, SealBody};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    Unreadable,
    /// The first line contradicts the seals, or seals or anchors belong to another fleet than expected.
    HeaderWrong,
    Edited,
    Missing,
    /// An entry has no seal although later entries have one, or an entry is in the export twice.
    Inserted,
    /// Lines are not in the written order.
    Reordered,
    SealBroken,
    SealMissing,
    /// Two seals have the same number or entry, or a seal lacks the head of the previous seal.
    Forked,
    /// An anchor names a later seal than the chain's last seal in the export.
    Truncated,
    /// An anchor differs from the seal with the same number.
    Rewritten,
}

impl FindingKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::HeaderWrong => "header wrong",
            Self::Edited => "edited",
            Self::Missing => "missing",
            Self::Inserted => "inserted",
            Self::Reordered => "reordered",
            Self::SealBroken => "seal broken",
            Self::SealMissing => "seal missing",
            Self::Forked => "forked",
            Self::Truncated => "truncated",
            Self::Rewritten => "rewritten",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// If known; empty for entries without a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seal: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The previous entry in the export, if the entry is out of order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    pub what: String,
}

impl Finding {
    pub(super) fn new(kind: FindingKind, what: impl Into<String>) -> Self {
        Self { kind, shard: None, tenant: None, seal: None, id: None, beside: None, line: None, what: what.into() }
    }

    pub(super) fn at_line(kind: FindingKind, line: u64, what: &str) -> Self {
        Self { line: Some(line), ..Self::new(kind, what) }
    }

    pub(super) fn of_entry(kind: FindingKind, shard: u32, id: EntryId, what: String) -> Self {
        Self { shard: Some(shard), id: Some(id.to_string()), ..Self::new(kind, what) }
    }

    pub(super) fn of_seal(kind: FindingKind, body: &SealBody, what: impl Into<String>) -> Self {
        Self { seal: Some(body.number), ..Self::of_chain(kind, &body.chain(), what) }
    }

    pub(super) fn of_chain(kind: FindingKind, chain: &ChainName, what: impl Into<String>) -> Self {
        Self { shard: Some(chain.shard), tenant: Some(chain.tenant.clone()), ..Self::new(kind, what) }
    }

    pub(super) fn beside(mut self, id: EntryId) -> Self {
        self.beside = Some(id.to_string());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.as_str())?;
        if let Some(id) = &self.id {
            write!(f, " entry {id}")?;
        }
        if let Some(seal) = self.seal {
            write!(f, " seal {seal}")?;
        }
        if let Some(tenant) = self.tenant.as_deref() {
            write!(f, " of {}", if tenant.is_empty() { "(no tenant)" } else { tenant })?;
        }
        if let Some(shard) = self.shard {
            write!(f, " in shard {shard}")?;
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.what)
    }
}
