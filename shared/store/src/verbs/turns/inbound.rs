//! The inbound streams: which there are, and what is taken from them without a decision.

use crate::connection::question::Question;
use crate::keys::GROUP;
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
}
