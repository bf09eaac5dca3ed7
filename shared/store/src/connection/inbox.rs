//! A producer's side of its replies: reads an inbox on a connection of its own, and removes what was read.
//!
//! An inbox is a plain stream without a consumer group: it has one reader, who knows how far it has read. That knowledge
//! can be wrong: a Redis that has lost its last writes, and whose clock is behind the one before (a replica was promoted,
//! a clock was set back), numbers its next entries below those that were read already. So a reader looks back where it
//! hears nothing or where replies are missing, and removes by name what it has read, not all that is older.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::connection::question::Question;
use crate::connection::reader::entries;
use crate::{Connection, Store, StoreError};
use tickfleet_model::{InboxName, TenantId};

/// Entries taken at once.
const COUNT: usize = 128;
/// One blocking read lasts this long at most, whatever its caller would wait: the connection's response timeout
/// has to be longer than any of them.
const BLOCK_MAX: Duration = Duration::from_secs(5);

/// Before every entry.
const BEGINNING: &str = "0-0";
/// Entries removed at once.
const REMOVED_MAX: usize = 1_000;

/// One reply as it stands in the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxEntry {
    /// Its entry.
    pub id: String,
    /// Its number within the inbox, from 1 without gaps; 0 where the entry has none.
    pub seq: u64,
    /// The reply, JSON.
    pub reply: String,
}

/// Reads one inbox from its beginning.
#[derive(Debug)]
pub struct InboxReader {
    connection: Connection,
    key: String,
    current: Option<MultiplexedConnection>,
    /// The moves of the primary that were known when that was made.
    moves: u64,
    /// The entry that was read last.
    last: String,
    /// Its number.
    seq: u64,
    /// Entries that were read and are not removed yet, each with its number.
    kept: BTreeSet<(String, u64)>,
    /// Whether the inbox is being read again from its beginning.
    looks_back: bool,
}

impl Store {
    /// A reader of an inbox, from the oldest reply that is there. It connects with its first read.
    #[must_use]
    pub fn inbox(&self, tenant: &TenantId, inbox: &InboxName) -> InboxReader {
        let key = self.keys.replies(tenant, inbox);
        let (connection, kept) = (self.connection.clone(), BTreeSet::new());
        InboxReader {
            connection,
            key,
            current: None,
            moves: 0,
            last: BEGINNING.into(),
            seq: 0,
            kept,
            looks_back: false,
        }
    }

    /// Removes an inbox with all that is in it: for one that was made for a single question. A reply that comes
    /// later makes it anew, until it ages away.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn forget_inbox(&self, tenant: &TenantId, inbox: &InboxName) -> Result<(), StoreError> {
        let name = format!("{tenant}:{inbox}");
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(self.keys.replies(tenant, inbox)).arg(self.keys.key(format_args!("seq:{name}")));
        pipe.cmd("DEL").arg(self.keys.key(format_args!("read:{name}")));
        pipe.cmd("ZREM").arg(self.keys.key(format_args!("inboxes:{tenant}"))).arg(inbox.as_str());
        self.connection.pipeline::<(i64, i64, i64)>(Question::ForgetInbox, &pipe).await.map(drop)
    }
}

impl InboxReader {
    /// Waits for replies that were not read yet, at most as long as `block` (and at most five seconds).
    /// None came: an empty list, which may also come before the time is over.
    ///
    /// # Errors
    /// [`StoreError`]; the next read uses a new connection and misses nothing.
    pub async fn wait(&mut self, block: Duration) -> Result<Vec<InboxEntry>, StoreError> {
        // While an answer is awaited the connection belongs to the future, and is dropped with it: the next read
        // never meets the answer to an abandoned one.
        let moves = std::mem::replace(&mut self.moves, self.connection.moves());
        let mut connection = match self.current.take() {
            Some(connection) if moves == self.moves => connection,
            _ => self.connection.dedicated(BLOCK_MAX).await?,
        };
        let found = self.read(&mut connection, block.min(BLOCK_MAX)).await?;
        if found.is_empty() && self.is_behind(&mut connection).await? {
            (self.last, self.looks_back) = (BEGINNING.into(), true);
        }
        self.current = Some(connection);
        Ok(self.unread(found))
    }

    /// What stands behind the entry that was read last.
    async fn read(
        &self,
        connection: &mut MultiplexedConnection,
        block: Duration,
    ) -> Result<Vec<InboxEntry>, StoreError> {
        let block_ms = u64::try_from(block.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(COUNT).arg("BLOCK").arg(block_ms).arg("STREAMS").arg(&self.key).arg(&self.last);
        let value = match command.query_async(connection).await {
            Ok(value) => value,
            Err(error) => {
                self.connection.heard_by_a_reader(&error).await;
                return Err(StoreError::verb("replies", error));
            }
        };
        let read = entries("", std::slice::from_ref(&self.key), value)?;
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let entry = |e: &crate::Entry| InboxEntry {
            id: e.id.clone(),
            seq: text(e.field("seq")).parse().unwrap_or(0),
            reply: text(e.field("reply")),
        };
        Ok(read.iter().map(|(_, e)| entry(e)).collect())
    }

    /// Whether the newest entry stands before the one that was read last, and was not read.
    async fn is_behind(&self, connection: &mut MultiplexedConnection) -> Result<bool, StoreError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(&self.key).arg("+").arg("-").arg("COUNT").arg(1);
        let newest: Result<Vec<(String, redis::Value)>, _> = command.query_async(connection).await;
        match newest {
            Ok(newest) => Ok(newest.iter().any(|(id, _)| !self.kept.iter().any(|(kept, _)| kept == id))),
            // A user of Redis who may not look reads on from where it was.
            Err(error) if error.code() == Some("NOPERM") => Ok(false),
            Err(error) => Err(StoreError::verb("replies", error)),
        }
    }

    /// Those of the entries that were not read yet. From here on they are.
    fn unread(&mut self, found: Vec<InboxEntry>) -> Vec<InboxEntry> {
        let Some(newest) = found.last() else { return found };
        self.last.clone_from(&newest.id);
        let is_end = found.len() < COUNT;
        let fresh: Vec<_> = found.into_iter().filter(|e| self.kept.insert((e.id.clone(), e.seq))).collect();
        let mut before = self.seq;
        let follows = fresh.iter().all(|entry| {
            let number = std::mem::replace(&mut before, entry.seq);
            number == 0 || number.checked_add(1) == Some(entry.seq)
        });
        if self.looks_back {
            self.looks_back = !is_end;
        } else if !follows {
            // What is missing may stand before the entries that were read.
            (self.last, self.looks_back) = (BEGINNING.into(), true);
        }
        self.seq = fresh.last().map_or(self.seq, |entry| entry.seq);
        fresh
    }

    /// Removes entries from the inbox. Unread replies count against a bound, beyond which new turns for the inbox are
    /// refused.
    ///
    /// # Errors
    /// [`StoreError`]; what was not removed ages away.
    pub async fn remove(&mut self, ids: &[String]) -> Result<(), StoreError> {
        for ids in ids.chunks(REMOVED_MAX) {
            let command = redis::cmd("XDEL").arg(&self.key).arg(ids).to_owned();
            self.connection.query::<i64>(Question::TrimInbox, &command).await?;
            self.kept.retain(|(kept, _)| !ids.contains(kept));
        }
        Ok(())
    }
}
