//! The displayed form of a limit or cap, and of its counters.

use serde::Serialize;
use serde_json::Number;
use tickfleet_model::limit::{LimitMode, OnReach};

#[derive(Debug, Serialize)]
pub(super) struct LimitView {
    pub(super) name: String,
    /// The maximum of one counter, in words; `None` if this configuration does not have the limit.
    pub(super) allows: Option<String>,
    pub(super) on_reach: Option<OnReach>,
    pub(super) mode: Option<LimitMode>,
    /// True if the limit bounds concurrent calls. Its counters then count slots in use and have no windows.
    pub(super) is_held: bool,
    pub(super) total: u64,
    pub(super) counters_read: u64,
    /// True if all counters were read. If false, other counters can be fuller than those shown.
    pub(super) complete: bool,
    /// The counters to show, the fullest first.
    pub(super) counters: Vec<CounterView>,
}

#[derive(Debug, Serialize)]
pub(super) struct CounterView {
    pub(super) counter: String,
    /// The shard of the counter, if each shard has a separate counter with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<u32>,
    /// Used calls, or the sum of the argument. If this configuration does not have the limit, the raw number in Redis.
    pub(super) used: Number,
    /// The maximum in the same unit; `None` if it is unknown in this configuration.
    pub(super) allowed: Option<Number>,
    /// When the window ends, in milliseconds of shard time. `None` if the window has ended.
    pub(super) window_ends_ms: Option<i64>,
    /// Number of turns that wait for the counter. `None` for the shared counter, because turns that wait for the shared
    /// counter are in other queues.
    pub(super) waiting: Option<u64>,
    /// Number of shards whose share of the maximum is used up.
    pub(super) full_in: u32,
    /// Number of shards among which the maximum is divided; 1 if it is not divided.
    pub(super) shares: u32,
}
