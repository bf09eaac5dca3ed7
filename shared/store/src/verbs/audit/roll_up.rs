use tickfleet_core::EntryId;
pub use tickfleet_core::audit::statistics::Addition;
use tickfleet_core::audit::statistics::{CountCalls, CountResult, Statistics, day_counts, key};

use crate::{Store, StoreError};

impl Store {
    /// `before` is empty at the start, `upto` is inclusive. Returns false and adds nothing if another process has
    /// counted the entries in the meantime. A repeated call does not count entries twice.
    pub async fn roll_up(&self, before: &str, upto: &str, additions: &[Addition]) -> Result<bool, StoreError> {
        let before = (!before.is_empty()).then(|| EntryId::new(before));
        let count = CountCalls { before, upto: EntryId::new(upto), additions: additions.to_vec() };
        Ok(self.decide(count).await?.result == CountResult::Done)
    }

    /// The last counted entry; `None` if no entry was counted yet.
    pub async fn rolled_up_through(&self) -> Result<Option<String>, StoreError> {
        let statistics = self.record_of::<Statistics>(&key()).await?;
        Ok(statistics.and_then(|statistics| statistics.value.upto).map(|entry| entry.as_str().to_owned()))
    }

    /// Sorted by name. `day` counts the days since 1970.
    pub async fn day_counts(&self, day: i64) -> Result<Vec<(String, u64)>, StoreError> {
        let (states, _) = self.states_of(&day_counts(day), usize::MAX).await?;
        Ok(states.into_iter().map(|(count, state)| (count, state.used)).collect())
    }
}
