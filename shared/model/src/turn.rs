//! A turn: one response of a model, with an ordered list of tool calls by one agent.

mod context;
mod dialect;
pub mod inner;
pub mod loops;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, InboxName, TaskId, TenantId, TurnId};

pub use context::Context;
pub use dialect::Dialect;

/// Each priority has its own `ready` stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    Urgent,
    High,
    #[default]
    Normal,
    /// Served only if no other work waits. A guard prevents starvation.
    Low,
}

impl Priority {
    /// Most urgent first. Workers read the streams in this order.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.as_str() == text)
    }
}

/// At least one, most urgent first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priorities(Vec<Priority>);

impl Priorities {
    /// Accepts any order and ignores duplicates. `None` if the list is empty.
    #[must_use]
    pub fn new(priorities: impl IntoIterator<Item = Priority>) -> Option<Self> {
        let mut served: Vec<Priority> = priorities.into_iter().collect();
        served.sort_unstable();
        served.dedup();
        (!served.is_empty()).then_some(Self(served))
    }

    #[must_use]
    pub fn as_slice(&self) -> &[Priority] {
        &self.0
    }
}

impl Default for Priorities {
    fn default() -> Self {
        Self(Priority::ALL.into())
    }
}

/// A call as the model wrote it. No part of the call is trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The result returns this ID unchanged. It may not be unique.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    #[serde(rename = "t")]
    pub tool: String,
    /// Unparsed. When the call runs, the text is parsed within bounds.
    #[serde(rename = "a")]
    pub arguments: String,
}

/// A validated turn: it is within all bounds, and its IDs are well-formed. The permissions of each call are checked
/// later.
#[derive(Debug, Clone)]
pub struct Turn {
    /// `None` if the ID is derived from the inbound entry.
    pub id: Option<TurnId>,
    pub tenant: TenantId,
    pub agent: AgentId,
    pub priority: Priority,
    /// Since the epoch. `None` means the default.
    pub deadline_ms: Option<i64>,
    /// `None` if the producer wants no reply.
    pub reply_to: Option<InboxName>,
    pub dialect: Dialect,
    /// The turn's calls also debit the budget of this task.
    pub task: Option<TaskId>,
    pub context: Context,
    /// True if the reply must contain `tool_call_audits`.
    pub want_audits: bool,
    /// True if the model got strict definitions of the tools. Then a null that a tool's schema does not allow means
    /// that the argument is omitted.
    pub strict: bool,
    /// Restricts the turn in addition to the agent's own restrictions. `None` means all tools of the agent.
    pub allowed_tools: Option<BTreeSet<String>>,
    /// True if consecutive calls of `read` tools may run at the same time.
    pub parallel_reads: bool,
    /// True if the turn's inbox receives a message as soon as a call waits for approval.
    pub pending_approval: bool,
    /// True if the producer runs the calls of local tools in its own process.
    pub local_calls: bool,
    /// In order. Only a turn in [`Dialect::Text`] can have no calls, because an answer in plain text may need no
    /// tool.
    pub calls: Vec<Call>,
}
