//! The result of one poll of a shard.

use super::ended::EndedCall;
use crate::reads::nodes::NodeView;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamView {
    /// The stream's name: `turns`, `tasks`, `ready:normal`…
    pub name: String,
    /// Number of unread entries.
    pub waiting: u64,
    /// Number of entries that a consumer has taken and not acknowledged.
    pub held: u64,
    /// Age of the oldest unread entry.
    pub oldest_waiting_ms: i64,
    /// Age of the oldest entry that a consumer has taken and not acknowledged.
    pub oldest_held_ms: i64,
    /// Number of entries that were ever written.
    pub added: Option<u64>,
}

/// A throttle queue: the turns that wait for an agent's caps, or for a counter of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleQueueView {
    /// The agent's tenant; empty for the counter of a limit, which several tenants may share.
    pub tenant: String,
    /// The agent; empty for the counter of a tenant or limit.
    pub agent: String,
    /// The limit of the counter; `None` for caps of an agent or tenant. The counter's own name is not shown, because it
    /// may be private.
    pub limit: Option<String>,
    /// The first waiting turn, as `tenant:turn`.
    pub first: String,
    pub turns: u64,
    /// Time since the admission of the first turn. `None` if the turn's record is missing.
    pub oldest_ms: Option<i64>,
    /// Time until the next evaluation of the throttle queue. Negative if the evaluation is late.
    pub due_in_ms: i64,
    /// Calls used in the agent's tick, according to the last write to the counter.
    pub tick_used: i64,
    /// Calls used in the agent's day, according to the last write to the counter.
    pub day_used: i64,
}

#[derive(Debug, Clone, Default)]
pub struct ShardView {
    /// Shard time in milliseconds since 1970.
    pub now_ms: i64,
    /// Generation of the policy in force; 0 if no scheduler has ever run.
    pub policy_generation: u64,
    /// True if new work is refused because memory is nearly full.
    pub pressure: bool,
    /// Number of paused tenants and agents.
    pub paused: u64,
    /// The streams, urgent slices first.
    pub streams: Vec<StreamView>,
    /// The nodes of the shard that are alive, or stopped less than five minutes ago.
    pub nodes: Vec<NodeView>,
    /// The throttle queues with turns, as far as they were found.
    pub throttle_queues: Vec<ThrottleQueueView>,
    /// True if `throttle_queues` is complete. It is incomplete until a scan of all timers has ended. The scan takes
    /// several polls, and each poll reads at most 256 queues.
    pub throttle_queues_whole: bool,
    /// Number of timers of throttle queues, running turns and retries.
    pub timers: u64,
    pub timer_late_ms: i64,
    pub dead: u64,
    /// Turns that wait for a retry of a call.
    pub delayed: u64,
    /// Longest wait for a retry.
    pub oldest_delayed_ms: i64,
    /// Number of calls that have ever ended: the number of audit entries ever added, minus the operators' entries that
    /// this watch has read. `None` without an audit log.
    pub calls: Option<u64>,
    /// The newest calls that ended since the last poll: at most 200.
    pub ended: Vec<EndedCall>,
}
