//! Redelivers the entries of dead processes.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::recovery::inbound::ReapInbound;
use tickfleet_core::recovery::lease::Lease;
use tickfleet_core::recovery::reap::{Reap, ReapResult};
use tickfleet_core::workers::{
    self, ListHolder, Liveness, ReapPermit, RemoveDeadConsumer, RemoveDeadConsumerResult, RequestReapPermit,
};
use tickfleet_core::{StreamKey, Value, keys};
use tickfleet_model::{ConsumerId, TenantId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Store, StoreError, queues, worker_queues};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::PATIENCE;
use crate::held_entries::held_entries;
use crate::policy_tracker::PolicyTracker;

const DEAD_MAX: usize = 16;
const HELD_MAX: usize = 256;
/// For one consumer in one round. The next round does further steps.
const STEPS_MAX: usize = 256;

#[derive(Debug, Default)]
struct Recovered {
    redelivered: u64,
    dead: u64,
    quarantined: u64,
}

pub(crate) struct Recovery {
    store: Store,
    policy_tracker: Arc<PolicyTracker>,
    metrics: Arc<Metrics>,
    progress: Progress,
    every: Duration,
}

impl Recovery {
    pub(crate) fn new(common: &Common, every: Duration) -> Self {
        Self {
            store: common.store.clone(),
            policy_tracker: common.policy_tracker.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            every,
        }
    }

    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let handle = self.progress.register("reap", self.every * 2 + PATIENCE * 2);
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let mut listed: Option<Instant> = None;
        while !stop.is_cancelled() {
            let lists = listed.is_none_or(|listed| listed.elapsed() >= lease);
            match self.round(lists).await {
                Ok(()) if lists => listed = Some(Instant::now()),
                Ok(()) => {}
                Err(StoreError::StateLost(what)) => self.policy_tracker.restore_lost_state(&what).await,
                Err(error) => tracing::warn!(%error, "failed to look for dead consumers"),
            }
            handle.advanced();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.every) => {}
            }
        }
        handle.finished();
    }

    /// Does nothing if the last check is less than three quarters of a period old. Two checks are therefore less than
    /// two periods apart.
    async fn round(&self, lists: bool) -> Result<(), StoreError> {
        let every_ms = i64::try_from(self.every.as_millis()).unwrap_or(i64::MAX);
        if !self.may_reap(every_ms / 4 * 3).await? {
            return Ok(());
        }
        if lists {
            self.list_holders().await?;
        }
        let now_ms = self.store.state().now_ms;
        let Value::Members(dead) = self.store.query(workers::dead(now_ms, DEAD_MAX)).await? else { return Ok(()) };
        for (consumer, _) in dead {
            let Ok(consumer) = ConsumerId::new(&*consumer) else { continue };
            let mut recovered = Recovered::default();
            let reaped = self.reap(&consumer, &mut recovered).await;
            self.report(&consumer, &recovered);
            reaped?;
            // Without a check after each consumer, a long round would look like an outage of the store.
            if !self.may_reap(0).await? {
                break;
            }
        }
        Ok(())
    }

    async fn may_reap(&self, every_ms: i64) -> Result<bool, StoreError> {
        let may = RequestReapPermit { lease_ms: self.store.options().lease_ms, every_ms };
        Ok(self.store.decide(may).await?.result == ReapPermit::Granted)
    }

    /// Adds missing consumers that hold entries to the list of consumers (see [`ListHolder`]).
    async fn list_holders(&self) -> Result<(), StoreError> {
        for queue in queues() {
            for holder in self.store.seam().consumers(&queue).await?.into_iter().filter(|one| one.held > 0) {
                let Ok(consumer) = ConsumerId::new(&*holder.name) else { continue };
                self.store.decide(ListHolder { consumer }).await?;
            }
        }
        Ok(())
    }

    async fn reap(&self, consumer: &ConsumerId, recovered: &mut Recovered) -> Result<(), StoreError> {
        let liveness = |view: &_, context: &tickfleet_core::Context| Liveness::of(consumer, view, context.now_ms);
        let liveness = self.store.evaluate(&mut tickfleet_core::View::default(), liveness).await?;
        let Some(lease) = Lease::ended(consumer, &liveness) else { return Ok(()) };
        self.reap_inbound(consumer, &lease, recovered).await?;
        let bounds = self.store.bounds();
        for _ in 0..STEPS_MAX {
            let held = held_entries(&self.store, &worker_queues(), consumer.as_str(), HELD_MAX).await?;
            if held.is_empty() {
                return self.remove_dead_consumer(consumer).await;
            }
            let reap = Reap { consumer: consumer.as_str().into(), lease: lease.clone(), held, bounds: &bounds };
            match self.store.decide(reap).await?.result {
                ReapResult::Redelivered(turns) => recovered.redelivered += turns.len() as u64,
                // Metrics and logs count the turn later, when it ends.
                ReapResult::Quarantined(_) => recovered.quarantined += 1,
                ReapResult::Removed { dead } => recovered.dead += dead as u64,
                ReapResult::Nothing => return self.remove_dead_consumer(consumer).await,
                // The consumer is alive, the store has restarted, or another scheduler has already reaped the consumer.
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    async fn reap_inbound(
        &self,
        consumer: &ConsumerId,
        lease: &Lease,
        recovered: &mut Recovered,
    ) -> Result<(), StoreError> {
        let bounds = self.store.bounds();
        let active = self.policy_tracker.active();
        let is_tenant = |tenant: &TenantId| active.policy.tenants.contains_key(tenant);
        let entries = held_entries(&self.store, &inbound(), consumer.as_str(), HELD_MAX).await?;
        let reaps: Vec<ReapInbound<'_>> = entries
            .into_iter()
            .map(|entry| ReapInbound {
                consumer: consumer.as_str().into(),
                lease: lease.clone(),
                entry,
                bounds: &bounds,
                is_tenant: &is_tenant,
            })
            .collect();
        for reaped in self.store.decide_all(&reaps).await? {
            match reaped?.result {
                ReapResult::Redelivered(_) => recovered.redelivered += 1,
                ReapResult::Removed { dead } => recovered.dead += dead as u64,
                _ => {}
            }
        }
        Ok(())
    }

    async fn remove_dead_consumer(&self, consumer: &ConsumerId) -> Result<(), StoreError> {
        while self.store.decide(RemoveDeadConsumer { consumer: consumer.clone() }).await?.result
            == RemoveDeadConsumerResult::Partly
        {}
        for queue in queues() {
            self.store.seam().remove_consumer(&queue, consumer.as_str()).await?;
        }
        Ok(())
    }

    fn report(&self, consumer: &ConsumerId, recovered: &Recovered) {
        let Recovered { redelivered, dead, quarantined } = *recovered;
        if redelivered + dead + quarantined == 0 {
            return;
        }
        tracing::warn!(
            consumer = consumer.as_str(),
            requeued = redelivered,
            dead,
            quarantined,
            "recovered work of dead consumers"
        );
        self.metrics.reaped(redelivered);
        (0..dead).for_each(|_| self.metrics.dead("poison"));
    }
}

pub(crate) fn inbound() -> Vec<StreamKey> {
    vec![keys::turns(), keys::tasks()]
}
