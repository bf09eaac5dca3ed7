//! Reads batches of entries from inbound streams, and rejects invalid entries with a reply.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::recovery::inbound::{TakenInbound, crashes, origin};
use tickfleet_core::recovery::reap::HeldEntry;
use tickfleet_core::turn::reject::{Reject, Rejected};
use tickfleet_core::turn::submit::Inbound;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::retry_until::{Attempt, RetryWait, retry_until};
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_model::{ConsumerId, Redactor, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_protocol::{RejectedMessage, RejectionStatus};
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::{Backoff, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::admission::{Arrival, Rejection};
use crate::held_entries::held_entries;
use crate::inbound_reader::InboundReader;
use crate::policy_tracker::PolicyTracker;

/// All records of a tenant are in one shard, so other shards reject the tenant's turns (invariant 10).
pub(crate) const WRONG_SHARD: &str = "the tenant lives in another shard: CRC32(tenant) mod the number of shards";

pub(crate) struct Intake {
    store: Store,
    active: Arc<PolicyHandle>,
    policy_tracker: Arc<PolicyTracker>,
    metrics: Arc<Metrics>,
    progress: Progress,
    batch: usize,
    /// Removes secrets from dead letters.
    redactor: Arc<Redactor>,
    /// The whole process handles only one suspect entry at the same time.
    suspects: SuspectSemaphore,
}

pub(crate) trait BatchHandler {
    fn handle_batch(&self, reader: &InboundReader, arrivals: Vec<Arrival>) -> impl Future<Output = ()> + Send;
}

impl Intake {
    pub(crate) fn new(common: &Common, batch: usize, redactor: Arc<Redactor>) -> Self {
        Self {
            store: common.store.clone(),
            active: common.active.clone(),
            policy_tracker: common.policy_tracker.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            batch,
            redactor,
            suspects: common.suspects.clone(),
        }
    }

    pub(crate) async fn read(
        &self,
        from: Inbound,
        consumer: ConsumerId,
        stop: CancellationToken,
        handler: &impl BatchHandler,
    ) {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let block = lease / u32::try_from(limits::BLOCK_FRACTION).unwrap_or(4);
        let name = stream_name(from);
        let handle = self.progress.register(name, block * 4 + Duration::from_secs(30));
        let reader = InboundReader::new(&self.store, &self.suspects, from, consumer, handle, stop.clone());
        let take = TakeRequest {
            consumer: reader.consumer.as_str().into(),
            queues: vec![from.stream()],
            count: self.batch,
            wait_ms: u64::try_from(block.as_millis()).unwrap_or(u64::MAX),
        };
        let mut backoff = Backoff::default();
        // Time of the last check for entries that this consumer still holds. Between two batches, it handles none, so
        // such an entry was lost with a dropped read, or must be decided again.
        let mut compared: Option<Instant> = None;
        while !stop.is_cancelled() {
            let compares = compared.is_none_or(|at| at.elapsed() >= lease);
            // The epoch must be read before the entries, see `TakenInbound`.
            let epoch = self.store.state().epoch;
            match self.next_batch(&take, &stop, compares).await {
                Ok(entries) => {
                    if compares {
                        compared = Some(Instant::now());
                    }
                    backoff.reset();
                    if !entries.is_empty() {
                        self.metrics.inbound(name, entries.len() as u64);
                        let arrivals = entries.into_iter().map(|entry| arrival(from, entry, epoch)).collect();
                        handler.handle_batch(&reader, arrivals).await;
                        if self.store.state().epoch != epoch {
                            compared = None;
                        }
                    }
                }
                Err(StoreError::StateLost(what)) => self.policy_tracker.restore_lost_state(&what).await,
                Err(error) => {
                    tracing::warn!(%error, stream = name, "failed to read inbound entries; retrying");
                    compared = None;
                    reader.pause(backoff.pause()).await;
                }
            }
            reader.advanced();
        }
        reader.finished();
    }

    /// If `compares` is true, first returns entries that were already delivered to this consumer.
    async fn next_batch(
        &self,
        take: &TakeRequest,
        stop: &CancellationToken,
        compares: bool,
    ) -> Result<Vec<HeldEntry>, StoreError> {
        if compares {
            let mine = held_entries(&self.store, &take.queues, &take.consumer, self.batch).await?;
            if !mine.is_empty() {
                return Ok(mine);
            }
        }
        tokio::select! {
            // If the read is dropped, this consumer keeps the delivered entries, and releases them to other schedulers
            // when it stops.
            () = stop.cancelled() => Ok(Vec::new()),
            taken = self.store.seam().take(take) => {
                let held = |one: tickfleet_store::seam::TakenEntry| HeldEntry {
                    queue: one.queue,
                    entry: one.entry,
                    fields: one.fields,
                };
                Ok(taken?.into_iter().map(held).collect())
            }
        }
    }

    pub(crate) fn rejection(
        &self,
        from: Inbound,
        arrival: &Arrival,
        refusal: &RejectedMessage,
        status: RejectionStatus,
    ) -> Rejection {
        Rejection::of(from, arrival, refusal, status, &self.redactor)
    }

    pub(crate) async fn reject_all(&self, reader: &InboundReader, from: Inbound, mut rejections: Vec<Rejection>) {
        while !rejections.is_empty() {
            let rest = rejections.split_off(rejections_length(&rejections));
            let active = self.active.load();
            let bounds = self.store.bounds();
            let rejects: Vec<Reject<'_>> =
                rejections.iter().map(|rejection| rejection.decision(from, &active.policy, &bounds)).collect();
            let written = retry_until(reader, || async {
                match self.store.decide_all(&rejects).await {
                    Ok(written) => Attempt::Done(written),
                    Err(error) => {
                        tracing::warn!(%error, "failed to reject an inbound entry; retrying");
                        Attempt::Failed
                    }
                }
            });
            let Some(written) = written.await else { return };
            for (rejection, written) in rejections.iter().zip(written) {
                match written.map(|receipt| receipt.result) {
                    Ok(Rejected::Done { .. }) => self.count_rejected(from, rejection),
                    Ok(Rejected::NotHeld | Rejected::Later(_)) => {}
                    Err(error) => {
                        tracing::error!(%error, entry = %rejection.entry.id, "cannot reject an inbound entry")
                    }
                }
            }
            rejections = rest;
        }
    }

    fn count_rejected(&self, from: Inbound, rejection: &Rejection) {
        self.metrics.dead(rejection.reason.as_str());
        if matches!(from, Inbound::Turns) {
            self.metrics.refused(rejection.reason.as_str());
        }
    }
}

pub(crate) const fn stream_name(from: Inbound) -> &'static str {
    match from {
        Inbound::Turns => "turns",
        Inbound::Tasks => "tasks",
    }
}

/// Returns at least one.
pub(crate) fn rejections_length(rejections: &[Rejection]) -> usize {
    let mut bytes = 0;
    let fits = |rejection: &&Rejection| {
        bytes += rejection.bytes();
        bytes <= limits::BATCH_BYTES_MAX
    };
    rejections.iter().take(64).take_while(fits).count().max(1)
}

fn arrival(from: Inbound, entry: HeldEntry, epoch: u64) -> Arrival {
    let raw = entry.fields.iter().find(|(name, _)| &**name == from.field()).map(|(_, raw)| raw.to_vec());
    Arrival {
        origin: origin(&entry),
        crashes: crashes(&entry.fields),
        raw: raw.unwrap_or_default(),
        entry: TakenInbound { id: entry.entry, epoch },
    }
}
