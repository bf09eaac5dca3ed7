//! The scheduler: admits turns under caps, releases lanes, promotes retries, reaps the dead.
//!
//! Any number of schedulers run side by side: every decision is one script, and each loop may be run by all of
//! them at once. START HERE: [`intake`] is the life of an inbound turn; [`tick`] is everything that time does.

pub mod admission;
pub mod collect;
pub mod endings;
pub mod intake;
pub mod policy;
pub mod tasks;
pub mod tick;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use shared::force::InForce;
use shared::model::{ConsumerId, limits};
use shared::ops::metrics::Metrics;
use shared::ops::progress::Progress;
use shared::report::ReportOptions;
use shared::store::{Patience, ShardClock, Store, StoreError};
use tokio_util::sync::CancellationToken;

use policy::PolicyClock;

/// How a scheduler works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Entries read and admitted at once.
    pub batch: usize,
    /// How often due timers are looked for.
    pub tick_poll: Duration,
    /// How often dead workers are looked for.
    pub reap_every: Duration,
    /// How often the backlog is measured and bounds are kept.
    pub collect_every: Duration,
    /// Bytes of audit entries kept per shard.
    pub audit_bytes_max: u64,
    /// How long dead entries are kept, ms.
    pub dead_retain_ms: i64,
}

/// One scheduler on one shard.
pub struct Scheduler {
    pub(crate) store: Store,
    pub(crate) force: Arc<InForce>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Progress,
    pub(crate) options: Options,
    pub(crate) clock: Arc<ShardClock>,
    pub(crate) policy: PolicyClock,
    /// Cancelled when the present incarnation ends: loops that wait for Redis give up then.
    stopping: ArcSwap<CancellationToken>,
    report: ReportOptions,
    name: String,
}

/// Why an incarnation ended.
enum Ended {
    Shutdown,
    LeaseLost,
    PolicyStale,
}

/// How often a scheduler whose policy is not in force looks whether it is.
const STAND_BY: Duration = Duration::from_secs(1);

impl Scheduler {
    /// A scheduler on the shard of `store`. `name` (a pod's name) begins the names of its incarnations.
    #[must_use]
    pub fn new(
        store: Store,
        force: Arc<InForce>,
        metrics: Arc<Metrics>,
        progress: Progress,
        options: Options,
        report: ReportOptions,
        name: &str,
    ) -> Self {
        Self {
            store,
            force,
            metrics,
            progress,
            options,
            clock: Arc::default(),
            policy: PolicyClock::default(),
            stopping: ArcSwap::default(),
            report,
            name: name.to_owned(),
        }
    }

    /// Whether the present incarnation is over.
    pub(crate) fn is_over(&self) -> bool {
        self.stopping.load().is_cancelled()
    }

    /// How endings are reported.
    pub(crate) fn report(&self) -> ReportOptions {
        ReportOptions { policy_version: Some(self.policy.generation()), ..self.report.clone() }
    }

    /// Runs until `shutdown`; while Redis is away it waits and comes back by itself.
    ///
    /// # Errors
    /// [`StoreError::Shards`] where the data was written with another number of shards: a setting to be mended.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), StoreError> {
        let this = Arc::new(self);
        let mut patience = Patience::default();
        while !shutdown.is_cancelled() {
            match this.prepare().await {
                Ok(consumer) => {
                    patience.reset();
                    match this.clone().incarnation(consumer, &shutdown).await {
                        Ended::Shutdown => break,
                        Ended::LeaseLost => {}
                        Ended::PolicyStale => this.stand_by(&shutdown).await,
                    }
                }
                Err(error @ StoreError::Shards { .. }) => return Err(error),
                Err(error) => {
                    this.metrics.redis_error("prepare");
                    tracing::warn!(%error, "the shard is not ready; trying again");
                    tokio::select! {
                        () = shutdown.cancelled() => break,
                        () = tokio::time::sleep(patience.pause()) => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Groups, policy, first heartbeat: in this order, and all before anything is read (rule 12).
    async fn prepare(&self) -> Result<ConsumerId, StoreError> {
        let made = self.store.ensure_groups().await?;
        self.announce().await?;
        let consumer = shared::force::incarnation("s", &self.name);
        let beat = self.store.beat(&consumer).await?;
        self.clock.set(beat.now_ms);
        if made > 0 {
            tracing::info!(made, "streams and groups were made");
        }
        Ok(consumer)
    }

    /// Makes our policy the one in force. Only at the start and after a reload: a replica with an older
    /// configuration must not take it back.
    async fn announce(&self) -> Result<(), StoreError> {
        if self.policy.generation() > 0 {
            return Ok(());
        }
        let generation = self.store.announce(&self.force.load().digest).await?;
        self.policy.set_generation(generation);
        Ok(())
    }

    /// Runs all loops under one consumer name, until shutdown or until a lease has passed without a heartbeat:
    /// then others have taken over what this name held, and a new one begins.
    async fn incarnation(self: Arc<Self>, consumer: ConsumerId, shutdown: &CancellationToken) -> Ended {
        let stop = shutdown.child_token();
        self.stopping.store(Arc::new(stop.clone()));
        let mut loops = tokio::task::JoinSet::new();
        loops.spawn(intake::turns(self.clone(), consumer.clone(), stop.clone()));
        loops.spawn(tasks::tasks(self.clone(), consumer.clone(), stop.clone()));
        loops.spawn(tick::tick(self.clone(), stop.clone()));
        loops.spawn(tick::reap(self.clone(), stop.clone()));
        loops.spawn(collect::collect(self.clone(), stop.clone()));
        let lost = self.beats(&consumer, &stop).await;
        stop.cancel();
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a loop of the scheduler ended by a bug");
            }
        }
        if lost {
            return Ended::LeaseLost;
        }
        // So that nobody waits a lease for entries that we were given and did not admit.
        if let Err(error) = self.store.leave(&consumer).await {
            tracing::debug!(%error, "the lease will end by itself");
        }
        if shutdown.is_cancelled() { Ended::Shutdown } else { Ended::PolicyStale }
    }

    /// Another replica has announced a newer policy: this one decides nothing, and holds nothing that others could
    /// decide, until its own policy is the one in force or has changed itself.
    async fn stand_by(&self, shutdown: &CancellationToken) {
        let ours = self.force.load().digest.clone();
        tracing::error!("another scheduler has announced a newer policy; this one stands by until it has it too");
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(STAND_BY) => {}
            }
            let in_force = self.store.policy_in_force().await;
            if self.force.load().digest != ours || matches!(&in_force, Ok(digest) if digest.as_ref() == Some(&ours)) {
                break;
            }
        }
        // Announcing a policy that is in force keeps its generation.
        self.policy.set_generation(0);
    }

    /// Beats until `stop`. Answers true where a whole lease passed without one.
    async fn beats(&self, consumer: &ConsumerId, stop: &CancellationToken) -> bool {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let handle = self.progress.register("beat", lease * 3);
        let every = lease / u32::try_from(limits::BEATS_PER_LEASE).unwrap_or(4);
        let mut since = self.clock.now_ms();
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    handle.finished();
                    return false;
                }
                () = tokio::time::sleep(every) => {}
            }
            match self.store.beat(consumer).await {
                Ok(beat) => {
                    since = beat.now_ms;
                    self.heard(&beat).await;
                    if beat.policy_generation > self.policy.generation() && self.policy.generation() > 0 {
                        self.policy_stale();
                    }
                }
                Err(error) => {
                    self.metrics.redis_error("beat");
                    tracing::warn!(%error, "no heartbeat");
                    if self.clock.now_ms() - since > self.store.options().lease_ms {
                        tracing::warn!("a lease passed without a heartbeat; starting over under a new name");
                        handle.finished();
                        return true;
                    }
                }
            }
            handle.advanced();
        }
    }

    /// What a heartbeat brings: time, clock trouble, tenants that were set meanwhile.
    async fn heard(&self, beat: &shared::store::Beat) {
        self.clock.set(beat.now_ms);
        self.policy.saw_steps(beat.clock_steps, &self.metrics);
        self.policy.saw_epoch(beat.epoch_ms, &self.metrics);
        match self.store.tenants().await {
            Ok(tenants) => self.force.set_tenants(tenants),
            Err(error) => tracing::debug!(%error, "tenants could not be read"),
        }
    }
}
