//! A producer's side of its replies: reads an inbox on a connection of its own, and trims what was read.
//!
//! An inbox is a plain stream without a consumer group: it has one reader, who knows how far it has read.

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
    last: String,
}

impl Store {
    /// A reader of an inbox, from the oldest reply that is there. It connects with its first read.
    #[must_use]
    pub fn inbox(&self, tenant: &TenantId, inbox: &InboxName) -> InboxReader {
        let key = self.keys.replies(tenant, inbox);
        InboxReader { connection: self.connection.clone(), key, current: None, last: "0-0".into() }
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
    /// Waits for replies after those already read, at most as long as `block` (and at most five seconds).
    /// None came: an empty list.
    ///
    /// # Errors
    /// [`StoreError`]; the next read uses a new connection and misses nothing.
    pub async fn wait(&mut self, block: Duration) -> Result<Vec<InboxEntry>, StoreError> {
        // While the answer is awaited the connection belongs to the future, and is dropped with it: the next read
        // never meets the answer to an abandoned one.
        let mut connection = match self.current.take() {
            Some(connection) => connection,
            None => self.connection.dedicated(BLOCK_MAX).await?,
        };
        let block_ms = u64::try_from(block.min(BLOCK_MAX).as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(COUNT).arg("BLOCK").arg(block_ms).arg("STREAMS").arg(&self.key).arg(&self.last);
        let value = command.query_async(&mut connection).await.map_err(|e| StoreError::verb("replies", e))?;
        self.current = Some(connection);
        let read = entries("", std::slice::from_ref(&self.key), value)?;
        if let Some((_, newest)) = read.last() {
            self.last.clone_from(&newest.id);
        }
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let entry = |e: &crate::Entry| InboxEntry {
            id: e.id.clone(),
            seq: text(e.field("seq")).parse().unwrap_or(0),
            reply: text(e.field("reply")),
        };
        Ok(read.iter().map(|(_, e)| entry(e)).collect())
    }

    /// Removes from the inbox what was read before `keep_from`; none keeps nothing of what was read. Unread
    /// replies count against a bound, beyond which new turns for the inbox are refused.
    ///
    /// # Errors
    /// [`StoreError`]; what was not removed ages away.
    pub async fn trim(&self, keep_from: Option<&str>) -> Result<(), StoreError> {
        let from = keep_from.map_or_else(|| after(&self.last), str::to_owned);
        let command = redis::cmd("XTRIM").arg(&self.key).arg("MINID").arg(from).to_owned();
        self.connection.query::<i64>(Question::TrimInbox, &command).await.map(drop)
    }
}

/// The smallest id after this one. Trimming to the id itself would keep its entry.
fn after(id: &str) -> String {
    let next = |seq: &str| seq.parse::<u64>().ok().and_then(|seq| seq.checked_add(1));
    match id.split_once('-').and_then(|(ms, seq)| Some((ms, next(seq)?))) {
        Some((ms, seq)) => format!("{ms}-{seq}"),
        None => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_after_an_entry_counts_its_sequence_up() {
        assert_eq!(after("1700000000000-0"), "1700000000000-1");
        assert_eq!(after("0-0"), "0-1");
        assert_eq!(after("odd"), "odd");
    }
}
