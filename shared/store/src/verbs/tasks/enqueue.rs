//! A message for the inbound stream of tasks, as services in other languages write it.

use crate::keys::TurnName;
use crate::records::schema::inbound;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{InboxName, TenantId};

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
    /// The inbox has too many unread replies; read them first.
    InboxFull,
    /// The tenant has as many inboxes as it may have; use one that it has.
    TooManyInboxes,
    /// Redis' memory is nearly full.
    Pressure,
}

impl Store {
    /// Puts a message on the inbound `tasks` stream, as services in other languages do: a scheduler validates it
    /// before an agent sees it. `given` is the task, where its producer gave the id: [`Self::undecided`] finds it by that
    /// until somebody has decided about it. `reply_to` is the inbox that the message names, with its tenant.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn enqueue_task(
        &self,
        message: &str,
        given: Option<&TurnName>,
        reply_to: Option<(&TenantId, &InboxName)>,
    ) -> Result<Enqueued, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(o.turns_max).maybe(given).text(message);
        args.maybe(reply_to.map(|(tenant, _)| tenant)).maybe(reply_to.map(|(_, inbox)| inbox));
        args.show(o.inbox_unread_max).show(o.inboxes_max).show(o.reply_retain_ms);
        args.show(o.turns_bytes_max).show(o.tenant_bytes_max);
        let value = match self.run(Verb::Enqueue, args).await {
            // As for turns, see `append_turns`.
            Err(error) if error.is_unknown_script() => return self.append_task(message).await,
            answer => answer?,
        };
        let word = text_of(&value).unwrap_or_default();
        Ok(match word.as_str() {
            "QUEUE_FULL" => Enqueued::QueueFull,
            "INBOX_FULL" => Enqueued::InboxFull,
            "TOO_MANY_INBOXES" => Enqueued::TooManyInboxes,
            "PRESSURE" => Enqueued::Pressure,
            other => match other.strip_prefix("OK ") {
                Some(entry) => Enqueued::Accepted { entry: entry.to_owned() },
                None => return Err(unexpected(Verb::Enqueue.as_str(), &value)),
            },
        })
    }

    async fn append_task(&self, message: &str) -> Result<Enqueued, StoreError> {
        match self.inbound_state("tasks").await? {
            (_, true) => Ok(Enqueued::Pressure),
            (length, _) if length >= self.options.turns_max => Ok(Enqueued::QueueFull),
            _ => Ok(Enqueued::Accepted { entry: self.append("tasks", inbound::TASK, message).await? }),
        }
    }
}
