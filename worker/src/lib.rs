//! The worker: leases slices, carries their calls out one by one, settles every result.
//!
//! START HERE: [`turn`] is one slice, end to end; [`call`] is one call, end to end; [`run`] leases and drains.

pub mod agents;
mod attempt;
mod batch;
pub mod call;
mod claims;
mod config;
pub mod guards;
mod lease_clock;
mod lists;
mod messages;
pub mod run;
pub mod tools;
pub mod trial;
pub mod turn;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_model::Priorities;
use tickfleet_model::retry::Ladder;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Begin, HandBack, Retry, Settlement, ShardClock, Store, TurnName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use agents::TaskHandlers;
use batch::Batcher;
use claims::Claims;
use config::WorkerConfigs;
use lease_clock::LeaseClock;
use tools::Registry;

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

/// One worker on one shard.
pub struct Worker {
    pub(crate) store: Store,
    pub(crate) active: Arc<PolicyHandle>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Progress,
    pub(crate) configs: WorkerConfigs,
    pub(crate) options: Options,
    pub(crate) clock: Arc<ShardClock>,
    pub(crate) lease_clock: LeaseClock,
    /// Where slices run.
    pub(crate) lane: Lane,
    /// Where slices run that a holder has died with: one at a time, in nobody else's place (rules 12 and 23).
    pub(crate) suspects: Lane,
    /// What was begun, and what came of it.
    pub(crate) claims: Claims,
    /// Until when calls may be marked as begun by somebody whom Redis has forgotten, ms of shard time.
    pub(crate) marks_ms: AtomicI64,
    /// What is held now, to be told of a cancel.
    pub(crate) running: Mutex<HashMap<TurnName, Held>>,
    pub(crate) settles: Batcher<Settlement>,
    pub(crate) begins: Batcher<Begin>,
    pub(crate) retries: Batcher<Retry>,
    pub(crate) hand_backs: Batcher<HandBack>,
    /// Cancelled when running calls must stop at once.
    pub(crate) now: CancellationToken,
}

/// Slices held per slot: results on their way to Redis do not keep a slot, but they are bounded.
const HELD_PER_SLOT: usize = 4;
/// Slices held at least, so that few slots still settle in batches.
const HELD_MIN: usize = 512;

impl Worker {
    /// A worker on the shard of `store`. Running calls are told to stop at once when `now` is cancelled.
    #[must_use]
    pub fn new(store: Store, surroundings: Surroundings, options: Options, now: CancellationToken) -> Arc<Self> {
        let lease = Duration::from_millis(store.options().lease_ms.unsigned_abs());
        let held = (options.slots * HELD_PER_SLOT).max(HELD_MIN);
        let store = store.observed_by(surroundings.metrics.clone());
        surroundings.metrics.tools_known(surroundings.registry.iter().map(|tool| tool.spec.name.as_str()));
        let failed = batch::tell_seldom();
        let worker = Arc::new(Self {
            settles: Batcher::new(&store, held, &now, failed.clone()),
            begins: Batcher::new(&store, held, &now, failed.clone()),
            retries: Batcher::new(&store, held, &now, failed.clone()),
            hand_backs: Batcher::new(&store, held, &now, failed),
            store,
            configs: WorkerConfigs::new(surroundings.active.load(), surroundings.registry, surroundings.task_handlers),
            active: surroundings.active,
            metrics: surroundings.metrics,
            progress: surroundings.progress,
            clock: Arc::default(),
            lease_clock: LeaseClock::new(lease),
            lane: Lane::new(options.slots, held),
            suspects: Lane::new(1, 1),
            claims: Claims::default(),
            marks_ms: AtomicI64::default(),
            running: Mutex::default(),
            options,
            now,
        });
        let watched = Arc::downgrade(&worker);
        worker.metrics.watch_slots(move || {
            let worker = watched.upgrade()?;
            Some((worker.busy(), worker.options.slots))
        });
        worker
    }

    /// Slices that are carried out, the suspect beside the slots included: whoever looks on wants to see it.
    pub(crate) fn busy(&self) -> usize {
        self.lane.busy() + self.suspects.busy()
    }
}

/// Slots, and what may be held in them.
pub(crate) struct Lane {
    /// Slices whose calls run.
    pub(crate) slots: Arc<Semaphore>,
    /// How many of them carry out a slice. The free permits do not tell: while a lease is waited for, the leasing loop
    /// holds them.
    busy: Arc<AtomicUsize>,
    /// Slices that are held: leased and not yet settled. Bounds what Redis' absence can pile up (rule 6).
    pub(crate) held: Arc<Semaphore>,
}

impl Lane {
    fn new(slots: usize, held: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slots)), busy: Arc::default(), held: Arc::new(Semaphore::new(held)) }
    }

    /// Slots that carry out a slice.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// A slot of this lane that begins to carry out a slice.
    pub(crate) fn take(&self, permit: OwnedSemaphorePermit) -> Slot {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Slot { _permit: permit, busy: Arc::clone(&self.busy) }
    }
}

/// A slot that carries out a slice, from its lease until its last call has run.
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    busy: Arc<AtomicUsize>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
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

/// A slice that is held.
pub(crate) struct Held {
    /// Its fence.
    pub(crate) fence: String,
    /// Under what it is held.
    pub(crate) lease: Lease,
}

/// What holding a slice stands on.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    /// Cancelled with the turn.
    pub(crate) cancel: CancellationToken,
    /// The worker's incarnation that leased it.
    pub(crate) term: u64,
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
