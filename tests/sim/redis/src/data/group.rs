//! Consumer groups of a stream.

use std::collections::{BTreeMap, BTreeSet};

use super::ELEMENT_BYTES;
use super::stream::Id;

/// A delivery that was not acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) consumer: Vec<u8>,
    pub(crate) at_ms: i64,
    pub(crate) count: i64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Consumer {
    pub(crate) seen_ms: i64,
    pub(crate) pending: BTreeSet<Id>,
}

/// A group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    pub(crate) last: Id,
    pub(crate) entries_read: Option<u64>,
    pub(crate) pending: BTreeMap<Id, Delivery>,
    pub(crate) consumers: BTreeMap<Vec<u8>, Consumer>,
}

impl Group {
    pub(crate) fn bytes(&self) -> usize {
        64 + self.pending.len() * 3 * ELEMENT_BYTES + self.consumers.len() * 2 * ELEMENT_BYTES
    }

    /// The consumer of this name, made where it is missing, and seen now.
    pub(crate) fn meet(&mut self, name: &[u8], now_ms: i64) {
        self.consumers.entry(name.to_vec()).or_default().seen_ms = now_ms;
    }

    /// Gives an entry to a consumer that is there, whoever held it.
    pub(crate) fn give(&mut self, id: Id, to: &[u8], at_ms: i64, count: i64) {
        let delivery = Delivery { consumer: to.to_vec(), at_ms, count };
        if let Some(before) = self.pending.insert(id, delivery)
            && let Some(consumer) = self.consumers.get_mut(&before.consumer)
        {
            consumer.pending.remove(&id);
        }
        if let Some(consumer) = self.consumers.get_mut(to) {
            consumer.pending.insert(id);
        }
    }

    /// Takes an entry from whoever holds it. Answers whether somebody did.
    pub(crate) fn release(&mut self, id: Id) -> bool {
        let Some(delivery) = self.pending.remove(&id) else { return false };
        if let Some(consumer) = self.consumers.get_mut(&delivery.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }

    /// Removes a consumer with all it holds; answers how many entries that was, or none where it is missing.
    pub(crate) fn dismiss(&mut self, name: &[u8]) -> Option<usize> {
        let consumer = self.consumers.remove(name)?;
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }
}
