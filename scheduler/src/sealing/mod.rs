//! Sealing: the scheduler with the sealing lease extends each tenant's chain of seals (see `tickfleet_proof::seal`).
//! A sealer with an outdated [`Position`] writes nothing, so no entry is sealed twice. The log's own count of added
//! entries shows whether entries were trimmed before they were sealed.

mod anchors;
mod page;
mod position;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::audit::seal::{ExtendSeals, Seal, SealKey, SealResult};
use tickfleet_core::leases::Candidate;
use tickfleet_model::ConsumerId;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_proof::seal::{Head, Signer};
use tickfleet_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::Common;
pub use anchors::AnchorTarget;
use anchors::Anchors;
use page::{Step, step};
use position::Position;

const PAGE: usize = 500;
/// Another sealer takes over if the current one writes nothing for this time.
const LEASE_MS_MIN: i64 = 10_000;
/// Steps in one round. Between two rounds, other sealers can take the lease.
const STEPS_MAX: usize = 200;

#[derive(Debug, Clone)]
pub struct SealOptions {
    pub signer: Arc<Signer>,
    pub every: Duration,
    pub anchor: Option<AnchorTarget>,
}

pub(crate) struct Sealing {
    store: Store,
    metrics: Arc<Metrics>,
    progress: Progress,
    options: SealOptions,
    public_key: String,
    /// No other process seals for this time after a write.
    lease_ms: i64,
}

#[derive(Default)]
struct SealState {
    position: Position,
    /// Each head is read when it is first needed.
    heads: BTreeMap<String, Head>,
    anchors: Anchors,
    has_logged_other_key: bool,
}

enum StepResult {
    More,
    /// There are no more entries, or another process seals.
    Done,
}

impl Sealing {
    pub(crate) fn new(common: &Common, options: SealOptions) -> Self {
        let public_key = options.signer.public_key();
        let store = common.store.clone();
        let metrics = common.metrics.clone();
        let progress = common.progress.clone();
        let every_ms = i64::try_from(options.every.as_millis()).unwrap_or(LEASE_MS_MIN);
        Self { store, metrics, progress, options, public_key, lease_ms: (every_ms * 3).max(LEASE_MS_MIN) }
    }

    pub(crate) async fn run(self: Arc<Self>, consumer: ConsumerId, stop: CancellationToken) {
        let handle = self.progress.register("seal", self.options.every * 10 + Duration::from_secs(60));
        let mut seal_state = SealState::default();
        loop {
            if let Err(error) = self.round(&consumer, &mut seal_state, &stop).await {
                self.metrics.seal_failed();
                tracing::warn!(%error, "failed to seal the audit log; retrying");
                seal_state.position = Position::default();
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
        seal_state: &mut SealState,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        for _ in 0..STEPS_MAX {
            if stop.is_cancelled() || matches!(self.step(consumer, seal_state).await?, StepResult::Done) {
                break;
            }
        }
        Ok(())
    }

    fn candidate(&self, consumer: &ConsumerId) -> Candidate {
        Candidate { process: consumer.clone(), lease_ms: self.lease_ms }
    }

    /// Writes only if the shard is sealed up to exactly `before`. If `before` equals `after` and `seals` is empty, only
    /// takes the lease.
    async fn extend(
        &self,
        consumer: &ConsumerId,
        before: &str,
        after: &str,
        seals: Vec<Seal>,
    ) -> Result<SealResult, StoreError> {
        let key = SealKey { id: self.options.signer.key_id().to_owned(), public: self.public_key.clone() };
        let extend = ExtendSeals {
            candidate: self.candidate(consumer),
            key,
            before: before.to_owned(),
            after: after.to_owned(),
            seals,
            // A seal covers at least one entry, so there are never more seals than audit entries.
            seals_max: self.store.options().audit_entries_max,
        };
        Ok(self.store.decide(extend).await?.result)
    }

    async fn step(&self, consumer: &ConsumerId, seal_state: &mut SealState) -> Result<StepResult, StoreError> {
        let state = seal_state.position.to_string();
        match self.extend(consumer, &state, &state, Vec::new()).await? {
            SealResult::Done => {}
            SealResult::Stale { state } => {
                seal_state.position = Position::read(&state);
                seal_state.heads.clear();
                return Ok(StepResult::More);
            }
            SealResult::Held => return Ok(StepResult::Done),
            SealResult::OtherKey => {
                self.log_other_key(seal_state);
                return Ok(StepResult::Done);
            }
        }
        let now_ms = self.store.state().now_ms;
        let page = self.store.log_page(seal_state.position.after(), PAGE).await?;
        let full = page.entries.len() == PAGE;
        let Some(Step { position, chains, losses, gone }) = step(&seal_state.position, &page, PAGE) else {
            self.anchor(consumer, seal_state).await;
            return Ok(StepResult::Done);
        };
        self.load_heads(seal_state, chains.keys()).await?;
        let fleet = &self.store.options().namespace;
        let shard = self.store.shard();
        let (rows, heads) =
            page::seals(fleet, shard, &chains, &seal_state.heads, &losses, now_ms, &self.options.signer);
        match self.extend(consumer, &state, &position.to_string(), rows).await? {
            SealResult::Done => {
                self.metrics.sealed(page.entries.len() as u64);
                if gone > 0 || position.breaks != seal_state.position.breaks {
                    self.metrics.trimmed_unsealed(gone);
                    tracing::error!(entries = gone, "audit entries were trimmed before sealing");
                }
                seal_state.position = position;
                seal_state.heads.extend(heads);
            }
            SealResult::Stale { state } => {
                seal_state.position = Position::read(&state);
                seal_state.heads.clear();
            }
            SealResult::Held | SealResult::OtherKey => return Ok(StepResult::Done),
        }
        if full {
            return Ok(StepResult::More);
        }
        self.anchor(consumer, seal_state).await;
        Ok(StepResult::Done)
    }

    /// The problem lasts until the configured ID changes, so it is logged only once.
    fn log_other_key(&self, seal_state: &mut SealState) {
        self.metrics.seal_failed();
        if !std::mem::replace(&mut seal_state.has_logged_other_key, true) {
            tracing::error!(
                key_id = self.options.signer.key_id(),
                "another key has signed seals under this id; sealing stops until seal.key_id changes"
            );
        }
    }

    /// If a head is unreadable, a new chain begins, and verification reports this.
    async fn load_heads(
        &self,
        seal_state: &mut SealState,
        tenants: impl Iterator<Item = &String>,
    ) -> Result<(), StoreError> {
        let unknown: Vec<String> = tenants.filter(|tenant| !seal_state.heads.contains_key(*tenant)).cloned().collect();
        let found = self.store.seal_heads(&unknown).await?;
        let head = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or_default();
        seal_state.heads.extend(unknown.into_iter().zip(found.into_iter().map(head)));
        Ok(())
    }

    async fn anchor(&self, consumer: &ConsumerId, seal_state: &mut SealState) {
        let Some(place) = &self.options.anchor else { return };
        let key_id = self.options.signer.key_id();
        if let Err(problem) = seal_state
            .anchors
            .write_new_heads(&self.store, place, &self.public_key, key_id, self.candidate(consumer))
            .await
        {
            self.metrics.anchor_failed();
            tracing::warn!(problem, "failed to write external anchors of the audit log; retrying");
        }
    }
}

#[cfg(test)]
mod tests;
