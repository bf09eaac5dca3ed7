//! A task: work delegated to an agent. It ends with one durable terminal record and one reply.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, Context, InboxName, Priority, TaskId, TenantId};

/// The grant of a delegator: never more than the delegator has itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// Calls that all turns under this task may make together.
    pub budget: u32,
    /// Capabilities that turns under this task keep; `None` means all that the agent has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The only tools that turns under this task may use, as far as the agent may call them; `None` means all of
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// The agents above this task, outermost first: input of the cycle and depth checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<AgentId>,
}

/// A validated task.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its ID; `None` if it is derived from the inbound entry.
    pub id: Option<TaskId>,
    /// The tenant of the task.
    pub tenant: TenantId,
    /// The agent that works on it.
    pub target: AgentId,
    /// The agent that delegated it, if any.
    pub delegator: Option<AgentId>,
    /// The work, in words.
    pub description: String,
    /// Structured input in addition to the words.
    pub input: Option<Box<serde_json::value::RawValue>>,
    /// The priority: how urgent it is.
    pub priority: Priority,
    /// When it expires, ms since the epoch; `None` means the default.
    pub deadline_ms: Option<i64>,
    /// The inbox that receives the reply.
    pub reply_to: Option<InboxName>,
    /// The task that this one was delegated from. Its budget is reduced by this task's.
    pub parent: Option<TaskId>,
    /// The grant for turns under it.
    pub grant: TaskGrant,
    /// The context that handlers receive.
    pub context: Context,
}
