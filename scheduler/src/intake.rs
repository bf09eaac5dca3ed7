//! The intake: inbound streams are read in batches, and entries that cannot be taken in are rejected with a reply.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::one_suspect::OneSuspect;
use tickfleet_engine::retry_until::{Attempt, Waiting, retry_until};
use tickfleet_model::{ConsumerId, Redactor, TenantId, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_protocol::{RejectedMessage, RejectionStatus};
use tickfleet_store::{Backoff, Entry, Inbound, Reader, Rejection, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::admission::{Arrival, rejection};
use crate::decider::Decider;
use crate::reading::Reading;

/// Rule 10: a tenant's budgets are kept in one shard, so its turns count in no other.
pub(crate) const WRONG_SHARD: &str = "the tenant lives in another shard: CRC32(tenant) mod the number of shards";

/// Reads inbound streams, and rejects what cannot be taken in.
pub(crate) struct Intake {
    store: Store,
    active: Arc<PolicyHandle>,
    decider: Arc<Decider>,
    metrics: Arc<Metrics>,
    progress: Progress,
    /// Entries read at once.
    batch: usize,
    /// Takes secrets out of what the dead stream keeps.
    redactor: Arc<Redactor>,
    /// One at a time in the whole process.
    suspects: OneSuspect,
}

/// A part that acts on the entries of an inbound stream.
pub(crate) trait Taker {
    /// Takes a batch in, and comes back when all is written.
    fn take(&self, reading: &Reading, arrivals: Vec<Arrival>) -> impl Future<Output = ()> + Send;
}

impl Intake {
    /// Reads `batch` entries at once; `redactor` takes secrets out of what the dead stream keeps.
    pub(crate) fn new(common: &Common, batch: usize, redactor: Arc<Redactor>) -> Self {
        Self {
            store: common.store.clone(),
            active: common.active.clone(),
            decider: common.decider.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            batch,
            redactor,
            suspects: common.suspects.clone(),
        }
    }

    /// Reads one inbound stream until `stop` and hands each batch to `taker`.
    pub(crate) async fn read(&self, from: Inbound, consumer: ConsumerId, stop: CancellationToken, taker: &impl Taker) {
        let block = Duration::from_millis(self.store.options().lease_ms.unsigned_abs() / limits::BLOCK_FRACTION);
        let handle = self.progress.register(from.stream(), block * 4 + Duration::from_secs(30));
        let reading = Reading::new(&self.store, &self.suspects, from, consumer, handle, stop.clone());
        let streams = [from.stream().to_owned()];
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let mut reader = self.store.reader(&reading.consumer, block);
        let mut backoff = Backoff::default();
        let mut compared = Instant::now();
        while !stop.is_cancelled() {
            // Rule 12: here nothing is in hand. Whatever is pending was delivered to a connection that broke, some of
            // it after the new one was made; nobody takes it from a consumer that lives.
            let compare = reader.is_fresh() || compared.elapsed() >= lease;
            if compare {
                compared = Instant::now();
            }
            match self.next(&mut reader, &streams, &stop, compare).await {
                Ok(entries) => {
                    backoff.reset();
                    if !entries.is_empty() {
                        self.metrics.inbound(from.stream(), entries.len() as u64);
                        let arrivals = entries.into_iter().map(|e| arrival(from, e)).collect();
                        taker.take(&reading, arrivals).await;
                    }
                }
                Err(StoreError::StateLost(what)) => self.decider.state_lost(&what).await,
                Err(error) => {
                    tracing::warn!(%error, stream = from.stream(), "failed to read inbound entries; retrying");
                    reading.pause(backoff.pause()).await;
                }
            }
            reading.advanced();
        }
        reading.finished();
    }

    /// The next batch. What was delivered and never arrived is read again first, if `compare` says so.
    async fn next(
        &self,
        reader: &mut Reader,
        streams: &[String],
        stop: &CancellationToken,
        compare: bool,
    ) -> Result<Vec<Entry>, StoreError> {
        if compare {
            let mine = reader.mine(&streams[0], self.batch).await?;
            if !mine.is_empty() {
                return Ok(mine);
            }
        }
        tokio::select! {
            // The reader is dropped with its connection when this loop ends, so nothing is delivered to nobody.
            () = stop.cancelled() => Ok(Vec::new()),
            read = reader.wait(streams, self.batch) => Ok(read?.into_iter().map(|(_, entry)| entry).collect()),
        }
    }

    /// The rejection of an inbound entry, without the secrets that it may hold. A tenant that nobody knows has no
    /// inbox: whoever writes such messages could make any number of them. The dead stream tells, and `absent` its producer.
    pub(crate) fn rejection(
        &self,
        from: Inbound,
        arrival: &Arrival,
        refusal: &RejectedMessage,
        status: RejectionStatus,
    ) -> Rejection {
        let rejection = rejection(from, arrival, refusal, status, &self.redactor);
        let active = self.active.load();
        let policy = &active.policy;
        // One whose declaration cannot be read is known all the same.
        let known = |tenant: &TenantId| policy.tenants.contains_key(tenant) || policy.withheld.contains(tenant);
        Rejection {
            reply_to: rejection.reply_to.filter(|(tenant, _)| known(tenant)),
            absent: refusal.tenant.clone().filter(|tenant| !known(tenant)),
            ..rejection
        }
    }

    /// Rejects until Redis has written it.
    pub(crate) async fn reject_all(&self, reading: &Reading, from: Inbound, mut rejections: Vec<Rejection>) {
        while !rejections.is_empty() {
            let rest = rejections.split_off(rejections_length(&rejections));
            let written = retry_until(reading, || async {
                match self.store.reject(from, &rejections).await {
                    Ok(ours) => Attempt::Done(ours),
                    Err(error) => {
                        tracing::warn!(%error, "failed to reject an inbound entry; retrying");
                        Attempt::Failed
                    }
                }
            });
            let Some(ours) = written.await else { return };
            self.count_rejected(from, &rejections, &ours);
            rejections = rest;
        }
    }

    /// Counts what this scheduler has rejected; another may have been first.
    fn count_rejected(&self, from: Inbound, rejections: &[Rejection], ours: &[bool]) {
        for (rejection, _) in rejections.iter().zip(ours).filter(|(_, ours)| **ours) {
            self.metrics.dead(&rejection.reason);
            if from == Inbound::Turns {
                self.metrics.refused(&rejection.reason);
            }
        }
    }
}

/// Counts the rejections that fit one script, by number and by bytes; at least one.
pub(crate) fn rejections_length(rejections: &[Rejection]) -> usize {
    let mut bytes = 0;
    let fits = |rejection: &&Rejection| {
        bytes += rejection.raw.len() + rejection.reply.len();
        bytes <= limits::BATCH_BYTES_MAX
    };
    rejections.iter().take(64).take_while(fits).count().max(1)
}

fn arrival(from: Inbound, entry: Entry) -> Arrival {
    let text = |name: &str| entry.field(name).map(|v| String::from_utf8_lossy(v).into_owned());
    Arrival {
        origin: text("o").unwrap_or_else(|| entry.id.clone()),
        crashes: text("x").and_then(|x| x.parse().ok()).unwrap_or(0),
        raw: entry.field(from.field()).map(<[u8]>::to_vec).unwrap_or_default(),
        entry: entry.id,
    }
}
