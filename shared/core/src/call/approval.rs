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
//! void.
//!
//! A digest of the complete call binds an approval to its call. So no call can use a consent that was given to a
//! different call. The call uses its consent once, in the transaction that begins the call.

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

/// How long an ended approval is kept: 7 days, in milliseconds.
pub const KEPT_MS: i64 = 604_800_000;
/// The name of the part with the exact arguments. The part is deleted when the approval or its call ends.
pub const EXACT: &str = "exact";

#[must_use]
pub fn key(tenant: &TenantId, id: &str) -> RecordKey {
    RecordKey::new(format!("approval:{tenant}:{id}"))
}

/// All waiting approvals of a shard. A member is `<tenant>:<id>`, and its score is the time of the request in
/// milliseconds.
#[must_use]
pub fn waiting() -> SetKey {
    SetKey::new("asked")
}

/// The waiting approvals of a tenant. A member is an approval's ID, and its score is the deadline of the decision in
/// milliseconds.
#[must_use]
pub fn waiting_of(tenant: &TenantId) -> SetKey {
    SetKey::new(format!("asked:{tenant}"))
}

/// The waiting approvals of an agent, in the same form.
#[must_use]
pub fn waiting_of_agent(tenant: &TenantId, agent: &AgentId) -> SetKey {
    SetKey::new(format!("asked:{tenant}:{agent}"))
}

/// The log of the events of a tenant's approvals. Notifiers read this log.
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
    /// The call is approved once all demands are met.
    #[serde(rename = "de")]
    pub demands: Vec<Demand>,
    /// How long people may decide, and how long their consent is valid (ms). If absent, both end at the turn's
    /// deadline.
    #[serde(rename = "ex", default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// Changes of the arguments by approvers: a JSON object that maps JSON pointers to new values.
    #[serde(rename = "na", default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<String>,
    #[serde(rename = "t")]
    pub requested_ms: i64,
    /// Votes for these arguments, by the person's name.
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
    /// The arguments as JSON, without secrets, shortened to a maximum length.
    #[serde(rename = "ar")]
    pub arguments: String,
    /// True if `arguments` differs from the exact arguments, which are in the part [`EXACT`].
    #[serde(rename = "ab", default, skip_serializing_if = "std::ops::Not::not")]
    pub abridged: bool,
    #[serde(rename = "by")]
    pub bytes: usize,
    /// The rules that require consent, as JSON.
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
    /// Only people with one of these roles may vote. If empty, any person may vote.
    #[serde(rename = "r", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    #[serde(rename = "t")]
    pub at_ms: i64,
    /// At the time of the vote.
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
    /// Returns the word shown to people, in events and in metrics.
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

    /// Returns the time (ms) until which people may decide, or until which their consent is valid. Returns `None` if
    /// the approval has ended.
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
    /// People were not asked about this exact call.
    Unasked,
    Waiting {
        until_ms: i64,
    },
    Given {
        by: Vec<String>,
        /// Changes of the arguments by approvers: a JSON object that maps JSON pointers to new values.
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

    /// Returns the number of people who still have to agree: the largest number of missing votes over all demands.
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

/// Returns the consent to a call. Before a worker begins the call, it reads the consent, and checks the call with the
/// changed arguments.
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
