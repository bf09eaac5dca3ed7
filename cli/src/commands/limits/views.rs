//! A limit or a cap, and its counters, as they are shown.

use serde::Serialize;
use serde_json::Number;
use tickfleet_model::limit::{LimitMode, OnReach};

/// A limit with its fullest counters.
#[derive(Debug, Serialize)]
pub(super) struct LimitView {
    pub(super) name: String,
    /// What one counter allows, in words; none where this configuration does not know the limit.
    pub(super) allows: Option<String>,
    pub(super) on_reach: Option<OnReach>,
    pub(super) mode: Option<LimitMode>,
    /// True if it counts calls that are out at the same time: its counters are places that calls hold, and have no windows.
    pub(super) is_held: bool,
    /// Counters that it has.
    pub(super) total: u64,
    /// Those that were looked at.
    pub(super) looked_at: u64,
    /// True if these are all: else others may be fuller than what is shown.
    pub(super) complete: bool,
    /// The fullest first.
    pub(super) counters: Vec<CounterView>,
}

/// A counter of a limit.
#[derive(Debug, Serialize)]
pub(super) struct CounterView {
    pub(super) counter: String,
    /// The shard, where each has such a counter of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<u32>,
    /// Calls, or the sum of the argument; of a limit that is not known here, as Redis has it.
    pub(super) used: Number,
    /// Likewise; none where that is not known here.
    pub(super) allowed: Option<Number>,
    /// When the window ends, ms of shard time; none where it has ended.
    pub(super) window_ends_ms: Option<i64>,
    /// Turns that wait for it; none for what others share, who wait on lanes of their own.
    pub(super) waiting: Option<u64>,
    /// Shards in which its share is used up.
    pub(super) full_in: u32,
    /// Shards that it is divided among; 1 where it is not.
    pub(super) shares: u32,
}
