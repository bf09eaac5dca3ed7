//! The worker. START HERE: [`calls::turn`] is one slice, [`calls::call`] one call, and [`run`] the life cycle.

pub mod agents;
mod batch;
pub mod calls;
mod config;
mod decision_queues;
mod fleet_tools;
mod held_slices;
mod journal;
mod lease;
mod lease_clock;
mod leasing;
pub mod run;
mod slot_pool;
mod strays;
mod tool_lists;

pub use calls::waiting::breakers::Breakers;
pub use tickfleet_tools as tools;

use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::WorkerSettings;
use tickfleet_core::workers::Slots;
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::Store;
use tokio_util::sync::CancellationToken;

use agents::TaskHandlers;
pub use calls::governed::loops::LoopOptions;
use calls::state::Calls;
use calls::turn::Pipeline;
use config::WorkerConfigs;
use decision_queues::DecisionQueues;
use held_slices::{HeldSlices, held_max};
use journal::WorkerJournal;
use lease::{Lease, WorkerDrainFlag};
use lease_clock::LeaseClock;
use leasing::{Leasing, LeasingParts};
use strays::Strays;
pub use tickfleet_core::call::streak::StreakBounds;
use tool_lists::ToolListWriter;
use tools::Registry;

#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// `slots` is the number of this worker, and not of the whole process.
    pub settings: WorkerSettings,
    /// `None` disables the loop breaker.
    pub loops: Option<LoopOptions>,
    pub report: ReportOptions,
    /// The prefix of the names of the worker's incarnations, for example the name of a pod.
    pub name: String,
}

pub struct ProcessParts {
    pub active: Arc<PolicyHandle>,
    pub metrics: Arc<Metrics>,
    /// `/livez` reports this progress.
    pub progress: Progress,
    /// Permits only one running group of suspects in the process, because the workers of all its shards die together.
    pub suspects: SuspectSemaphore,
    /// All shards of the process share the breakers.
    pub breakers: Breakers,
    pub registry: Arc<Registry>,
    pub task_handlers: TaskHandlers,
}

pub struct Worker {
    common: Common,
    drain: Duration,
    lease: Arc<Lease>,
    leasing: Arc<Leasing>,
}

pub(crate) struct Common {
    pub(crate) store: Store,
    pub(crate) lease_clock: Arc<LeaseClock>,
    pub(crate) configs: Arc<WorkerConfigs>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Progress,
    pub(crate) suspects: SuspectSemaphore,
    pub(crate) breakers: Breakers,
    pub(crate) drain_flag: Arc<WorkerDrainFlag>,
    /// Canceled when running calls must stop at once.
    pub(crate) now: CancellationToken,
}

impl Worker {
    #[must_use]
    pub fn new(store: Store, process: ProcessParts, options: WorkerOptions, now: CancellationToken) -> Arc<Self> {
        let ProcessParts { active, metrics, progress, suspects, breakers, registry, task_handlers } = process;
        let WorkerOptions { settings, loops, report, name } = options;
        let lease = Duration::from_millis(store.options().lease_ms.unsigned_abs());
        let store = store.observed_by(metrics.clone());
        metrics.tools_known(registry.iter().map(|tool| tool.spec.name.as_str()));
        let configs = Arc::new(WorkerConfigs::new(active, registry, task_handlers));
        let lease_clock = Arc::new(LeaseClock::new(lease));
        let drain_flag = Arc::<WorkerDrainFlag>::default();
        let common = Common { store, lease_clock, configs, metrics, progress, suspects, breakers, drain_flag, now };
        let slices = Arc::new(HeldSlices::new(settings.slots));
        watch_slots(&common, &slices, settings.slots);
        let journal = Arc::new(WorkerJournal::new(&common));
        let decisions = Arc::new(DecisionQueues::new(&common.store, held_max(settings.slots), &common.now));
        let strays = Arc::new(Strays::new(&common, &slices, &decisions));
        let calls = Calls::new(&common, &journal, &decisions, &settings, loops, &report);
        let pipeline = Arc::new(Pipeline::new(&common, &journal, &slices, &decisions, calls, report));
        let lease = Lease::new(&common, name, settings.slots, &journal, &slices, &strays);
        let parts = LeasingParts { journal, slices, strays, decisions, pipeline };
        let leasing = Leasing::new(&common, settings.priorities, settings.drain, parts);
        Arc::new(Self { drain: settings.drain, lease: Arc::new(lease), leasing: Arc::new(leasing), common })
    }

    fn list_writer(&self) -> ToolListWriter {
        ToolListWriter::new(self.common.store.clone(), self.common.configs.clone(), Arc::clone(&self.common.metrics))
    }
}

fn watch_slots(common: &Common, slices: &Arc<HeldSlices>, slots: usize) {
    let watched = Arc::downgrade(slices);
    let drain_flag = Arc::clone(&common.drain_flag);
    common.metrics.watch_slots(move || {
        let Slots { busy, all } = drain_flag.slots(watched.upgrade()?.busy(), slots);
        Some((busy, all))
    });
}

impl Worker {
    /// Running calls keep the configuration that they began with.
    pub fn configure(&self, active: Arc<ActivePolicy>, registry: Arc<Registry>, task_handlers: Arc<TaskHandlers>) {
        self.common.metrics.tools_known(registry.iter().map(|tool| tool.spec.name.as_str()));
        self.common.configs.replace(active, registry, task_handlers);
    }

    pub fn configure_tools(&self, active: Arc<ActivePolicy>, registry: Arc<Registry>) {
        let task_handlers = Arc::clone(&self.common.configs.load().task_handlers);
        self.configure(active, registry, task_handlers);
    }

    #[must_use]
    pub fn tools(&self) -> Arc<Registry> {
        Arc::clone(&self.common.configs.load().registry)
    }

    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.common.store
    }
}

#[must_use]
pub fn standard_tools(store: &Store, active: &Arc<PolicyHandle>) -> Vec<tools::TypedTool> {
    let mut typed = tools::builtin::all();
    // `note` is a task handler, not a tool that models call.
    typed.retain(|tool| tool.spec().name != "note");
    typed.push(agents::delegate_task(store.clone(), active.clone()));
    typed.push(agents::cancel_task(store.clone()));
    typed.push(agents::send_mcp_message(store.clone(), active.clone()));
    typed.push(agents::read_messages(store.clone()));
    typed.extend(fleet_tools::all(store));
    typed
}

#[must_use]
pub fn standard_handlers() -> Vec<tools::TypedTool> {
    tools::builtin::all().into_iter().filter(|tool| tool.spec().name == "note").collect()
}
