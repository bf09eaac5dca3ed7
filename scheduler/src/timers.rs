//! Fires timers: releases throttle queues, resumes retries and waiting turns, and ends expired turns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_core::call::EndUnreported;
use tickfleet_core::task::cancel::{Cancel, Canceled};
use tickfleet_core::task::cascade::{Cascade, CascadeStep};
use tickfleet_core::task::external::{HandleLeaseTimer, LeaseTimerResult};
use tickfleet_core::turn::advance::AdvanceResult;
use tickfleet_core::turn::dead_letter::DeadLetter;
use tickfleet_core::turn::release::{Discard, HEADS_MAX, QueueHead, Rearm, Release, ReleaseResult};
use tickfleet_core::turn::{Due, DueResult};
use tickfleet_core::{Conflict, CounterKey, Guard, Query, TimerRule, Transaction, Value, Write, keys};
use tickfleet_model::RejectionCode;
use tickfleet_ops::metrics::{LimitAction, Metrics};
use tickfleet_ops::progress::Progress;
use tickfleet_store::seam::RunError;
use tickfleet_store::{Store, StoreError, TurnName};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::PATIENCE;
use crate::admitter::count_throttled;
use crate::policy_tracker::PolicyTracker;
use crate::unrun_calls::RecordingRenderer;

const DUE_MAX: usize = 256;
/// Throttle queues or turns in one commit. Such a commit takes about 2 ms.
const CHUNK_MAX: usize = 16;
/// A turn waits at most this long for a permit that another turn has returned.
const BUSY_POLL: Duration = Duration::from_millis(5);
/// [`BUSY_POLL`] applies for this time after a turn got a permit.
const BUSY_FOR: Duration = Duration::from_secs(1);

enum Timer {
    Turn(TurnName),
    Throttle(CounterKey),
    Cascade(TurnName),
}

impl Timer {
    fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once(':')?;
        match kind {
            "turn" => TurnName::parse(rest).map(Self::Turn),
            "throttle" => rest.split_once('@').map(|(limit, counter)| Self::Throttle(CounterKey::new(limit, counter))),
            "cascade" => TurnName::parse(rest).map(Self::Cascade),
            _ => None,
        }
    }
}

#[derive(Default)]
struct TimerRound {
    /// More timers or turns may be due.
    full: bool,
    /// A turn left the queue of a configured limit, so more permits of this limit may soon be free.
    busy: bool,
    late: Duration,
}

pub(crate) struct Timers {
    store: Store,
    policy_tracker: Arc<PolicyTracker>,
    metrics: Arc<Metrics>,
    progress: Progress,
    poll: Duration,
    /// Throttle queues that may have more turns to release immediately.
    unfinished: Mutex<VecDeque<CounterKey>>,
}

impl Timers {
    pub(crate) fn new(common: &Common, poll: Duration) -> Self {
        Self {
            store: common.store.clone(),
            policy_tracker: common.policy_tracker.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            poll,
            unfinished: Mutex::default(),
        }
    }

    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let handle = self.progress.register("tick", self.poll * 2 + PATIENCE);
        let mut busy_until = Instant::now();
        while !stop.is_cancelled() {
            let began = Instant::now();
            let round = match self.fire().await {
                Ok(round) => {
                    self.metrics.ticked(self.store.shard(), began.elapsed(), round.late);
                    round
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to fire timers");
                    TimerRound::default()
                }
            };
            handle.advanced();
            if round.full {
                continue;
            }
            if round.busy {
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

    async fn fire(&self) -> Result<TimerRound, StoreError> {
        // This call also announces a new policy, so it is made even if no timer is due.
        if self.policy_tracker.policy_snapshot().await?.is_none() {
            return Ok(TimerRound::default());
        }
        let now_ms = self.store.state().now_ms;
        let first = Query::First { set: keys::timers(), upto: Some(now_ms.max(0).unsigned_abs()), count: DUE_MAX };
        let Value::Members(due) = self.store.query(first).await? else { return Ok(TimerRound::default()) };
        let mut round = TimerRound { full: due.len() >= DUE_MAX, ..TimerRound::default() };
        let mut turns = Vec::new();
        let mut queues = Vec::new();
        let mut cascades = Vec::new();
        queues.extend(self.unfinished.lock().drain(..));
        for (name, due_ms) in due {
            match Timer::parse(&name) {
                Some(Timer::Turn(name)) => turns.push(name),
                Some(Timer::Throttle(counter)) => {
                    let late_ms = now_ms.max(0).unsigned_abs().saturating_sub(due_ms);
                    round.late = round.late.max(Duration::from_millis(late_ms));
                    if !queues.contains(&counter) {
                        queues.push(counter);
                    }
                }
                Some(Timer::Cascade(name)) => cascades.push(name),
                None => self.discard_timer(&name).await?,
            }
        }
        // If one chunk fails, the others must still fire (invariant 17).
        let mut failed = None;
        for chunk in queues.chunks(CHUNK_MAX) {
            failed = self.release(chunk, &mut round).await.err().or(failed);
        }
        // Cascades cancel the work below ended tasks. They run before the turns, so that the canceled work ends in the
        // same round.
        for name in &cascades {
            failed = self.cascade(name, &mut round).await.err().or(failed);
        }
        for chunk in turns.chunks(CHUNK_MAX) {
            failed = self.fire_turns(chunk, &mut round).await.err().or(failed);
        }
        failed.map_or(Ok(round), Err)
    }

    /// Removes a timer with an unknown name. This version sets no such timers.
    async fn discard_timer(&self, name: &str) -> Result<(), StoreError> {
        tracing::error!(timer = name, "cannot read the name of a timer; removing it");
        let mut transaction = Transaction::new(self.store.versions().draw());
        transaction.write(Write::ClearTimer(name.into()));
        self.store.seam().commit(&[transaction]).await.map(drop)
    }

    async fn release(&self, counters: &[CounterKey], round: &mut TimerRound) -> Result<(), StoreError> {
        let Some(snapshot) = self.policy_tracker.policy_snapshot().await? else { return Ok(()) };
        let rearms: Vec<Rearm> = counters.iter().map(|counter| Rearm { counter: counter.clone() }).collect();
        let heads = self.store.decide_all(&rearms).await?;
        let (rules, render, bounds) =
            (snapshot.rules(), RecordingRenderer::new(snapshot.renderer()), self.store.bounds());
        let mut releases = Vec::new();
        for (counter, head) in counters.iter().zip(heads) {
            let Ok(QueueHead::Turns(turns)) = head.map(|receipt| receipt.result) else { continue };
            for name in turns {
                snapshot.slots.record_waiting(counter, &name);
                releases.push(Release {
                    counter: counter.clone(),
                    name,
                    policy: &rules,
                    render: &render,
                    sections: &[&EndUnreported],
                    bounds: &bounds,
                });
            }
        }
        let released = self.store.decide_all(&releases).await?;
        let mut is_stale = false;
        let mut left: Vec<(CounterKey, usize)> = Vec::new();
        for (release, released) in releases.iter().zip(released) {
            let name = &release.name;
            let counter = &release.counter;
            let receipt = match released {
                Ok(receipt) => receipt,
                Err(error) => {
                    match self.unreadable_reason(name, &error).await? {
                        Some(why) => self.discard_unreadable(counter, name, &why).await?,
                        None => tracing::warn!(%error, turn = %name, "failed to release a turn; retrying"),
                    }
                    continue;
                }
            };
            is_stale |= receipt.result == ReleaseResult::PolicyStale;
            let committed = receipt.committed.iter();
            let shadowed: Vec<String> =
                committed.flat_map(|it| &it.shadowed).map(|counter| counter.limit.to_string()).collect();
            self.metrics.limits_reached(&shadowed, LimitAction::Shadow);
            if receipt.result.has_left_queue() {
                round.busy |= !counter.limit.starts_with('_');
                match left.last_mut() {
                    Some((of, count)) if of == counter => *count += 1,
                    _ => left.push((counter.clone(), 1)),
                }
            }
            self.count_released(name, &receipt.result, &render);
        }
        // All turns that were read have left the queue, so the next turns need not wait for the queue's timer.
        let more: Vec<CounterKey> =
            left.into_iter().filter(|(_, count)| *count >= HEADS_MAX).map(|(counter, _)| counter).collect();
        round.full |= !more.is_empty();
        self.unfinished.lock().extend(more);
        if is_stale {
            self.policy_tracker.handle_stale_policy().await?;
            round.full = true;
        }
        Ok(())
    }

    fn count_released(&self, name: &TurnName, released: &ReleaseResult, render: &RecordingRenderer<'_>) {
        let ReleaseResult::Advanced(advanced) = released else { return };
        let is_over = matches!(advanced, AdvanceResult::Ended { .. });
        render.count(name, is_over, self.store.state().now_ms, &self.metrics);
        match advanced {
            AdvanceResult::Dispatched { calls, resumed } => {
                self.metrics.released(1, if *resumed { 0 } else { *calls as u64 });
            }
            AdvanceResult::Throttled { counter, .. } => count_throttled(&self.metrics, &counter.limit),
            _ => {}
        }
    }

    /// Otherwise, an unreadable turn would block its throttle queue.
    async fn discard_unreadable(&self, counter: &CounterKey, name: &TurnName, why: &str) -> Result<(), StoreError> {
        let bounds = self.store.bounds();
        let discard = Discard { counter: counter.clone(), name: name.clone(), why: why.to_owned(), bounds: &bounds };
        self.store.decide(discard).await?;
        self.report_unreadable(name, why);
        Ok(())
    }

    fn report_unreadable(&self, name: &TurnName, why: &str) {
        self.metrics.dead(RejectionCode::Unreadable.as_str());
        tracing::error!(turn = %name, why, "unreadable record; see the dead letters");
    }

    async fn fire_turns(&self, turns: &[TurnName], round: &mut TimerRound) -> Result<(), StoreError> {
        let Some(snapshot) = self.policy_tracker.policy_snapshot().await? else { return Ok(()) };
        let render = RecordingRenderer::new(snapshot.renderer());
        let bounds = self.store.bounds();
        let due: Vec<Due<'_>> = turns
            .iter()
            .map(|name| Due { name, render: &render, sections: &[&EndUnreported], bounds: &bounds })
            .collect();
        let fired = self.store.decide_all(&due).await?;
        for (name, fired) in turns.iter().zip(fired) {
            match fired.map(|receipt| receipt.result) {
                Ok(DueResult::Ended) => render.count(name, true, self.store.state().now_ms, &self.metrics),
                Ok(DueResult::Dispatched) => self.metrics.promoted(1),
                // The throttle queue is due now. `full` makes the loop handle due queues before the next wait.
                Ok(DueResult::Throttled) => round.full = true,
                Ok(DueResult::External) => self.expire_external_lease(name).await?,
                Ok(DueResult::Gone | DueResult::Later(_) | DueResult::Noticed(_) | DueResult::Ending(_)) => {}
                Err(error) => {
                    let mut transaction = Transaction::new(self.store.versions().draw());
                    if let Some(why) = self.unreadable_reason(name, &error).await? {
                        let from = "record";
                        let entry = name.to_string();
                        let reason = RejectionCode::Unreadable;
                        let raw = why.clone().into();
                        let letter = DeadLetter { from, entry: &entry, reason, raw, tenant: Some(&name.tenant) };
                        letter.add_to(&mut transaction, &bounds);
                        transaction.write(Write::ClearTimer(name.timer().into()));
                        self.report_unreadable(name, &why);
                    } else {
                        tracing::warn!(%error, turn = %name, "failed to handle a timer; retrying");
                        // The cause may be a damaged key that the turn needs. The timer is postponed, so that it does
                        // not block other timers.
                        let again_ms = self.store.state().now_ms + bounds.lease_ms;
                        transaction.guard(Guard::Present(name.record()));
                        transaction.timer(name.timer(), again_ms, TimerRule::Set);
                    }
                    self.store.seam().commit(&[transaction]).await?;
                }
            }
        }
        Ok(())
    }

    async fn unreadable_reason(&self, name: &TurnName, error: &RunError) -> Result<Option<String>, StoreError> {
        match error {
            RunError::Unreadable { why, .. } => Ok(Some(why.to_string())),
            // If the record's key holds a value of another Redis type, a read reports the record as absent. Only a
            // guard detects the wrong type.
            RunError::Failed(why) => {
                let mut transaction = Transaction::new(self.store.versions().draw());
                transaction.guard(Guard::Absent(name.record()));
                let compared = self.store.seam().commit(&[transaction]).await?.results.pop();
                Ok(matches!(compared, Some(Err(Conflict::Failed { .. }))).then(|| why.clone()))
            }
            RunError::Store(_) | RunError::Contended(_) => Ok(None),
        }
    }

    async fn expire_external_lease(&self, name: &TurnName) -> Result<(), StoreError> {
        let bounds = self.store.bounds();
        if self.store.decide(HandleLeaseTimer { name: name.clone(), bounds: &bounds }).await?.result
            == LeaseTimerResult::Offered
        {
            self.metrics.lease_lost("external");
        }
        Ok(())
    }

    async fn cascade(&self, name: &TurnName, round: &mut TimerRound) -> Result<(), StoreError> {
        let bounds = self.store.bounds();
        let step = CascadeStep { name: name.clone(), bounds: &bounds };
        let Cascade::End { members, reason } = self.store.decide(step).await?.result else { return Ok(()) };
        round.full = true;
        let cancels: Vec<Cancel<'_>> = members
            .into_iter()
            .map(|member| Cancel { name: member, reason: reason.clone(), above: Some(name.clone()), bounds: &bounds })
            .collect();
        for (cancel, canceled) in cancels.iter().zip(self.store.decide_all(&cancels).await?) {
            match canceled {
                Ok(receipt) if receipt.result == Canceled::Unreadable => {
                    self.report_unreadable(&cancel.name, "its parent has ended");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, turn = %cancel.name, "failed to cancel a turn with its parent; retrying")
                }
            }
        }
        Ok(())
    }
}
