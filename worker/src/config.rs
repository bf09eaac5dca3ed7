//! The configuration that calls are judged and carried out by: the policy in force and the tools that belong to it,
//! replaced as one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_store::{Store, StoreError};

use crate::agents::TaskHandlers;
use crate::tools::Registry;

/// Policy, tools and task handlers of one configuration. A call keeps the configuration that it began with.
#[derive(Debug, Clone)]
pub(crate) struct WorkerConfig {
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) task_handlers: Arc<TaskHandlers>,
    /// The generation that Redis knows the policy under; none before a scheduler has announced it.
    generation: Option<u64>,
    short_digest: Arc<str>,
}

impl WorkerConfig {
    /// Returns how a call that this configuration judged is reported.
    pub(crate) fn report(&self, options: &ReportOptions) -> ReportOptions {
        let policy_digest = Arc::clone(&self.short_digest);
        ReportOptions { policy_version: self.generation, policy_digest, ..options.clone() }
    }
}

/// The configuration in force.
pub(crate) struct WorkerConfigs {
    current: ArcSwap<WorkerConfig>,
    /// The policy of the process, with what was set at run time.
    in_force: Arc<PolicyHandle>,
}

impl WorkerConfigs {
    /// The policy in force, with these tools and handlers.
    pub(crate) fn new(in_force: Arc<PolicyHandle>, registry: Arc<Registry>, task_handlers: TaskHandlers) -> Self {
        let (active, task_handlers) = (in_force.load(), Arc::new(task_handlers));
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

    /// Takes over what a heartbeat brought: tenants that were set at run time, and the policy's generation. Answers
    /// the generation where it is another than before.
    pub(crate) async fn refresh(&self, store: &Store) -> Result<Option<u64>, StoreError> {
        self.in_force.refresh(store).await?;
        self.take_over(store).await
    }

    /// Reads what was set at run time if there is news, for a slice whose tenant nobody here knows.
    pub(crate) async fn hear_of_new_tenants(&self, store: &Store) -> Result<(), StoreError> {
        self.in_force.refresh_if_changed(store).await?;
        // A scheduler of this process, or the worker of another shard, may have read the news.
        if !Arc::ptr_eq(&self.load().active, &self.in_force.load()) {
            self.take_over(store).await?;
        }
        Ok(())
    }

    async fn take_over(&self, store: &Store) -> Result<Option<u64>, StoreError> {
        let asked = self.load();
        let generation = store.generation_of(&asked.active.digest).await?;
        let now = self.in_force.load();
        // A configuration that has come meanwhile brings its own policy with it, and is asked about with the next
        // heartbeat.
        let refreshed = |config: &Arc<WorkerConfig>| -> Arc<WorkerConfig> {
            if config.active.digest != asked.active.digest || now.digest != asked.active.digest {
                return Arc::clone(config);
            }
            Arc::new(WorkerConfig { active: Arc::clone(&now), generation, ..(**config).clone() })
        };
        let before = self.current.rcu(refreshed);
        Ok(generation.filter(|_| before.generation != generation))
    }
}
