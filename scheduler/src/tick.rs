//! Everything that time does: lanes are released, retries promoted, what has expired is ended, the dead are reaped.

use std::sync::Arc;
use std::time::Duration;

use shared::model::{AgentId, TenantId};
use shared::store::{LaneRelease, Promoted, ReleaseReply, StoreError, TurnName};
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::policy::{Rows, stagger_ms};

/// Timers looked at in one round.
const DUE_MAX: usize = 256;
/// Turns released per lane and script, so that one long lane does not stall Redis.
const TURNS_PER_LANE_MAX: usize = 16;
/// Lanes of one script: with their turns about 2 ms.
const LANES_MAX: usize = 32;
/// Entries that one reap takes back.
const REAP_MAX: usize = 256;

/// Fires timers until `stop`.
pub(crate) async fn tick(scheduler: Arc<Scheduler>, stop: CancellationToken) {
    let handle = scheduler.progress.register("tick", Duration::from_secs(30));
    while !stop.is_cancelled() {
        let full = scheduler.fire().await.unwrap_or_else(|error| {
            scheduler.metrics.redis_error("tick");
            tracing::warn!(%error, "timers could not be fired");
            false
        });
        handle.advanced();
        if full {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(scheduler.options.tick_poll) => {}
        }
    }
    handle.finished();
}

/// Reaps until `stop`.
pub(crate) async fn reap(scheduler: Arc<Scheduler>, stop: CancellationToken) {
    let handle = scheduler.progress.register("reap", Duration::from_secs(60));
    loop {
        match scheduler.store.reap(REAP_MAX).await {
            Ok(reaped) => {
                if reaped.requeued + reaped.dead + reaped.endings.len() as u64 > 0 {
                    tracing::warn!(
                        requeued = reaped.requeued,
                        dead = reaped.dead,
                        quarantined = reaped.endings.len(),
                        "work of dead consumers was taken back"
                    );
                }
                scheduler.metrics.reaped(reaped.requeued);
                for _ in 0..reaped.dead {
                    scheduler.metrics.dead("poison");
                }
                scheduler.settle_endings(reaped.endings).await;
            }
            Err(StoreError::StateLost(what)) => scheduler.state_lost(&what).await,
            Err(error) => {
                scheduler.metrics.redis_error("reap");
                tracing::warn!(%error, "could not look for dead consumers");
            }
        }
        handle.advanced();
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(scheduler.options.reap_every) => {}
        }
    }
    handle.finished();
}

impl Scheduler {
    /// Fires what is due. Answers whether there may be more.
    async fn fire(&self) -> Result<bool, StoreError> {
        let (lanes, turns) = self.store.due(self.clock.now_ms(), DUE_MAX).await?;
        let full = lanes.len() + turns.len() >= DUE_MAX;
        for chunk in lanes.chunks(LANES_MAX) {
            self.release(chunk).await?;
        }
        for chunk in turns.chunks(LANES_MAX) {
            self.promote(chunk).await?;
        }
        Ok(full)
    }

    async fn release(&self, lanes: &[(TenantId, AgentId)]) -> Result<(), StoreError> {
        let mut now_ms = self.clock.now_ms();
        // A second round only where a day has ended between our reckoning and Redis'.
        for _ in 0..2 {
            let (rows, batch) = self.lane_batch(lanes, now_ms);
            match self.store.release(self.policy.generation(), TURNS_PER_LANE_MAX, &rows.rows, &batch).await? {
                ReleaseReply::Released(released) => {
                    for lane in released {
                        self.metrics.tick_lag(Duration::from_millis(lane.late_ms.max(0).unsigned_abs()));
                        self.metrics.admitted(shared::ops::metrics::Decision::Dispatched, lane.turns);
                        self.settle_endings(lane.endings).await;
                    }
                    return Ok(());
                }
                ReleaseReply::PolicyStale => {
                    self.policy_stale();
                    return Ok(());
                }
                ReleaseReply::DayStale { now_ms: now } => {
                    self.clock.set(now);
                    now_ms = now;
                }
            }
        }
        Ok(())
    }

    fn lane_batch(&self, lanes: &[(TenantId, AgentId)], now_ms: i64) -> (Rows, Vec<LaneRelease>) {
        let force = self.force.load();
        let mut rows = Rows::default();
        let release = |(tenant, agent): &(TenantId, AgentId)| {
            let known = force.policy.look_up(tenant, agent).ok();
            let row = known.map(|(t, a)| self.policy.row(&force.policy, t, a, now_ms));
            LaneRelease {
                tenant: tenant.clone(),
                agent: agent.clone(),
                stagger_ms: stagger_ms(tenant, agent, force.policy.defaults.tick_ms),
                policy: row.map(|row| rows.number(row)),
            }
        };
        let batch = lanes.iter().map(release).collect();
        (rows, batch)
    }

    async fn promote(&self, turns: &[TurnName]) -> Result<(), StoreError> {
        let promoted = self.store.promote(turns).await?;
        let endings = promoted.into_iter().filter_map(|p| match p {
            Promoted::Ending(ending) => Some(*ending),
            Promoted::Promoted | Promoted::Later | Promoted::Gone => None,
        });
        self.settle_endings(endings.collect()).await;
        Ok(())
    }

    /// A newer policy is in force than ours: another replica has a newer configuration. This incarnation ends.
    pub(crate) fn policy_stale(&self) {
        self.metrics.policy_stale();
        self.stopping.load().cancel();
    }

    /// Streams or groups are gone: somebody has flushed Redis. They are made anew, with a signal that people see.
    pub(crate) async fn state_lost(&self, what: &str) {
        self.metrics.state_lost();
        tracing::error!(what, "streams or groups of the shard are gone; what was in them is lost");
        if let Err(error) = self.store.ensure_groups().await {
            tracing::warn!(%error, "streams and groups could not be made anew");
        }
        match self.store.announce(&self.force.load().digest).await {
            Ok(generation) => self.policy.set_generation(generation),
            Err(error) => tracing::warn!(%error, "the policy could not be announced anew"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
