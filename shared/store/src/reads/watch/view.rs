//! The result of one poll of a shard.

use super::ended::EndedCall;
use crate::reads::nodes::NodeView;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamView {
    /// `turns`, `tasks`, `ready:normal`…
    pub name: String,
    pub waiting: u64,
    /// Taken, but not acknowledged.
    pub held: u64,
    pub oldest_waiting_ms: i64,
    pub oldest_held_ms: i64,
    /// Entries that were ever written.
    pub added: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleQueueView {
    /// Empty for the counter of a limit, because several tenants may share it.
    pub tenant: String,
    pub agent: String,
    /// `None` for caps of an agent or tenant. The counter's name is not shown, because it may be private.
    pub limit: Option<String>,
    /// `tenant:turn`.
    pub first: String,
    pub turns: u64,
    /// Since the admission of the first turn; `None` if its record is missing.
    pub oldest_ms: Option<i64>,
    /// Negative if the next evaluation of the queue is late.
    pub due_in_ms: i64,
    /// Calls, by the last write to the counter.
    pub tick_used: i64,
    /// Calls, by the last write to the counter.
    pub day_used: i64,
}

#[derive(Debug, Clone, Default)]
pub struct ShardView {
    pub now_ms: i64,
    pub policy_generation: u64,
    pub pressure: bool,
    pub paused: u64,
    pub streams: Vec<StreamView>,
    /// Nodes that are alive, or that stopped less than five minutes ago.
    pub nodes: Vec<NodeView>,
    pub throttle_queues: Vec<ThrottleQueueView>,
    /// False until a scan of all timers has ended, which takes several polls.
    pub throttle_queues_whole: bool,
    pub timers: u64,
    pub timer_late_ms: i64,
    pub dead: u64,
    pub delayed: u64,
    pub oldest_delayed_ms: i64,
    /// Also counts operators' entries that were not read. `None` without an audit log.
    pub calls: Option<u64>,
    /// The newest first; at most 200 since the last poll.
    pub ended: Vec<EndedCall>,
}
