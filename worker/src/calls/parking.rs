//! If the next call of a slice has no result yet, the slice is parked or returned to its queue.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::task::spend::BudgetWait;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{ParkReason, ParkResult, RequeueReason, WaitReason};
use tickfleet_core::{CounterKey, View};
use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{CallResult, TurnId};
use tickfleet_ops::metrics::{ApprovalEvent, BreakerEvent};

use crate::batch::{ParkSlice, WaitFor};
use crate::calls::call_attempt::{AttemptOutcome, BeginWait, ToolUnavailable};
use crate::calls::end_effects::EndEffects;
use crate::calls::turn::{CommitOutcome, Pipeline, SliceRun};
use crate::config::WorkerConfig;
use crate::tools::Awaited;

/// Recorded in the turn's history if a call waits only for time, not for an event.
const REQUESTED_TIME: &str = "its handler asked for time";

struct ParkRequest {
    reason: ParkReason,
    had_parallel_reads: bool,
    wait: WaitFor,
    waits_while: Vec<tickfleet_core::Guard>,
}

impl ParkRequest {
    const fn of(reason: ParkReason, had_parallel_reads: bool) -> Self {
        Self { reason, had_parallel_reads, wait: WaitFor::Timer, waits_while: Vec::new() }
    }
}

fn wait(reason: WaitReason, at_most: Duration, has_begun: bool, cause: &str) -> ParkReason {
    ParkReason::Wait { reason, most_ms: millis(at_most), has_begun, cause: cause.to_owned() }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4)
}

impl Pipeline {
    /// `attempt` is the number of the next call's attempt. `had_parallel_reads` is true if later calls ran in parallel.
    pub(super) async fn park_or_return(
        &self,
        run: SliceRun,
        outcome: AttemptOutcome,
        attempt: u32,
        had_parallel_reads: bool,
        config: &WorkerConfig,
    ) {
        match outcome {
            // These outcomes are results or may become results, so the caller has handled them.
            AttemptOutcome::Ended(..) | AttemptOutcome::Reported(_) | AttemptOutcome::ToolUnavailable(_) => {}
            AttemptOutcome::Retry(delay, cause) => {
                self.undo_begin(&run).await;
                let delay_ms = millis(delay);
                let reason = ParkReason::Retry { attempts: attempt, delay_ms, cause, keeps_begun: false };
                self.park(run, "retry", ParkRequest::of(reason, had_parallel_reads), attempt).await;
            }
            AttemptOutcome::Reconcile(delay, cause, attempt, unknown) => {
                let delay_ms = millis(delay);
                let reason = ParkReason::Retry { attempts: attempt, delay_ms, cause, keeps_begun: true };
                self.reconcile_later(run, ParkRequest::of(reason, had_parallel_reads), config, *unknown).await;
            }
            AttemptOutcome::WaitForWork(awaits, at_most) => {
                self.undo_begin(&run).await;
                self.wait_for_work(run, attempt, had_parallel_reads, awaits, at_most).await;
            }
            AttemptOutcome::Offer(offer) => {
                self.undo_begin(&run).await;
                self.offer(run, *offer, attempt, had_parallel_reads).await;
            }
            AttemptOutcome::WaitToBegin(waiting) => {
                self.wait_to_begin(run, attempt, had_parallel_reads, *waiting).await
            }
            AttemptOutcome::Requeue(why) => {
                self.undo_begin(&run).await;
                self.return_slice(run, if had_parallel_reads { RequeueReason::ParallelReads } else { why }).await;
            }
            AttemptOutcome::Lost => self.journal.release(&run.slice),
        }
    }

    /// Undoes the begin record of the next call, which had no effect, or only effects that may be repeated.
    async fn undo_begin(&self, run: &SliceRun) {
        self.journal.undo(&run.slice, run.position()).await;
    }

    /// Parks the slice. `failed` counts the finished attempts of the next call, which has not begun work elsewhere.
    async fn park(&self, run: SliceRun, word: &'static str, request: ParkRequest, failed: u32) -> Option<ParkResult> {
        let (parked, run) = self.try_to_park(run, request).await?;
        match parked {
            ParkResult::Canceled => self.cancel_remaining(run, failed, false).await,
            ParkResult::Stale => self.metrics.fenced(word),
            ParkResult::Until(_) => {}
        }
        Some(parked)
    }

    /// If the turn is canceled, the caller must end the remaining calls.
    async fn try_to_park(&self, run: SliceRun, request: ParkRequest) -> Option<(ParkResult, SliceRun)> {
        let mut run = self.commit_and_release(run).await?;
        let ParkRequest { reason, had_parallel_reads, wait, waits_while } = request;
        let had_parallel_reads = had_parallel_reads || self.journal.epoch() != run.lease.epoch;
        let slice = Arc::clone(&run.slice);
        let view = std::mem::take(&mut run.view);
        let parked =
            self.decisions.park(ParkSlice { slice, reason, had_parallel_reads, waits_while, wait, view }).await?;
        if had_parallel_reads {
            Arc::make_mut(&mut run.slice).turn.may_have_run = true;
        }
        Some((parked, run))
    }

    /// Commits the results in memory. `None` if the slice is finished, held by another worker, or returned to its
    /// queue.
    pub(super) async fn commit_and_release(&self, mut run: SliceRun) -> Option<SliceRun> {
        match self.commit(&mut run).await {
            CommitOutcome::Ok => {}
            CommitOutcome::Over => return None,
            CommitOutcome::Again => {
                let nonce = run.begun_by.take();
                Box::pin(self.return_slice(run, RequeueReason::Unsent { nonce })).await;
                return None;
            }
        }
        // Release the slice now: the next holder may begin calls before the store's reply arrives here.
        self.journal.release(&run.slice);
        Some(run)
    }

    /// Parks the slice until the next lookup. The call stays begun. If the turn is canceled, the call ends with
    /// `unknown`.
    async fn reconcile_later(&self, run: SliceRun, request: ParkRequest, config: &WorkerConfig, unknown: CallResult) {
        let Some((parked, mut run)) = self.try_to_park(run, request).await else { return };
        match parked {
            ParkResult::Canceled => {
                self.end_call(&mut run, config, unknown, &[], EndEffects::default());
                self.cancel_remaining(run, 0, false).await;
            }
            ParkResult::Stale => self.metrics.fenced("retry"),
            ParkResult::Until(_) => {}
        }
    }

    /// `None` if the slice is parked. Otherwise the call has used up its longest wait and has its final result.
    pub(super) async fn wait_for_tool(
        &self,
        mut run: SliceRun,
        config: &WorkerConfig,
        attempt: u32,
        unavailable: ToolUnavailable,
        had_parallel_reads: bool,
    ) -> Option<SliceRun> {
        let ToolUnavailable { delay, at_most, why, final_result } = unavailable;
        let tool = config
            .registry
            .resolve(&final_result.tool)
            .map_or(final_result.tool.as_str(), |tool| &tool.spec.name)
            .to_owned();
        let now_ms = self.store.state().now_ms;
        let is_next = run.results.is_empty();
        let since_ms = run.slice.turn.unavailable_since(&why).filter(|_| is_next);
        if let (Some(since_ms), Some(at_most)) = (since_ms, at_most)
            && now_ms >= since_ms.saturating_add(millis(at_most))
        {
            self.calls.count_exhausted_wait(&tool, &final_result);
            self.end_call(&mut run, config, *final_result, &[], EndEffects::default());
            return Some(run);
        }
        self.undo_begin(&run).await;
        let reason = WaitReason::Breaker { since_ms: since_ms.unwrap_or(now_ms) };
        let request = ParkRequest::of(wait(reason, delay, false, &why), had_parallel_reads);
        if let Some(ParkResult::Until(_)) = self.park(run, "breaker", request, attempt.saturating_sub(1)).await {
            self.metrics.breaker(&tool, BreakerEvent::Waited);
        }
        None
    }

    async fn wait_for_work(
        &self,
        run: SliceRun,
        attempt: u32,
        had_parallel_reads: bool,
        awaits: Awaited,
        at_most: Duration,
    ) {
        let name = run.slice.name.clone();
        let place = run.slice.turn.place;
        let (reason, wait_for, cause) = match &awaits {
            Awaited::Turn(turn) => (WaitReason::Child { turn: turn.clone() }, WaitFor::Timer, ""),
            Awaited::Budget { limit, counter } => {
                let counter = CounterKey::new(limit, counter);
                let budget = BudgetWait { name: name.clone(), counter: counter.clone(), place };
                (WaitReason::Budget { counter }, WaitFor::Budget(budget), "")
            }
            Awaited::Time => {
                let since_ms = self.store.state().now_ms;
                (WaitReason::Breaker { since_ms }, WaitFor::Timer, REQUESTED_TIME)
            }
        };
        let request =
            ParkRequest { wait: wait_for, ..ParkRequest::of(wait(reason, at_most, true, cause), had_parallel_reads) };
        let Some((parked, run)) = self.try_to_park(run, request).await else { return };
        match parked {
            ParkResult::Canceled => {
                // The turn was canceled before the store knew that the call waits for this inner turn. So the inner
                // turn is canceled here.
                let is_ours = |turn: &TurnId| outer_turn(turn).as_ref() == Some(&name.turn);
                if let Some(inner) = awaits.turn().filter(is_ours) {
                    self.calls.cancel_inner(&name, &inner, None).await;
                }
                self.cancel_remaining(run, attempt.saturating_sub(1), true).await;
            }
            ParkResult::Stale => self.metrics.fenced("wait"),
            ParkResult::Until(_) => {}
        }
    }

    async fn wait_to_begin(&self, run: SliceRun, attempt: u32, had_parallel_reads: bool, waiting: BeginWait) {
        let BeginWait { reason, at_most, wait: wait_for, waits_while } = waiting;
        let asks = matches!(wait_for, WaitFor::Approval(_));
        let word = if asks { "ask_approval" } else { "wait" };
        let request =
            ParkRequest { reason: wait(reason, at_most, false, ""), had_parallel_reads, wait: wait_for, waits_while };
        let parked = self.park(run, word, request, attempt.saturating_sub(1)).await;
        if asks && matches!(parked, Some(ParkResult::Until(_))) {
            self.metrics.approval(ApprovalEvent::Asked);
        }
    }

    /// Ends the remaining calls. `failed` counts the finished attempts of the next call. `waited` is true if that call
    /// has begun work elsewhere.
    pub(super) async fn cancel_remaining(&self, mut run: SliceRun, failed: u32, waited: bool) {
        let config = self.configs.load();
        run.lease.cancel.cancel();
        let first = run.results.len();
        let context = Arc::default();
        for index in first..run.slice.calls.len() {
            let (ended, effects) = {
                let mut attempt = run.attempt(index, &context, &config, self.calls.settings.output_bytes_max);
                attempt.number = if index == first { failed + 1 } else { 1 };
                attempt.waited = index == first && waited;
                let ended = self.calls.end_unless_begun(&attempt, &EndReason::Canceled).await;
                (ended, attempt.progress.into_inner().effects)
            };
            match ended {
                AttemptOutcome::Ended(result, shadow) => self.end_call(&mut run, &config, *result, &shadow, effects),
                AttemptOutcome::Reported(rendered) => self.add_reported(&mut run, &config, *rendered),
                // The worker must stop; another worker ends the calls.
                _ => return Box::pin(self.return_slice(run, RequeueReason::Unsent { nonce: None })).await,
            }
        }
        if self.commit(&mut run).await == CommitOutcome::Again {
            // Another worker checks again which of the calls have run.
            Box::pin(self.return_slice(run, RequeueReason::Unsent { nonce: None })).await;
        }
    }

    /// Another worker takes the slice at once and continues after the last commit.
    pub(super) async fn return_slice(&self, mut run: SliceRun, why: RequeueReason) {
        while run.has_results() {
            if self.commit(&mut run).await == CommitOutcome::Over {
                return;
            }
        }
        if self.journal.epoch() != run.lease.epoch {
            // After a restart of the store, another worker may also have held the slice.
            Arc::make_mut(&mut run.slice).turn.may_have_run = true;
        }
        self.journal.release(&run.slice);
        run.view = View::default();
        // If the next call is a `once` call, it was not sent: a sent call would have ended with an unknown outcome.
        self.decisions.requeue(run.slice, why).await;
    }
}
