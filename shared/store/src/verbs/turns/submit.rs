//! The producer's verb.

use crate::connection::question::Question;
use crate::records::schema::inbound;
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
        match self.ask(Verb::Submit, args).await {
            Ok(mut reply) => reply.rest().iter().map(submitted).collect(),
            Err(error) if error.is_unknown_script() => self.append_turns(turns).await,
            Err(error) => Err(error),
        }
    }

    /// Submits without the script, for a user who may load none and whose build no scheduler has: as clients in other languages
    /// do. Bounds are looked at just before, and ids are told apart when the turns are admitted.
    async fn append_turns(&self, turns: &[Submission]) -> Result<Vec<Submitted>, StoreError> {
        let (mut length, pressure) = self.inbound_state("turns").await?;
        let mut submitted = Vec::with_capacity(turns.len());
        for turn in turns {
            submitted.push(if pressure {
                Submitted::Pressure
            } else if length >= self.options.turns_max {
                Submitted::QueueFull
            } else {
                length += 1;
                Submitted::Accepted { entry: self.append("turns", inbound::TURN, &turn.payload).await? }
            });
        }
        Ok(submitted)
    }

    /// How many messages wait on an inbound stream, and whether memory is short.
    pub(crate) async fn inbound_state(&self, stream: &str) -> Result<(u64, bool), StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("XLEN").arg(self.keys.key(stream)).cmd("HGET").arg(self.keys.key("meta")).arg("pressure");
        let (length, pressure): (u64, Option<String>) = self.connection.pipeline(Question::Append, &pipe).await?;
        Ok((length, pressure.as_deref() == Some("1")))
    }

    /// Puts a message on an inbound stream; answers its entry.
    pub(crate) async fn append(&self, stream: &str, field: &str, message: &str) -> Result<String, StoreError> {
        let command = redis::cmd("XADD").arg(self.keys.key(stream)).arg("*").arg(field).arg(message).to_owned();
        self.connection.query(Question::Append, &command).await
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
