//! The worker: leases slices, carries their calls out one by one, settles every result.
//!
//! START HERE: [`turn`] is one slice, end to end; [`call`] is one call, end to end; [`run`] is the worker's own life.

pub mod agents;
mod attempt;
mod batch;
pub mod call;
mod claims;
mod config;
pub mod guards;
mod held;
mod lane;
mod lease;
mod lease_clock;
mod leasing;
mod lists;
mod messages;
mod outbox;
pub mod run;
pub mod tools;
pub mod trial;
pub mod turn;

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_model::Priorities;
use tickfleet_model::retry::Ladder;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{ShardClock, Store};
use tokio_util::sync::CancellationToken;

use agents::TaskHandlers;
use call::Calls;
use claims::Claims;
use config::WorkerConfigs;
use held::{HeldSlices, held_max};
use lease::Lease;
use lease_clock::LeaseClock;
use leasing::Leasing;
use lists::ToolLists;
use outbox::Outbox;
use tools::Registry;
use turn::Pipeline;

/// How a worker works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Slices whose calls run at the same time.
    pub slots: usize,
    /// The `ready` streams that it leases from.
    pub priorities: Priorities,
    /// How long a drain waits for running calls.
    pub drain: Duration,
    /// The waits between tries.
    pub ladder: Ladder,
    /// How results are reported.
    pub report: ReportOptions,
    /// What begins the names of the worker's incarnations (a pod's name).
    pub name: String,
}

/// What a worker needs from the process around it.
pub struct Surroundings {
    /// Policy, tenants, task handlers in force.
    pub active: Arc<PolicyHandle>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Progress of the process' loops, for `/livez`.
    pub progress: Progress,
    /// The tools of the policy in force.
    pub registry: Arc<Registry>,
    /// What carries out delegated tasks.
    pub task_handlers: TaskHandlers,
}

/// One worker on one shard: its parts, and how they are put together.
pub struct Worker {
    store: Store,
    metrics: Arc<Metrics>,
    /// How long a drain waits for running calls.
    drain: Duration,
    configs: Arc<WorkerConfigs>,
    /// Its name and its heartbeats.
    lease: Arc<Lease>,
    /// What brings it slices.
    leasing: Arc<Leasing>,
    /// Cancelled when running calls must stop at once.
    now: CancellationToken,
}

impl Worker {
    /// A worker on the shard of `store`. Running calls are told to stop at once when `now` is cancelled.
    #[must_use]
    pub fn new(store: Store, surroundings: Surroundings, options: Options, now: CancellationToken) -> Arc<Self> {
        let Surroundings { active, metrics, progress, registry, task_handlers } = surroundings;
        let lease = Duration::from_millis(store.options().lease_ms.unsigned_abs());
        let store = store.observed_by(metrics.clone());
        metrics.tools_known(registry.iter().map(|tool| tool.spec.name.as_str()));
        let clock = Arc::<ShardClock>::default();
        let lease_clock = Arc::new(LeaseClock::new(lease));
        let configs = Arc::new(WorkerConfigs::new(active, registry, task_handlers));
        let outbox = Arc::new(Outbox::new(&store, held_max(options.slots), &now));
        let slices = Arc::new(HeldSlices::new(options.slots));
        watch_slots(&metrics, &slices, options.slots);
        let claims = Arc::new(Claims::new(store.clone(), metrics.clone(), clock.clone(), now.clone()));
        let calls = Calls {
            store: store.clone(),
            clock: clock.clone(),
            lease_clock: lease_clock.clone(),
            claims: claims.clone(),
            outbox: outbox.clone(),
            metrics: metrics.clone(),
            ladder: options.ladder,
            redactor: options.report.redactor.clone(),
            now: now.clone(),
        };
        let pipeline = Arc::new(Pipeline {
            store: store.clone(),
            clock: clock.clone(),
            configs: configs.clone(),
            claims: claims.clone(),
            slices: slices.clone(),
            outbox: outbox.clone(),
            calls,
            metrics: metrics.clone(),
            report: options.report,
        });
        let leasing = Arc::new(Leasing {
            store: store.clone(),
            priorities: options.priorities,
            drain: options.drain,
            lease_clock: lease_clock.clone(),
            claims: claims.clone(),
            slices: slices.clone(),
            outbox: outbox.clone(),
            pipeline,
            metrics: metrics.clone(),
            progress: progress.clone(),
        });
        let lease = Arc::new(Lease {
            store: store.clone(),
            name: options.name,
            slots: options.slots,
            clock,
            lease_clock,
            configs: configs.clone(),
            claims,
            slices,
            outbox,
            metrics: metrics.clone(),
            progress,
        });
        Arc::new(Self { store, metrics, drain: options.drain, configs, lease, leasing, now })
    }

    /// What keeps the lists of tools.
    fn tool_lists(&self) -> ToolLists {
        ToolLists::new(self.store.clone(), self.configs.clone())
    }
}

/// Shows how many slots are busy, for as long as the worker lives.
fn watch_slots(metrics: &Metrics, slices: &Arc<HeldSlices>, slots: usize) {
    let watched = Arc::downgrade(slices);
    metrics.watch_slots(move || Some((watched.upgrade()?.busy(), slots)));
}

impl Worker {
    /// Judges and carries out calls by another configuration from here on: its policy and its tools in one step. Calls
    /// that run keep what they began with.
    pub fn configure(&self, active: Arc<ActivePolicy>, registry: Arc<Registry>, task_handlers: Arc<TaskHandlers>) {
        self.metrics.tools_known(registry.iter().map(|tool| tool.spec.name.as_str()));
        self.configs.replace(active, registry, task_handlers);
    }

    /// The same with other tools alone.
    pub fn configure_tools(&self, active: Arc<ActivePolicy>, registry: Arc<Registry>) {
        let task_handlers = Arc::clone(&self.configs.load().task_handlers);
        self.configure(active, registry, task_handlers);
    }

    /// The tools that it carries calls out with now.
    #[must_use]
    pub fn tools(&self) -> Arc<Registry> {
        Arc::clone(&self.configs.load().registry)
    }

    /// The worker's shard.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }
}

/// The typed tools of every fleet: the built-in ones, and those over `store`: `delegate_task` and the tools about the fleet.
#[must_use]
pub fn standard_tools(store: &Store, active: &Arc<PolicyHandle>) -> Vec<tools::TypedTool> {
    let mut typed = tools::builtin::all();
    // `note` is a task handler, not a tool that models call.
    typed.retain(|tool| tool.spec().name != "note");
    typed.push(agents::delegate_task(store.clone(), active.clone()));
    typed.extend(tools::meta::all(store));
    typed
}

/// The typed task handlers of every fleet.
#[must_use]
pub fn standard_handlers() -> Vec<tools::TypedTool> {
    tools::builtin::all().into_iter().filter(|tool| tool.spec().name == "note").collect()
}
