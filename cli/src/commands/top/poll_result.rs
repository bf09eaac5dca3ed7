use std::collections::BTreeMap;
use std::time::Instant;

use tickfleet_store::{ServerLoad, ShardView};

pub(super) struct PollResult {
    pub(super) at: Instant,
    pub(super) server: ServerLoad,
    /// One per shard. Empty if the shard did not respond.
    pub(super) shards: Vec<ShardView>,
    pub(super) unread: BTreeMap<usize, String>,
}
