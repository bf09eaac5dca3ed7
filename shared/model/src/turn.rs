//! A turn: one model response, an ordered list of tool calls by one agent.

mod context;
mod dialect;
pub mod inner;
pub mod loops;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, InboxName, TaskId, TenantId, TurnId};

pub use context::Context;
pub use dialect::Dialect;

/// The priority of a slice: which of the four `ready` streams it waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Before everything else.
    Urgent,
    /// Before normal work.
    High,
    /// The default.
    #[default]
    Normal,
    /// Only if nothing else waits. A guard prevents starvation.
    Low,
}

impl Priority {
    /// All priorities, most urgent first: the order in which workers read.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    /// The word used in keys and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// The priority with this word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.as_str() == text)
    }
}

/// The priorities that a worker serves: at least one, most urgent first. The default is all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priorities(Vec<Priority>);

impl Priorities {
    /// These priorities, in any order; duplicates are ignored. `None` if the list is empty.
    #[must_use]
    pub fn new(priorities: impl IntoIterator<Item = Priority>) -> Option<Self> {
        let mut served: Vec<Priority> = priorities.into_iter().collect();
        served.sort_unstable();
        served.dedup();
        (!served.is_empty()).then_some(Self(served))
    }

    /// Most urgent first.
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

/// One tool call as the agent made it. Nothing in it is trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The provider's ID of the call: echoed unchanged, never trusted to be unique.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The tool's name as the model wrote it.
    #[serde(rename = "t")]
    pub tool: String,
    /// The arguments as text. They are parsed, within bounds, only when the call runs.
    #[serde(rename = "a")]
    pub arguments: String,
}

/// A validated turn: within all bounds, every ID well-formed. Permissions are checked later, call by call.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The producer's ID; `None` if it gave none, and one is derived from the inbound entry.
    pub id: Option<TurnId>,
    /// The tenant of the turn.
    pub tenant: TenantId,
    /// The agent that makes the calls.
    pub agent: AgentId,
    /// The priority: how urgent it is.
    pub priority: Priority,
    /// When the turn expires, ms since the epoch; `None` means the default.
    pub deadline_ms: Option<i64>,
    /// The inbox that receives the reply; `None` for no reply.
    pub reply_to: Option<InboxName>,
    /// The dialect of the calls.
    pub dialect: Dialect,
    /// The task that the turn is made for. Its budget is debited too.
    pub task: Option<TaskId>,
    /// The context that handlers receive besides the arguments.
    pub context: Context,
    /// True if the reply carries `tool_call_audits`.
    pub want_audits: bool,
    /// True if the model was shown strict definitions: a null that the schema does not allow means that the argument
    /// is left out.
    pub strict: bool,
    /// The only tools that this turn may use, as far as the agent may call them; `None` means all of them.
    pub allowed_tools: Option<BTreeSet<String>>,
    /// True if consecutive calls of `read` tools may run at the same time.
    pub parallel_reads: bool,
    /// True if its inbox receives a message when one of its calls waits for approval.
    pub pending_approval: bool,
    /// The calls, in order. Never empty, except for [`Dialect::Text`]: an answer in text may need no tool.
    pub calls: Vec<Call>,
}
