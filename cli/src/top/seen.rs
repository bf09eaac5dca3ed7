//! What one look at a fleet saw.

use std::time::Instant;

use tickfleet_store::{ServerLoad, ShardView};

/// What one look saw.
pub(super) struct Seen {
    pub(super) at: Instant,
    pub(super) server: ServerLoad,
    pub(super) shards: Vec<ShardView>,
}
