//! The record of a turn or task under way, as it stands in Redis: the one place that reads its fields.

use std::collections::{BTreeSet, HashMap};

use tickfleet_model::Call;

use super::notes::{AdmissionNote, FailedTry, RestNote};
use super::schema::turn;
use super::slice::SliceMeta;
use crate::keys::Lane;

/// The kind that a task's record has.
const KIND_TASK: &str = "task";
/// The prefix of an ending's fence.
const ENDING: &str = "s:";

/// The content of the record of a turn or task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TurnRecord {
    /// The agent that makes the calls.
    pub agent: Option<String>,
    /// The queue that its slices go to.
    pub queue: Option<String>,
    /// The number of its calls.
    pub calls: usize,
    /// Calls admitted, those that gave their places of limits back since among them.
    pub admitted: usize,
    /// True if its next calls gave their places back, and have none again yet.
    pub gave_places: bool,
    /// Calls that have their result.
    pub done: usize,
    /// When it was admitted, ms of shard time.
    pub admitted_ms: Option<i64>,
    /// Its deadline, ms of shard time.
    pub deadline_ms: Option<i64>,
    /// The entry id of the slice that is out, or `s:<number>` of an ending; none while it waits.
    pub fence: Option<String>,
    /// The meta that all its slices carry, JSON.
    pub meta: Option<String>,
    /// Its first call, JSON: of a task, what is to be done.
    pub first_call: Option<String>,
    /// The next call without a result, JSON.
    pub next_call: Option<String>,
    /// The tools of the calls that have no result.
    pub tools_left: BTreeSet<String>,
    /// The results that are in, in call order, JSON each.
    pub results: Vec<String>,
    /// The lane of a limit's counter that it waits on, where it does.
    pub lane: Option<Lane>,
    /// Tries made of the call that is tried again.
    pub attempts: u32,
    /// Retries in all.
    pub retries: u64,
    /// The number of times that a holder of its slice has died.
    pub crashes: Option<u64>,
    /// The turn or task that its next call waits for, where it does; empty where it waits for a time.
    pub awaits: Option<String>,
    /// The approval that its next call waits for, or has waited for last.
    pub approval: Option<String>,
    /// True if that is work which its next call has begun; else that waits for an equal call.
    pub has_begun: bool,
    /// Why it was cancelled, where it was.
    pub cancelled: Option<String>,
    /// Why its calls end without running, where they do.
    pub end_reason: Option<String>,
    /// True if it is a task.
    pub is_task: bool,
    /// Its admissions, as its log has them.
    pub admissions: Vec<AdmissionNote>,
    /// Its tries that failed, as its log has them.
    pub tries: Vec<FailedTry>,
    /// The rests of its calls, as its log has them.
    pub rests: Vec<RestNote>,
    /// The last of these, where nothing has happened since.
    pub resting: Option<RestNote>,
}

impl TurnRecord {
    /// Reads the fields of a record.
    pub(crate) fn read(mut fields: HashMap<String, String>) -> Self {
        let number = |field: &str| fields.get(field).and_then(|text| whole(text));
        let count = |field: &str| number(field).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let done = count(turn::DONE);
        // A hand may have written any number of results there.
        let results = (0..done.min(fields.len())).filter_map(|at| fields.get(&format!("{}{at}", turn::RESULT)));
        let log = fields.get(turn::LOG).map_or("", String::as_str);
        let paid = fields.get(turn::PAID).map_or(0, |text| paid_of(text));
        let record = Self {
            calls: count(turn::CALLS),
            admitted: count(turn::ADMITTED).max(paid),
            gave_places: paid > count(turn::ADMITTED).max(done),
            done,
            admitted_ms: number(turn::ADMITTED_MS),
            deadline_ms: number(turn::DEADLINE_MS),
            results: results.cloned().collect(),
            attempts: number(turn::ATTEMPTS).and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            retries: number(turn::RETRIES).and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            crashes: fields.get(turn::CRASHES).map(|text| whole(text).map_or(0, i64::unsigned_abs)),
            tools_left: tools_left(&fields, done),
            has_begun: fields.contains_key(turn::WAITED) && count(turn::WAITED) == done,
            is_task: fields.get(turn::KIND).is_some_and(|kind| kind == KIND_TASK),
            admissions: AdmissionNote::read_all(log),
            tries: FailedTry::read_all(log),
            rests: RestNote::read_all(log),
            resting: RestNote::last_of(log),
            ..Self::default()
        };
        let next_call = fields.get(&format!("{}{done}", turn::CALL)).cloned();
        let mut text = |field: &str| fields.remove(field);
        Self {
            agent: text(turn::AGENT),
            queue: text(turn::QUEUE),
            fence: text(turn::FENCE).filter(|fence| !fence.is_empty()),
            lane: text(turn::LANE).as_deref().and_then(Lane::parse),
            meta: text(turn::META),
            next_call,
            first_call: text(&format!("{}0", turn::CALL)),
            awaits: text(turn::AWAITS),
            approval: text(turn::APPROVAL),
            cancelled: text(turn::CANCELLED),
            end_reason: text(turn::END_REASON).filter(|reason| !reason.is_empty()),
            ..record
        }
    }

    /// Returns the meta that all its slices carry; none if that is lost or cannot be read.
    #[must_use]
    pub fn slice_meta(&self) -> Option<SliceMeta> {
        serde_json::from_str(self.meta.as_deref()?).ok()
    }

    /// Returns true if nothing of it is out, and its next call waits for something else than its lane: a try, a turn, people.
    #[must_use]
    pub const fn is_parked(&self) -> bool {
        self.fence.is_none() && self.done < self.admitted && !(self.gave_places && self.lane.is_some())
    }

    /// Returns true if its fence is that of an ending, which a scheduler was given.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.fence.as_deref().is_some_and(is_ending)
    }
}

/// Up to which position calls have debited what has a window, though they are not admitted now.
pub(crate) fn paid_of(text: &str) -> usize {
    text.split_once(' ').and_then(|(upto, _)| upto.parse().ok()).unwrap_or(0)
}

/// The tools of the calls from the `done`th on. What cannot be read of one says none.
fn tools_left(fields: &HashMap<String, String>, done: usize) -> BTreeSet<String> {
    let calls = (done..fields.len()).map_while(|at| fields.get(&format!("{}{at}", turn::CALL)));
    calls.filter_map(|call| serde_json::from_str::<Call>(call).ok()).map(|call| call.tool).collect()
}

/// Returns true if a fence is an ending's.
pub(crate) fn is_ending(fence: &str) -> bool {
    fence.starts_with(ENDING)
}

/// A number as scripts write it: Lua writes large ones as floats.
pub(crate) fn whole(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| text.parse::<f64>().ok().map(|number| number as i64))
}
