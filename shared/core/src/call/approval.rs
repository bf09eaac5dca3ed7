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
//! If a call ends without using its approval, an `Approved` approval stays as it is, and a `Waiting` approval becomes
//! void.
//!
//! A digest of the complete call binds an approval to its call. So no call can use a consent to a different call. The
//! call uses its consent once, in the transaction that begins it.

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

/// Time for which an ended approval is kept, ms.
pub const KEPT_MS: i64 = 604_800_000;
/// The name of the part with the exact arguments. The part exists while people may decide.
pub const EXACT: &str = "exact";

/// The record of an approval.
#[must_use]
pub fn key(tenant: &TenantId, id: &str) -> RecordKey {
    RecordKey::new(format!("approval:{tenant}:{id}"))
}

/// All waiting approvals of a shard, as `<tenant>:<id>`. A place is the time of the request, ms.
#[must_use]
pub fn waiting() -> SetKey {
    SetKey::new("asked")
}

/// The waiting approvals of a tenant, by ID. A place is the deadline of the decision, ms.
#[must_use]
pub fn waiting_of(tenant: &TenantId) -> SetKey {
    SetKey::new(format!("asked:{tenant}"))
}

/// The waiting approvals of an agent's calls, by ID. A place is the deadline of the decision, ms.
#[must_use]
pub fn waiting_of_agent(tenant: &TenantId, agent: &AgentId) -> SetKey {
    SetKey::new(format!("asked:{tenant}:{agent}"))
}

/// The event log that notifiers read.
#[must_use]
pub fn events(tenant: &TenantId) -> StreamKey {
    StreamKey::new(format!("approvals:{tenant}"))
}

/// The record: the call, the demands, and the decisions of people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The call.
    #[serde(rename = "c")]
    pub call: CallName,
    /// Digest of the complete call.
    #[serde(rename = "b")]
    pub binding: String,
    /// The agent that makes the call.
    #[serde(rename = "ag")]
    pub agent: AgentId,
    /// The call as shown to people.
    #[serde(rename = "sh")]
    pub shown: Shown,
    /// The demands. All of them have to be met.
    #[serde(rename = "de")]
    pub demands: Vec<Demand>,
    /// Time within which people may decide, ms. A consent is valid for the same time. Absent if both last until the
    /// turn's deadline.
    #[serde(rename = "ex", default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// Changes of the arguments by an approver, JSON: pointer to value.
    #[serde(rename = "na", default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<String>,
    /// Time of the request, ms.
    #[serde(rename = "t")]
    pub asked_ms: i64,
    /// The people who agreed to these arguments.
    #[serde(rename = "v", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub votes: BTreeMap<String, Vote>,
    /// The state.
    #[serde(rename = "s")]
    pub state: ApprovalState,
}

/// A call as shown to people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The tool.
    #[serde(rename = "to")]
    pub tool: String,
    /// The tool's version.
    #[serde(rename = "tv")]
    pub version: String,
    /// The arguments without secrets, shortened to a maximum length, JSON.
    #[serde(rename = "ar")]
    pub arguments: String,
    /// True if `arguments` differs from the exact arguments, which are in the part [`EXACT`].
    #[serde(rename = "ab", default, skip_serializing_if = "std::ops::Not::not")]
    pub abridged: bool,
    /// Bytes of the exact arguments.
    #[serde(rename = "by")]
    pub bytes: usize,
    /// The rules that require consent, JSON.
    #[serde(rename = "why")]
    pub why: String,
    /// The arguments that may be changed, by JSON pointer.
    #[serde(rename = "mn", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub may_narrow: BTreeSet<String>,
}

/// A number of people who have to agree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Demand {
    /// The number of people.
    #[serde(rename = "q")]
    pub quorum: u32,
    /// Each person needs one of these roles. Empty if any person counts.
    #[serde(rename = "r", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
}

/// A person's consent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// Time of the consent, ms.
    #[serde(rename = "t")]
    pub at_ms: i64,
    /// The person's roles at that time.
    #[serde(rename = "r")]
    pub roles: BTreeSet<String>,
    /// The reason.
    #[serde(rename = "w")]
    pub reason: String,
}

/// The state of an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "s", rename_all = "snake_case")]
pub enum ApprovalState {
    /// People may decide.
    Waiting {
        /// Deadline of the decision, ms.
        until_ms: i64,
    },
    /// All demands are met; the call has not begun.
    Approved {
        /// Time until which the consent is valid, ms.
        until_ms: i64,
    },
    /// The call has begun with the consent.
    Used {
        /// Time of the begin, ms.
        at_ms: i64,
    },
    /// A person denied the call.
    Denied {
        /// Time of the denial, ms.
        at_ms: i64,
        /// The person.
        by: String,
        /// The reason.
        reason: String,
    },
    /// The approval expired.
    Expired {
        /// Time of the expiry, ms.
        since_ms: i64,
    },
    /// The call has ended or changed.
    Void {
        /// Time of the end or change, ms.
        at_ms: i64,
    },
}

impl ApprovalState {
    /// The word for people, events and metrics.
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

    /// Time until which people may decide, or until which their consent is valid, ms. `None` if the approval has ended.
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

/// The decision of people about a call, as seen by the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consent {
    /// People were not asked about this exact call.
    Unasked,
    /// People may still decide.
    Waiting {
        /// Deadline of the decision, ms.
        until_ms: i64,
    },
    /// People agreed.
    Given {
        /// The names of the people.
        by: Vec<String>,
        /// Changes of the arguments by approvers, JSON: pointer to value.
        narrowed: Option<String>,
    },
    /// A person denied the call.
    Denied {
        /// The person.
        by: String,
        /// The reason.
        reason: String,
    },
    /// People did not agree in time, or the call did not begin in time.
    Expired {
        /// Time of the expiry, ms.
        since_ms: i64,
    },
    /// The approval with this ID belongs to another call.
    OtherCall,
}

impl Approval {
    /// The decision of people about `call`.
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

    /// The number of people who still have to agree. This is the maximum over all demands of the people that the demand
    /// lacks.
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
    /// True if a person with these roles counts for the demand.
    #[must_use]
    pub fn admits(&self, roles: &BTreeSet<String>) -> bool {
        self.roles.is_empty() || !self.roles.is_disjoint(roles)
    }
}

/// The decision of people about a call, as seen by the call. A worker reads this decision before it checks the call
/// with the changed arguments.
///
/// # Errors
/// [`Undecided`]: the record has to be read.
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
