//! Everything that time does: lanes are released, retries promoted, what has expired is ended, the dead are reaped.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_model::policy::Unknown;
use tickfleet_model::{AgentId, RejectionCode, TenantId};
use tickfleet_store::{LanePolicy, LaneRelease, Promoted, ReleaseReply, StoreError, TurnName};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::policy::{Rows, stagger_ms};
use crate::{PATIENCE, Scheduler};

/// Timers looked at in one round.
const DUE_MAX: usize = 256;
/// Turns released per lane and script, so that one long lane does not stall Redis.
const TURNS_PER_LANE_MAX: usize = 16;
/// Lanes of one script: with their turns about 2 ms.
const LANES_MAX: usize = 32;
/// Entries that one reap takes back.
const REAP_MAX: usize = 256;

/// What one round did.
#[derive(Default)]
struct Fired {
    /// Whether more may be due.
    full: bool,
    /// How late the lane was that had been due the longest.
    late: Duration,
}

/// Fires timers until `stop`.
pub(crate) async fn tick(scheduler: Arc<Scheduler>, stop: CancellationToken) {
    let handle = scheduler.progress.register("tick", scheduler.options.tick_poll * 2 + PATIENCE);
    while !stop.is_cancelled() {
        let began = Instant::now();
        let full = match scheduler.fire().await {
            Ok(fired) => {
                scheduler.metrics.ticked(scheduler.store.shard(), began.elapsed(), fired.late);
                fired.full
            }
            Err(error) => {
                tracing::warn!(%error, "timers could not be fired");
                false
            }
        };
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
    let lease = Duration::from_millis(scheduler.store.options().lease_ms.unsigned_abs());
    let every = scheduler.options.reap_period(lease);
    let handle = scheduler.progress.register("reap", every * 2 + PATIENCE * 2);
    loop {
        let mut more = false;
        match scheduler.store.reap(REAP_MAX).await {
            Ok(reaped) => {
                more = reaped.more;
                for (what, why) in &reaped.aside {
                    tracing::error!(
                        what,
                        why,
                        "something that a dead consumer held cannot be taken back; see the dead letters"
                    );
                }
                if reaped.requeued + reaped.dead + reaped.endings.len() as u64 > 0 {
                    tracing::warn!(
                        requeued = reaped.requeued,
                        dead = reaped.dead,
                        quarantined = reaped.endings.len(),
                        "work of dead consumers was taken back"
                    );
                }
                scheduler.metrics.reaped(reaped.requeued);
                let unreadable = reaped.aside.len() as u64;
                for _ in 0..reaped.dead.saturating_sub(unreadable) {
                    scheduler.metrics.dead(RejectionCode::Poison.as_str());
                }
                (0..unreadable).for_each(|_| scheduler.metrics.dead(RejectionCode::Unreadable.as_str()));
                scheduler.settle_endings(reaped.endings).await;
            }
            Err(StoreError::StateLost(what)) => scheduler.state_lost(&what).await,
            Err(error) => {
                tracing::warn!(%error, "could not look for dead consumers");
            }
        }
        handle.advanced();
        // A script moves a bounded number of bytes; others are answered between two.
        let pause = if more { Duration::from_millis(5) } else { every };
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    handle.finished();
}

impl Scheduler {
    /// Fires what is due.
    async fn fire(&self) -> Result<Fired, StoreError> {
        // A new policy is announced here even where nothing is due.
        if self.deciding().await?.is_none() {
            return Ok(Fired::default());
        }
        let (lanes, turns) = self.store.due(self.clock.now_ms(), DUE_MAX).await?;
        let full = lanes.len() + turns.len() >= DUE_MAX;
        // Rule 18: what fails of one chunk keeps no other from being fired.
        let (mut late, mut failed) = (Duration::ZERO, None);
        for chunk in lanes.chunks(LANES_MAX) {
            match self.release(chunk).await {
                Ok(by) => late = late.max(by),
                Err(error) => failed = Some(error),
            }
        }
        for chunk in turns.chunks(LANES_MAX) {
            failed = self.promote(chunk).await.err().or(failed);
        }
        failed.map_or(Ok(Fired { full, late }), Err)
    }

    /// Releases lanes. Answers how late the latest was.
    async fn release(&self, lanes: &[(TenantId, AgentId)]) -> Result<Duration, StoreError> {
        let mut now_ms = self.clock.now_ms();
        // More rounds only where a day has ended between our reckoning and Redis', or tenants were set meanwhile.
        for _ in 0..3 {
            let Some(deciding) = self.deciding().await? else { break };
            let (rows, batch) = self.lane_batch(&deciding.active, lanes, now_ms);
            match self.store.release(deciding.generations, TURNS_PER_LANE_MAX, &rows.rows, &batch).await? {
                ReleaseReply::Released(released) => {
                    let late_ms = released.iter().map(|lane| lane.late_ms).max().unwrap_or(0);
                    for lane in released {
                        self.metrics.released(lane.turns, lane.calls);
                        lane.aside.iter().for_each(|why| self.put_aside("a lane", why));
                        self.settle_endings(lane.endings).await;
                    }
                    return Ok(Duration::from_millis(late_ms.max(0).unsigned_abs()));
                }
                ReleaseReply::PolicyStale => {
                    self.policy_stale();
                    return Ok(Duration::ZERO);
                }
                ReleaseReply::TenantsStale => self.tenants_stale().await?,
                ReleaseReply::DayStale { now_ms: now } => {
                    self.clock.set(now);
                    now_ms = now;
                }
            }
        }
        Ok(Duration::ZERO)
    }

    fn lane_batch(
        &self,
        active: &ActivePolicy,
        lanes: &[(TenantId, AgentId)],
        now_ms: i64,
    ) -> (Rows, Vec<LaneRelease>) {
        let mut rows = Rows::default();
        let release = |(tenant, agent): &(TenantId, AgentId)| {
            let policy = match active.policy.look_up(tenant, agent) {
                Ok((t, a)) => LanePolicy::Row(rows.number(self.policy.row(&active.policy, t, a, now_ms))),
                Err(Unknown::Tenant | Unknown::Agent) => LanePolicy::NoAgent,
                Err(Unknown::Withheld) => LanePolicy::Withheld,
            };
            LaneRelease {
                tenant: tenant.clone(),
                agent: agent.clone(),
                stagger_ms: stagger_ms(tenant, agent, active.policy.defaults.tick_ms),
                policy,
            }
        };
        let batch = lanes.iter().map(release).collect();
        (rows, batch)
    }

    async fn promote(&self, turns: &[TurnName]) -> Result<(), StoreError> {
        let promoted = self.store.promote(turns).await?;
        let mut endings = Vec::new();
        for (turn, promoted) in turns.iter().zip(promoted) {
            match promoted {
                Promoted::Ending(ending) => endings.push(*ending),
                Promoted::Promoted => self.metrics.promoted(1),
                Promoted::Lapsed => self.metrics.lease_lost("external"),
                Promoted::Restored => {
                    self.metrics.reaped(1);
                    tracing::warn!(%turn, "a turn's slice, or what times it, was gone; it is made anew from its record");
                }
                Promoted::Aside(why) => self.put_aside(&turn.to_string(), &why),
                Promoted::Later | Promoted::Gone => {}
            }
        }
        self.settle_endings(endings).await;
        Ok(())
    }

    /// One item of a batch failed, and no other: people must look at it.
    fn put_aside(&self, what: &str, why: &str) {
        self.metrics.dead(RejectionCode::Unreadable.as_str());
        tracing::error!(what, why, "this cannot be looked at as it is; see the dead letters");
    }

    /// A newer policy is in force than ours: another replica has a newer configuration. This incarnation ends.
    pub(crate) fn policy_stale(&self) {
        self.metrics.policy_stale();
        self.stopping.load().cancel();
    }

    /// Streams or groups are gone: somebody has flushed Redis. They are made anew, with a signal that people see.
    pub(crate) async fn state_lost(&self, what: &str) {
        self.metrics.state_lost();
        tracing::error!(
            what,
            "streams or groups of the shard are gone; they are made anew, and slices from their records"
        );
        if let Err(error) = self.store.ensure_groups().await {
            tracing::warn!(%error, "streams and groups could not be made anew");
        }
        if let Err(error) = self.announce(&self.active.load(), false).await {
            tracing::warn!(%error, "the policy could not be announced anew");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
