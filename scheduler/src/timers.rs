//! What time does: lanes are released, retries promoted, what has expired is ended.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_model::RejectionCode;
use tickfleet_ops::metrics::{LimitAction, Metrics};
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Lane, LaneRelease, LaneTurns, Promoted, ReleaseReply, ShardClock, Store, StoreError, TurnName};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::PATIENCE;
use crate::decider::Decider;
use crate::endings::Endings;
use crate::policy::{Reckoning, Rows};

/// Timers looked at in one round.
const DUE_MAX: usize = 256;
/// Turns released per lane and script, so that one long lane does not stall Redis.
const TURNS_PER_LANE_MAX: usize = 16;
/// Lanes of one script: with their turns about 2 ms.
const LANES_MAX: usize = 32;
/// Bytes of turns that are read from lanes at once, to see what limits them: about 2 ms.
const HEADS_BYTES_MAX: usize = 1024 * 1024;

/// The result of one round.
#[derive(Default)]
struct Fired {
    /// True if more may be due.
    full: bool,
    /// The time by which the lane was late that had been due the longest.
    late: Duration,
}

/// Fires what is due.
pub(crate) struct Timers {
    store: Store,
    clock: Arc<ShardClock>,
    decider: Arc<Decider>,
    endings: Arc<Endings>,
    metrics: Arc<Metrics>,
    progress: Progress,
    /// The period at which due timers are looked for.
    poll: Duration,
}

impl Timers {
    /// Looks for due timers every `poll`.
    pub(crate) fn new(common: &Common, endings: &Arc<Endings>, poll: Duration) -> Self {
        Self {
            store: common.store.clone(),
            clock: common.clock.clone(),
            decider: common.decider.clone(),
            endings: endings.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            poll,
        }
    }

    /// Fires timers until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let handle = self.progress.register("tick", self.poll * 2 + PATIENCE);
        while !stop.is_cancelled() {
            let began = Instant::now();
            let full = match self.fire().await {
                Ok(fired) => {
                    self.metrics.ticked(self.store.shard(), began.elapsed(), fired.late);
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
                () = tokio::time::sleep(self.poll) => {}
            }
        }
        handle.finished();
    }

    /// Fires what is due.
    async fn fire(&self) -> Result<Fired, StoreError> {
        // A new policy is announced here even if nothing is due.
        if self.decider.deciding().await?.is_none() {
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
    async fn release(&self, lanes: &[Lane]) -> Result<Duration, StoreError> {
        let mut now_ms = self.clock.now_ms();
        // More rounds only if a day has ended between our reckoning and Redis', or tenants were set meanwhile.
        for _ in 0..3 {
            let Some(deciding) = self.decider.deciding().await? else { break };
            let by = Reckoning::new(&deciding.active.policy, self.decider.policy(), &self.store, now_ms);
            let mut rows = Rows::default();
            let batch = self.lane_batch(&by, lanes, &mut rows).await?;
            let released =
                self.store.release(deciding.generations, TURNS_PER_LANE_MAX, &rows.rows, &rows.limits, &batch);
            match released.await? {
                ReleaseReply::Released(released) => {
                    let late_ms = released.iter().map(|lane| lane.late_ms).max().unwrap_or(0);
                    for lane in released {
                        self.metrics.released(lane.turns, lane.calls);
                        lane.aside.iter().for_each(|why| self.put_aside("a lane", why));
                        self.metrics.limits_reached(&lane.waits, LimitAction::Wait);
                        self.metrics.limits_reached(&lane.shades, LimitAction::Shadow);
                        self.endings.settle(lane.endings).await;
                    }
                    return Ok(Duration::from_millis(late_ms.max(0).unsigned_abs()));
                }
                ReleaseReply::PolicyStale => {
                    self.decider.policy_stale();
                    return Ok(Duration::ZERO);
                }
                ReleaseReply::TenantsStale => self.decider.tenants_stale().await?,
                ReleaseReply::DayStale { now_ms: now } => {
                    self.clock.set(now);
                    now_ms = now;
                }
            }
        }
        Ok(Duration::ZERO)
    }

    /// What is to be looked at of lanes. Where there are limits, or a lane is one's, its first turns are read: what their
    /// calls debit follows from the policy, which Redis does not know.
    async fn lane_batch(
        &self,
        by: &Reckoning<'_>,
        lanes: &[Lane],
        rows: &mut Rows,
    ) -> Result<Vec<LaneRelease>, StoreError> {
        let is_any = |lane: &Lane| by.policy.limits.is_empty() && matches!(lane, Lane::Agent(..));
        let read: Vec<Lane> = lanes.iter().filter(|lane| !is_any(lane)).cloned().collect();
        let mut heads = if read.is_empty() {
            Vec::new()
        } else {
            self.store.heads(&read, TURNS_PER_LANE_MAX, HEADS_BYTES_MAX).await?
        }
        .into_iter();
        let batch = lanes.iter().map(|lane| {
            let turns = match lane {
                Lane::Agent(tenant, agent) if is_any(lane) => LaneTurns::Any(by.judge(tenant, agent, rows)),
                _ => LaneTurns::These(by.waiting(heads.next().unwrap_or_default(), rows)),
            };
            LaneRelease { lane: lane.clone(), turns }
        });
        Ok(batch.collect())
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
        self.endings.settle(endings).await;
        Ok(())
    }

    /// One item of a batch failed, and no other: people must look at it.
    fn put_aside(&self, what: &str, why: &str) {
        self.metrics.dead(RejectionCode::Unreadable.as_str());
        tracing::error!(what, why, "this cannot be looked at as it is; see the dead letters");
    }
}
