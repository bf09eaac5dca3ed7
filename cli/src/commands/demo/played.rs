//! The results of the played day.

use std::collections::BTreeMap;
use std::time::Duration;

use tickfleet_client::Reply;
use tickfleet_store::AdmissionNote;

/// All results of the day.
pub(super) struct DayResult {
    /// One result per turn of the day, in order.
    pub(super) turns: Vec<PlayedTurn>,
    /// Replies to delegated tasks, by the ID of the task.
    pub(super) tasks: BTreeMap<String, Vec<Reply>>,
}

/// The result of one turn.
pub(super) struct PlayedTurn {
    /// Each reply, with the time since the submit. There must be exactly one.
    pub(super) replies: Vec<(Duration, Reply)>,
    /// How often a repeated submit was recognized as a duplicate.
    pub(super) duplicates: usize,
    /// The admissions of the turn, from its record.
    pub(super) slices: Vec<AdmissionNote>,
    /// How long the turn waited for windows, ms. The wait lasts from its acceptance to its last slice. If it had no
    /// slice, the wait lasts to its end.
    pub(super) waited_ms: i64,
}
