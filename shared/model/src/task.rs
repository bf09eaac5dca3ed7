//! A task is work delegated to an agent. It ends with one durable terminal record and one reply.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, Context, InboxName, Priority, TaskId, TenantId};

/// The rights that a task gets. A delegator cannot grant rights that it lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// Number of calls of all turns of this task together.
    pub budget: u32,
    /// `None` means all capabilities of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The only tools that turns of this task may use. Does not allow tools that the agent may not call. `None` means
    /// all tools of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// The agents above this task in the chain of delegations, outermost first. Used to detect cycles and to check
    /// the depth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<AgentId>,
}

#[derive(Debug, Clone)]
pub struct Task {
    /// `None` if the ID is derived from the inbound entry.
    pub id: Option<TaskId>,
    pub tenant: TenantId,
    pub target: AgentId,
    /// `None` if no agent delegated the task.
    pub delegator: Option<AgentId>,
    pub description: String,
    pub input: Option<Box<serde_json::value::RawValue>>,
    pub priority: Priority,
    /// Since the epoch. `None` means the default.
    pub deadline_ms: Option<i64>,
    pub reply_to: Option<InboxName>,
    /// The budget of this task is taken from the budget of the parent.
    pub parent: Option<TaskId>,
    pub grant: TaskGrant,
    pub context: Context,
}
