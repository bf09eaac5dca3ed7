//! What can be wrong with an export, and where.

use std::fmt;

use serde::Serialize;

use crate::seal::{ChainName, EntryId, SealBody};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A line is no line of an export.
    Unreadable,
    /// The first line says of the export what its seals do not bear out, or they are of another fleet than what they are held
    /// against.
    HeaderWrong,
    /// An entry is not what was sealed.
    Edited,
    /// An entry was sealed and is not there.
    Missing,
    /// An entry is there that was never sealed, or is there twice.
    Inserted,
    /// Lines do not stand in the order in which they were written.
    Reordered,
    /// A seal was changed, or made by somebody else.
    SealBroken,
    /// A seal is not there, and those before and after it are.
    SealMissing,
    /// Two seals have one number or one entry, or one does not follow from the one before it.
    Forked,
    /// An anchor knows seals behind the last one that is there.
    Truncated,
    /// An anchor knows another seal of this number: the chain was made anew.
    Rewritten,
}

impl Kind {
    /// Its word.
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

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// In which shard, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// Of which tenant, where that is known; empty for entries of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The number of the seal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seal: Option<u64>,
    /// The id of the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The entry beside which it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// The line of the export, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// In words.
    pub what: String,
}

impl Finding {
    pub(super) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, shard: None, tenant: None, seal: None, id: None, beside: None, line: None, what: what.into() }
    }

    pub(super) fn at_line(kind: Kind, line: u64, what: &str) -> Self {
        Self { line: Some(line), ..Self::new(kind, what) }
    }

    pub(super) fn of_entry(kind: Kind, shard: u32, id: EntryId, what: String) -> Self {
        Self { shard: Some(shard), id: Some(id.to_string()), ..Self::new(kind, what) }
    }

    pub(super) fn of_seal(kind: Kind, body: &SealBody, what: impl Into<String>) -> Self {
        Self { seal: Some(body.number), ..Self::of_chain(kind, &body.chain(), what) }
    }

    pub(super) fn of_chain(kind: Kind, chain: &ChainName, what: impl Into<String>) -> Self {
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
