//! Replays turns that wait only in the replay, or for a different time than in the fleet. They are dispatched in order
//! of arrival.

use super::dispatch::recorded_decision;
use super::evaluate::{AdmissionVerdict, TurnEvaluation};
use super::{Divergence, Replay, ReplayEvent, ReplayTurn, TOO_MANY, WAIT_MS_MAX, WAITING_MAX, caller_of};

impl Replay<'_> {
    pub(super) fn wait(&mut self, number: u64, live: &mut ReplayTurn, apart: Divergence, until_ms: i64) {
        if self.waiting >= WAITING_MAX && live.divergence.is_none() {
            self.summary.count_undecidable(TOO_MANY, (live.turn.calls.len() - live.next) as u64);
            live.next = live.turn.calls.len();
            return;
        }
        self.record_delay(&live.turn, &apart.by);
        let since_ms = live.divergence.as_ref().map_or(apart.since_ms, |before| before.since_ms);
        let queue = apart.queue.clone();
        live.divergence = Some(Divergence { since_ms, ..apart });
        self.waiting += 1;
        self.queues.entry(queue.clone()).or_default().insert(number, ());
        self.at(until_ms, 5, 0, ReplayEvent::Room(queue));
    }

    pub(super) fn dispatch_waiting(&mut self, queue: &str, now_ms: i64) {
        loop {
            let Some(number) = self.queues.get(queue).and_then(|waiting| waiting.keys().next().copied()) else {
                return;
            };
            let Some(mut live) = self.turns.remove(&number) else {
                self.leave_queue(queue, number);
                continue;
            };
            let look_again_ms = self.evaluate_first(number, &mut live, queue, now_ms);
            if live.left > 0 || live.divergence.is_some() {
                self.turns.insert(number, live);
            }
            if let Some(again_ms) = look_again_ms {
                return self.at(again_ms.max(now_ms + 1), 5, 0, ReplayEvent::Room(queue.to_owned()));
            }
        }
    }

    pub(super) fn leave_queue(&mut self, queue: &str, number: u64) {
        let Some(waiting) = self.queues.get_mut(queue) else { return };
        if waiting.remove(&number).is_some() {
            self.waiting = self.waiting.saturating_sub(1);
        }
        if waiting.is_empty() {
            self.queues.remove(queue);
        }
    }

    /// If the turn stays in the queue, returns the time (ms) of its next evaluation.
    pub(super) fn evaluate_first(
        &mut self,
        number: u64,
        live: &mut ReplayTurn,
        queue: &str,
        now_ms: i64,
    ) -> Option<i64> {
        let Some((since_ms, by)) = live.divergence.as_ref().map(|apart| (apart.since_ms, apart.by.clone())) else {
            self.leave_queue(queue, number);
            return None;
        };
        if live.busy_ms > now_ms {
            return Some(live.busy_ms);
        }
        let Ok(caller) = caller_of(&self.fleet, &live.turn) else {
            self.leave_queue(queue, number);
            live.divergence = None;
            return None;
        };
        if now_ms - since_ms > WAIT_MS_MAX {
            self.leave_queue(queue, number);
            let all = live.turn.calls.len();
            self.end(live, all, &by, "expired");
            live.divergence = None;
            return None;
        }
        // Evaluate only the calls that the fleet had dispatched by now. If it had dispatched none, evaluate all
        // remaining calls.
        let is_due = |at: &usize| recorded_decision(&live.turn, *at).is_none_or(|(then_ms, _)| then_ms <= now_ms);
        let left = live.next..live.turn.calls.len();
        let wanted = match left.clone().take_while(is_due).count() {
            0 => left.len(),
            due => due,
        };
        let evaluation = self.evaluate(&caller, live, (None, wanted), Some(queue), now_ms);
        self.apply_evaluation(number, live, (queue, wanted), (since_ms, by), evaluation, now_ms)
    }

    pub(super) fn apply_evaluation(
        &mut self,
        number: u64,
        live: &mut ReplayTurn,
        (queue, wanted): (&str, usize),
        (since_ms, by): (i64, String),
        evaluation: TurnEvaluation,
        now_ms: i64,
    ) -> Option<i64> {
        match evaluation.verdict {
            AdmissionVerdict::Wait { .. } if evaluation.queue == queue => return Some(evaluation.until_ms),
            AdmissionVerdict::Wait { .. } => {
                self.leave_queue(queue, number);
                let apart = Divergence { by: evaluation.by, queue: evaluation.queue, since_ms };
                self.wait(number, live, apart, evaluation.until_ms.max(now_ms + 1));
                return None;
            }
            AdmissionVerdict::Refuse(ref reason, calls) => {
                let upto = live.next + calls;
                self.end(live, upto, &evaluation.by, reason.word());
            }
            AdmissionVerdict::End(ref reason) => {
                let all = live.turn.calls.len();
                self.end(live, all, &evaluation.by, reason.word());
            }
            AdmissionVerdict::Dispatch(calls) => {
                let (by, queue_of_rest) = if calls < wanted {
                    (evaluation.by.clone(), evaluation.queue.clone())
                } else {
                    (by, queue.to_owned())
                };
                self.dispatch(live, calls, evaluation, now_ms);
                self.leave_queue(queue, number);
                live.divergence = None;
                if self.is_ahead(live, now_ms) {
                    let until_ms = live.busy_ms;
                    self.wait(number, live, Divergence { by, queue: queue_of_rest, since_ms: now_ms }, until_ms);
                }
                return None;
            }
        }
        if live.next >= live.turn.calls.len() {
            self.leave_queue(queue, number);
            live.divergence = None;
            return None;
        }
        Some(now_ms + 1)
    }

    pub(super) fn is_ahead(&self, live: &ReplayTurn, now_ms: i64) -> bool {
        live.next < live.turn.calls.len()
            && recorded_decision(&live.turn, live.next).is_some_and(|(then_ms, _)| then_ms <= now_ms.max(live.busy_ms))
    }
}
