//! Reads an inbox for a producer, and removes the replies that were read. The reader keeps its own position. A store
//! that has lost writes can give lower IDs to new entries, so the reader starts again if replies are missing.

use std::collections::BTreeSet;
use std::time::Duration;

use tickfleet_core::{EntryId, SetKey, StreamKey, Transaction, Write, keys};
use tickfleet_model::{InboxName, TenantId};

use super::field;
use crate::seam::inspect::{Entry, FollowRequest, Range};
use crate::{Store, StoreError};

const COUNT: usize = 128;
const BLOCK_MAX: Duration = Duration::from_secs(5);
const REMOVED_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxEntry {
    pub id: String,
    /// Counts from 1 without gaps; 0 if the reply has no number.
    pub seq: u64,
    pub reply: String,
}

#[derive(Debug)]
pub struct InboxReader {
    store: Store,
    inbox: StreamKey,
    last: Option<EntryId>,
    seq: u64,
    /// Entries that were read but not yet removed, each with its number.
    kept: BTreeSet<(String, u64)>,
    /// True while the inbox is read again from its start.
    is_rescanning: bool,
}

impl Store {
    #[must_use]
    pub fn inbox(&self, tenant: &TenantId, inbox: &InboxName) -> InboxReader {
        let store = self.clone();
        let inbox = stream_of(tenant, inbox);
        InboxReader { store, inbox, last: None, seq: 0, kept: BTreeSet::new(), is_rescanning: false }
    }

    /// For an inbox of a single request. A later reply creates a new inbox, which exists until it expires.
    pub async fn forget_inbox(&self, tenant: &TenantId, inbox: &InboxName) -> Result<(), StoreError> {
        self.seam().drop_stream(&stream_of(tenant, inbox)).await?;
        let mut transaction = Transaction::new(self.versions().draw());
        let set = SetKey::new(format!("inboxes:{tenant}"));
        transaction.leave(set, inbox.as_str());
        self.seam().commit(&[transaction]).await.map(drop)
    }
}

fn stream_of(tenant: &TenantId, inbox: &InboxName) -> StreamKey {
    let keys = keys::inbox(tenant, inbox);
    StreamKey::new(format!("replies:{}:{}", keys.tenant, keys.inbox))
}

impl InboxReader {
    /// Waits for unread replies for at most `block` and five seconds. Can return an empty list earlier. After an error,
    /// the next read continues without a gap.
    pub async fn wait(&mut self, block: Duration) -> Result<Vec<InboxEntry>, StoreError> {
        let wait_ms = u64::try_from(block.min(BLOCK_MAX).as_millis()).unwrap_or(u64::MAX).max(1);
        let follow = FollowRequest { log: self.inbox.clone(), after: self.last.clone(), count: COUNT, wait_ms };
        let found: Vec<InboxEntry> = self.store.seam().follow(&follow).await?.into_iter().map(reply).collect();
        if found.is_empty() && self.is_behind().await? {
            (self.last, self.is_rescanning) = (None, true);
        }
        Ok(self.unread(found))
    }

    /// True if the newest entry is unread. If a read found no entry after the position, the position is then wrong.
    async fn is_behind(&self) -> Result<bool, StoreError> {
        let newest = self.store.seam().entries(&self.inbox, &Range::newest(1)).await?;
        Ok(newest.iter().any(|(id, _)| !self.kept.iter().any(|(kept, _)| kept == id.as_str())))
    }

    fn unread(&mut self, found: Vec<InboxEntry>) -> Vec<InboxEntry> {
        let Some(newest) = found.last() else { return found };
        self.last = Some(EntryId::new(&newest.id));
        let is_end = found.len() < COUNT;
        let fresh: Vec<_> = found.into_iter().filter(|e| self.kept.insert((e.id.clone(), e.seq))).collect();
        let mut before = self.seq;
        let follows = fresh.iter().all(|entry| {
            let number = std::mem::replace(&mut before, entry.seq);
            number == 0 || number.checked_add(1) == Some(entry.seq)
        });
        if self.is_rescanning {
            self.is_rescanning = !is_end;
        } else if !follows {
            // Read the inbox from its start, because the missing replies may be before the position.
            (self.last, self.is_rescanning) = (None, true);
        }
        self.seq = fresh.last().map_or(self.seq, |entry| entry.seq);
        fresh
    }

    /// Replies that are not removed count as unread. An inbox with too many unread replies accepts no new turns.
    pub async fn remove(&mut self, ids: &[String]) -> Result<(), StoreError> {
        for ids in ids.chunks(REMOVED_MAX) {
            let mut transaction = Transaction::new(self.store.versions().draw());
            for id in ids {
                transaction.write(Write::Remove(self.inbox.clone(), EntryId::new(id)));
            }
            self.store.seam().commit(&[transaction]).await?;
            self.kept.retain(|(kept, _)| !ids.contains(kept));
        }
        Ok(())
    }
}

fn reply((id, fields): Entry) -> InboxEntry {
    let seq = field(&fields, "seq").parse().unwrap_or(0);
    InboxEntry { id: id.to_string(), seq, reply: field(&fields, "reply") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use tickfleet_core::InboxKey;

    use super::*;
    use crate::StoreOptions;
    use crate::seam::memory::MemoryStore;

    async fn send(store: &Store, text: &str) {
        let mut transaction = Transaction::new(store.versions().draw());
        let inbox = InboxKey { tenant: "acme".into(), inbox: "box".into() };
        transaction.write(Write::Reply(inbox, bytes::Bytes::from(text.to_owned())));
        store.seam().commit(&[transaction]).await.unwrap();
    }

    #[tokio::test]
    async fn replies_are_read_once_and_removed() {
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
        let tenant = TenantId::new("acme").unwrap();
        let inbox = InboxName::new("box").unwrap();
        let mut reader = store.inbox(&tenant, &inbox);
        assert!(reader.wait(Duration::from_millis(1)).await.unwrap().is_empty());
        send(&store, "1").await;
        send(&store, "2").await;
        let found = reader.wait(Duration::from_secs(1)).await.unwrap();
        let read = |found: &[InboxEntry]| found.iter().map(|one| (one.seq, one.reply.clone())).collect::<Vec<_>>();
        assert_eq!(read(&found), [(1, "1".to_owned()), (2, "2".to_owned())]);
        assert!(reader.wait(Duration::from_millis(1)).await.unwrap().is_empty());
        reader.remove(&[found[0].id.clone()]).await.unwrap();
        let again = store.inbox(&tenant, &inbox).wait(Duration::from_secs(1)).await.unwrap();
        assert_eq!(read(&again), [(2, "2".to_owned())]);
        store.forget_inbox(&tenant, &inbox).await.unwrap();
        send(&store, "3").await;
        let again = reader.wait(Duration::from_secs(1)).await.unwrap();
        assert_eq!(read(&again), [(1, "3".to_owned())]);
    }
}
