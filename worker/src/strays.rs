//! Strays: entries that were delivered to the worker but that the worker does not run. The worker returns them, because
//! no other process takes entries from a live worker.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tickfleet_core::keys::TurnName;
use tickfleet_core::recovery::reap::HeldEntry;
use tickfleet_core::turn::slice::fields;
use tickfleet_core::turn::{DeadLetterStrayEntry, RequeueReason, RequeueUnreadable, Slice};
use tickfleet_core::{EntryId, Query, StreamKey, Value};
use tickfleet_model::{ConsumerId, limits};
use tickfleet_store::{Store, StoreError};

use crate::Common;
use crate::decision_queues::DecisionQueues;
use crate::held_slices::HeldSlices;

/// The number of entries of a queue that are compared. A worker cannot hold more slices.
const COMPARED_MAX: usize = 10_000;
const READ_AT_ONCE: usize = 32;

pub(crate) struct Strays {
    store: Store,
    slices: Arc<HeldSlices>,
    decisions: Arc<DecisionQueues>,
    /// The strays of the previous comparison. One comparison is not enough: the worker may just be about to start an
    /// entry's slice.
    seen: Mutex<HashSet<(StreamKey, EntryId)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StrayScope {
    /// All strays. Only for queues from which this worker does not take entries at the same time.
    All,
    /// Only strays that the previous comparison also found.
    SeenBefore,
}

impl Strays {
    pub(crate) fn new(common: &Common, slices: &Arc<HeldSlices>, decisions: &Arc<DecisionQueues>) -> Self {
        Self {
            store: common.store.clone(),
            slices: Arc::clone(slices),
            decisions: Arc::clone(decisions),
            seen: Mutex::default(),
        }
    }

    /// After an error, the next comparison finds the strays again.
    pub(crate) async fn return_entries(
        &self,
        consumer: &ConsumerId,
        queues: &[StreamKey],
        scope: StrayScope,
    ) -> Result<(), StoreError> {
        let mut found = HashSet::new();
        for queue in queues {
            let stream = queue.clone();
            let consumer = consumer.as_str().into();
            let held = self.store.query(Query::Holds { stream, consumer, count: COMPARED_MAX }).await?;
            let Value::Holds(held) = held else { continue };
            for entries in held.chunks(READ_AT_ONCE) {
                self.compare(queue, entries, scope, &mut found).await?;
            }
        }
        if scope == StrayScope::SeenBefore {
            *self.seen.lock() = found;
        }
        Ok(())
    }

    async fn compare(
        &self,
        queue: &StreamKey,
        entries: &[EntryId],
        scope: StrayScope,
        found: &mut HashSet<(StreamKey, EntryId)>,
    ) -> Result<(), StoreError> {
        let queries: Vec<Query> = entries.iter().map(|entry| Query::Entry(queue.clone(), entry.clone())).collect();
        for (entry, value) in entries.iter().zip(self.store.seam().read(&queries).await?) {
            // An entry that is no longer in its queue has no slice.
            let Value::Entry(Some(fields)) = value else { continue };
            let key = (queue.clone(), entry.clone());
            let is_returned = scope == StrayScope::All || self.seen.lock().contains(&key);
            match Slice::read(queue.clone(), entry.clone(), &fields) {
                Ok(slice) if self.slices.contains(&slice.name, &slice.entry) => continue,
                Ok(slice) if is_returned => {
                    tracing::warn!(turn = %slice.name, "leased slice is not being executed; returning it");
                    self.decisions.requeue(slice, RequeueReason::Unknown).await;
                }
                Err(problem) if is_returned => {
                    let entry = HeldEntry { queue: queue.clone(), entry: entry.clone(), fields };
                    self.return_unreadable(&entry, &problem.to_string()).await;
                }
                Ok(_) | Err(_) => {}
            }
            found.insert(key);
        }
        Ok(())
    }

    /// If the turn's name is readable, the entry returns to its queue: a worker of a newer build may read it.
    /// Otherwise, the entry becomes a dead letter.
    pub(crate) async fn return_unreadable(&self, entry: &HeldEntry, problem: &str) {
        tracing::error!(entry = %entry.entry, problem, "cannot read an entry of a ready stream");
        let returned = match entry.text(fields::NAME).and_then(TurnName::parse) {
            Some(name) => {
                let unread = RequeueUnreadable { entry, name: &name, attempts_max: limits::UNREAD_OFFERS_MAX };
                self.store.decide(unread).await.map(drop)
            }
            None => {
                let bounds = self.store.bounds();
                self.store.decide(DeadLetterStrayEntry { entry, why: problem, bounds: &bounds }).await.map(drop)
            }
        };
        if let Err(error) = returned {
            tracing::warn!(%error, "entry stays with this worker until its lease ends");
        }
    }
}
