//! Keeps slow bounds, sweeps for what should be impossible, and asks Redis what a scrape wants to know.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tickfleet_config::TaskHandlerDef;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_ops::metrics::{Backlog, Invariant, Metrics, Place, Scraped};
use tickfleet_store::{Backlog as ShardBacklog, Memory, Store, StoreError, SweepAt, Swept, TurnName};
use tokio_util::sync::CancellationToken;

use crate::Scheduler;

/// Steps of the sweep in one turn of the loop: about 1,000 turns, a few ms of Redis.
const STEPS: usize = 4;
/// Steps of it while there is something to mend: what was lost was mostly lost together.
const STEPS_MENDING_MAX: usize = 64;
/// Violations that are remembered, so that each is reported once.
const REPORTED_MAX: usize = 1_000;

/// How often memory is looked at: a fast producer fills some percent of it in that time.
const WEIGH_EVERY: Duration = Duration::from_secs(1);

/// Keeps house and sweeps until `stop`.
pub(crate) async fn collect(scheduler: Arc<Scheduler>, stop: CancellationToken) {
    let handle = scheduler.progress.register("collect", scheduler.options.collect_every * 10 + Duration::from_secs(30));
    let (mut cursor, mut streams) = (0, 0);
    let mut sweep = Sweep::default();
    loop {
        match scheduler.store.prune(cursor).await {
            Ok(next) => cursor = next,
            Err(error) => tracing::debug!(%error, "budgets could not be pruned"),
        }
        match scheduler.retire(streams).await {
            Ok(next) => streams = next,
            Err(error) => tracing::debug!(%error, "the streams of runtimes outside could not be looked after"),
        }
        let kept = async { scheduler.keep_house(scheduler.store.weigh().await?).await };
        if let Err(error) = kept.await {
            tracing::warn!(%error, "bounds could not be kept");
        }
        if let Err(error) = sweep.steps(&scheduler).await {
            tracing::debug!(%error, "turns under way could not be looked at");
        }
        handle.advanced();
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(scheduler.options.collect_every) => {}
        }
    }
    handle.finished();
}

impl Scheduler {
    /// Streams of agents that no runtime outside works for any more go when they are empty.
    async fn retire(&self, cursor: u64) -> Result<u64, StoreError> {
        let active = self.active.load();
        let is_configured = |tenant: &TenantId, agent: &AgentId| {
            active.policy.look_up(tenant, agent).is_ok()
                && matches!(active.task_handlers.get(agent), Some(TaskHandlerDef::External { .. }))
        };
        self.store.retire(cursor, is_configured).await
    }

    async fn keep_house(&self, memory: Memory) -> Result<(), StoreError> {
        self.store.housekeep(memory, self.options.audit_bytes_max, self.options.dead_retain_ms).await
    }
}

/// Looks at Redis' memory until `stop`. Where it is short, bounds are kept at every look.
pub(crate) async fn weigh(scheduler: Arc<Scheduler>, stop: CancellationToken) {
    let handle = scheduler.progress.register("weigh", Duration::from_secs(60));
    let mut tight = false;
    loop {
        match scheduler.store.weigh().await {
            Ok(memory) => {
                let (used, max) = (memory.used, memory.max);
                if memory.is_tight() {
                    tracing::error!(used, max, "Redis is nearly full; nothing new is taken in, what is in goes on");
                    if let Err(error) = scheduler.keep_house(memory).await {
                        tracing::warn!(%error, "bounds could not be kept");
                    }
                } else if tight {
                    tracing::info!(used, max, "Redis has room again");
                }
                tight = memory.is_tight();
            }
            Err(error) => tracing::warn!(%error, "Redis' memory could not be looked at"),
        }
        handle.advanced();
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(WEIGH_EVERY) => {}
        }
    }
    handle.finished();
}

/// A walk over all turns under way, a few hundred a step.
#[derive(Default)]
struct Sweep {
    at: SweepAt,
    /// Since when the oldest turn waits on a lane that this round has seen, ms of shard time.
    oldest_ms: Option<i64>,
    /// What seemed wrong in the last step. Only what still is in this one counts.
    suspects: Vec<TurnName>,
    reported: BTreeSet<TurnName>,
}

impl Sweep {
    /// Looks again at what seemed wrong, and goes on.
    async fn steps(&mut self, scheduler: &Scheduler) -> Result<(), StoreError> {
        self.confirm(scheduler).await?;
        let (mut steps, mut mending) = (0, false);
        while steps < STEPS || (mending && steps < STEPS_MENDING_MAX) {
            let swept = self.step(scheduler).await?;
            steps += 1;
            mending |= !swept.adrift.is_empty();
            if swept.round_complete {
                break;
            }
        }
        Ok(())
    }

    /// Reports the suspects of the last time that are still without a timer, and has them looked at again.
    async fn confirm(&mut self, scheduler: &Scheduler) -> Result<(), StoreError> {
        let suspects = std::mem::take(&mut self.suspects);
        let lost = scheduler.store.waiting_without_timer(&suspects).await?;
        scheduler.store.wake(&lost).await?;
        for name in lost {
            if self.reported.len() < REPORTED_MAX && self.reported.insert(name.clone()) {
                scheduler.metrics.violated(Invariant::WaitingWithoutTimer);
                tracing::error!(turn = %name, "a turn has calls left, but nothing would have looked at it again: a bug, or a hand in Redis");
            }
        }
        Ok(())
    }

    /// Looks at some more turns, and wakes those whose slice seems to be nowhere: `promote` looks closer.
    async fn step(&mut self, scheduler: &Scheduler) -> Result<Swept, StoreError> {
        let swept = scheduler.store.sweep(self.at).await?;
        self.at = swept.next;
        self.suspects.extend(swept.waiting_without_timer.iter().cloned());
        scheduler.store.wake(&swept.adrift).await?;
        self.oldest_ms = [self.oldest_ms, swept.oldest_parked_ms].into_iter().flatten().min();
        if swept.round_complete {
            scheduler.metrics.parked_since(scheduler.store.shard(), self.oldest_ms.take());
        }
        Ok(swept)
    }
}

/// Asks Redis, at a scrape, for what only it knows.
pub struct Scrape {
    stores: Vec<Store>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
}

impl Scrape {
    /// A scrape of these shards.
    #[must_use]
    pub fn new(stores: &[Store], active: &Arc<PolicyHandle>, metrics: &Arc<Metrics>) -> Self {
        let observed = stores.iter().map(|store| store.clone().observed_by(metrics.clone()));
        Self { stores: observed.collect(), active: Arc::clone(active), metrics: Arc::clone(metrics) }
    }

    /// What all shards hold together; none where one of them does not answer, for half a backlog would look like a
    /// small one.
    pub async fn ask(&self) -> Option<Scraped> {
        let asked = self.stores.iter().map(|store| async move {
            let tenants = self.tenants_of(store);
            store.backlog(&tenants).await.map(|seen| (store.shard(), seen))
        });
        match try_join_all(asked).await {
            Ok(shards) => Some(self.merged(&shards)),
            Err(error) => {
                tracing::debug!(%error, "the backlog is absent from this scrape");
                None
            }
        }
    }

    /// The tenants that live in this shard.
    fn tenants_of(&self, store: &Store) -> Vec<TenantId> {
        self.active.load().policy.tenants.keys().filter(|tenant| store.is_home_of(tenant)).cloned().collect()
    }

    /// Counts are added; of ages and of memory, which shards may share, the largest is shown.
    fn merged(&self, shards: &[(u32, ShardBacklog)]) -> Scraped {
        let place = |place: Place, count: fn(&ShardBacklog) -> u64, oldest_ms: &dyn Fn(u32, &ShardBacklog) -> i64| {
            let count = shards.iter().map(|(_, seen)| count(seen)).sum();
            let oldest_ms = shards.iter().map(|(shard, seen)| oldest_ms(*shard, seen)).max().unwrap_or(0);
            let oldest = (count > 0).then(|| Duration::from_millis(oldest_ms.max(0).unsigned_abs()));
            (place, Backlog { count, oldest })
        };
        let parked_ms = |shard: u32, seen: &ShardBacklog| {
            self.metrics.oldest_parked_ms(shard).map_or(0, |since_ms| seen.now_ms - since_ms)
        };
        Scraped {
            backlog: vec![
                place(Place::Inbound, |seen| seen.inbound + seen.tasks, &|_, seen| seen.oldest_inbound_ms),
                place(Place::Ready, |seen| seen.ready, &|_, seen| seen.oldest_ready_ms),
                place(Place::Suspect, |seen| seen.suspect, &|_, seen| seen.oldest_suspect_ms),
                place(Place::ParkedCapped, |seen| seen.parked, &parked_ms),
                place(Place::Delayed, |seen| seen.delayed, &|_, seen| seen.oldest_delayed_ms),
                place(Place::Running, |seen| seen.running, &|_, seen| seen.oldest_pending_ms),
                place(Place::Dead, |seen| seen.dead, &|_, seen| seen.oldest_dead_ms),
            ],
            memory_used: shards.iter().map(|(_, seen)| seen.memory.used).max().unwrap_or(0),
            memory_max: shards.iter().map(|(_, seen)| seen.memory.max).max().unwrap_or(0),
            // Not the flag alone: it is what scripts go by, and may be a second behind.
            pressure: shards.iter().any(|(_, seen)| seen.pressure || seen.memory.is_tight()),
        }
    }
}
