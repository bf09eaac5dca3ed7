//! What was put aside is done anew.

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{InboxName, limits};

/// Something that was put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aside<'a> {
    /// A dead letter, by its entry in the dead stream.
    Letter(&'a str),
    /// A call that failed for good, by its entry in the audit log.
    Call(&'a str),
}

impl Aside<'_> {
    /// The word of its kind, and its entry.
    pub(crate) const fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Letter(entry) => ("letter", entry),
            Self::Call(entry) => ("call", entry),
        }
    }
}

/// What is sent in its place.
#[derive(Debug, Clone, Copy)]
pub enum Anew<'a> {
    /// A turn.
    Turn {
        /// Its id.
        name: &'a TurnName,
        /// The digest of its content.
        digest: &'a str,
        /// The message.
        message: &'a str,
        /// The inbox that the reply goes to, to refuse early if nobody reads.
        reply_to: Option<&'a InboxName>,
    },
    /// A task's message, which names its id.
    Task(&'a str),
}

/// What came of a replay, or of a drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It was done.
    Ok,
    /// It is not there any more.
    Gone,
    /// Somebody has replayed or dropped it before.
    Again,
    /// A turn of this id and content was submitted: nothing is sent twice.
    Duplicate,
    /// Another turn has this id.
    Conflict,
    /// The inbound stream is full.
    QueueFull,
    /// The inbox of its reply has too many unread ones.
    InboxFull,
    /// Redis' memory is nearly full.
    Pressure,
    /// Too many calls are kept as done with.
    Full,
}

impl Handled {
    pub(crate) fn read(verb: Verb, value: &redis::Value) -> Result<Self, StoreError> {
        let word = text_of(value).unwrap_or_default();
        Ok(match word.split(' ').next().unwrap_or_default() {
            "OK" => Self::Ok,
            "GONE" => Self::Gone,
            "AGAIN" => Self::Again,
            "DUPLICATE" => Self::Duplicate,
            "CONFLICT" => Self::Conflict,
            "QUEUE_FULL" => Self::QueueFull,
            "INBOX_FULL" => Self::InboxFull,
            "PRESSURE" => Self::Pressure,
            "FULL" => Self::Full,
            _ => return Err(unexpected(verb.as_str(), value)),
        })
    }
}

impl Store {
    /// Sends `anew` in the place of what was put aside, which is done with then; `entry` goes into the audit log.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be asked again, and is done once.
    pub async fn replay(&self, aside: Aside<'_>, anew: Anew<'_>, entry: &str) -> Result<Handled, StoreError> {
        let (kind, from) = aside.parts();
        let mut args = self.args();
        args.text(kind).text(from).text(if matches!(anew, Anew::Turn { .. }) { "turns" } else { "tasks" });
        args.show(self.options.turns_max).show(self.options.turns_bytes_max);
        match anew {
            Anew::Turn { name, digest, message, .. } => args.text(message).show(name).text(digest),
            Anew::Task(message) => args.text(message).text("").text(""),
        };
        args.show(limits::HANDLED_CALLS_MAX).text(entry);
        match anew {
            Anew::Turn { name, reply_to: Some(inbox), .. } => args.show(format_args!("{}:{inbox}", name.tenant)),
            _ => args.text(""),
        };
        args.show(self.options.inbox_unread_max);
        Handled::read(Verb::Replay, &self.run(Verb::Replay, args).await?)
    }
}
