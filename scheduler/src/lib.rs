//! The scheduler: admits turns under caps, releases lanes, promotes retries, reaps the dead.
//!
//! Any number of schedulers run side by side: every decision is one transaction, and each loop may be run by all of
//! them at once. START HERE: [`admitter`] is the life of an inbound turn; [`timers`] is what time does, and
//! `recovery` takes back what the dead held.

pub mod admission;
pub mod admitter;
mod decider;
mod ended;
mod held;
mod house;
pub mod intake;
mod lease;
pub mod policy;
mod reading;
mod recovery;
pub mod scrape;
mod sealing;
pub mod tasks;
pub mod timers;

use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::Settings;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::one_suspect::OneSuspect;
use tickfleet_engine::report::ReportOptions;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::ConsumerId;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use admitter::Admitter;
use decider::Decider;
use house::House;
use intake::Intake;
use lease::Lease;
use recovery::Recovery;
use sealing::Sealing;
pub use sealing::{Place as AnchorPlace, SealOptions};
use tasks::TaskQueues;
use timers::Timers;

/// The options of a scheduler.
#[derive(Debug, Clone)]
pub struct Options {
    /// Entries read and admitted at once.
    pub batch: usize,
    /// The period at which due timers are looked for.
    pub tick_poll: Duration,
    /// The period at which dead workers are looked for; see [`Options::reap_period`].
    pub reap_every: Duration,
    /// The period at which bounds are kept, and at which the sweep takes a step.
    pub collect_every: Duration,
    /// Bytes of audit entries kept per shard.
    pub audit_bytes_max: u64,
    /// The time for which dead entries are kept, ms.
    pub dead_retain_ms: i64,
    /// How the audit log is sealed, where it is.
    pub seal: Option<SealOptions>,
}

impl Options {
    /// The options of a configuration.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let (s, retention) = (&settings.scheduler, &settings.retention);
        Self {
            batch: s.batch,
            tick_poll: s.tick_poll,
            reap_every: s.reap_every,
            collect_every: s.collect_every,
            audit_bytes_max: retention.audit_bytes_max,
            dead_retain_ms: i64::try_from(retention.dead.as_millis()).unwrap_or(i64::MAX),
            seal: None,
        }
    }

    /// Returns the period at which dead workers are looked for under this lease. Whatever the setting says, it is short
    /// enough: after a pause of more than half a lease, `reap` takes it that Redis was away and gives workers a lease
    /// to beat again, so whoever pauses that long each time never takes anything back.
    #[must_use]
    pub fn reap_period(&self, lease: Duration) -> Duration {
        self.reap_every.min(lease / REAPS_PER_LEASE)
    }
}

/// Looks for dead workers per lease, at least. Half of it would do; the rest is for a busy machine.
const REAPS_PER_LEASE: u32 = 6;

/// One scheduler on one shard: its parts, and how they are put together.
pub struct Scheduler {
    metrics: Arc<Metrics>,
    decider: Arc<Decider>,
    lease: Lease,
    admitter: Arc<Admitter>,
    tasks: Arc<TaskQueues>,
    timers: Arc<Timers>,
    recovery: Arc<Recovery>,
    house: Arc<House>,
    sealing: Option<Arc<Sealing>>,
}

/// The things that the schedulers of one process share, one for each shard. Cloned, they are the same.
#[derive(Clone)]
pub struct Process {
    /// Policy and tenants in force.
    pub active: Arc<PolicyHandle>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Progress of the process' loops, for `/livez`.
    pub progress: Progress,
    /// One entry at a time that was there when a scheduler died, in all shards: they die together.
    pub suspects: OneSuspect,
}

/// The state that the parts of a scheduler share.
pub(crate) struct Common {
    pub(crate) suspects: OneSuspect,
    pub(crate) store: Store,
    pub(crate) active: Arc<PolicyHandle>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Progress,
    pub(crate) decider: Arc<Decider>,
}

/// Why an incarnation ended.
enum Ended {
    Shutdown,
    LeaseLost,
    PolicyStale,
}

/// The time that a loop may take beyond its own pace: Redis may be away, and the loops of a process do not stall for
/// that.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
impl Scheduler {
    /// A scheduler on the shard of `store`. `name` (a pod's name) begins the names of its incarnations.
    #[must_use]
    pub fn new(store: Store, process: Process, options: &Options, report: ReportOptions, name: &str) -> Self {
        let Process { active, metrics, progress, suspects } = process;
        let store = store.observed_by(metrics.clone());
        let lease = Duration::from_millis(store.options().lease_ms.unsigned_abs());
        let redactor = report.redactor.clone();
        let decider = Arc::new(Decider::new(store.clone(), active.clone(), metrics.clone(), report));
        let common = Common { store, active, metrics, progress, suspects, decider };
        let intake = Arc::new(Intake::new(&common, options.batch, redactor));
        Self {
            metrics: common.metrics.clone(),
            decider: common.decider.clone(),
            lease: Lease::new(&common, name.to_owned()),
            admitter: Arc::new(Admitter::new(&common, &intake)),
            tasks: Arc::new(TaskQueues::new(&common, &intake)),
            timers: Arc::new(Timers::new(&common, options.tick_poll)),
            recovery: Arc::new(Recovery::new(&common, options.reap_period(lease))),
            house: Arc::new(House::new(&common, options)),
            sealing: options.seal.clone().map(|seal| Arc::new(Sealing::new(&common, seal))),
        }
    }

    /// Runs until `shutdown`; while Redis is away it waits and comes back by itself.
    ///
    /// # Errors
    /// [`StoreError::Shards`] if the data was written with another number of shards: a setting to be mended.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), StoreError> {
        while !shutdown.is_cancelled() {
            let prepared = retry_until(&shutdown, || async {
                match self.lease.prepare(&shutdown).await {
                    Ok(consumer) => Attempt::Done(Ok(consumer)),
                    Err(error @ StoreError::Shards { .. }) => Attempt::Done(Err(error)),
                    Err(error) => {
                        tracing::warn!(%error, remedy = error.remedy(), "shard not ready; retrying");
                        Attempt::Failed
                    }
                }
            });
            let Some(consumer) = prepared.await.transpose()?.flatten() else { break };
            match self.incarnation(consumer, &shutdown).await {
                Ended::Shutdown => break,
                Ended::LeaseLost => self.metrics.lease_lost("scheduler"),
                // The next one stands by until it may decide.
                Ended::PolicyStale => {}
            }
        }
        Ok(())
    }

    /// Runs all loops under one consumer name, until shutdown or until a lease has passed without a heartbeat:
    /// then others have taken over what this name held, and a new one begins.
    async fn incarnation(&self, consumer: ConsumerId, shutdown: &CancellationToken) -> Ended {
        let stop = shutdown.child_token();
        self.decider.begin(&stop);
        let mut loops = tokio::task::JoinSet::new();
        loops.spawn(self.admitter.clone().run(consumer.clone(), stop.clone()));
        loops.spawn(self.tasks.clone().run(consumer.clone(), stop.clone()));
        loops.spawn(self.timers.clone().run(stop.clone()));
        loops.spawn(self.recovery.clone().run(stop.clone()));
        loops.spawn(self.house.clone().collect(stop.clone()));
        loops.spawn(self.house.clone().sample(stop.clone()));
        if let Some(sealing) = &self.sealing {
            loops.spawn(sealing.clone().run(consumer.clone(), stop.clone()));
        }
        let lost = self.lease.beats(&consumer, &stop).await;
        stop.cancel();
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "scheduler loop panicked");
            }
        }
        if lost {
            return Ended::LeaseLost;
        }
        self.lease.put_back(&consumer).await;
        self.lease.leave(&consumer).await;
        if shutdown.is_cancelled() { Ended::Shutdown } else { Ended::PolicyStale }
    }
}
