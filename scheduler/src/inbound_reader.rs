use std::time::Duration;

use tickfleet_core::EntryId;
use tickfleet_core::recovery::inbound::NameSuspect;
use tickfleet_core::turn::submit::Inbound;
use tickfleet_engine::retry_until::RetryWait;
use tickfleet_engine::suspect_permit::{SuspectPermit, SuspectSemaphore};
use tickfleet_model::ConsumerId;
use tickfleet_ops::progress::LoopHandle;
use tickfleet_store::{Store, StoreError};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// A loop that waits for permission to handle a suspect reports progress at this interval.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct InboundReader {
    pub(crate) from: Inbound,
    pub(crate) consumer: ConsumerId,
    store: Store,
    handle: LoopHandle,
    stop: CancellationToken,
    /// All loops of the process share the permission to handle a suspect.
    suspects: SuspectSemaphore,
    permit: Mutex<Option<SuspectPermit>>,
}

impl InboundReader {
    pub(crate) fn new(
        store: &Store,
        suspects: &SuspectSemaphore,
        from: Inbound,
        consumer: ConsumerId,
        handle: LoopHandle,
        stop: CancellationToken,
    ) -> Self {
        let store = store.clone();
        let suspects = suspects.clone();
        Self { from, consumer, store, handle, stop, suspects, permit: Mutex::default() }
    }

    /// Marks the entry, so that a crash of the process counts against it. Waits while another loop of this process
    /// handles a suspect. Returns false if the loop must stop during the wait.
    pub(crate) async fn mark_suspect(&self, suspect: &EntryId) -> bool {
        let mut turn = std::pin::pin!(self.suspects.acquire());
        let permit = loop {
            tokio::select! {
                permit = &mut turn => break permit,
                () = self.stop.cancelled() => return false,
                () = tokio::time::sleep(PROGRESS_INTERVAL) => self.handle.advanced(),
            }
        };
        if let Err(error) = self.write_suspect(Some(suspect.clone())).await {
            tracing::warn!(%error, "failed to mark a suspect entry; reading it anyway");
        }
        *self.permit.lock().await = Some(permit);
        true
    }

    pub(crate) async fn clear_suspect(&self) {
        let mut permit = self.permit.lock().await;
        if permit.is_none() {
            return;
        }
        if let Err(error) = self.write_suspect(None).await {
            tracing::debug!(%error, "failed to clear the mark of a suspect entry; the next entry replaces it");
        }
        *permit = None;
    }

    async fn write_suspect(&self, entry: Option<EntryId>) -> Result<(), StoreError> {
        let stream = self.from.stream();
        let consumer = self.consumer.as_str().into();
        let keep_ms = 2 * self.store.options().lease_ms;
        self.store.decide(NameSuspect { stream, consumer, entry, keep_ms }).await?;
        Ok(())
    }

    pub(crate) fn advanced(&self) {
        self.handle.advanced();
    }

    pub(crate) fn finished(self) {
        self.handle.finished();
    }
}

impl RetryWait for InboundReader {
    fn is_over(&self) -> bool {
        self.stop.is_over()
    }

    /// Reports progress, because a liveness probe could kill the waiting process. Removes the mark of a suspect,
    /// because a crash during the wait must not count against the suspect.
    async fn pause(&self, time: Duration) {
        self.clear_suspect().await;
        self.handle.advanced();
        self.stop.pause(time).await;
        self.handle.advanced();
    }
}
