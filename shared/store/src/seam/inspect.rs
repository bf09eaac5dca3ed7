//! Reads for people and exporters: pages of streams, the counts of queues, and the statistics of a shard.

use std::ops::Bound;

use serde::{Deserialize, Serialize};
use tickfleet_core::EntryId;
use tickfleet_core::view::Fields;

use super::ShardState;

pub type Entry = (EntryId, Fields);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub from: Bound<EntryId>,
    pub upto: Bound<EntryId>,
    pub count: usize,
    pub newest_first: bool,
}

impl Range {
    #[must_use]
    pub const fn oldest(count: usize) -> Self {
        Self { from: Bound::Unbounded, upto: Bound::Unbounded, count, newest_first: false }
    }

    /// Newest first.
    #[must_use]
    pub const fn newest(count: usize) -> Self {
        Self { from: Bound::Unbounded, upto: Bound::Unbounded, count, newest_first: true }
    }

    #[must_use]
    pub const fn after(after: EntryId, count: usize) -> Self {
        Self { from: Bound::Excluded(after), upto: Bound::Unbounded, count, newest_first: false }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamState {
    /// Entries that were ever appended.
    pub added: u64,
    pub length: u64,
    pub first: Option<EntryId>,
    pub last: Option<EntryId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueState {
    pub waiting: u64,
    /// Taken, but not acknowledged.
    pub held: u64,
    pub oldest_waiting: Option<EntryId>,
    pub oldest_held: Option<EntryId>,
    /// Entries that were ever appended.
    pub added: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FollowRequest {
    pub log: tickfleet_core::StreamKey,
    pub after: Option<EntryId>,
    pub count: usize,
    /// For the first entry; 0 does not wait.
    pub wait_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShardStats {
    pub shard: ShardState,
    /// The store's own clock, which gives the IDs of new entries.
    pub clock_ms: i64,
    pub offset_ms: i64,
    /// How often the store's clock was set back.
    pub steps: u64,
    pub step_ms: i64,
    pub memory_bytes: u64,
    /// In bytes; 0 means unlimited.
    pub memory_max: u64,
}
