//! What was put aside: dead letters by their ids, and which failed calls of the audit log somebody is done with.

use redis::Value;

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
        let found: Vec<Value> = self.connection.query(Question::Look, &command).await?;
        Ok(found.into_iter().filter_map(entry).map(|e| dead_letter(&e)).collect())
    }

    /// Tells of each of these entries of the audit log whether somebody is done with it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn are_handled(&self, entries: &[&str]) -> Result<Vec<bool>, StoreError> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let key = self.keys.key("handled");
        let mut pipe = redis::pipe();
        for entry in entries {
            pipe.cmd("ZSCORE").arg(&key).arg(entry);
        }
        let found: Vec<Option<f64>> = self.connection.pipeline(Question::Look, &pipe).await?;
        Ok(found.iter().map(Option::is_some).collect())
    }
}
