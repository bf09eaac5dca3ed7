//! The displayed form of limits, caps and counters.

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
    /// False if not all counters were read. Unread counters can be fuller than those shown.
    pub(super) complete: bool,
    pub(super) counters: Vec<CounterView>,
}

#[derive(Debug, Serialize)]
pub(super) struct CounterView {
    pub(super) counter: String,
    /// Set if each shard has a separate counter with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<u32>,
    /// Calls, or the sum of the argument. Without a definition of the limit, this is the raw number in Redis.
    pub(super) used: Number,
    /// In the unit of `used`; `None` if this configuration does not have the limit.
    pub(super) allowed: Option<Number>,
    /// In shard time. `None` if the window has ended.
    pub(super) window_ends_ms: Option<i64>,
    /// `None` for the shared counter, because turns that wait for it are in other queues.
    pub(super) waiting: Option<u64>,
    /// Shards with a used-up share of the maximum.
    pub(super) full_in: u32,
    /// The maximum is divided among this many shards; 1 if it is not divided.
    pub(super) shares: u32,
}
