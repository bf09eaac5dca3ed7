//! What was put aside: dead letters by their ids, and which failed calls of the audit log somebody is done with.

use redis::Value as Reply;
use tickfleet_core::dead::handled_calls;
use tickfleet_core::{Query, Value};

use crate::connection::question::Question;
use crate::connection::reader::entry;
use crate::reads::diagnosis::{DeadLetter, dead_letter};
use crate::{Store, StoreError};

impl Store {
    /// Reads up to `count` dead letters from `until` back to `from`, both ids of entries as `XREVRANGE` takes them, the
    /// newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn dead_letters_back(
        &self,
        until: &str,
        from: &str,
        count: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.keys.key("dead")).arg(until).arg(from).arg("COUNT").arg(count);
        let found: Vec<Reply> = self.connection.query(Question::Look, &command).await?;
        Ok(found.into_iter().filter_map(entry).map(|e| dead_letter(&e)).collect())
    }

    /// Returns for each of these entries of the audit log whether an operator has replayed or dropped its call.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn are_handled(&self, entries: &[&str]) -> Result<Vec<bool>, StoreError> {
        let queries: Vec<Query> = entries.iter().map(|entry| Query::Place(handled_calls(), (*entry).into())).collect();
        let found = self.seam().read(&queries).await?;
        Ok(found.iter().map(|place| matches!(place, Value::Place(Some(_)))).collect())
    }
}
