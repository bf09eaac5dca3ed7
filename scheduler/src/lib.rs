//! The scheduler: admits turns under caps, releases throttle queues, resumes retries, and reaps dead processes. Any
//! number of schedulers can run side by side, because every decision is one transaction. START HERE: [`admitter`]
//! handles an inbound turn, [`timers`] fires due timers, `recovery` redelivers work.

pub mod admission;
pub mod admitter;
mod held_entries;
mod history;
mod inbound_reader;
pub mod intake;
mod janitor;
mod lease;
pub mod policy;
mod policy_tracker;
mod recovery;
pub mod scrape;
mod sealing;
pub mod tasks;
pub mod timers;
mod unrun_calls;

use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::Settings;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::report::ReportOptions;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_model::ConsumerId;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use admitter::Admitter;
use history::History;
use intake::Intake;
use janitor::Janitor;
use lease::Lease;
use policy_tracker::PolicyTracker;
use recovery::Recovery;
use sealing::Sealing;
pub use sealing::{AnchorTarget, SealOptions};
use tasks::TaskQueues;
use timers::Timers;

#[derive(Debug, Clone)]
pub struct Options {
    pub batch: usize,
    pub tick_poll: Duration,
    /// [`Options::reap_period`] limits the period.
    pub reap_every: Duration,
    pub collect_every: Duration,
    /// The limit for the audit log of each shard.
    pub audit_bytes_max: u64,
    pub dead_retain_ms: i64,
    pub seal: Option<SealOptions>,
}

impl Options {
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let s = &settings.scheduler;
        let retention = &settings.retention;
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

    /// If the last check is more than half a lease old, a check assumes an outage of Redis and reaps nothing. With a
    /// period of more than half a lease, a scheduler would therefore never reap.
    #[must_use]
    pub fn reap_period(&self, lease: Duration) -> Duration {
        self.reap_every.min(lease / REAPS_PER_LEASE)
    }
}

/// Two checks per lease are necessary. The others are a margin for a busy machine.
const REAPS_PER_LEASE: u32 = 6;

pub struct Scheduler {
    metrics: Arc<Metrics>,
    policy_tracker: Arc<PolicyTracker>,
    lease: Lease,
    admitter: Arc<Admitter>,
    tasks: Arc<TaskQueues>,
    timers: Arc<Timers>,
    recovery: Arc<Recovery>,
    janitor: Arc<Janitor>,
    history: Arc<History>,
    sealing: Option<Arc<Sealing>>,
}

#[derive(Clone)]
pub struct Process {
    pub active: Arc<PolicyHandle>,
    pub metrics: Arc<Metrics>,
    pub progress: Progress,
    /// All schedulers of the process together handle only one suspect entry at a time, because a crash ends all
    /// schedulers.
    pub suspects: SuspectSemaphore,
}

pub(crate) struct Common {
    pub(crate) suspects: SuspectSemaphore,
    pub(crate) store: Store,
    pub(crate) active: Arc<PolicyHandle>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Progress,
    pub(crate) policy_tracker: Arc<PolicyTracker>,
}

enum IncarnationEnd {
    Shutdown,
    LeaseLost,
    PolicyStale,
}

/// `/livez` reports a loop as stalled after this delay. The delay allows for an outage of Redis.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
impl Scheduler {
    /// The names of incarnations begin with `name`, for example a pod's name.
    #[must_use]
    pub fn new(store: Store, process: Process, options: &Options, report: ReportOptions, name: &str) -> Self {
        let Process { active, metrics, progress, suspects } = process;
        let store = store.observed_by(metrics.clone());
        let lease = Duration::from_millis(store.options().lease_ms.unsigned_abs());
        let redactor = report.redactor.clone();
        let policy_tracker = Arc::new(PolicyTracker::new(store.clone(), active.clone(), metrics.clone(), report));
        let common = Common { store, active, metrics, progress, suspects, policy_tracker };
        let intake = Arc::new(Intake::new(&common, options.batch, redactor));
        Self {
            metrics: common.metrics.clone(),
            policy_tracker: common.policy_tracker.clone(),
            lease: Lease::new(&common, name.to_owned()),
            admitter: Arc::new(Admitter::new(&common, &intake)),
            tasks: Arc::new(TaskQueues::new(&common, &intake)),
            timers: Arc::new(Timers::new(&common, options.tick_poll)),
            recovery: Arc::new(Recovery::new(&common, options.reap_period(lease))),
            janitor: Arc::new(Janitor::new(&common, options)),
            history: Arc::new(History::new(&common)),
            sealing: options.seal.clone().map(|seal| Arc::new(Sealing::new(&common, seal))),
        }
    }

    /// Waits while Redis is unavailable. Fails with [`StoreError::Shards`] if the data has another number of shards.
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
                IncarnationEnd::Shutdown => break,
                IncarnationEnd::LeaseLost => self.metrics.lease_lost("scheduler"),
                // The next incarnation is on standby until its policy can take over.
                IncarnationEnd::PolicyStale => {}
            }
        }
        Ok(())
    }

    /// Ends at a shutdown, if a newer policy is in force, or if a lease passes without a heartbeat.
    async fn incarnation(&self, consumer: ConsumerId, shutdown: &CancellationToken) -> IncarnationEnd {
        let stop = shutdown.child_token();
        self.policy_tracker.begin_incarnation(&stop);
        let mut loops = tokio::task::JoinSet::new();
        loops.spawn(self.admitter.clone().run(consumer.clone(), stop.clone()));
        loops.spawn(self.tasks.clone().run(consumer.clone(), stop.clone()));
        loops.spawn(self.timers.clone().run(stop.clone()));
        loops.spawn(self.recovery.clone().run(stop.clone()));
        loops.spawn(self.janitor.clone().enforce_bounds(stop.clone()));
        loops.spawn(self.janitor.clone().sample_memory_until(stop.clone()));
        loops.spawn(self.history.clone().sample_until(consumer.clone(), stop.clone()));
        if let Some(sealing) = &self.sealing {
            loops.spawn(sealing.clone().run(consumer.clone(), stop.clone()));
        }
        let lost = self.lease.send_heartbeats(&consumer, &stop).await;
        stop.cancel();
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "scheduler loop panicked");
            }
        }
        if lost {
            return IncarnationEnd::LeaseLost;
        }
        self.lease.return_entries(&consumer).await;
        self.lease.release(&consumer).await;
        if shutdown.is_cancelled() { IncarnationEnd::Shutdown } else { IncarnationEnd::PolicyStale }
    }
}
