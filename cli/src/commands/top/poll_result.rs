use std::time::Instant;

use tickfleet_store::{ServerLoad, ShardView};

pub(super) struct PollResult {
    pub(super) at: Instant,
    pub(super) server: ServerLoad,
    pub(super) shards: Vec<ShardView>,
}
