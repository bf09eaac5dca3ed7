//! A slice whose next call has no result yet: it is parked until the call goes on, or given back.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{CallId, TurnId};
use tickfleet_ops::metrics::{ApprovalEvent, BreakerEvent};
use tickfleet_store::{AskApproval, Asked, EndReason, Parked, Rest, Rested, Retry, Returned, SettledCall, Wait};

use crate::calls::trying::{Disposition, RestingCall, Trying};
use crate::calls::turn::{Commit, Holding, Pipeline};
use crate::config::WorkerConfig;
use crate::held::Hold;

impl Pipeline {
    /// Ends this holder's part in a slice, as the disposition of its next call wants it: `tried` says which try that was,
    /// and whether calls behind it ran beside it.
    pub(super) async fn leave(
        &self,
        holding: Holding,
        disposition: Disposition,
        (attempt, beside): (u32, bool),
        config: &WorkerConfig,
    ) {
        match disposition {
            // These are results, or may come to one: they are seen to before.
            Disposition::Ended(..) | Disposition::Kept(_) | Disposition::Rests(_) => {}
            Disposition::Again(wait, cause) => {
                self.claims.take_back(&holding.slice.name, holding.slice.first + holding.results.len()).await;
                let delay_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
                self.park(holding, delay_ms, attempt, beside, cause).await;
            }
            Disposition::Reconciles(wait, cause, attempt, unknown) => {
                let unknown = self.render(config, &holding.slice, holding.results.len(), (&unknown, &[]));
                self.reconcile_later(holding, wait, attempt, cause, unknown).await;
            }
            Disposition::Waits(awaits, at_most) => {
                self.claims.take_back(&holding.slice.name, holding.slice.first + holding.results.len()).await;
                self.wait(holding, (attempt, beside), awaits, at_most, true).await;
            }
            Disposition::WaitsForEqual(turn, at_most) => {
                self.wait(holding, (attempt, beside), Some(turn), at_most, false).await;
            }
            Disposition::Asks(ask) => self.ask_people(holding, attempt, AskApproval { beside, ..*ask }).await,
            Disposition::HandBack(tried) => {
                self.claims.take_back(&holding.slice.name, holding.slice.first + holding.results.len()).await;
                let why = match (beside, tried) {
                    (true, _) => Returned::Beside,
                    (false, true) => Returned::Tried,
                    (false, false) => Returned::Unsent,
                };
                self.give_back(holding, why).await;
            }
            Disposition::Lost => {}
        }
    }

    /// Parks the slice until its call may be tried again. What is in memory is committed first.
    async fn park(&self, mut holding: Holding, delay_ms: i64, attempt: u32, beside: bool, cause: String) {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return;
        }
        let retry = Retry {
            name: holding.slice.name.clone(),
            fence: holding.slice.fence.clone(),
            queue: holding.slice.queue.clone(),
            position: holding.slice.first + holding.results.len(),
            delay_ms,
            attempt,
            beside,
            begun: false,
            cause,
        };
        holding.slice.lost |= beside;
        match self.outbox.retry(retry).await {
            Some(Parked::Ok | Parked::Already) | None => {}
            Some(Parked::Cancelled) => self.end_rest(holding, attempt, false).await,
            Some(Parked::Stale | Parked::Gap) => self.metrics.fenced("retry"),
        }
    }

    /// Parks the slice until it is asked (again) whether its call took effect. The call stays begun; where nobody can wait
    /// any more, `unknown` is its end.
    async fn reconcile_later(
        &self,
        mut holding: Holding,
        wait: Duration,
        attempt: u32,
        cause: String,
        unknown: SettledCall,
    ) {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return;
        }
        let position = holding.slice.first + holding.results.len();
        // Should Redis lose that it was begun, this worker still says so for a while.
        self.claims.left_begun(&holding.slice.name, position);
        let retry = Retry {
            name: holding.slice.name.clone(),
            fence: holding.slice.fence.clone(),
            queue: holding.slice.queue.clone(),
            position,
            delay_ms: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
            attempt,
            beside: false,
            begun: true,
            cause,
        };
        match self.outbox.retry(retry).await {
            Some(Parked::Ok | Parked::Already) | None => {}
            Some(Parked::Cancelled) => {
                holding.results.push(unknown);
                self.end_rest(holding, 0, false).await;
            }
            Some(Parked::Stale | Parked::Gap) => self.metrics.fenced("retry"),
        }
    }

    /// Parks the slice while the tool of its next call rests. What is in memory is committed first. Where the call has rested for
    /// as long as it may, it has its result, and the slice goes on.
    pub(super) async fn rest(
        &self,
        mut holding: Holding,
        config: &WorkerConfig,
        attempt: u32,
        resting: RestingCall,
        beside: bool,
    ) -> Option<Holding> {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return None;
        }
        let rest = Rest {
            name: holding.slice.name.clone(),
            fence: holding.slice.fence.clone(),
            queue: holding.slice.queue.clone(),
            position: holding.slice.first + holding.results.len(),
            delay: resting.delay,
            at_most: resting.at_most,
            beside,
            why: resting.why,
        };
        let tool = config.registry.resolve(&resting.over.tool).map_or(&resting.over.tool, |tool| &tool.spec.name);
        match self.outbox.rest(rest).await {
            Some(Rested::Over) => {
                self.calls.gave_up_resting(tool, &resting.over);
                let rendered = self.render(config, &holding.slice, holding.results.len(), (&resting.over, &[]));
                holding.results.push(rendered);
                return Some(holding);
            }
            Some(Rested::Parked(Parked::Cancelled)) => {
                holding.slice.lost |= beside;
                self.end_rest(holding, attempt.saturating_sub(1), false).await;
            }
            Some(Rested::Parked(Parked::Stale | Parked::Gap)) => self.metrics.fenced("rest"),
            Some(Rested::Parked(Parked::Ok | Parked::Already)) => {
                self.metrics.breaker(tool, BreakerEvent::Waited);
            }
            None => {}
        }
        None
    }

    /// Parks the slice until what its call has begun elsewhere, or an equal call of somebody else, has ended. What is in memory is committed first.
    async fn wait(
        &self,
        mut holding: Holding,
        (attempt, beside): (u32, bool),
        awaits: Option<TurnId>,
        at_most: Duration,
        has_begun: bool,
    ) {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return;
        }
        let wait = Wait {
            name: holding.slice.name.clone(),
            fence: holding.slice.fence.clone(),
            queue: holding.slice.queue.clone(),
            position: holding.slice.first + holding.results.len(),
            awaits: awaits.clone(),
            at_most,
            has_begun,
            beside,
        };
        holding.slice.lost |= beside;
        match self.outbox.wait(wait).await {
            Some(Parked::Ok | Parked::Already) | None => {}
            Some(Parked::Cancelled) => {
                // Whoever cancelled it could not see yet what it was about to wait for.
                let is_ours = |turn: &TurnId| has_begun && outer_turn(turn).as_ref() == Some(&holding.slice.name.turn);
                if let Some(inner) = awaits.filter(is_ours) {
                    self.calls.cancel_inner(&holding.slice.name, &inner, None).await;
                }
                self.end_rest(holding, attempt.saturating_sub(1), has_begun).await;
            }
            Some(Parked::Stale | Parked::Gap) => self.metrics.fenced("wait"),
        }
    }

    /// Asks people about the next call, and parks the slice until they have decided. What is in memory is committed first.
    async fn ask_people(&self, mut holding: Holding, attempt: u32, ask: AskApproval) {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return;
        }
        let why = if ask.beside { Returned::Beside } else { Returned::Unsent };
        holding.slice.lost |= ask.beside;
        match self.outbox.ask_approval(ask).await {
            Some(Asked::Parked(Parked::Ok)) => self.metrics.approval(ApprovalEvent::Asked),
            Some(Asked::Parked(Parked::Already)) | None => {}
            Some(Asked::Parked(Parked::Cancelled)) => self.end_rest(holding, attempt.saturating_sub(1), false).await,
            Some(Asked::Parked(Parked::Stale | Parked::Gap)) => self.metrics.fenced("ask_approval"),
            // What was said meanwhile is looked at by whoever leases it next.
            Some(Asked::Decided | Asked::Full) => self.give_back(holding, why).await,
        }
    }

    /// The turn was cancelled while its call failed at this try, or was about to wait for work that it has begun: the calls
    /// that are left end as cancelled.
    async fn end_rest(&self, mut holding: Holding, failed: u32, waited: bool) {
        let never = Hold::new(0);
        let config = self.configs.load();
        let first = holding.results.len();
        for index in first..holding.slice.calls.len() {
            let trying = Trying {
                slice: &holding.slice,
                call: &holding.slice.calls[index],
                id: CallId { turn: holding.slice.name.turn.clone(), position: holding.slice.first + index },
                attempt: if index == first { failed + 1 } else { 1 },
                waited: index == first && waited,
                context: Arc::default(),
                hold: &never,
                config: &config,
            };
            let ended = self.calls.ended_before_this_try(&trying, EndReason::Cancelled).await;
            if let Disposition::Ended(result, shadow) = ended {
                let rendered = self.render(&config, &holding.slice, index, (&result, &shadow));
                holding.results.push(rendered);
            }
        }
        self.commit(&mut holding).await;
    }

    /// Returns the slice with its progress: another worker leases it at once.
    async fn give_back(&self, mut holding: Holding, why: Returned) {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return;
        }
        // Of a call that must not run twice nothing was sent, or it would have ended as unknown.
        self.outbox.hand_back(&holding.slice, why).await;
    }
}
