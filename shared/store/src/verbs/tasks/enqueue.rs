//! A message for the inbound stream of tasks, as services in other languages write it.

use crate::connection::question::Question;
use crate::records::shard::is_set;
use crate::{Store, StoreError};

/// The outcome of a message for the `tasks` stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// It is on the stream as this entry.
    Accepted {
        /// The entry.
        entry: String,
    },
    /// The stream is full.
    QueueFull,
    /// Redis' memory is nearly full.
    Pressure,
}

impl Store {
    /// Puts a message on the inbound `tasks` stream, as services in other languages do: a scheduler validates it
    /// before an agent sees it. Its bounds are looked at just before, so that producers at the same time may pass them
    /// by a few.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn enqueue_task(&self, message: &str) -> Result<Enqueued, StoreError> {
        let key = self.keys.key("tasks");
        let mut pipe = redis::pipe();
        pipe.cmd("XLEN").arg(&key).cmd("HGET").arg(self.keys.key("meta")).arg("pressure");
        let (length, pressure): (u64, Option<String>) = self.connection.pipeline(Question::EnqueueTask, &pipe).await?;
        if pressure.as_deref().is_some_and(is_set) {
            return Ok(Enqueued::Pressure);
        }
        if length >= self.options.turns_max {
            return Ok(Enqueued::QueueFull);
        }
        let command = redis::cmd("XADD").arg(&key).arg("*").arg("task").arg(message).to_owned();
        self.connection.query(Question::EnqueueTask, &command).await.map(|entry| Enqueued::Accepted { entry })
    }
}
