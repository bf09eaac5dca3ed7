//! Reads for people, exporters and metrics. They need no permission to commit.

pub(crate) mod audit;
pub(crate) mod backlog;
pub(crate) mod budgets;
pub(crate) mod diagnosis;
pub(crate) mod inbox;
pub(crate) mod knowledge;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod memory_usage;
pub(crate) mod nodes;
pub(crate) mod notes;
pub(crate) mod passages;
pub(crate) mod preflight;
pub(crate) mod tasks;
pub(crate) mod tenant_usage;
pub(crate) mod turn_view;
pub(crate) mod usage;
pub(crate) mod watch;

use tickfleet_core::{EntryId, Query, Record, RecordKey, Stored, StreamKey, Value, keys};
use tickfleet_model::Priority;

use crate::{Store, StoreError};

/// The ready queues come first. In each group, the most urgent queue comes first.
#[must_use]
pub fn worker_queues() -> Vec<StreamKey> {
    let suspects = Priority::ALL.into_iter().map(keys::suspect);
    Priority::ALL.into_iter().map(keys::ready).chain(suspects).collect()
}

/// The inbound streams, then the queues of workers.
#[must_use]
pub fn queues() -> Vec<StreamKey> {
    [keys::turns(), keys::tasks()].into_iter().chain(worker_queues()).collect()
}

/// By the store's clock. `None` if the text is not an entry ID.
#[must_use]
pub fn entry_ms(id: &str) -> Option<i64> {
    id.split_once('-')?.0.parse().ok()
}

/// The ID as one number, `<ms> << 64 | <sequence>`. `None` if the text is not an entry ID.
#[must_use]
pub fn entry_number(id: &str) -> Option<u128> {
    let (ms, sequence) = id.split_once('-')?;
    Some(u128::from(ms.parse::<u64>().ok()?) << 64 | u128::from(sequence.parse::<u64>().ok()?))
}

pub(crate) fn age(entry: Option<&EntryId>, clock_ms: i64) -> i64 {
    entry.and_then(|entry| entry_ms(entry.as_str())).map_or(0, |at| (clock_ms - at).max(0))
}

pub(crate) fn score_ms(score: u64) -> i64 {
    i64::try_from(score).unwrap_or(i64::MAX)
}

impl Store {
    pub(crate) async fn values(&self, queries: &[Query]) -> Result<std::vec::IntoIter<Value>, StoreError> {
        Ok(self.seam().read(queries).await?.into_iter())
    }
}

/// Fails with [`StoreError::Undecided`] if the record cannot be read.
pub(crate) fn stored<T: Record>(key: &RecordKey, value: Option<Value>) -> Result<Option<Stored<T>>, StoreError> {
    match value {
        Some(Value::Record(Some(stored))) => Stored::read(&stored)
            .map(Some)
            .map_err(|why| StoreError::Undecided(format!("record {key} cannot be read: {why}"))),
        _ => Ok(None),
    }
}

pub(crate) fn size(value: Option<Value>) -> u64 {
    if let Some(Value::Size(size)) = value { size } else { 0 }
}

pub(crate) fn score(value: Option<Value>) -> Option<i64> {
    if let Some(Value::Score(score)) = value { score.map(score_ms) } else { None }
}

pub(crate) fn members(value: Option<Value>) -> Vec<(std::sync::Arc<str>, u64)> {
    if let Some(Value::Members(members)) = value { members } else { Vec::new() }
}

pub(crate) fn counter(value: Option<Value>) -> tickfleet_core::CounterState {
    if let Some(Value::Counter(Some(state))) = value { state } else { tickfleet_core::CounterState::default() }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn field(fields: &tickfleet_core::view::Fields, name: &str) -> String {
    fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| text(value)).unwrap_or_default()
}
