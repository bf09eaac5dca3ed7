use std::collections::BTreeMap;
use std::time::Duration;

use tickfleet_client::Reply;
use tickfleet_proof::prove::Proof;
use tickfleet_store::AdmissionNote;

pub(super) struct DayResult {
    pub(super) turns: Vec<PlayedTurn>,
    pub(super) tasks: BTreeMap<String, Vec<Reply>>,
    /// Covers the whole audit log.
    pub(super) proof: Proof,
}

pub(super) struct PlayedTurn {
    /// Replies, each with the time since the submit. There must be exactly one reply.
    pub(super) replies: Vec<(Duration, Reply)>,
    pub(super) duplicates: usize,
    pub(super) slices: Vec<AdmissionNote>,
    /// From the turn's admission to its last slice, or to its end if some calls were never admitted.
    pub(super) waited_ms: i64,
}
