//! The worker: leases slices, carries their calls out one by one, settles every result.
//!
//! START HERE: [`turn`] is one slice, end to end; [`call`] is one call, end to end; [`run`] leases and drains.

pub mod agents;
mod batch;
pub mod call;
mod pulse;
pub mod run;
mod say;
pub mod tools;
pub mod turn;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shared::force::InForce;
use shared::model::retry::Ladder;
use shared::ops::metrics::Metrics;
use shared::ops::progress::Progress;
use shared::report::ReportOptions;
use shared::store::{Begin, HandBack, Retry, Settlement, ShardClock, Store, StoreError, TurnName};
use tokio::sync::{RwLock, Semaphore};
use tokio_util::sync::CancellationToken;

use agents::TaskHandlers;
use batch::Batcher;
use pulse::Pulse;
use tools::Registry;

/// How a worker works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Slices whose calls run at the same time.
    pub slots: usize,
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
    pub force: Arc<InForce>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Progress of the process' loops, for `/livez`.
    pub progress: Progress,
    /// The tools.
    pub registry: Arc<Registry>,
    /// What carries out delegated tasks.
    pub task_handlers: TaskHandlers,
}

/// One worker on one shard.
pub struct Worker {
    pub(crate) store: Store,
    pub(crate) force: Arc<InForce>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Progress,
    pub(crate) registry: Arc<Registry>,
    pub(crate) task_handlers: TaskHandlers,
    pub(crate) options: Options,
    pub(crate) clock: Arc<ShardClock>,
    pub(crate) pulse: Pulse,
    /// Slices whose calls run.
    pub(crate) slots: Arc<Semaphore>,
    /// Slices that are held: leased and not yet settled. Bounds what Redis' absence can pile up (rule 6).
    pub(crate) held: Arc<Semaphore>,
    /// A suspect slice runs alone: it writes, the others read (rule 12).
    pub(crate) alone: Arc<RwLock<()>>,
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
        let errors = surroundings.metrics.clone();
        let failed: batch::OnError = Arc::new(move |verb: &'static str, error: &StoreError| {
            errors.redis_error(verb);
            tracing::warn!(verb, %error, "Redis did not answer; trying again");
        });
        Arc::new(Self {
            settles: Batcher::new(&store, held, &now, failed.clone()),
            begins: Batcher::new(&store, held, &now, failed.clone()),
            retries: Batcher::new(&store, held, &now, failed.clone()),
            hand_backs: Batcher::new(&store, held, &now, failed),
            store,
            force: surroundings.force,
            metrics: surroundings.metrics,
            progress: surroundings.progress,
            registry: surroundings.registry,
            task_handlers: surroundings.task_handlers,
            clock: Arc::default(),
            pulse: Pulse::new(lease),
            slots: Arc::new(Semaphore::new(options.slots)),
            held: Arc::new(Semaphore::new(held)),
            alone: Arc::default(),
            running: Mutex::default(),
            options,
            now,
        })
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

/// The typed tools of every fleet: the built-in ones, and `delegate_task` over `store`.
#[must_use]
pub fn standard_tools(store: &Store, force: &Arc<InForce>) -> Vec<tools::TypedTool> {
    let mut typed = tools::builtin::all();
    // `note` is a task handler, not a tool that models call.
    typed.retain(|tool| tool.spec().name != "note");
    typed.push(agents::delegate_task(store.clone(), force.clone()));
    typed
}

/// The typed task handlers of every fleet.
#[must_use]
pub fn standard_handlers() -> Vec<tools::TypedTool> {
    tools::builtin::all().into_iter().filter(|tool| tool.spec().name == "note").collect()
}
