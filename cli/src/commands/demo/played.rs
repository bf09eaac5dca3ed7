use std::collections::BTreeMap;
use std::time::Duration;

use tickfleet_client::Reply;
use tickfleet_store::AdmissionNote;

pub(super) struct DayResult {
    /// The turns have the order of the day.
    pub(super) turns: Vec<PlayedTurn>,
    /// Maps the ID of a task to its replies.
    pub(super) tasks: BTreeMap<String, Vec<Reply>>,
}

pub(super) struct PlayedTurn {
    /// The replies, each with the time since the submit. There must be exactly one.
    pub(super) replies: Vec<(Duration, Reply)>,
    pub(super) duplicates: usize,
    pub(super) slices: Vec<AdmissionNote>,
    /// How long the turn waited for windows: from its acceptance to its last slice, or to its end if it had no slice.
    pub(super) waited_ms: i64,
}
