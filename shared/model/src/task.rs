//! A task: work delegated to an agent. It ends with one durable terminal record and one reply.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, Context, InboxName, Priority, TaskId, TenantId};

/// The grant of a delegator to a task. A delegator cannot grant more than it has itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// Maximum number of calls that all turns of this task may make together.
    pub budget: u32,
    /// Capabilities that turns of this task may use; `None` means all capabilities of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The only tools that turns of this task may use, if the agent may call them; `None` means all tools of the
    /// agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// The agents above this task in the chain of delegations, outermost first. The checks for cycles and depth use
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<AgentId>,
}

/// A validated task.
#[derive(Debug, Clone)]
pub struct Task {
    /// The task's ID; `None` if the ID is derived from the inbound entry.
    pub id: Option<TaskId>,
    /// The tenant of the task.
    pub tenant: TenantId,
    /// The agent that works on the task.
    pub target: AgentId,
    /// The agent that delegated it, if any.
    pub delegator: Option<AgentId>,
    /// The work, as text.
    pub description: String,
    /// Structured input in addition to the text.
    pub input: Option<Box<serde_json::value::RawValue>>,
    /// The priority: how urgent it is.
    pub priority: Priority,
    /// When the task expires, ms since the epoch; `None` means the default.
    pub deadline_ms: Option<i64>,
    /// The inbox that receives the reply.
    pub reply_to: Option<InboxName>,
    /// The task from which this task was delegated. This task's budget is taken from the parent's budget.
    pub parent: Option<TaskId>,
    /// The grant for turns of this task.
    pub grant: TaskGrant,
    /// The context that handlers receive.
    pub context: Context,
}
