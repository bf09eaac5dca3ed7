//! A scheduler's lease: its name, its heartbeats, and what it returns when it goes.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::{ConsumerId, limits};
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Announced, Beat, ShardClock, Slots, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::PATIENCE;
use crate::decider::Decider;

/// The time for which a scheduler that stops tries to return what it holds, at most: its supervisor waits for it.
const PUT_BACK_WAIT: Duration = Duration::from_secs(3);
/// The time between two looks of a scheduler that stands by whether it still must, at most.
const STAND_BY: Duration = Duration::from_secs(1);

/// The lease of one scheduler, renewed by heartbeats.
pub(crate) struct Lease {
    store: Store,
    /// The beginning of the incarnations' names.
    name: String,
    active: Arc<PolicyHandle>,
    clock: Arc<ShardClock>,
    decider: Arc<Decider>,
    progress: Progress,
}

impl Lease {
    /// A lease under names that begin with `name`.
    pub(crate) fn new(common: &Common, name: String) -> Self {
        Self {
            store: common.store.clone(),
            name,
            active: common.active.clone(),
            clock: common.clock.clone(),
            decider: common.decider.clone(),
            progress: common.progress.clone(),
        }
    }

    /// Groups, first heartbeat, what was set at run time, policy: all before anything is read (rules 12 and 17). Where
    /// a newer policy than ours is in force, it stands by until ours may decide. None if it was told to shut down
    /// meanwhile.
    pub(crate) async fn prepare(&self, shutdown: &CancellationToken) -> Result<Option<ConsumerId>, StoreError> {
        let made = self.store.ensure_groups().await?;
        if made > 0 {
            tracing::info!(made, "streams and groups created");
        }
        if let Err(error) = self.store.load_lent_scripts().await {
            tracing::debug!(%error, "scripts of producers and exporters are loaded later");
        }
        let consumer = tickfleet_store::incarnation("s", &self.name);
        self.decider.take_name(&consumer);
        let (mut waits, mut silent_since) = (false, None);
        loop {
            self.clock.set(self.beat(&consumer).await?.now_ms);
            let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
            // Who fell silent may be back in a moment: Redis may have been away, and we are the first to beat again.
            let take = silent_since.is_some_and(|since: tokio::time::Instant| since.elapsed() > lease);
            self.active.refresh(&self.store).await?;
            let active = self.active.load();
            match self.decider.announce(&active, take).await? {
                Announced::InForce { .. } => return Ok(Some(consumer)),
                Announced::Older { silent, generation } => {
                    self.decider.still_stale();
                    silent_since = silent.then(|| silent_since.unwrap_or_else(tokio::time::Instant::now));
                    if !std::mem::replace(&mut waits, true) {
                        tracing::warn!(
                            policy = active.short_digest(),
                            generation_in_force = generation,
                            "other schedulers use a newer policy; on standby until this one has it or they stop"
                        );
                    }
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => {
                    self.leave(&consumer).await;
                    return Ok(None);
                }
                () = tokio::time::sleep(STAND_BY.min(lease / 4)) => {}
            }
        }
    }

    async fn beat(&self, consumer: &ConsumerId) -> Result<Beat, StoreError> {
        self.store.beat_with(consumer, Slots::default(), self.active.load().short_digest()).await
    }

    /// Returns what was read and not decided about: nothing died, so no crash should count against it.
    pub(crate) async fn put_back(&self, consumer: &ConsumerId) {
        match tokio::time::timeout(PUT_BACK_WAIT, self.store.put_back(consumer)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(entries)) => tracing::info!(entries, "returning undecided inbound entries"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to return inbound entries; other schedulers take them over")
            }
            Err(_) => tracing::warn!("timed out returning inbound entries; other schedulers take them over"),
        }
    }

    /// So that nobody waits a lease for what this name held.
    pub(crate) async fn leave(&self, consumer: &ConsumerId) {
        if let Err(error) = self.store.leave(consumer).await {
            tracing::debug!(%error, "failed to release the lease; it expires by itself");
        }
    }

    /// Beats until `stop`. Answers true if a whole lease passed without one.
    pub(crate) async fn beats(&self, consumer: &ConsumerId, stop: &CancellationToken) -> bool {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let handle = self.progress.register("beat", lease * 3 + PATIENCE);
        let every = lease / u32::try_from(limits::BEATS_PER_LEASE).unwrap_or(4);
        let mut since = self.clock.now_ms();
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    handle.finished();
                    return false;
                }
                () = tokio::time::sleep(every) => {}
            }
            match self.beat(consumer).await {
                Ok(beat) => {
                    since = beat.now_ms;
                    self.heard(&beat).await;
                    self.decider.compare(&beat);
                }
                Err(error) => {
                    tracing::warn!(%error, "heartbeat failed");
                    if self.clock.now_ms() - since > self.store.options().lease_ms {
                        tracing::warn!("lease expired without a heartbeat; restarting under a new name");
                        handle.finished();
                        return true;
                    }
                }
            }
            handle.advanced();
        }
    }

    /// Takes over what a heartbeat brings: time, clock trouble, tenants that were set meanwhile.
    async fn heard(&self, beat: &Beat) {
        let ahead_ms = beat.now_ms - self.clock.now_ms();
        self.clock.set(beat.now_ms);
        self.decider.heard(beat, ahead_ms);
        // What is missed here is noticed by the script that decides.
        if let Err(error) = self.active.refresh(&self.store).await {
            tracing::warn!(%error, "failed to read run-time settings; the last ones read stay in force");
        }
    }
}
