//! Keeping house: slow bounds, and what is done while Redis' memory is short.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::TaskHandlerDef;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Memory, PruneAt, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::decider::Decider;
use crate::policy::goes_by_slots;
use crate::sweep::Sweep;
use crate::{Common, Options};

/// The time between two looks at memory: a fast producer fills some percent of it in that time.
const WEIGH_EVERY: Duration = Duration::from_secs(1);

/// Keeps bounds, and sweeps.
pub(crate) struct House {
    store: Store,
    active: Arc<PolicyHandle>,
    decider: Arc<Decider>,
    metrics: Arc<Metrics>,
    progress: Progress,
    /// The period at which bounds are kept, and at which the sweep takes a step.
    every: Duration,
    /// Bytes of audit entries kept.
    audit_bytes_max: u64,
    /// The time for which dead entries are kept, ms.
    dead_retain_ms: i64,
}

impl House {
    /// Keeps the bounds of `options`.
    pub(crate) fn new(common: &Common, options: &Options) -> Self {
        Self {
            store: common.store.clone(),
            active: common.active.clone(),
            decider: common.decider.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            every: options.collect_every,
            audit_bytes_max: options.audit_bytes_max,
            dead_retain_ms: options.dead_retain_ms,
        }
    }

    /// Keeps house and sweeps until `stop`.
    pub(crate) async fn collect(self: Arc<Self>, stop: CancellationToken) {
        let handle = self.progress.register("collect", self.every * 10 + Duration::from_secs(30));
        let (mut pruned, mut streams) = (PruneAt::default(), 0);
        let mut sweep = Sweep::default();
        loop {
            // A server that has restarted has forgotten them.
            if let Err(error) = self.store.load_lent_scripts().await {
                tracing::debug!(%error, "failed to load the scripts of producers and exporters");
            }
            match self.store.prune(&pruned).await {
                Ok(next) => pruned = next,
                Err(error) => tracing::debug!(%error, "failed to prune budgets"),
            }
            match self.retire(streams).await {
                Ok(next) => streams = next,
                Err(error) => tracing::debug!(%error, "failed to maintain the streams of external runtimes"),
            }
            let kept = async { self.keep_house(self.store.weigh().await?).await };
            if let Err(error) = kept.await {
                tracing::warn!(%error, "failed to trim to configured bounds");
            }
            if let Err(error) = sweep.steps(&self.store, &self.metrics).await {
                tracing::debug!(%error, "failed to read turns in progress");
            }
            handle.advanced();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.every) => {}
            }
        }
        handle.finished();
    }

    /// Looks at Redis' memory until `stop`. Where it is short, bounds are kept at every look.
    pub(crate) async fn weigh(self: Arc<Self>, stop: CancellationToken) {
        let handle = self.progress.register("weigh", Duration::from_secs(60));
        let mut tight = false;
        loop {
            match self.store.weigh().await {
                Ok(memory) => {
                    let (used, max) = (memory.used, memory.max);
                    if memory.is_tight() {
                        tracing::error!(
                            used,
                            max,
                            "Redis memory nearly full; rejecting new work, finishing accepted work"
                        );
                        if let Err(error) = self.keep_house(memory).await {
                            tracing::warn!(%error, "failed to trim to configured bounds");
                        }
                    } else if tight {
                        tracing::info!(used, max, "Redis memory below the limit; accepting new work");
                    }
                    tight = memory.is_tight();
                }
                Err(error) => tracing::warn!(%error, "failed to sample Redis memory"),
            }
            if let Err(error) = self.count_slots().await {
                tracing::warn!(%error, "failed to count worker slots; using the last count");
            }
            handle.advanced();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(WEIGH_EVERY) => {}
            }
        }
        handle.finished();
    }

    /// Streams of agents that no runtime outside works for any more go when they are empty.
    async fn retire(&self, cursor: u64) -> Result<u64, StoreError> {
        let active = self.active.load();
        let is_configured = |tenant: &TenantId, agent: &AgentId| {
            active.policy.look_up(tenant, agent).is_ok()
                && matches!(active.task_handlers.get(agent), Some(TaskHandlerDef::External { .. }))
        };
        self.store.retire(cursor, is_configured).await
    }

    /// Counts the workers' slots where limits go by them.
    async fn count_slots(&self) -> Result<(), StoreError> {
        if goes_by_slots(&self.active.load().policy) {
            self.decider.policy().slots().counted(&self.store.fleet_load().await?);
        }
        Ok(())
    }

    async fn keep_house(&self, memory: Memory) -> Result<(), StoreError> {
        self.store.housekeep(memory, self.audit_bytes_max, self.dead_retain_ms).await
    }
}
