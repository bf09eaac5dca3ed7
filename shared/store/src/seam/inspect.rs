//! Reads for people and exporters: pages of streams, the counts of queues, and the vital signs of a store.

use std::ops::Bound;

use serde::{Deserialize, Serialize};
use tickfleet_core::EntryId;
use tickfleet_core::view::Fields;

use super::ShardState;

/// An entry of a stream, with its ID.
pub type Entry = (EntryId, Fields);

/// A range of a stream's entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The lower bound: the oldest entry of the range.
    pub from: Bound<EntryId>,
    /// The upper bound: the newest entry of the range.
    pub upto: Bound<EntryId>,
    /// Maximum number of entries.
    pub count: usize,
    /// True to return the newest entry first.
    pub newest_first: bool,
}

impl Range {
    /// The oldest `count` entries.
    #[must_use]
    pub const fn oldest(count: usize) -> Self {
        Self { from: Bound::Unbounded, upto: Bound::Unbounded, count, newest_first: false }
    }

    /// The newest `count` entries, newest first.
    #[must_use]
    pub const fn newest(count: usize) -> Self {
        Self { from: Bound::Unbounded, upto: Bound::Unbounded, count, newest_first: true }
    }

    /// The first `count` entries after `after`.
    #[must_use]
    pub const fn after(after: EntryId, count: usize) -> Self {
        Self { from: Bound::Excluded(after), upto: Bound::Unbounded, count, newest_first: false }
    }
}

/// The counts of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamState {
    /// Number of entries that were ever appended.
    pub added: u64,
    /// Number of entries now.
    pub length: u64,
    /// The oldest entry.
    pub first: Option<EntryId>,
    /// The newest ID so far, even if that entry was removed.
    pub last: Option<EntryId>,
}

/// The counts of a queue, and its oldest entries.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueState {
    /// Entries that no consumer has taken.
    pub waiting: u64,
    /// Entries that consumers hold.
    pub held: u64,
    /// The oldest entry that no consumer has taken.
    pub oldest_waiting: Option<EntryId>,
    /// The oldest entry that a consumer holds.
    pub oldest_held: Option<EntryId>,
    /// Number of entries that were ever appended.
    pub added: u64,
}

/// A blocking read of a log or inbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FollowRequest {
    /// The log or inbox.
    pub log: tickfleet_core::StreamKey,
    /// The last entry that the caller has read. `None` reads from the start.
    pub after: Option<EntryId>,
    /// Maximum number of entries.
    pub count: usize,
    /// Maximum wait for the first entry, ms; 0 does not wait.
    pub wait_ms: u64,
}

/// The vital signs of a store: shard state, clock and memory. Reading them changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Vitals {
    /// The shard's state.
    pub shard: ShardState,
    /// The store's own clock, which numbers the entries, ms.
    pub clock_ms: i64,
    /// Shard time minus the store's clock, ms.
    pub offset_ms: i64,
    /// Number of times that the store's clock has stepped back.
    pub steps: u64,
    /// Size of the last step back, ms.
    pub step_ms: i64,
    /// Memory in use, bytes.
    pub memory_bytes: u64,
    /// Bound on the memory, bytes; 0 means unlimited.
    pub memory_max: u64,
}
