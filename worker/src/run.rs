//! The life cycle of a worker: one incarnation after another, then a drain. Each incarnation holds one lease.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::ConsumerId;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::StoreError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Worker;

impl Worker {
    /// Waits while the store is unreachable. Fails if the data was written with another number of shards.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) -> Result<(), StoreError> {
        let tracker = TaskTracker::new();
        let mut left = None;
        let mut lists = None;
        while !shutdown.draining.is_cancelled() {
            let prepared = retry_until(&shutdown.draining, || async {
                match self.lease.prepare().await {
                    Ok(consumer) => Attempt::Done(Ok(consumer)),
                    Err(error @ StoreError::Shards { .. }) => Attempt::Done(Err(error)),
                    Err(error) => {
                        tracing::warn!(%error, remedy = error.remedy(), "shard not ready; retrying");
                        Attempt::Failed
                    }
                }
            });
            let Some(consumer) = prepared.await.transpose()? else { break };
            // The lists depend on run-time settings, which `prepare` has read.
            let write = || tokio::spawn(self.list_writer().keep(shutdown.draining.clone()));
            lists.get_or_insert_with(write);
            self.incarnation(&consumer, &shutdown.draining, &tracker).await;
            left = Some(consumer);
        }
        self.drain(&shutdown, &tracker, left.as_ref()).await;
        Ok(())
    }

    async fn incarnation(&self, consumer: &ConsumerId, draining: &CancellationToken, tracker: &TaskTracker) {
        let stop = draining.child_token();
        let beats = tokio::spawn({
            let (lease, consumer, stop, tracker) =
                (Arc::clone(&self.lease), consumer.clone(), stop.clone(), tracker.clone());
            async move { lease.send_heartbeats(&consumer, &stop, &tracker).await }
        });
        tokio::join!(
            self.leasing.take_slices(consumer, &stop, tracker, false),
            self.leasing.take_slices(consumer, &stop, tracker, true)
        );
        // A draining worker needs the heartbeat task until the last slice is finished, so do not wait for it here.
        if !draining.is_cancelled()
            && let Err(error) = beats.await
        {
            tracing::error!(%error, "heartbeat task panicked");
        }
    }

    async fn drain(&self, shutdown: &Shutdown, tracker: &TaskTracker, consumer: Option<&ConsumerId>) {
        tracker.close();
        if let Some(consumer) = consumer {
            self.lease.return_undelivered(consumer).await;
        }
        if !tracker.is_empty() {
            tracing::info!(slices = tracker.len(), "draining");
        }
        tokio::select! {
            () = tracker.wait() => {}
            () = shutdown.now.cancelled() => {}
            () = tokio::time::sleep(self.drain) => tracing::warn!(slices = tracker.len(), "drain time exceeded"),
        }
        self.common.now.cancel();
        // Slices that must stop still settle or return, so wait up to 3 s for them.
        if tokio::time::timeout(Duration::from_secs(3), tracker.wait()).await.is_err() {
            tracing::error!(
                slices = tracker.len(),
                "stopping with slices in progress; other workers recover them when the lease ends"
            );
            return;
        }
        if let Some(consumer) = consumer {
            // Return entries again: after the first return, the store may have delivered entries to a dropped request.
            self.lease.return_undelivered(consumer).await;
            self.lease.release(consumer).await;
        }
    }
}
