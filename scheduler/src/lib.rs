//! The scheduler: admits turns under caps, releases lanes, promotes retries, reaps the dead.
//!
//! Any number of schedulers run side by side: every decision is one script, and each loop may be run by all of
//! them at once. START HERE: [`intake`] is the life of an inbound turn; [`tick`] is everything that time does.

pub mod admission;
pub mod collect;
pub mod endings;
pub mod intake;
pub mod policy;
mod reading;
pub mod tasks;
pub mod tick;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tickfleet_config::Settings;
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::{ConsumerId, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Announced, Beat, Generations, ShardClock, Slots, Store, StoreError};
use tokio_util::sync::CancellationToken;

use policy::{Deciding, PolicyClock};

/// How a scheduler works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Entries read and admitted at once.
    pub batch: usize,
    /// How often due timers are looked for.
    pub tick_poll: Duration,
    /// How often dead workers are looked for; see [`Options::reap_period`].
    pub reap_every: Duration,
    /// How often bounds are kept, and how often the sweep takes a step.
    pub collect_every: Duration,
    /// Bytes of audit entries kept per shard.
    pub audit_bytes_max: u64,
    /// How long dead entries are kept, ms.
    pub dead_retain_ms: i64,
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
        }
    }

    /// How often dead workers are looked for under this lease. Whatever the setting says, it is often enough: after a
    /// pause of more than half a lease, `reap` takes it that Redis was away and gives workers a lease to beat again, so
    /// whoever pauses that long each time never takes anything back.
    #[must_use]
    pub fn reap_period(&self, lease: Duration) -> Duration {
        self.reap_every.min(lease / REAPS_PER_LEASE)
    }
}

/// Looks for dead workers per lease, at least. Half of it would do; the rest is for a busy machine.
const REAPS_PER_LEASE: u32 = 6;

/// One scheduler on one shard.
pub struct Scheduler {
    pub(crate) store: Store,
    pub(crate) active: Arc<PolicyHandle>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Progress,
    pub(crate) options: Options,
    pub(crate) clock: Arc<ShardClock>,
    pub(crate) policy: PolicyClock,
    /// Cancelled when the present incarnation ends: loops that wait for Redis give up then.
    stopping: ArcSwap<CancellationToken>,
    /// The name of the present incarnation.
    consumer: ArcSwapOption<ConsumerId>,
    pub(crate) report: ReportOptions,
    name: String,
}

/// Why an incarnation ended.
enum Ended {
    Shutdown,
    LeaseLost,
    PolicyStale,
}

/// What a loop may take beyond its own pace: Redis may be away, and the loops of a process do not stall for that.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a scheduler that stops tries to return what it holds, at most: its supervisor waits for it.
const PUT_BACK_WAIT: Duration = Duration::from_secs(3);
/// How often a scheduler that stands by looks whether it still must, at most.
const STAND_BY: Duration = Duration::from_secs(1);

impl Scheduler {
    /// A scheduler on the shard of `store`. `name` (a pod's name) begins the names of its incarnations.
    #[must_use]
    pub fn new(
        store: Store,
        active: Arc<PolicyHandle>,
        metrics: Arc<Metrics>,
        progress: Progress,
        options: Options,
        report: ReportOptions,
        name: &str,
    ) -> Self {
        Self {
            store: store.observed_by(metrics.clone()),
            active,
            metrics,
            progress,
            options,
            clock: Arc::default(),
            policy: PolicyClock::default(),
            stopping: ArcSwap::default(),
            consumer: ArcSwapOption::default(),
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
        let policy = self.policy.announced();
        ReportOptions {
            policy_version: Some(policy.generation),
            policy_digest: Arc::clone(&policy.short),
            ..self.report.clone()
        }
    }

    /// Runs until `shutdown`; while Redis is away it waits and comes back by itself.
    ///
    /// # Errors
    /// [`StoreError::Shards`] where the data was written with another number of shards: a setting to be mended.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), StoreError> {
        let this = Arc::new(self);
        while !shutdown.is_cancelled() {
            let prepared = retry_until(&shutdown, || async {
                match this.prepare(&shutdown).await {
                    Ok(consumer) => Attempt::Done(Ok(consumer)),
                    Err(error @ StoreError::Shards { .. }) => Attempt::Done(Err(error)),
                    Err(error) => {
                        tracing::warn!(%error, "the shard is not ready; trying again");
                        Attempt::Failed
                    }
                }
            });
            let Some(consumer) = prepared.await.transpose()?.flatten() else { break };
            match this.clone().incarnation(consumer, &shutdown).await {
                Ended::Shutdown => break,
                Ended::LeaseLost => this.metrics.lease_lost("scheduler"),
                // The next one stands by until it may decide.
                Ended::PolicyStale => {}
            }
        }
        Ok(())
    }

    /// Groups, first heartbeat, what was set at run time, policy: all before anything is read (rules 12 and 17). Where a
    /// newer policy than ours is in force, it stands by until ours may decide. None where it was told to shut down
    /// meanwhile.
    async fn prepare(&self, shutdown: &CancellationToken) -> Result<Option<ConsumerId>, StoreError> {
        let made = self.store.ensure_groups().await?;
        if made > 0 {
            tracing::info!(made, "streams and groups were made");
        }
        let consumer = tickfleet_store::incarnation("s", &self.name);
        self.consumer.store(Some(Arc::new(consumer.clone())));
        let (mut waits, mut silent_since) = (false, None);
        loop {
            self.clock.set(self.beat(&consumer).await?.now_ms);
            let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
            // Who fell silent may be back in a moment: Redis may have been away, and we are the first to beat again.
            let take = silent_since.is_some_and(|since: tokio::time::Instant| since.elapsed() > lease);
            self.active.refresh(&self.store).await?;
            let active = self.active.load();
            match self.announce(&active, take).await? {
                Announced::InForce { .. } => return Ok(Some(consumer)),
                Announced::Older { silent, generation } => {
                    silent_since = silent.then(|| silent_since.unwrap_or_else(tokio::time::Instant::now));
                    if !std::mem::replace(&mut waits, true) {
                        tracing::warn!(
                            policy = active.short_digest(),
                            generation_in_force = generation,
                            "other schedulers decide by a newer policy; this one stands by until it has it too, or they have gone"
                        );
                    }
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => {
                    self.leave(&consumer).await;
                    return Ok(None);
                }
                () = tokio::time::sleep(STAND_BY.min(lease / 4)) => {}
            }
        }
    }

    async fn beat(&self, consumer: &ConsumerId) -> Result<Beat, StoreError> {
        self.store.beat_with(consumer, Slots::default(), self.active.load().short_digest()).await
    }

    /// Says by which policy we decide: at the start, after a reload, and when Redis has lost it.
    pub(crate) async fn announce(&self, active: &ActivePolicy, take: bool) -> Result<Announced, StoreError> {
        let consumer = self.consumer.load();
        let announced = self.store.announce(&active.digest, consumer.as_deref(), take).await?;
        if let Announced::InForce { generation } = announced {
            let before = self.policy.announced();
            self.policy.set_announced(&active.digest, generation);
            self.metrics.config_in_force(active.short_digest(), generation);
            if (before.digest.as_str(), before.generation) != (active.digest.as_str(), generation) {
                tracing::info!(policy = active.short_digest(), generation, "policy in force");
            }
        }
        Ok(announced)
    }

    /// What to decide by. After a reload the new policy is announced first: no batch is decided by a policy under
    /// another's generation. None where a newer one is in force; then this incarnation ends.
    pub(crate) async fn deciding(&self) -> Result<Option<Deciding>, StoreError> {
        let active = self.active.load();
        let announced = self.policy.announced();
        if announced.digest == active.digest {
            return Ok(Some(self.by(active, announced.generation)));
        }
        match self.announce(&active, false).await? {
            Announced::InForce { generation } => Ok(Some(self.by(active, generation))),
            Announced::Older { .. } => {
                self.policy_stale();
                Ok(None)
            }
        }
    }

    /// A policy with what was set at run time, and the generations that this shard knows them under.
    fn by(&self, active: Arc<ActivePolicy>, policy: u64) -> Deciding {
        let generations = Generations { policy, tenants: active.tenants_generation(self.store.shard()) };
        Deciding { active, generations }
    }

    /// The shard has tenants that we do not know yet: they are read before anything else is decided.
    pub(crate) async fn tenants_stale(&self) -> Result<(), StoreError> {
        tracing::debug!("tenants were set; reading them");
        self.active.refresh(&self.store).await
    }

    /// Returns what was read and not decided about: nothing died, so no crash should count against it.
    async fn put_back(&self, consumer: &ConsumerId) {
        match tokio::time::timeout(PUT_BACK_WAIT, self.store.put_back(consumer)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(entries)) => tracing::info!(entries, "inbound entries are returned undecided"),
            Ok(Err(error)) => tracing::warn!(%error, "inbound entries could not be returned; others take them over"),
            Err(_) => tracing::warn!("inbound entries could not be returned in time; others take them over"),
        }
    }

    /// So that nobody waits a lease for what this name held.
    async fn leave(&self, consumer: &ConsumerId) {
        if let Err(error) = self.store.leave(consumer).await {
            tracing::debug!(%error, "the lease will end by itself");
        }
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
        loops.spawn(collect::weigh(self.clone(), stop.clone()));
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
        self.put_back(&consumer).await;
        self.leave(&consumer).await;
        if shutdown.is_cancelled() { Ended::Shutdown } else { Ended::PolicyStale }
    }

    /// Beats until `stop`. Answers true where a whole lease passed without one.
    async fn beats(&self, consumer: &ConsumerId, stop: &CancellationToken) -> bool {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let handle = self.progress.register("beat", lease * 3 + PATIENCE);
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
            match self.beat(consumer).await {
                Ok(beat) => {
                    since = beat.now_ms;
                    self.heard(&beat).await;
                    if beat.policy_generation > self.policy.generation() && self.policy.generation() > 0 {
                        self.policy_stale();
                    }
                }
                Err(error) => {
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
    async fn heard(&self, beat: &Beat) {
        self.clock.set(beat.now_ms);
        self.policy.saw_steps(beat.clock_steps, &self.metrics);
        self.policy.saw_epoch(beat.epoch_ms, &self.metrics);
        // What is missed here is noticed by the script that decides.
        if let Err(error) = self.active.refresh(&self.store).await {
            tracing::warn!(%error, "what was set at run time could not be read; what was read last stays in force");
        }
    }
}
