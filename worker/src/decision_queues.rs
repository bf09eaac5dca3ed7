//! The decisions of a worker about its slices: settle results, begin calls, park and return slices, each in batches.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::call::begin::BeginResult;
use tickfleet_core::turn::{ParkResult, RequeueReason, SettleResult, Slice};
use tickfleet_core::{Decision as _, Step, Version, View};
use tickfleet_model::Durability;
use tickfleet_store::{Confirmed, Store};
use tokio_util::sync::CancellationToken;

use crate::batch::{self, Batcher, BeginCall, BeginReply, DurableBegin, ParkSlice, ReturnSlice, SettleResults};

/// A batcher returns `None` if the store rejects an item, or if the worker stops before the store responds.
pub(crate) struct DecisionQueues {
    store: Store,
    settles: Batcher<SettleResults>,
    begins: Batcher<BeginCall>,
    /// This batcher and the next one begin calls that run only after the begin record is on disk or on a replica.
    begins_disk: Batcher<DurableBegin>,
    begins_replica: Batcher<DurableBegin>,
    parks: Batcher<ParkSlice>,
    returns: Batcher<ReturnSlice>,
}

impl DecisionQueues {
    /// If `now` is canceled and the store does not respond, all items except results are dropped.
    pub(crate) fn new(store: &Store, capacity: usize, now: &CancellationToken) -> Self {
        let failed = batch::log_throttled();
        Self {
            store: store.clone(),
            settles: Batcher::new(store, capacity, now, failed.clone()),
            begins: Batcher::new(store, capacity, now, failed.clone()),
            begins_disk: Batcher::new(store, capacity, now, failed.clone()),
            begins_replica: Batcher::new(store, capacity, now, failed.clone()),
            parks: Batcher::new(store, capacity, now, failed.clone()),
            returns: Batcher::new(store, capacity, now, failed),
        }
    }

    pub(crate) async fn settle(&self, results: SettleResults) -> Option<SettleResult> {
        self.settles.submit(results).await
    }

    pub(crate) async fn begin(
        &self,
        begin: BeginCall,
        durability: Durability,
        at_most: Duration,
    ) -> Option<(BeginReply, Confirmed)> {
        if let Some(result) = self.begin_at_once(&begin) {
            return Some(((result, View::default()), Confirmed::Yes));
        }
        match durability {
            Durability::None => Some((self.begins.submit(begin).await?, Confirmed::Yes)),
            Durability::Disk => self.begins_disk.submit(DurableBegin { begin, durability, at_most }).await,
            Durability::Replica => self.begins_replica.submit(DurableBegin { begin, durability, at_most }).await,
        }
    }

    /// Begins a call without a read or a commit. `None` if the call needs one.
    fn begin_at_once(&self, begin: &BeginCall) -> Option<BeginResult> {
        let context = self.store.state().context(Version::new("-"));
        match begin.begin(self.store.options().lease_ms).decide(&begin.view, &context) {
            Ok(Step::Return(result)) => Some(result),
            Ok(Step::Commit(..)) | Err(_) => None,
        }
    }

    pub(crate) async fn park(&self, park: ParkSlice) -> Option<ParkResult> {
        self.parks.submit(park).await
    }

    pub(crate) async fn requeue(&self, slice: impl Into<Arc<Slice>>, why: RequeueReason) {
        let slice = slice.into();
        let name = slice.name.clone();
        if self.returns.submit(ReturnSlice { slice, why }).await.is_none() {
            tracing::warn!(turn = %name, "failed to return a slice; it is recovered when this worker's lease ends");
        }
    }
}
