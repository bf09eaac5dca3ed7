//! The producer's verb.

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{InboxName, TenantId, TurnId};

/// One turn to be submitted.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The tenant.
    pub tenant: TenantId,
    /// The producer's id, which makes the submit idempotent.
    pub turn: Option<TurnId>,
    /// Digest of the content.
    pub digest: String,
    /// The inbox that the reply goes to, to refuse early if nobody reads.
    pub reply_to: Option<InboxName>,
    /// The message, JSON.
    pub payload: String,
}

/// The outcome of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It is on the inbound stream as this entry; a minted turn id derives from it.
    Accepted {
        /// The entry.
        entry: String,
    },
    /// This id with this content was accepted before.
    Duplicate,
    /// This id was accepted before with other content.
    Conflict,
    /// The inbound stream is full; try again later.
    QueueFull,
    /// The inbox has too many unread replies; read them first.
    InboxFull,
    /// The tenant has as many inboxes as it may have; use one that it has.
    TooManyInboxes,
    /// Redis' memory is nearly full; try again later.
    Pressure,
}

impl Store {
    /// Submits a batch of turns.
    ///
    /// # Errors
    /// [`StoreError`]; with ids, the same batch may be submitted again.
    pub async fn submit(&self, turns: &[Submission]) -> Result<Vec<Submitted>, StoreError> {
        let mut args = self.args();
        args.show(self.options.turns_max).show(self.options.inbox_unread_max).show(self.options.turns_bytes_max);
        args.show(self.options.inboxes_max).show(self.options.reply_retain_ms);
        args.show(self.options.tenant_bytes_max).show(turns.len());
        for t in turns {
            args.show(&t.tenant).maybe(t.turn.as_ref()).text(t.digest.as_str()).maybe(t.reply_to.as_ref());
            args.text(t.payload.as_str());
        }
        let mut reply = self.ask(Verb::Submit, args).await?;
        reply.rest().iter().map(submitted).collect()
    }
}

fn submitted(value: &redis::Value) -> Result<Submitted, StoreError> {
    let word = text_of(value).unwrap_or_default();
    Ok(match word.as_str() {
        "DUPLICATE" => Submitted::Duplicate,
        "CONFLICT" => Submitted::Conflict,
        "QUEUE_FULL" => Submitted::QueueFull,
        "INBOX_FULL" => Submitted::InboxFull,
        "TOO_MANY_INBOXES" => Submitted::TooManyInboxes,
        "PRESSURE" => Submitted::Pressure,
        other => match other.strip_prefix("OK ") {
            Some(entry) => Submitted::Accepted { entry: entry.to_owned() },
            None => return Err(unexpected(Verb::Submit.as_str(), value)),
        },
    })
}
