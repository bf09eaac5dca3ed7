//! A slice whose next call has no result yet. It is parked until the call continues, or returned.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::task::spend::BudgetWait;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{HandBackReason, ParkReason, Parked, WaitReason};
use tickfleet_core::{CounterKey, View};
use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{CallResult, TurnId};
use tickfleet_ops::metrics::{ApprovalEvent, BreakerEvent};

use crate::batch::{ParkSlice, WaitFor};
use crate::calls::ends::Ends;
use crate::calls::trying::{Disposition, RestingCall, Waiting};
use crate::calls::turn::{Commit, Holding, Pipeline};
use crate::config::WorkerConfig;
use crate::tools::Awaited;

/// The cause of a wait for a time only, in the turn's history.
const ASKED_FOR_TIME: &str = "its handler asked for time";

/// The parameters of a park.
struct Wish {
    reason: ParkReason,
    /// True if later calls ran in parallel to the next one.
    beside: bool,
    wait: WaitFor,
    waits_while: Vec<tickfleet_core::Guard>,
}

impl Wish {
    /// A park that depends on no other record.
    const fn of(reason: ParkReason, beside: bool) -> Self {
        Self { reason, beside, wait: WaitFor::Timer, waits_while: Vec::new() }
    }
}

/// A wait that does not count as an attempt.
fn wait(reason: WaitReason, at_most: Duration, has_begun: bool, cause: &str) -> ParkReason {
    ParkReason::Wait { reason, most_ms: millis(at_most), has_begun, cause: cause.to_owned() }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4)
}

impl Pipeline {
    /// Ends this worker's part in a slice, according to the disposition of its next call. `attempt` is the number of
    /// that call's attempt; `beside` is true if later calls ran in parallel.
    pub(super) async fn leave(
        &self,
        holding: Holding,
        disposition: Disposition,
        (attempt, beside): (u32, bool),
        config: &WorkerConfig,
    ) {
        match disposition {
            // These are results or may become results, so the caller has handled them.
            Disposition::Ended(..) | Disposition::Kept(_) | Disposition::Rests(_) => {}
            Disposition::Again(delay, cause) => {
                self.take_back(&holding).await;
                let delay_ms = millis(delay);
                let reason = ParkReason::Retry { attempts: attempt, delay_ms, cause, keeps_begun: false };
                self.park(holding, "retry", Wish::of(reason, beside), (attempt, false)).await;
            }
            Disposition::Reconciles(delay, cause, attempt, unknown) => {
                let delay_ms = millis(delay);
                let reason = ParkReason::Retry { attempts: attempt, delay_ms, cause, keeps_begun: true };
                self.reconcile_later(holding, Wish::of(reason, beside), config, *unknown).await;
            }
            Disposition::Waits(awaits, at_most) => {
                self.take_back(&holding).await;
                self.wait_for_work(holding, (attempt, beside), awaits, at_most).await;
            }
            Disposition::WaitsFor(waiting) => self.wait_for(holding, (attempt, beside), *waiting).await,
            Disposition::HandBack(why) => {
                self.take_back(&holding).await;
                self.give_back(holding, if beside { HandBackReason::Beside } else { why }).await;
            }
            Disposition::Lost => self.journal.let_go(&holding.slice.name),
        }
    }

    /// Records that the next call did nothing, or nothing that must not happen twice.
    async fn take_back(&self, holding: &Holding) {
        self.journal.undo(&holding.slice.name, holding.position()).await;
    }

    /// Parks the slice at its next call. Results in memory are committed first. If the turn is canceled, ends the
    /// remaining calls: `tried` has the number of finished attempts of the call, and whether it has begun work
    /// elsewhere.
    async fn park(&self, holding: Holding, word: &'static str, wish: Wish, tried: (u32, bool)) -> Option<Parked> {
        let (parked, holding) = self.try_to_park(holding, wish).await?;
        match parked {
            Parked::Canceled => self.end_rest(holding, tried).await,
            Parked::Stale => self.metrics.fenced(word),
            Parked::Until(_) => {}
        }
        Some(parked)
    }

    /// Like [`Self::park`], but the caller ends the calls of a canceled turn.
    async fn try_to_park(&self, mut holding: Holding, wish: Wish) -> Option<(Parked, Holding)> {
        match self.commit(&mut holding).await {
            Commit::Ok => {}
            Commit::Over => return None,
            Commit::Again => {
                let nonce = holding.begun_by.take();
                Box::pin(self.give_back(holding, HandBackReason::Unsent { nonce })).await;
                return None;
            }
        }
        // The next holder of the slice may begin its calls before this worker receives the reply.
        self.journal.let_go(&holding.slice.name);
        let Wish { reason, beside, wait, waits_while } = wish;
        let beside = beside || self.journal.epoch() != holding.hold.epoch;
        let (slice, view) = (Arc::clone(&holding.slice), std::mem::take(&mut holding.view));
        let parked = self.outbox.park(ParkSlice { slice, reason, beside, waits_while, wait, view }).await?;
        if beside {
            Arc::make_mut(&mut holding.slice).turn.may_have_run = true;
        }
        Some((parked, holding))
    }

    /// Parks the slice until the next question whether its call took effect. The call stays begun. If the turn is
    /// canceled, it ends with `unknown`.
    async fn reconcile_later(&self, holding: Holding, wish: Wish, config: &WorkerConfig, unknown: CallResult) {
        let Some((parked, mut holding)) = self.try_to_park(holding, wish).await else { return };
        match parked {
            Parked::Canceled => {
                self.end_call(&mut holding, config, unknown, &[], Ends::default());
                self.end_rest(holding, (0, false)).await;
            }
            Parked::Stale => self.metrics.fenced("retry"),
            Parked::Until(_) => {}
        }
    }

    /// Parks the slice while the tool of its next call is unavailable. If the call has waited as long as it may, it
    /// gets its result, and the slice continues.
    pub(super) async fn rest(
        &self,
        mut holding: Holding,
        config: &WorkerConfig,
        attempt: u32,
        resting: RestingCall,
        beside: bool,
    ) -> Option<Holding> {
        let RestingCall { delay, at_most, why, over } = resting;
        let tool = config.registry.resolve(&over.tool).map_or(over.tool.as_str(), |tool| &tool.spec.name).to_owned();
        let now_ms = self.store.state().now_ms;
        let is_next = holding.results.is_empty();
        let since_ms = holding.slice.turn.rests_since(&why).filter(|_| is_next);
        if let (Some(since_ms), Some(at_most)) = (since_ms, at_most)
            && now_ms >= since_ms.saturating_add(millis(at_most))
        {
            self.calls.gave_up_resting(&tool, &over);
            self.end_call(&mut holding, config, *over, &[], Ends::default());
            return Some(holding);
        }
        self.take_back(&holding).await;
        let reason = WaitReason::Breaker { since_ms: since_ms.unwrap_or(now_ms) };
        let wish = Wish::of(wait(reason, delay, false, &why), beside);
        if let Some(Parked::Until(_)) = self.park(holding, "rest", wish, (attempt.saturating_sub(1), false)).await {
            self.metrics.breaker(&tool, BreakerEvent::Waited);
        }
        None
    }

    /// Parks the slice until the work that its call has begun elsewhere has ended.
    async fn wait_for_work(
        &self,
        holding: Holding,
        (attempt, beside): (u32, bool),
        awaits: Awaited,
        at_most: Duration,
    ) {
        let (name, place) = (holding.slice.name.clone(), holding.slice.turn.place);
        let (reason, wait_for, cause) = match &awaits {
            Awaited::Turn(turn) => (WaitReason::Child { turn: turn.clone() }, WaitFor::Timer, ""),
            Awaited::Budget { limit, counter } => {
                let counter = CounterKey::new(limit, counter);
                let budget = BudgetWait { name: name.clone(), counter: counter.clone(), place };
                (WaitReason::Budget { counter }, WaitFor::Budget(budget), "")
            }
            Awaited::Time => {
                let since_ms = self.store.state().now_ms;
                (WaitReason::Breaker { since_ms }, WaitFor::Timer, ASKED_FOR_TIME)
            }
        };
        let wish = Wish { wait: wait_for, ..Wish::of(wait(reason, at_most, true, cause), beside) };
        let Some((parked, holding)) = self.try_to_park(holding, wish).await else { return };
        match parked {
            Parked::Canceled => {
                // The cancellation could not see yet which turn the call was about to wait for.
                let is_ours = |turn: &TurnId| outer_turn(turn).as_ref() == Some(&name.turn);
                if let Some(inner) = awaits.turn().filter(is_ours) {
                    self.calls.cancel_inner(&name, &inner, None).await;
                }
                self.end_rest(holding, (attempt.saturating_sub(1), true)).await;
            }
            Parked::Stale => self.metrics.fenced("wait"),
            Parked::Until(_) => {}
        }
    }

    /// Parks the slice until its next call may begin, which depends on facts, an equal call or people.
    async fn wait_for(&self, holding: Holding, (attempt, beside): (u32, bool), waiting: Waiting) {
        let Waiting { reason, at_most, wait: wait_for, waits_while } = waiting;
        let asks = matches!(wait_for, WaitFor::Approval(_));
        let word = if asks { "ask_approval" } else { "wait" };
        let wish = Wish { reason: wait(reason, at_most, false, ""), beside, wait: wait_for, waits_while };
        let parked = self.park(holding, word, wish, (attempt.saturating_sub(1), false)).await;
        if asks && matches!(parked, Some(Parked::Until(_))) {
            self.metrics.approval(ApprovalEvent::Asked);
        }
    }

    /// The turn was canceled while its call failed at this attempt, or was about to wait. The remaining calls end as
    /// canceled.
    async fn end_rest(&self, mut holding: Holding, (failed, waited): (u32, bool)) {
        let config = self.configs.load();
        holding.hold.cancel.cancel();
        let (first, context) = (holding.results.len(), Arc::default());
        for index in first..holding.slice.calls.len() {
            let (ended, ends) = {
                let mut trying = holding.trying(index, &context, &config);
                trying.attempt = if index == first { failed + 1 } else { 1 };
                trying.waited = index == first && waited;
                let ended = self.calls.ended_before_this_try(&trying, &EndReason::Canceled).await;
                (ended, trying.progress.into_inner().ends)
            };
            match ended {
                Disposition::Ended(result, shadow) => self.end_call(&mut holding, &config, *result, &shadow, ends),
                Disposition::Kept(rendered) => self.keep(&mut holding, &config, *rendered),
                // The worker must stop; another worker ends the calls.
                _ => return Box::pin(self.give_back(holding, HandBackReason::Unsent { nonce: None })).await,
            }
        }
        if self.commit(&mut holding).await == Commit::Again {
            // Another worker checks again which calls have run.
            Box::pin(self.give_back(holding, HandBackReason::Unsent { nonce: None })).await;
        }
    }

    /// Returns the slice with its progress. Another worker takes it at once.
    pub(super) async fn give_back(&self, mut holding: Holding, why: HandBackReason) {
        while holding.has_results() {
            if self.commit(&mut holding).await == Commit::Over {
                return;
            }
        }
        if self.journal.epoch() != holding.hold.epoch {
            // Another worker may have had the slice too.
            Arc::make_mut(&mut holding.slice).turn.may_have_run = true;
        }
        self.journal.let_go(&holding.slice.name);
        holding.view = View::default();
        // If the next call must not run twice, nothing of it was sent: otherwise it would have ended as unknown.
        self.outbox.hand_back(holding.slice, why).await;
    }
}
