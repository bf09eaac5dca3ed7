//! What time does: lanes are released, retries promoted, what has expired is ended.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_model::RejectionCode;
use tickfleet_ops::metrics::{LimitAction, Metrics};
use tickfleet_ops::progress::Progress;
use tickfleet_store::{
    Lane, LaneRelease, LaneTurns, Promoted, ReleaseReply, Released, ShardClock, Store, StoreError, TurnName,
};
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
/// Lanes of one script: with their turns about 1 ms.
const LANES_MAX: usize = 16;
/// The period at which due timers are looked for while places of limits come and go: whoever waits for one waits so long
/// for nothing.
const BUSY_POLL: Duration = Duration::from_millis(5);
/// How long after one was given to somebody who waited that goes on.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// Counters that the turns of one script debit: about 2 ms.
const COUNTERS_MAX: usize = 1_000;
/// Turns and tasks that end with what began them, in one script: about 2 ms.
const CASCADE_MAX: usize = 64;
/// Bytes of turns that are read from lanes at once, to see what limits them: about 2 ms.
const HEADS_BYTES_MAX: usize = 1024 * 1024;

/// The result of one round.
#[derive(Default)]
struct Fired {
    /// True if more may be due.
    full: bool,
    /// True if a limit's counter had room for whoever waited for it: it may soon have more.
    busy: bool,
    /// The time by which the lane was late that had been due the longest.
    late: Duration,
}

impl Fired {
    /// What lanes came to that were looked at in one script.
    fn add(&mut self, lane: &Lane, released: &Released) {
        self.late = self.late.max(Duration::from_millis(released.late_ms.max(0).unsigned_abs()));
        // Whoever comes next on it need not wait for the next round.
        self.full |= released.turns >= TURNS_PER_LANE_MAX as u64;
        self.busy |= released.turns > 0 && matches!(lane, Lane::Counter { .. });
    }
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
        let mut busy_until = Instant::now();
        while !stop.is_cancelled() {
            let began = Instant::now();
            let fired = match self.fire().await {
                Ok(fired) => {
                    self.metrics.ticked(self.store.shard(), began.elapsed(), fired.late);
                    fired
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to fire timers");
                    Fired::default()
                }
            };
            handle.advanced();
            if fired.full {
                continue;
            }
            if fired.busy {
                busy_until = Instant::now() + BUSY_FOR;
            }
            let rest = if Instant::now() < busy_until { self.poll.min(BUSY_POLL) } else { self.poll };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(rest) => {}
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
        let due = self.store.due(self.clock.now_ms(), DUE_MAX).await?;
        let full = due.len() >= DUE_MAX;
        // Rule 18: what fails of one chunk keeps no other from being fired.
        let (mut fired, mut failed) = (Fired { full, ..Fired::default() }, None);
        for chunk in due.lanes.chunks(LANES_MAX) {
            failed = self.release(chunk, &mut fired).await.err().or(failed);
        }
        // Before the turns: what ends with another is ended in the same round.
        for name in &due.cascades {
            failed = self.cascade(name, &mut fired).await.err().or(failed);
        }
        for chunk in due.turns.chunks(LANES_MAX) {
            failed = self.promote(chunk, &mut fired).await.err().or(failed);
        }
        failed.map_or(Ok(fired), Err)
    }

    /// Releases lanes, and adds what came of it.
    async fn release(&self, lanes: &[Lane], fired: &mut Fired) -> Result<(), StoreError> {
        let mut now_ms = self.clock.now_ms();
        // More rounds only if a day has ended between our reckoning and Redis', or tenants were set meanwhile.
        'rounds: for _ in 0..3 {
            let Some(deciding) = self.decider.deciding().await? else { break };
            let by = Reckoning::new(&deciding.active.policy, self.decider.policy(), &self.store, now_ms);
            let mut rows = Rows::default();
            let batch = self.lane_batch(&by, lanes, &mut rows).await?;
            let mut rest = batch.as_slice();
            while !rest.is_empty() {
                let (part, later) = rest.split_at(length(rest));
                rest = later;
                let released =
                    self.store.release(deciding.generations, TURNS_PER_LANE_MAX, &rows.rows, &rows.limits, part);
                match released.await? {
                    ReleaseReply::Released(released) => {
                        for (of, lane) in part.iter().zip(released) {
                            fired.add(&of.lane, &lane);
                            self.metrics.released(lane.turns, lane.calls);
                            lane.aside.iter().for_each(|why| self.put_aside("a lane", why));
                            self.metrics.limits_reached(&lane.waits, LimitAction::Wait);
                            self.metrics.limits_reached(&lane.shades, LimitAction::Shadow);
                            self.endings.settle(lane.endings).await;
                        }
                    }
                    ReleaseReply::PolicyStale => {
                        self.decider.policy_stale();
                        return Ok(());
                    }
                    ReleaseReply::TenantsStale => {
                        self.decider.tenants_stale().await?;
                        continue 'rounds;
                    }
                    ReleaseReply::DayStale { now_ms: now } => {
                        self.clock.set(now);
                        now_ms = now;
                        continue 'rounds;
                    }
                }
            }
            return Ok(());
        }
        Ok(())
    }

    /// What is to be looked at of lanes. Where limits count, or a lane is one's, its first turns are read: what their
    /// calls debit follows from the policy, which Redis does not know.
    async fn lane_batch(
        &self,
        by: &Reckoning<'_>,
        lanes: &[Lane],
        rows: &mut Rows,
    ) -> Result<Vec<LaneRelease>, StoreError> {
        // Asked once: it may be another a moment later.
        let counts_nothing = by.counts_nothing();
        let is_any = |lane: &Lane| counts_nothing && matches!(lane, Lane::Agent(..));
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
                _ => {
                    let heads = heads.next().unwrap_or_default();
                    by.saw_waiting(lane, &heads);
                    LaneTurns::These(by.waiting(heads, rows))
                }
            };
            LaneRelease { lane: lane.clone(), turns }
        });
        Ok(batch.collect())
    }

    /// Acts on turns whose own timer is due, and adds what came of it.
    async fn promote(&self, turns: &[TurnName], fired: &mut Fired) -> Result<(), StoreError> {
        let promoted = self.store.promote(turns).await?;
        let mut endings = Vec::new();
        for (turn, promoted) in turns.iter().zip(promoted) {
            match promoted {
                Promoted::Ending(ending) => endings.push(*ending),
                Promoted::Promoted => self.metrics.promoted(1),
                // Its lane is due: it need not wait for the next round.
                Promoted::Queues => fired.full = true,
                Promoted::Lapsed => self.metrics.lease_lost("external"),
                Promoted::Restored => {
                    self.metrics.reaped(1);
                    tracing::warn!(%turn, "slice or timer of a turn was missing; recreated from its record");
                }
                Promoted::Aside(why) => self.put_aside(&turn.to_string(), &why),
                Promoted::Later | Promoted::Gone => {}
            }
        }
        self.endings.settle(endings).await;
        Ok(())
    }

    /// Ends some of what a turn or task has begun that was cancelled or has failed. What these have begun is due at once.
    async fn cascade(&self, name: &TurnName, fired: &mut Fired) -> Result<(), StoreError> {
        let cascaded = self.store.cascade(name, CASCADE_MAX).await?;
        fired.full |= cascaded.ended > 0;
        cascaded.aside.iter().for_each(|why| self.put_aside(&format!("what {name} has begun"), why));
        Ok(())
    }

    /// One item of a batch failed, and no other: people must look at it.
    fn put_aside(&self, what: &str, why: &str) {
        self.metrics.dead(RejectionCode::Unreadable.as_str());
        tracing::error!(what, why, "unreadable record; see the dead letters");
    }
}

/// Counts the lanes that one script looks at, by the counters that their turns debit; at least one.
fn length(lanes: &[LaneRelease]) -> usize {
    let mut counters = 0;
    let fits = |lane: &&LaneRelease| {
        if let LaneTurns::These(turns) = &lane.turns {
            counters += turns.iter().map(|turn| turn.counters.len()).sum::<usize>();
        }
        counters <= COUNTERS_MAX
    };
    lanes.iter().take_while(fits).count().max(1)
}
