//! A message for the inbound stream of tasks, as services in other languages write it.

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
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
    /// before an agent sees it. `given` is the task, where its producer gave the id: [`Self::undecided`] finds it by that
    /// until somebody has decided about it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn enqueue_task(&self, message: &str, given: Option<&TurnName>) -> Result<Enqueued, StoreError> {
        let mut args = self.args();
        args.show(self.options.turns_max).maybe(given).text(message);
        let value = self.run(Verb::Enqueue, args).await?;
        let word = text_of(&value).unwrap_or_default();
        Ok(match word.as_str() {
            "QUEUE_FULL" => Enqueued::QueueFull,
            "PRESSURE" => Enqueued::Pressure,
            other => match other.strip_prefix("OK ") {
                Some(entry) => Enqueued::Accepted { entry: entry.to_owned() },
                None => return Err(unexpected(Verb::Enqueue.as_str(), &value)),
            },
        })
    }
}
