//! The result of one poll of a shard.

use super::ended::EndedCall;
use crate::reads::nodes::NodeView;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamView {
    /// `turns`, `tasks`, `ready:normal`…
    pub name: String,
    pub waiting: u64,
    /// Entries that a consumer has taken and not acknowledged.
    pub held: u64,
    pub oldest_waiting_ms: i64,
    pub oldest_held_ms: i64,
    /// Entries that were ever written.
    pub added: Option<u64>,
}

/// The turns that wait for an agent's caps, or for a counter of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleQueueView {
    /// Empty for the counter of a limit, which several tenants may share.
    pub tenant: String,
    /// Empty for the counter of a tenant or limit.
    pub agent: String,
    /// `None` for caps of an agent or tenant. The counter's own name is not shown, because it may be private.
    pub limit: Option<String>,
    /// `tenant:turn`.
    pub first: String,
    pub turns: u64,
    /// Time since the admission of the first turn; `None` if its record is missing.
    pub oldest_ms: Option<i64>,
    /// Negative if the next evaluation of the queue is late.
    pub due_in_ms: i64,
    /// Calls, according to the last write to the counter.
    pub tick_used: i64,
    /// Calls, according to the last write to the counter.
    pub day_used: i64,
}

#[derive(Debug, Clone, Default)]
pub struct ShardView {
    pub now_ms: i64,
    /// The policy in force; 0 if no scheduler has ever run.
    pub policy_generation: u64,
    /// True if memory is nearly full, so that new work is refused.
    pub pressure: bool,
    pub paused: u64,
    /// Urgent slices first.
    pub streams: Vec<StreamView>,
    /// Alive, or stopped less than five minutes ago.
    pub nodes: Vec<NodeView>,
    /// The throttle queues that were found so far.
    pub throttle_queues: Vec<ThrottleQueueView>,
    /// False until a scan of all timers has ended. The scan takes several polls, and each poll reads at most 256
    /// queues.
    pub throttle_queues_whole: bool,
    /// Timers of throttle queues, running turns and retries.
    pub timers: u64,
    pub timer_late_ms: i64,
    pub dead: u64,
    /// Turns that wait for a retry of a call.
    pub delayed: u64,
    pub oldest_delayed_ms: i64,
    /// Calls that have ever ended: all audit entries, minus the operators' entries that this watch has read. `None`
    /// without an audit log.
    pub calls: Option<u64>,
    /// At most 200 calls that ended since the last poll, the newest first.
    pub ended: Vec<EndedCall>,
}
