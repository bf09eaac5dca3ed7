use std::collections::BTreeMap;
use std::time::Duration;

use tickfleet_client::Reply;
use tickfleet_store::AdmissionNote;

pub(super) struct DayResult {
    /// One result per turn of the day, in order.
    pub(super) turns: Vec<PlayedTurn>,
    /// Replies to delegated tasks, by the ID of the task.
    pub(super) tasks: BTreeMap<String, Vec<Reply>>,
}

pub(super) struct PlayedTurn {
    /// Each reply, with the time since the submit. There must be exactly one.
    pub(super) replies: Vec<(Duration, Reply)>,
    /// How often a repeated submit was recognized as a duplicate.
    pub(super) duplicates: usize,
    pub(super) slices: Vec<AdmissionNote>,
    /// How long (in ms) the turn waited for windows. The wait lasts from the turn's acceptance to its last slice. If
    /// the turn had no slice, the wait lasts to the turn's end.
    pub(super) waited_ms: i64,
}
