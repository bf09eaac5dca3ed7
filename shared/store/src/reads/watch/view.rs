//! The view that one look at a shard gives.

use super::ended::EndedCall;
use crate::reads::nodes::NodeView;

/// The entries that wait on a stream, and who holds what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamView {
    /// `turns`, `tasks`, `ready:normal`…
    pub name: String,
    /// Entries that nobody has read.
    pub waiting: u64,
    /// Entries that a consumer holds.
    pub held: u64,
    /// Age of the oldest that nobody has read, ms.
    pub oldest_waiting_ms: i64,
    /// Age of the oldest that is held, ms.
    pub oldest_held_ms: i64,
    /// Number of entries that were ever written.
    pub added: Option<u64>,
}

/// An agent, or a counter of a limit, with turns that wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneView {
    /// Whose agent; empty for a counter, which may be many tenants'.
    pub tenant: String,
    /// The agent; empty for a counter.
    pub agent: String,
    /// The limit, where it is a counter's lane. Which counter is not told: it may be private.
    pub limit: Option<String>,
    /// The turn that stands first, `tenant:turn`.
    pub first: String,
    /// Turns on its lane.
    pub turns: u64,
    /// The time since the first of them was admitted, ms; none if its record is gone.
    pub oldest_ms: Option<i64>,
    /// When the lane is looked at next, ms from now; negative where that is late.
    pub due_in_ms: i64,
    /// Calls used in the agent's tick, as last written.
    pub tick_used: i64,
    /// Calls used in the agent's day, as last written.
    pub day_used: i64,
}

/// One look at a shard.
#[derive(Debug, Clone, Default)]
pub struct ShardView {
    /// Shard time, ms since the epoch.
    pub now_ms: i64,
    /// Generation of the policy in force; 0 where no scheduler ever ran.
    pub policy_generation: u64,
    /// True if new work is refused because memory is nearly full.
    pub pressure: bool,
    /// Tenants and agents that are paused.
    pub paused: u64,
    /// The streams, those of urgent slices first.
    pub streams: Vec<StreamView>,
    /// The nodes that work here, or have been gone for less than five minutes.
    pub nodes: Vec<NodeView>,
    /// Agents whose turns wait, as far as they are known yet.
    pub lanes: Vec<LaneView>,
    /// True if these are all: a sweep over all timers takes several looks, and at most 256 lanes are asked about.
    pub lanes_whole: bool,
    /// Lanes, turns under way, retries: whatever has a timer.
    pub timers: u64,
    /// By how much the earliest timer is late, ms.
    pub timer_late_ms: i64,
    /// Entries of the dead stream.
    pub dead: u64,
    /// Turns that wait for another try of a call.
    pub delayed: u64,
    /// The time for which the one of them waits that waits the longest, ms.
    pub oldest_delayed_ms: i64,
    /// Calls that have ever ended: audit entries, but for those that were seen to be of operators; none where there is no
    /// audit log.
    pub calls: Option<u64>,
    /// The newest calls that ended since the last look, at most 200.
    pub ended: Vec<EndedCall>,
}
