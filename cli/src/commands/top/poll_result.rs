use std::collections::BTreeMap;
use std::time::Instant;

use tickfleet_store::{ServerLoad, ShardView};

pub(super) struct PollResult {
    pub(super) at: Instant,
    pub(super) server: ServerLoad,
    /// One view per shard. The view of a shard that did not respond is empty.
    pub(super) shards: Vec<ShardView>,
    pub(super) unread: BTreeMap<usize, String>,
}
