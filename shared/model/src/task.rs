//! A task: work delegated to an agent. It ends in one durable terminal record and one reply.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AgentId, Context, InboxName, Priority, TaskId, TenantId};

/// The grant of a delegator: never more than it has itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// Calls that turns under this task may make, all together.
    pub budget: u32,
    /// Capabilities that turns under this task keep; none means all that the agent has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The only tools that turns under this task may use, of those that the agent may call; none means all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// The agents above this task, outermost first: the cycle and depth check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<AgentId>,
}

/// A validated task.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its id; none where it is minted from the inbound entry.
    pub id: Option<TaskId>,
    /// Whose task.
    pub tenant: TenantId,
    /// The agent that is to do it.
    pub target: AgentId,
    /// The agent that asked for it, if one did.
    pub delegator: Option<AgentId>,
    /// The work, in words.
    pub description: String,
    /// Structured input beside the words.
    pub input: Option<Box<serde_json::value::RawValue>>,
    /// The priority: how urgent it is.
    pub priority: Priority,
    /// When it expires, ms since the epoch; none means the default.
    pub deadline_ms: Option<i64>,
    /// The inbox that the reply goes to.
    pub reply_to: Option<InboxName>,
    /// The task that this one was delegated from, whose budget is carved.
    pub parent: Option<TaskId>,
    /// The grant for turns under it.
    pub grant: TaskGrant,
    /// The context that handlers see.
    pub context: Context,
}
