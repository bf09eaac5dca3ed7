//! Reads dead letters, and whether operators have handled them.

use tickfleet_core::dead::handled_calls;
use tickfleet_core::{Query, Value, keys};

use super::range_of;
use crate::reads::diagnosis::{DeadLetter, dead_letter};
use crate::seam::inspect::Range;
use crate::{Store, StoreError};

impl Store {
    /// The newest first, from `until` back to `from`. Each bound is an ID, `-` or `+`. `(` before an ID excludes that
    /// entry.
    pub async fn dead_letters_back(
        &self,
        until: &str,
        from: &str,
        count: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let range = Range { newest_first: true, ..range_of(from, until, count) };
        Ok(self.seam().entries(&keys::dead(), &range).await?.iter().map(dead_letter).collect())
    }

    pub async fn dead_letters(&self, count: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.dead_letters_back("+", "-", count).await
    }

    /// `entries` are IDs in the audit log. True if an operator has replayed or dropped the entry's call.
    pub async fn are_handled(&self, entries: &[&str]) -> Result<Vec<bool>, StoreError> {
        let queries: Vec<Query> = entries.iter().map(|entry| Query::Score(handled_calls(), (*entry).into())).collect();
        let found = self.seam().read(&queries).await?;
        Ok(found.iter().map(|score| matches!(score, Value::Score(Some(_)))).collect())
    }
}
