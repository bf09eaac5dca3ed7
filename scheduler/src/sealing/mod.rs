//! Sealing: one scheduler at a time reads the audit log of its shard in order and lengthens each tenant's chain of seals
//! (see `tickfleet_proof::seal`). Nothing of it is on the way of a call.
//!
//! What is sealed up to where is one text in Redis, the [`Position`]. Whoever writes seals names the position that it went
//! by, and where that is another by now, nothing is written: two sealers, one of which stood still, never seal an entry
//! twice. Entries that were trimmed before they were sealed are found by the log's own count of what was ever added.

mod anchors;
mod page;
mod position;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_model::ConsumerId;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_proof::seal::{Head, Signer};
use tickfleet_store::{SealReply, Sealer, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::Common;
use anchors::Anchors;
pub use anchors::Place;
use page::{Step, step};
use position::Position;

/// Entries that one step seals at most.
const PAGE: usize = 500;
/// A sealer that shows no sign of life for this long is followed by another, ms.
const LEASE_MS_MIN: u64 = 10_000;
/// Steps after which others may have the lease between two waits.
const STEPS_MAX: usize = 200;

/// How the audit log is sealed.
#[derive(Debug, Clone)]
pub struct SealOptions {
    /// Who signs.
    pub signer: Arc<Signer>,
    /// How often new entries are sealed.
    pub every: Duration,
    /// Where heads are kept outside.
    pub anchor: Option<Place>,
}

/// Seals the log of one shard.
pub(crate) struct Sealing {
    store: Store,
    metrics: Arc<Metrics>,
    progress: Progress,
    options: SealOptions,
    public_key: String,
    /// How long nobody else seals after this one has done so last, ms.
    lease_ms: u64,
}

/// What is known between two steps.
#[derive(Default)]
struct Known {
    position: Position,
    /// Heads of chains as of that position.
    heads: BTreeMap<String, Head>,
    /// How far heads are kept outside.
    anchors: Anchors,
    /// That another key has our id was said.
    told: bool,
}

/// How a step went.
enum Went {
    /// There may be more.
    On,
    /// There is nothing more, or it is another's to do.
    Rest,
}

impl Sealing {
    /// Seals the shard of `common`.
    pub(crate) fn new(common: &Common, options: SealOptions) -> Self {
        let public_key = options.signer.public_key();
        let (store, metrics, progress) = (common.store.clone(), common.metrics.clone(), common.progress.clone());
        let every_ms = u64::try_from(options.every.as_millis()).unwrap_or(LEASE_MS_MIN);
        Self { store, metrics, progress, options, public_key, lease_ms: (every_ms * 3).max(LEASE_MS_MIN) }
    }

    /// Seals until `stop`.
    pub(crate) async fn run(self: Arc<Self>, consumer: ConsumerId, stop: CancellationToken) {
        let handle = self.progress.register("seal", self.options.every * 10 + Duration::from_secs(60));
        let mut known = Known::default();
        loop {
            if let Err(error) = self.round(&consumer, &mut known, &stop).await {
                self.metrics.seal_failed();
                tracing::warn!(%error, "failed to seal the audit log; retrying");
                known.position = Position::default();
            }
            handle.advanced();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.options.every) => {}
            }
        }
        handle.finished();
    }

    async fn round(
        &self,
        consumer: &ConsumerId,
        known: &mut Known,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        for _ in 0..STEPS_MAX {
            if stop.is_cancelled() || matches!(self.step(consumer, known).await?, Went::Rest) {
                break;
            }
        }
        Ok(())
    }

    fn sealer<'a>(&'a self, name: &'a ConsumerId) -> Sealer<'a> {
        Sealer { name, lease_ms: self.lease_ms, key_id: self.options.signer.key_id(), public_key: &self.public_key }
    }

    /// Takes the lease, reads what comes next, seals it.
    async fn step(&self, consumer: &ConsumerId, known: &mut Known) -> Result<Went, StoreError> {
        let sealer = self.sealer(consumer);
        let state = known.position.to_string();
        let now_ms = match self.store.seal(sealer, &state, &state, &[]).await? {
            SealReply::Done { now_ms, .. } => now_ms,
            SealReply::Stale { state, .. } => {
                known.position = Position::read(&state);
                known.heads.clear();
                return Ok(Went::On);
            }
            SealReply::Held => return Ok(Went::Rest),
            SealReply::OtherKey => {
                self.tell_other_key(known);
                return Ok(Went::Rest);
            }
        };
        let page = self.store.log_page(known.position.after(), PAGE).await?;
        let full = page.entries.len() == PAGE;
        let Some(Step { position, chains, losses, gone }) = step(&known.position, &page, PAGE) else {
            self.anchor(known).await;
            return Ok(Went::Rest);
        };
        self.learn_heads(known, chains.keys()).await?;
        let (fleet, shard) = (&self.store.options().namespace, self.store.shard());
        let (rows, heads) = page::seals(fleet, shard, &chains, &known.heads, &losses, now_ms, &self.options.signer);
        match self.store.seal(sealer, &state, &position.to_string(), &rows).await? {
            SealReply::Done { .. } => {
                self.metrics.sealed(page.entries.len() as u64);
                if gone > 0 || position.breaks != known.position.breaks {
                    self.metrics.gone_unsealed(gone);
                    tracing::error!(entries = gone, "audit entries were trimmed before sealing");
                }
                known.position = position;
                known.heads.extend(heads);
            }
            SealReply::Stale { state, .. } => {
                known.position = Position::read(&state);
                known.heads.clear();
            }
            SealReply::Held | SealReply::OtherKey => return Ok(Went::Rest),
        }
        if full {
            return Ok(Went::On);
        }
        self.anchor(known).await;
        Ok(Went::Rest)
    }

    /// Said once: it stays so until somebody gives the key another id.
    fn tell_other_key(&self, known: &mut Known) {
        self.metrics.seal_failed();
        if !std::mem::replace(&mut known.told, true) {
            tracing::error!(
                key_id = self.options.signer.key_id(),
                "another key has signed seals under this id; sealing stops until seal.key_id changes"
            );
        }
    }

    /// Reads the heads that are not known yet. One that cannot be read begins a new chain, which verifying finds.
    async fn learn_heads(&self, known: &mut Known, tenants: impl Iterator<Item = &String>) -> Result<(), StoreError> {
        let unknown: Vec<String> = tenants.filter(|tenant| !known.heads.contains_key(*tenant)).cloned().collect();
        let found = self.store.seal_heads(&unknown).await?;
        let head = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or_default();
        known.heads.extend(unknown.into_iter().zip(found.into_iter().map(head)));
        Ok(())
    }

    /// Keeps heads outside; what fails is tried again at the next round.
    async fn anchor(&self, known: &mut Known) {
        let Some(place) = &self.options.anchor else { return };
        if let Err(problem) =
            known.anchors.follow(&self.store, place, &self.public_key, self.options.signer.key_id()).await
        {
            self.metrics.anchor_failed();
            tracing::warn!(problem, "failed to write external anchors of the audit log; retrying");
        }
    }
}

#[cfg(test)]
mod tests;
