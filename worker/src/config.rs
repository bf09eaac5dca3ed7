//! The active policy and its tools. Both are replaced together.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_store::{Store, StoreError};

use crate::agents::TaskHandlers;
use crate::tools::Registry;

/// A call keeps the configuration that it began with.
#[derive(Debug, Clone)]
pub(crate) struct WorkerConfig {
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) task_handlers: Arc<TaskHandlers>,
    /// `None` before a scheduler has announced the policy.
    generation: Option<u64>,
    short_digest: Arc<str>,
}

impl WorkerConfig {
    pub(crate) fn report(&self, options: &ReportOptions) -> ReportOptions {
        let policy_digest = Arc::clone(&self.short_digest);
        ReportOptions { policy_version: self.generation, policy_digest, ..options.clone() }
    }
}

pub(crate) struct WorkerConfigs {
    current: ArcSwap<WorkerConfig>,
    in_force: Arc<PolicyHandle>,
}

impl WorkerConfigs {
    pub(crate) fn new(in_force: Arc<PolicyHandle>, registry: Arc<Registry>, task_handlers: TaskHandlers) -> Self {
        let active = in_force.load();
        let task_handlers = Arc::new(task_handlers);
        let short_digest = active.short_digest().into();
        let config = WorkerConfig { active, registry, task_handlers, generation: None, short_digest };
        Self { current: ArcSwap::from_pointee(config), in_force }
    }

    pub(crate) fn load(&self) -> Arc<WorkerConfig> {
        self.current.load_full()
    }

    pub(crate) fn replace(&self, active: Arc<ActivePolicy>, registry: Arc<Registry>, task_handlers: Arc<TaskHandlers>) {
        let short_digest = active.short_digest().into();
        let before = self.load();
        let generation = before.generation.filter(|_| before.active.digest == active.digest);
        self.current.store(Arc::new(WorkerConfig { active, registry, task_handlers, generation, short_digest }));
    }

    /// Adopts run-time settings and the policy's generation. Returns the generation if it has changed.
    pub(crate) async fn refresh(&self, store: &Store) -> Result<Option<u64>, StoreError> {
        self.in_force.refresh(store).await?;
        self.adopt_policy(store).await
    }

    /// Refreshes the configuration if the settings have changed. For a slice of a tenant that the configuration does
    /// not contain.
    pub(crate) async fn refresh_if_changed(&self, store: &Store) -> Result<(), StoreError> {
        self.in_force.refresh_if_changed(store).await?;
        // Compare, because a scheduler in this process, or the worker of another shard, may have read the changes
        // already.
        if !Arc::ptr_eq(&self.load().active, &self.in_force.load()) {
            self.adopt_policy(store).await?;
        }
        Ok(())
    }

    async fn adopt_policy(&self, store: &Store) -> Result<Option<u64>, StoreError> {
        let loaded = self.load();
        let generation = store.generation_of(&loaded.active.digest).await?;
        let now = self.in_force.load();
        // A configuration that arrived during the read stays active. The next heartbeat reads the policy's generation.
        let refreshed = |config: &Arc<WorkerConfig>| -> Arc<WorkerConfig> {
            if config.active.digest != loaded.active.digest || now.digest != loaded.active.digest {
                return Arc::clone(config);
            }
            Arc::new(WorkerConfig { active: Arc::clone(&now), generation, ..(**config).clone() })
        };
        let before = self.current.rcu(refreshed);
        Ok(generation.filter(|_| before.generation != generation))
    }
}
