//! The inbound streams: which there are, what waits in them, and what is taken from them without a decision.

use redis::Value;

use crate::connection::question::Question;
use crate::connection::reader::{Entry, entry};
use crate::keys::{GROUP, TurnName};
use crate::{Store, StoreError};

/// An inbound stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Inbound {
    /// Turns.
    Turns,
    /// Tasks, and what external runtimes say about theirs.
    Tasks,
}

impl Inbound {
    /// The stream's suffix, which is also its entries' field with an `s` less.
    #[must_use]
    pub const fn stream(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Tasks => "tasks",
        }
    }

    /// The field that holds the message.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Turns => "turn",
            Self::Tasks => "task",
        }
    }
}

/// How often is looked again after an entry that has another name by then: that happens when a scheduler ends, or is gone.
const LOOKS: usize = 4;

/// A message that waits for its decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// The stream that it is on.
    pub from: Inbound,
    /// The message, JSON.
    pub message: String,
    /// True if it was found by its entry, after which it is named where nobody gave it an id.
    pub is_minted: bool,
}

/// Streams of a shard that are inbound.
pub(crate) const INBOUND: [Inbound; 2] = [Inbound::Turns, Inbound::Tasks];

impl Store {
    /// Acknowledges an inbound entry that needed no decision.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn acknowledge(&self, from: Inbound, entry: &str) -> Result<(), StoreError> {
        let key = self.keys.key(from.stream());
        let mut pipe = redis::pipe();
        pipe.cmd("XACK").arg(&key).arg(GROUP).arg(entry).cmd("XDEL").arg(&key).arg(entry);
        self.connection.pipeline::<(i64, i64)>(Question::Acknowledge, &pipe).await.map(drop)
    }

    /// The message of a turn or task that nobody has decided about so far: one whose producer gave the id, and one that is
    /// named after its entry (for as long as it is in that one: where its scheduler is gone, it comes anew in another).
    /// Whoever decides removes the entry in the step that writes the record: what this does not find had one by then, and
    /// whoever looks for the record now does not miss it. A task that was put on the stream without [`Self::enqueue_task`] is
    /// not found by an id that its producer gave.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn undecided(&self, name: &TurnName) -> Result<Option<Waits>, StoreError> {
        if let Some((from, minted)) = minted(name)
            && let Some(message) = self.inbound_message(from, minted).await?
        {
            return Ok(Some(Waits { from, message, is_minted: true }));
        }
        let mut known: [Option<String>; 2] = [None, None];
        for _ in 0..LOOKS {
            let mut command = redis::cmd("HMGET");
            command.arg(self.keys.key("queued")).arg(name.to_string()).arg(format!("k:{name}"));
            let found: [Option<String>; 2] = self.connection.query(Question::Look, &command).await?;
            // Nothing has it, or what has had it is gone: somebody has decided. Else it has moved since.
            if found == known {
                break;
            }
            for (from, entry) in [Inbound::Turns, Inbound::Tasks].into_iter().zip(&found) {
                let Some(entry) = entry else { continue };
                if let Some(message) = self.inbound_message(from, entry).await? {
                    return Ok(Some(Waits { from, message, is_minted: false }));
                }
            }
            known = found;
        }
        Ok(None)
    }

    /// The message of an inbound entry that is there.
    async fn inbound_message(&self, from: Inbound, id: &str) -> Result<Option<String>, StoreError> {
        let command = redis::cmd("XRANGE").arg(self.keys.key(from.stream())).arg(id).arg(id).to_owned();
        let found: Vec<Value> = self.connection.query(Question::Look, &command).await?;
        let message = |entry: Entry| entry.field(from.field()).map(|raw| String::from_utf8_lossy(raw).into_owned());
        Ok(found.into_iter().next().and_then(entry).and_then(message))
    }
}

/// The stream and the entry that a name was minted from, if it looks like one that was.
fn minted(name: &TurnName) -> Option<(Inbound, &str)> {
    let id = name.turn.as_str();
    let (from, entry) = match id.split_at_checked(1)? {
        ("t", entry) => (Inbound::Turns, entry),
        ("k", entry) => (Inbound::Tasks, entry),
        _ => return None,
    };
    let (ms, seq) = entry.split_once('-')?;
    // Redis refuses longer numbers than it has.
    let is_number = |half: &str| half.parse::<u64>().is_ok() && half.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(ms) && is_number(seq)).then_some((from, entry))
}
