use std::collections::BTreeMap;
use std::time::Instant;

use tickfleet_store::{ServerLoad, ShardView};

pub(super) struct PollResult {
    pub(super) at: Instant,
    pub(super) server: ServerLoad,
    /// The shards, by number. A shard that did not respond is empty.
    pub(super) shards: Vec<ShardView>,
    /// The shards that did not respond, with the reason.
    pub(super) unread: BTreeMap<usize, String>,
}
