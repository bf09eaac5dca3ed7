//! A task is work delegated to an agent. It ends with one durable terminal record and one reply.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, Context, InboxName, Priority, TaskId, TenantId};

/// The rights that a delegator grants to a task. A delegator cannot grant rights that it lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// Maximum number of calls of all turns of this task together.
    pub budget: u32,
    /// Capabilities of turns under this task. `None` means all capabilities of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The only tools that turns of this task may use, if the agent may call them at all. `None` means all tools of the
    /// agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// The agents above this task in the chain of delegations, outermost first. They are needed to detect cycles and to
    /// check the depth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<AgentId>,
}

#[derive(Debug, Clone)]
pub struct Task {
    /// ID of the task. `None` if the ID is derived from the inbound entry.
    pub id: Option<TaskId>,
    pub tenant: TenantId,
    /// The agent that works on the task.
    pub target: AgentId,
    /// The agent that delegated the task. `None` if no agent delegated it.
    pub delegator: Option<AgentId>,
    pub description: String,
    /// Structured input in addition to the description.
    pub input: Option<Box<serde_json::value::RawValue>>,
    pub priority: Priority,
    /// When the task expires (ms since the epoch). `None` means the default.
    pub deadline_ms: Option<i64>,
    pub reply_to: Option<InboxName>,
    /// The parent task. The budget of this task is taken from the budget of the parent.
    pub parent: Option<TaskId>,
    pub grant: TaskGrant,
    pub context: Context,
}
