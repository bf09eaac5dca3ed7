//! A turn is one response of a model: an ordered list of tool calls by one agent.

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
    /// Workers read the streams in this order.
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
    /// Accepts any order and duplicates. `None` if the list is empty.
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

/// The model wrote this call, so no part of the call is trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The result returns this ID unchanged. The ID may not be unique.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    #[serde(rename = "t")]
    pub tool: String,
    /// Unparsed: the text is parsed within bounds when the call runs.
    #[serde(rename = "a")]
    pub arguments: String,
}

/// All bounds and IDs are checked. The permissions of each call are checked later.
#[derive(Debug, Clone)]
pub struct Turn {
    /// `None` if the ID is derived from the inbound entry.
    pub id: Option<TurnId>,
    pub tenant: TenantId,
    pub agent: AgentId,
    pub priority: Priority,
    /// Since the epoch. `None` means the default.
    pub deadline_ms: Option<i64>,
    pub reply_to: Option<InboxName>,
    pub dialect: Dialect,
    /// The turn's calls also debit the budget of this task.
    pub task: Option<TaskId>,
    pub context: Context,
    /// If true, the reply must contain `tool_call_audits`.
    pub want_audits: bool,
    /// True if the model got strict tool definitions. A null that the tool's schema does not allow then means an
    /// omitted argument.
    pub strict: bool,
    /// An additional restriction. `None` means all tools of the agent.
    pub allowed_tools: Option<BTreeSet<String>>,
    pub parallel_reads: bool,
    /// If true, the inbox receives a message as soon as a call waits for approval.
    pub pending_approval: bool,
    pub local_calls: bool,
    /// In order. Only a turn in [`Dialect::Text`] can have no calls.
    pub calls: Vec<Call>,
}
