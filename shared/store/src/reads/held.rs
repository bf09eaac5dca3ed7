//! The entries that a consumer holds of the queues, and single entries of them.

use std::time::Duration;

use redis::Value;

use crate::connection::question::Question;
use crate::connection::reader::{Entry, entry};
use crate::keys::{GROUP, Queue};
use crate::records::slice::SliceEntry;
use crate::{Store, StoreError};
use tickfleet_model::ConsumerId;

impl Store {
    /// Slices that were delivered to `consumer` at least `since` ago and are not acknowledged, at most `bound` a
    /// queue. What cannot be read as a slice is left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn held_since(
        &self,
        consumer: &ConsumerId,
        since: Duration,
        bound: usize,
    ) -> Result<Vec<SliceEntry>, StoreError> {
        let mut held = Vec::new();
        for queue in Queue::of_workers() {
            let key = self.keys.key(&queue);
            let mut command = redis::cmd("XPENDING");
            command.arg(&key).arg(GROUP).arg("IDLE").arg(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
            command.arg("-").arg("+").arg(bound).arg(consumer.as_str());
            let pending: Vec<(String, String, i64, i64)> = self.connection.query(Question::Held, &command).await?;
            for (id, ..) in pending {
                let range = redis::cmd("XRANGE").arg(&key).arg(&id).arg(&id).to_owned();
                let found: Vec<Value> = self.connection.query(Question::Held, &range).await?;
                held.extend(
                    found.into_iter().filter_map(entry).filter_map(|e| SliceEntry::parse(queue.clone(), &e).ok()),
                );
            }
        }
        Ok(held)
    }

    /// Entries of a queue that were delivered to the consumer at least `idle_ms` ago and are not acknowledged yet: at
    /// most `count` ids, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn held(
        &self,
        consumer: &ConsumerId,
        queue: &Queue,
        idle_ms: i64,
        count: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut command = redis::cmd("XPENDING");
        command.arg(self.keys.key(queue)).arg(GROUP).arg("IDLE").arg(idle_ms);
        command.arg("-").arg("+").arg(count).arg(consumer.as_str());
        let found: Vec<(String, String, i64, i64)> = self.connection.query(Question::Held, &command).await?;
        Ok(found.into_iter().map(|(id, ..)| id).collect())
    }

    /// One entry of a queue; none where it is gone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn entry(&self, queue: &Queue, id: &str) -> Result<Option<Entry>, StoreError> {
        let command = redis::cmd("XRANGE").arg(self.keys.key(queue)).arg(id).arg(id).to_owned();
        let found: Vec<Value> = self.connection.query(Question::Entry, &command).await?;
        Ok(found.into_iter().next().and_then(entry))
    }
}
