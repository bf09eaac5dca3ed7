//! The day as it was played: what came of each turn.

use std::collections::BTreeMap;
use std::time::Duration;

use tickfleet_client::Reply;
use tickfleet_store::AdmissionNote;

/// Everything that came of the day.
pub(super) struct Played {
    /// One for each turn of the day, in its order.
    pub(super) turns: Vec<PlayedTurn>,
    /// Replies to delegated tasks, by task.
    pub(super) tasks: BTreeMap<String, Vec<Reply>>,
}

/// The outcome of one turn.
pub(super) struct PlayedTurn {
    /// From submit to each reply about it: one, if promises are kept.
    pub(super) replies: Vec<(Duration, Reply)>,
    /// The number of times that it was known when it was submitted again.
    pub(super) duplicates: usize,
    /// Its admissions, as its record tells them.
    pub(super) slices: Vec<AdmissionNote>,
    /// Time that it waited for a window, ms: from its acceptance to its last slice, or to its end without one.
    pub(super) waited_ms: i64,
}
