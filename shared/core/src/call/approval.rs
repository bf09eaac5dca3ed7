//! Approvals: people agree to one exact call before it runs.
//!
//! ```text
//!   ask ──► Waiting ── decide ──► Approved ── begin ──► Used
//!              │                      │
//!              ├── decide ──► Denied ◄┤
//!              ├── time ────► Expired ◄┤
//!              └── end of the turn, another call ──► Void ◄┘
//! ```
//!
//! If a call ends without using its approval, an `Approved` approval keeps its state, and a `Waiting` approval becomes
//! void. A digest binds an approval to its exact call. The transaction that begins the call uses the consent once.

mod ask;
mod decide;
pub mod notify;
mod write;

#[cfg(test)]
mod tests;

pub use ask::{AskApproval, AskResult, RequestApproval};
pub use decide::{DecideApproval, DecideResult, Verdict};
pub use write::{LeaveApproval, UseConsent, VoidApproval};

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tickfleet_model::{AgentId, TenantId};

use super::CallName;
use crate::record::Record;
use crate::transaction::{RecordKey, SetKey, StreamKey};
use crate::view::{Undecided, View};

/// 7 days.
pub const KEPT_MS: i64 = 604_800_000;
/// This part is deleted when the approval or its call ends.
pub const EXACT: &str = "exact";

#[must_use]
pub fn key(tenant: &TenantId, id: &str) -> RecordKey {
    RecordKey::new(format!("approval:{tenant}:{id}"))
}

/// A member is `<tenant>:<id>`. The score is the time of the request (ms).
#[must_use]
pub fn waiting() -> SetKey {
    SetKey::new("asked")
}

/// A member is an approval's ID. The score is the deadline of the decision (ms).
#[must_use]
pub fn waiting_of(tenant: &TenantId) -> SetKey {
    SetKey::new(format!("asked:{tenant}"))
}

#[must_use]
pub fn waiting_of_agent(tenant: &TenantId, agent: &AgentId) -> SetKey {
    SetKey::new(format!("asked:{tenant}:{agent}"))
}

#[must_use]
pub fn events(tenant: &TenantId) -> StreamKey {
    StreamKey::new(format!("approvals:{tenant}"))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    #[serde(rename = "c")]
    pub call: CallName,
    /// Digest of the complete call.
    #[serde(rename = "b")]
    pub binding: String,
    #[serde(rename = "ag")]
    pub agent: AgentId,
    #[serde(rename = "sh")]
    pub shown: ApprovalPreview,
    #[serde(rename = "de")]
    pub demands: Vec<Demand>,
    /// Time for the decision, and the same time again for the begin of an approved call. Absent means the turn's
    /// deadline.
    #[serde(rename = "ex", default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// A JSON object that maps JSON pointers to new values.
    #[serde(rename = "na", default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<String>,
    #[serde(rename = "t")]
    pub requested_ms: i64,
    /// By person. Changed arguments drop the votes.
    #[serde(rename = "v", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub votes: BTreeMap<String, Vote>,
    #[serde(rename = "s")]
    pub state: ApprovalState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalPreview {
    #[serde(rename = "to")]
    pub tool: String,
    #[serde(rename = "tv")]
    pub version: String,
    /// JSON without secrets, cut to a maximum length.
    #[serde(rename = "ar")]
    pub arguments: String,
    /// True if `arguments` differs from the part [`EXACT`].
    #[serde(rename = "ab", default, skip_serializing_if = "std::ops::Not::not")]
    pub abridged: bool,
    #[serde(rename = "by")]
    pub bytes: usize,
    /// As JSON.
    #[serde(rename = "why")]
    pub why: String,
    /// JSON pointers to the arguments that approvers may change.
    #[serde(rename = "mn", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub may_narrow: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Demand {
    #[serde(rename = "q")]
    pub quorum: u32,
    /// If empty, any person may vote.
    #[serde(rename = "r", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    #[serde(rename = "t")]
    pub at_ms: i64,
    #[serde(rename = "r")]
    pub roles: BTreeSet<String>,
    #[serde(rename = "w")]
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "s", rename_all = "snake_case")]
pub enum ApprovalState {
    Waiting {
        until_ms: i64,
    },
    Approved {
        until_ms: i64,
    },
    Used {
        at_ms: i64,
    },
    Denied {
        at_ms: i64,
        by: String,
        reason: String,
    },
    Expired {
        since_ms: i64,
    },
    /// The call has ended or changed.
    Void {
        at_ms: i64,
    },
}

impl ApprovalState {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Waiting { .. } => "waiting",
            Self::Approved { .. } => "approved",
            Self::Used { .. } => "used",
            Self::Denied { .. } => "denied",
            Self::Expired { .. } => "expired",
            Self::Void { .. } => "void",
        }
    }

    /// `None` if the approval has ended.
    #[must_use]
    pub const fn until_ms(&self) -> Option<i64> {
        match self {
            Self::Waiting { until_ms } | Self::Approved { until_ms } => Some(*until_ms),
            _ => None,
        }
    }
}

impl Record for Approval {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consent {
    Unasked,
    Waiting {
        until_ms: i64,
    },
    Given {
        by: Vec<String>,
        /// A JSON object that maps JSON pointers to new values.
        narrowed: Option<String>,
    },
    Denied {
        by: String,
        reason: String,
    },
    /// People did not agree in time, or the call did not begin in time.
    Expired {
        since_ms: i64,
    },
    OtherCall,
}

impl Approval {
    #[must_use]
    pub fn consent(&self, call: &CallName, binding: &str, now_ms: i64) -> Consent {
        if matches!(self.state, ApprovalState::Void { .. }) {
            return Consent::Unasked;
        }
        if self.call != *call || self.binding != binding {
            return Consent::OtherCall;
        }
        let given = || Consent::Given { by: self.votes.keys().cloned().collect(), narrowed: self.narrowed.clone() };
        match &self.state {
            ApprovalState::Waiting { until_ms } if *until_ms > now_ms => Consent::Waiting { until_ms: *until_ms },
            ApprovalState::Approved { until_ms } if *until_ms > now_ms => given(),
            ApprovalState::Used { .. } => given(),
            ApprovalState::Denied { by, reason, .. } => Consent::Denied { by: by.clone(), reason: reason.clone() },
            ApprovalState::Waiting { until_ms: since_ms }
            | ApprovalState::Approved { until_ms: since_ms }
            | ApprovalState::Expired { since_ms } => Consent::Expired { since_ms: *since_ms },
            ApprovalState::Void { .. } => Consent::Unasked,
        }
    }

    #[must_use]
    pub fn missing(&self) -> u32 {
        let lacks = |demand: &Demand| {
            let found = self.votes.values().filter(|vote| demand.admits(&vote.roles)).count();
            demand.quorum.saturating_sub(u32::try_from(found).unwrap_or(u32::MAX))
        };
        self.demands.iter().map(lacks).max().unwrap_or(0)
    }
}

impl Demand {
    #[must_use]
    pub fn admits(&self, roles: &BTreeSet<String>) -> bool {
        self.roles.is_empty() || !self.roles.is_disjoint(roles)
    }
}

/// Returns whether people have agreed to the call. If they changed arguments, the worker must check these before it
/// begins the call.
pub fn consent(
    view: &View,
    tenant: &TenantId,
    asks: &UseConsent,
    call: &CallName,
    now_ms: i64,
) -> Result<Consent, Undecided> {
    let stored = view.record::<Approval>(&key(tenant, &asks.id))?;
    Ok(stored.map_or(Consent::Unasked, |stored| stored.value.consent(call, &asks.binding, now_ms)))
}
