use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::recovery::inbound::ReturnInbound;
use tickfleet_core::workers::{EndLease, Heartbeat, Role};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::{ConsumerId, limits};
use tickfleet_ops::progress::Progress;
use tickfleet_store::{AnnounceResult, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::PATIENCE;
use crate::held_entries::held_entries;
use crate::policy_tracker::PolicyTracker;
use crate::recovery::inbound;

/// A stopping scheduler has this time to return its entries. The supervisor of the process waits for this.
const RETURN_WAIT: Duration = Duration::from_secs(3);
const RETURN_MAX: usize = 1_000;
const STANDBY_POLL: Duration = Duration::from_secs(1);

pub(crate) struct Lease {
    store: Store,
    name: String,
    active: Arc<PolicyHandle>,
    policy_tracker: Arc<PolicyTracker>,
    progress: Progress,
}

impl Lease {
    pub(crate) fn new(common: &Common, name: String) -> Self {
        Self {
            store: common.store.clone(),
            name,
            active: common.active.clone(),
            policy_tracker: common.policy_tracker.clone(),
            progress: common.progress.clone(),
        }
    }

    /// Must succeed before this scheduler reads an entry (invariants 12 and 16). Waits while a newer policy is in
    /// force. `None` on shutdown.
    pub(crate) async fn prepare(&self, shutdown: &CancellationToken) -> Result<Option<ConsumerId>, StoreError> {
        self.store.ensure_groups().await?;
        let consumer = tickfleet_store::incarnation("s", &self.name);
        self.policy_tracker.set_consumer(&consumer);
        let mut waits = false;
        let mut silent_since = None;
        loop {
            self.send_heartbeat(&consumer).await?;
            let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
            // After an outage of the store, other schedulers may be alive although they have no heartbeats yet. So this
            // scheduler puts its older policy in force only after a whole lease in which no other had a heartbeat.
            let take = silent_since.is_some_and(|since: Instant| since.elapsed() > lease);
            self.active.refresh(&self.store).await?;
            let active = self.active.load();
            match self.policy_tracker.announce(&active, take).await? {
                AnnounceResult::InForce { .. } => return Ok(Some(consumer)),
                AnnounceResult::Older { silent, generation } => {
                    self.policy_tracker.count_stale_policy();
                    silent_since = silent.then(|| silent_since.unwrap_or_else(Instant::now));
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
                    self.release(&consumer).await;
                    return Ok(None);
                }
                () = tokio::time::sleep(STANDBY_POLL.min(lease / 4)) => {}
            }
        }
    }

    async fn send_heartbeat(&self, consumer: &ConsumerId) -> Result<(), StoreError> {
        let heartbeat = Heartbeat {
            consumer: consumer.clone(),
            role: Role::Scheduler,
            lease_ms: self.store.options().lease_ms,
            policy: self.active.load().short_digest().to_owned(),
        };
        self.store.decide(heartbeat).await?;
        Ok(())
    }

    /// The process did not crash, so no crash is counted against these entries.
    pub(crate) async fn return_entries(&self, consumer: &ConsumerId) {
        match tokio::time::timeout(RETURN_WAIT, self.return_all(consumer)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(entries)) => tracing::info!(entries, "returning undecided inbound entries"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to return inbound entries; other schedulers take them over");
            }
            Err(_) => tracing::warn!("timed out returning inbound entries; other schedulers take them over"),
        }
    }

    async fn return_all(&self, consumer: &ConsumerId) -> Result<usize, StoreError> {
        let entries = held_entries(&self.store, &inbound(), consumer.as_str(), RETURN_MAX).await?;
        let returns: Vec<ReturnInbound> = entries.into_iter().map(|entry| ReturnInbound { entry }).collect();
        let returned = self.store.decide_all(&returns).await?;
        Ok(returned.iter().filter(|one| one.as_ref().is_ok_and(|receipt| receipt.result)).count())
    }

    pub(crate) async fn release(&self, consumer: &ConsumerId) {
        let end = EndLease { consumer: consumer.clone(), role: Role::Scheduler };
        if let Err(error) = self.store.decide(end).await {
            tracing::debug!(%error, "failed to release the lease; it expires by itself");
        }
    }

    /// Returns true if a whole lease has passed without a successful heartbeat.
    pub(crate) async fn send_heartbeats(&self, consumer: &ConsumerId, stop: &CancellationToken) -> bool {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let handle = self.progress.register("heartbeat", lease * 3 + PATIENCE);
        let every = lease / u32::try_from(limits::BEATS_PER_LEASE).unwrap_or(4);
        let mut beaten = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    handle.finished();
                    return false;
                }
                () = tokio::time::sleep(every) => {}
            }
            let sent = Instant::now();
            match self.send_heartbeat(consumer).await {
                Ok(()) => {
                    beaten = sent;
                    self.policy_tracker.apply_store_state().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "heartbeat failed");
                    if beaten.elapsed() > lease {
                        tracing::warn!("lease expired without a heartbeat; restarting under a new name");
                        handle.finished();
                        return true;
                    }
                }
            }
            handle.advanced();
        }
    }
}
