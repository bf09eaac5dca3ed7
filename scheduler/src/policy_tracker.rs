use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tickfleet_core::turn::limit::Generations;
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_model::ConsumerId;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::{AnnounceResult, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::policy::{PolicySnapshot, PolicyState, ShardSlots};

pub(crate) struct PolicyTracker {
    store: Store,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    state: PolicyState,
    /// Loops that wait for Redis stop when this token is canceled.
    stopping: ArcSwap<CancellationToken>,
    consumer: ArcSwapOption<ConsumerId>,
    report: ReportOptions,
}

impl PolicyTracker {
    pub(crate) fn new(store: Store, active: Arc<PolicyHandle>, metrics: Arc<Metrics>, report: ReportOptions) -> Self {
        let state = PolicyState::default();
        let stopping = ArcSwap::default();
        let consumer = ArcSwapOption::default();
        Self { store, active, metrics, state, stopping, consumer, report }
    }

    pub(crate) fn set_consumer(&self, consumer: &ConsumerId) {
        self.consumer.store(Some(Arc::new(consumer.clone())));
    }

    pub(crate) fn begin_incarnation(&self, stop: &CancellationToken) {
        self.stopping.store(Arc::new(stop.clone()));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stopping.load().is_cancelled()
    }

    pub(crate) const fn state(&self) -> &PolicyState {
        &self.state
    }

    pub(crate) fn active(&self) -> Arc<ActivePolicy> {
        self.active.load()
    }

    /// 1 without limits. Assumes that an eighth of the limits match a call.
    pub(crate) fn cost_of_call(&self) -> usize {
        1 + self.active.load().policy.limits.len() / 8
    }

    pub(crate) fn report(&self) -> ReportOptions {
        let policy = self.state.announced();
        ReportOptions {
            policy_version: Some(policy.generation),
            policy_digest: Arc::clone(&policy.short),
            ..self.report.clone()
        }
    }

    /// Ends the incarnation if a newer policy is in force. Also reads run-time settings that have changed.
    pub(crate) async fn apply_store_state(&self) {
        let state = self.store.state();
        self.state.report_clock_jump(self.store.take_jump_ms(), &self.metrics);
        self.state.set_epoch(state.epoch_began_ms, &self.metrics);
        if state.policy > self.state.generation() && self.state.generation() > 0 {
            self.end_stale_incarnation();
        }
        // A failed read needs no retry. The store rejects a decision that relies on older settings, and
        // `handle_stale_policy` then reads the settings.
        if let Err(error) = self.active.refresh(&self.store).await {
            tracing::warn!(%error, "failed to read run-time settings; the last ones read stay in force");
        }
    }

    pub(crate) async fn handle_stale_policy(&self) -> Result<(), StoreError> {
        if self.store.refresh_state().await?.policy > self.state.generation() {
            self.end_stale_incarnation();
            return Ok(());
        }
        tracing::debug!("run-time settings changed; reading them");
        self.active.refresh(&self.store).await
    }

    /// The scheduler announces at its start, after a reload, and if Redis has lost the policy.
    pub(crate) async fn announce(&self, active: &ActivePolicy, take: bool) -> Result<AnnounceResult, StoreError> {
        let consumer = self.consumer.load();
        let announced = self.store.announce(&active.digest, consumer.as_deref(), take).await?;
        if let AnnounceResult::InForce { generation } = announced {
            let before = self.state.announced();
            self.state.set_announced(&active.digest, generation);
            self.metrics.config_in_force(active.short_digest(), generation);
            if (before.digest.as_str(), before.generation) != (active.digest.as_str(), generation) {
                tracing::info!(policy = active.short_digest(), generation, "policy in force");
            }
        }
        Ok(announced)
    }

    /// After a reload, announces the new policy first, so that no batch has the generation of another policy. `None` if
    /// a newer policy is in force.
    pub(crate) async fn policy_snapshot(&self) -> Result<Option<PolicySnapshot>, StoreError> {
        let active = self.active.load();
        let announced = self.state.announced();
        if announced.digest == active.digest {
            return Ok(Some(self.snapshot(active, announced.generation)));
        }
        match self.announce(&active, false).await? {
            AnnounceResult::InForce { generation } => Ok(Some(self.snapshot(active, generation))),
            AnnounceResult::Older { .. } => {
                self.end_stale_incarnation();
                Ok(None)
            }
        }
    }

    fn snapshot(&self, active: Arc<ActivePolicy>, policy: u64) -> PolicySnapshot {
        let generations = Generations { policy, settings: active.tenants_generation(self.store.shard()) };
        let shard = self.store.shard();
        let shards = self.store.options().shards;
        let slots = ShardSlots {
            active: Arc::clone(&active),
            slots: Arc::clone(self.state.slots()),
            shards,
            now_ms: self.store.state().now_ms,
        };
        PolicySnapshot { active, generations, shard: (shard, shards), slots, report: self.report() }
    }

    pub(crate) fn count_stale_policy(&self) {
        self.metrics.policy_stale();
    }

    pub(crate) fn end_stale_incarnation(&self) {
        self.metrics.policy_stale();
        self.stopping.load().cancel();
    }

    pub(crate) async fn restore_lost_state(&self, what: &str) {
        self.metrics.state_lost();
        tracing::error!(what, "streams or groups of the shard are missing; recreating them");
        if let Err(error) = self.store.ensure_groups().await {
            tracing::warn!(%error, "failed to recreate streams and groups");
        }
        if let Err(error) = self.announce(&self.active.load(), false).await {
            tracing::warn!(%error, "failed to announce the policy again");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
