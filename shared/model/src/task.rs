//! Work that is delegated to an agent.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, Context, InboxName, Priority, TaskId, TenantId};

/// A delegator cannot grant rights that it lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// Number of calls of all turns together.
    pub budget: u32,
    /// `None` means all capabilities of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// Only these tools may be used, and only if the agent may call them. `None` means all tools of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// The delegating agents above this task, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<AgentId>,
}

#[derive(Debug, Clone)]
pub struct Task {
    /// `None` if the ID is derived from the inbound entry.
    pub id: Option<TaskId>,
    pub tenant: TenantId,
    pub target: AgentId,
    pub delegator: Option<AgentId>,
    pub description: String,
    pub input: Option<Box<serde_json::value::RawValue>>,
    pub priority: Priority,
    /// Since the epoch. `None` means the default.
    pub deadline_ms: Option<i64>,
    pub reply_to: Option<InboxName>,
    /// This task's budget is taken from the parent's budget.
    pub parent: Option<TaskId>,
    pub grant: TaskGrant,
    pub context: Context,
}
