//! The result of one poll of a shard.

use super::ended::EndedCall;
use crate::reads::nodes::NodeView;

/// The waiting and held entries of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamView {
    /// `turns`, `tasks`, `ready:normal`…
    pub name: String,
    /// Number of unread entries.
    pub waiting: u64,
    /// Number of entries that a consumer holds.
    pub held: u64,
    /// Age of the oldest unread entry, ms.
    pub oldest_waiting_ms: i64,
    /// Age of the oldest held entry, ms.
    pub oldest_held_ms: i64,
    /// Number of entries that were ever written.
    pub added: Option<u64>,
}

/// An agent or a counter of a limit, with turns that wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleQueueView {
    /// The agent's tenant; empty for a counter, which several tenants may share.
    pub tenant: String,
    /// The agent; empty for a counter of a tenant or limit.
    pub agent: String,
    /// The limit of the counter; `None` for caps of an agent or tenant. The counter itself is not shown: it may be
    /// private.
    pub limit: Option<String>,
    /// The first waiting turn, `tenant:turn`.
    pub first: String,
    /// Number of turns in the throttle queue.
    pub turns: u64,
    /// Time since the admission of the first turn, ms; `None` if its record is missing.
    pub oldest_ms: Option<i64>,
    /// Time until the next evaluation of the throttle queue, ms; negative if it is late.
    pub due_in_ms: i64,
    /// Calls used in the agent's tick, as last written.
    pub tick_used: i64,
    /// Calls used in the agent's day, as last written.
    pub day_used: i64,
}

/// One poll of a shard.
#[derive(Debug, Clone, Default)]
pub struct ShardView {
    /// Shard time, ms since the epoch.
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
    /// Agents and counters with waiting turns, as far as they are known yet.
    pub throttle_queues: Vec<ThrottleQueueView>,
    /// True if these are all: a scan of all timers takes several polls, and a poll reads at most 256 throttle queues.
    pub throttle_queues_whole: bool,
    /// Number of timers: throttle queues, turns under way, retries.
    pub timers: u64,
    /// Lateness of the earliest timer, ms.
    pub timer_late_ms: i64,
    /// Entries of the dead stream.
    pub dead: u64,
    /// Turns that wait for a retry of a call.
    pub delayed: u64,
    /// Longest wait for a retry, ms.
    pub oldest_delayed_ms: i64,
    /// Number of calls that have ever ended: audit entries, except known entries of operators. `None`
    /// without an audit log.
    pub calls: Option<u64>,
    /// The newest calls that ended since the last poll, at most 200.
    pub ended: Vec<EndedCall>,
}
