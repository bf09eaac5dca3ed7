//! What a call is judged and carried out by: the policy in force and the tools that belong to it, replaced as one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tickfleet_engine::force::{Force, InForce};
use tickfleet_engine::report::ReportOptions;
use tickfleet_store::{Store, StoreError};

use crate::agents::TaskHandlers;
use crate::tools::Registry;

/// Policy, tools and task handlers of one configuration. A call keeps the kit that it began with.
#[derive(Debug, Clone)]
pub(crate) struct Kit {
    pub(crate) force: Arc<Force>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) task_handlers: Arc<TaskHandlers>,
    /// The generation that Redis knows the policy under; none before a scheduler has announced it.
    generation: Option<u64>,
    short_digest: Arc<str>,
}

impl Kit {
    /// How a call that this kit judged is reported.
    pub(crate) fn report(&self, options: &ReportOptions) -> ReportOptions {
        let policy_digest = Arc::clone(&self.short_digest);
        ReportOptions { policy_version: self.generation, policy_digest, ..options.clone() }
    }
}

/// The kit in force.
pub(crate) struct Kits(ArcSwap<Kit>);

impl Kits {
    pub(crate) fn new(force: Arc<Force>, registry: Arc<Registry>, task_handlers: TaskHandlers) -> Self {
        let short_digest = force.short_digest().into();
        let task_handlers = Arc::new(task_handlers);
        Self(ArcSwap::from_pointee(Kit { force, registry, task_handlers, generation: None, short_digest }))
    }

    pub(crate) fn load(&self) -> Arc<Kit> {
        self.0.load_full()
    }

    pub(crate) fn replace(&self, force: Arc<Force>, registry: Arc<Registry>, task_handlers: Arc<TaskHandlers>) {
        let short_digest = force.short_digest().into();
        let before = self.load();
        let generation = before.generation.filter(|_| before.force.digest == force.digest);
        self.0.store(Arc::new(Kit { force, registry, task_handlers, generation, short_digest }));
    }

    /// Takes over what a heartbeat brought: tenants that were set at run time, and the policy's generation. Answers
    /// the generation where it is another than before.
    pub(crate) async fn refresh(&self, store: &Store, in_force: &InForce) -> Result<Option<u64>, StoreError> {
        let asked = self.load();
        let generation = store.generation_of(&asked.force.digest).await?;
        let now = in_force.load();
        // A kit that has come meanwhile brings its own policy with it, and is asked about with the next heartbeat.
        let refreshed = |kit: &Arc<Kit>| -> Arc<Kit> {
            if kit.force.digest != asked.force.digest || now.digest != asked.force.digest {
                return Arc::clone(kit);
            }
            Arc::new(Kit { force: Arc::clone(&now), generation, ..(**kit).clone() })
        };
        let before = self.0.rcu(refreshed);
        Ok(generation.filter(|_| before.generation != generation))
    }
}
