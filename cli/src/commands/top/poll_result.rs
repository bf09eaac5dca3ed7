//! The result of one poll of a fleet.

use std::time::Instant;

use tickfleet_store::{ServerLoad, ShardView};

/// The result of one poll.
pub(super) struct PollResult {
    pub(super) at: Instant,
    pub(super) server: ServerLoad,
    pub(super) shards: Vec<ShardView>,
}
