//! The heartbeat of a runtime outside.

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// The answer to an external runtime's heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touched {
    /// It still holds the task.
    Ok,
    /// It should stop: the task was cancelled.
    Cancelled,
    /// It no longer holds the task.
    Stale,
}

impl Store {
    /// An external runtime says that it still works on its task.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn touch(&self, task: &TurnName, lease: &str) -> Result<Touched, StoreError> {
        let mut args = self.args();
        args.show(task).text(lease);
        let value = self.run(Verb::Touch, args).await?;
        Ok(match text_of(&value).as_deref() {
            Some("OK") => Touched::Ok,
            Some("CANCELLED") => Touched::Cancelled,
            Some("STALE") => Touched::Stale,
            _ => return Err(unexpected(Verb::Touch.as_str(), &value)),
        })
    }
}
