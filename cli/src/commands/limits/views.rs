//! A limit or cap, and its counters, as they are shown.

use serde::Serialize;
use serde_json::Number;
use tickfleet_model::limit::{LimitMode, OnReach};

/// A limit with its fullest counters.
#[derive(Debug, Serialize)]
pub(super) struct LimitView {
    pub(super) name: String,
    /// The maximum of one counter, in words; `None` if this configuration does not have the limit.
    pub(super) allows: Option<String>,
    pub(super) on_reach: Option<OnReach>,
    pub(super) mode: Option<LimitMode>,
    /// True if it limits concurrent calls: its counters count slots in use and have no windows.
    pub(super) is_held: bool,
    /// Number of its counters.
    pub(super) total: u64,
    /// Number of counters that were read.
    pub(super) looked_at: u64,
    /// True if all counters were read. Otherwise others may be fuller than those shown.
    pub(super) complete: bool,
    /// The fullest first.
    pub(super) counters: Vec<CounterView>,
}

/// A counter of a limit.
#[derive(Debug, Serialize)]
pub(super) struct CounterView {
    pub(super) counter: String,
    /// The shard, if each shard has a separate counter of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<u32>,
    /// Calls, or the sum of the argument. If this configuration does not have the limit, the raw number in Redis.
    pub(super) used: Number,
    /// In the same unit; `None` if unknown here.
    pub(super) allowed: Option<Number>,
    /// When the window ends, ms of shard time; `None` if it has ended.
    pub(super) window_ends_ms: Option<i64>,
    /// Turns that wait for it; `None` for the shared counter, whose turns wait in queues of their own.
    pub(super) waiting: Option<u64>,
    /// Shards in which its share is used up.
    pub(super) full_in: u32,
    /// Number of shards among which it is divided; 1 if it is not divided.
    pub(super) shares: u32,
}
