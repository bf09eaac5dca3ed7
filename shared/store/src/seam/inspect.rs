//! Reads for people and exporters: pages of streams, the counts of queues, and the statistics of a shard.

use std::ops::Bound;

use serde::{Deserialize, Serialize};
use tickfleet_core::EntryId;
use tickfleet_core::view::Fields;

use super::ShardState;

pub type Entry = (EntryId, Fields);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The lower bound: the oldest entry of the range.
    pub from: Bound<EntryId>,
    /// The upper bound: the newest entry of the range.
    pub upto: Bound<EntryId>,
    pub count: usize,
    pub newest_first: bool,
}

impl Range {
    #[must_use]
    pub const fn oldest(count: usize) -> Self {
        Self { from: Bound::Unbounded, upto: Bound::Unbounded, count, newest_first: false }
    }

    /// Selects the newest `count` entries, newest first.
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
    /// Number of entries that were ever appended.
    pub added: u64,
    /// Number of entries now.
    pub length: u64,
    pub first: Option<EntryId>,
    /// The newest ID so far, even if that entry was removed.
    pub last: Option<EntryId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueState {
    /// Entries that no consumer has taken.
    pub waiting: u64,
    /// Entries that consumers have taken and not acknowledged.
    pub held: u64,
    pub oldest_waiting: Option<EntryId>,
    pub oldest_held: Option<EntryId>,
    /// Number of entries that were ever appended.
    pub added: u64,
}

/// A blocking read of a log or inbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FollowRequest {
    pub log: tickfleet_core::StreamKey,
    /// The last entry that the caller has read. `None` reads from the start.
    pub after: Option<EntryId>,
    pub count: usize,
    /// Maximum wait for the first entry, in milliseconds. If this is 0, the call does not wait.
    pub wait_ms: u64,
}

/// The most important values of a store: shard state, clock and memory. Reading them changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShardStats {
    pub shard: ShardState,
    /// The time of the store's own clock, which is part of the IDs of new entries.
    pub clock_ms: i64,
    /// Shard time minus the store's clock, in milliseconds.
    pub offset_ms: i64,
    /// Number of times that the store's clock was set back.
    pub steps: u64,
    pub step_ms: i64,
    pub memory_bytes: u64,
    /// Bound on the memory in bytes. 0 means unlimited.
    pub memory_max: u64,
}
