//! Streams: logs, inboxes, and queues with one consumer group.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tickfleet_core::EntryId;
use tickfleet_core::view::Fields;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Id {
    /// By the store's clock when the entry was appended.
    pub ms: u64,
    pub seq: u64,
}

impl Id {
    pub fn parse(entry: &EntryId) -> Option<Self> {
        let (ms, seq) = entry.as_str().split_once('-')?;
        Some(Self { ms: ms.parse().ok()?, seq: seq.parse().ok()? })
    }

    pub const fn packed(self) -> u128 {
        (self.ms as u128) << 64 | self.seq as u128
    }

    pub fn entry(self) -> EntryId {
        EntryId::new(self.to_string())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    pub delivered: Id,
    pub holders: BTreeMap<Id, Arc<str>>,
    pub consumers: BTreeMap<Arc<str>, BTreeSet<Id>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    pub entries: BTreeMap<Id, Arc<Fields>>,
    /// The newest ID so far, even if that entry was removed.
    pub last: Id,
    pub added: u64,
    /// `None` for logs and inboxes.
    pub group: Option<Group>,
}

impl Stream {
    /// Greater than all earlier IDs, even if the clock is set back.
    pub fn next_id(&self, raw_ms: i64) -> Id {
        let ms = u64::try_from(raw_ms).unwrap_or(0);
        if ms > self.last.ms { Id { ms, seq: 0 } } else { Id { ms: self.last.ms, seq: self.last.seq + 1 } }
    }

    pub fn unread(&self) -> impl Iterator<Item = (&Id, &Arc<Fields>)> {
        let delivered = self.group.as_ref().map_or(Id::default(), |group| group.delivered);
        self.entries.range((std::ops::Bound::Excluded(delivered), std::ops::Bound::Unbounded))
    }

    pub fn holder(&self, id: Id) -> Option<&Arc<str>> {
        self.group.as_ref()?.holders.get(&id)
    }

    pub fn remove(&mut self, id: Id) -> Option<Arc<Fields>> {
        if let Some(group) = &mut self.group
            && let Some(holder) = group.holders.remove(&id)
            && let Some(held) = group.consumers.get_mut(&holder)
        {
            held.remove(&id);
        }
        self.entries.remove(&id)
    }

    pub fn deliver(&mut self, id: Id, consumer: Arc<str>) {
        let group = self.group.get_or_insert_default();
        group.delivered = group.delivered.max(id);
        group.holders.insert(id, Arc::clone(&consumer));
        group.consumers.entry(consumer).or_default().insert(id);
    }
}
