//! Computes how many of a turn's next calls fit all counters. An unknown counter counts as empty. The store checks the
//! room again, and a conflict returns the counter's state for the next attempt.

use tickfleet_model::limit::OnReach;

use super::{Debit, LimitDecision, WindowKind};
use crate::decision::Context;
use crate::keys::{self, limits};
use crate::transaction::{ConditionalDebit, Conflict, CounterKey, CounterState, Window};
use crate::turn::state::EndReason;
use crate::view::{Undecided, View};

/// Time (ms) until the next check if no returned permit wakes the turn.
pub const PERMIT_CHECK_MS: i64 = 5_000;
/// Time (ms) until the next check while the tenant has too many dispatched slices.
pub const IN_FLIGHT_CHECK_MS: i64 = 250;
/// Maximum time (ms) until the next check. Windows can be long, and an operator may raise the limit in the meantime.
pub const WINDOW_CHECK_MS: i64 = 300_000;
/// After this many conflicts, a counter counts as full, because concurrent decisions are faster.
const CONTENDED: usize = 3;
/// After this many conflicts, the decision refuses no more calls. The remaining calls wait.
const CONFLICTS_MAX: usize = 10;

#[derive(Clone, Copy)]
pub struct Evaluator<'a> {
    pub view: &'a View,
    pub context: &'a Context,
    /// The turn's throttle queue and place. A new turn (`None`) comes after all waiting turns.
    pub waits: Option<(&'a CounterKey, u64)>,
    /// If false, permits and waiting turns are known only from conflicts.
    pub is_exact: bool,
    pub permits_only: bool,
    /// End (ms) of the first lease after a restart of the store, if any. Before this time, no call is refused, because
    /// a worker may still report that the call ran.
    pub lease_ends_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittingCalls {
    pub calls: usize,
    /// Index of the debit without room for the next call. `None` if all calls fit.
    pub stop: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRejection {
    pub calls: usize,
    pub reason: EndReason,
    pub until_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub counter: CounterKey,
    pub due_ms: i64,
    /// True if a returned amount makes the queue's timer fire early.
    pub woken: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextDispatch {
    Over,
    Dispatch {
        calls: usize,
        debits: Vec<ConditionalDebit>,
    },
    Wait(Wait),
    AgentRemoved,
    /// The tenant's declaration cannot be read.
    Withheld,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionPlan {
    pub refused: Vec<LimitRejection>,
    pub next: NextDispatch,
}

impl Evaluator<'_> {
    /// `rules` returns the debits of the calls from the given index on.
    pub fn plan(
        &self,
        calls: usize,
        mut rules: impl FnMut(usize) -> LimitDecision,
    ) -> Result<AdmissionPlan, Undecided> {
        let mut refused = Vec::new();
        let mut from = 0;
        loop {
            if from >= calls {
                return Ok(AdmissionPlan { refused, next: NextDispatch::Over });
            }
            let mut debits = match rules(from) {
                LimitDecision::Debits(debits) => debits,
                LimitDecision::AgentRemoved => return Ok(AdmissionPlan { refused, next: NextDispatch::AgentRemoved }),
                LimitDecision::Withheld => return Ok(AdmissionPlan { refused, next: NextDispatch::Withheld }),
            };
            if self.permits_only {
                debits.retain(|debit| {
                    debit.limit.window == WindowKind::Concurrency || &*debit.limit.name == limits::IN_FLIGHT
                });
            }
            // The store reports only the first failed guard, so the earliest stopped call must come first.
            debits.sort_by_key(Debit::first);
            let fit = self.fit(&debits, calls - from)?;
            let Some(stop) = fit.stop.filter(|_| fit.calls == 0).and_then(|at| debits.get(at)) else {
                let debits = self.conditional_debits(&debits, fit.calls)?;
                return Ok(AdmissionPlan { refused, next: NextDispatch::Dispatch { calls: fit.calls, debits } });
            };
            let rejection = self.rejection(stop, calls - from)?;
            let mut wait = self.wait(stop);
            match (rejection, self.lease_ends_ms) {
                (Some(rejection), None) if self.context.conflicts.len() < CONFLICTS_MAX => {
                    from += rejection.calls;
                    refused.push(rejection);
                    continue;
                }
                (Some(_), Some(lease_ends_ms)) => wait.due_ms = lease_ends_ms,
                _ => {}
            }
            return Ok(AdmissionPlan { refused, next: NextDispatch::Wait(wait) });
        }
    }

    pub fn fit(&self, debits: &[Debit], calls: usize) -> Result<FittingCalls, Undecided> {
        let mut fit = FittingCalls { calls, stop: None };
        for (at, debit) in debits.iter().enumerate().filter(|(_, debit)| !debit.limit.is_shadow()) {
            let mut left = self.left(debit)?;
            let fits = |amount: &Option<u64>| match amount {
                Some(amount) if *amount <= left => {
                    left -= amount;
                    true
                }
                _ => false,
            };
            let fits = debit.amounts.iter().take(fit.calls).map(fits).take_while(|fits| *fits).count();
            if fits < fit.calls {
                fit = FittingCalls { calls: fits, stop: Some(at) };
            }
        }
        Ok(fit)
    }

    fn conditional_debits(&self, debits: &[Debit], calls: usize) -> Result<Vec<ConditionalDebit>, Undecided> {
        let mut conditional = Vec::with_capacity(debits.len());
        for debit in debits {
            let behind = self.is_behind_queue(debit)?;
            conditional.extend(debit.conditional(calls, behind, self.context.now_ms));
        }
        Ok(conditional)
    }

    /// 0 if the counter counts as full, or if turns in the queue come first.
    fn left(&self, debit: &Debit) -> Result<u64, Undecided> {
        let Some(state) = self.known(debit) else { return Ok(debit.limit.max) };
        if self.conflicts(debit) >= CONTENDED || state.queued && self.is_behind_queue(debit)? {
            return Ok(0);
        }
        Ok(debit.limit.max.saturating_sub(state.used))
    }

    fn conflicts(&self, debit: &Debit) -> usize {
        let is_about = |conflict: &&Conflict| match conflict {
            Conflict::LimitReached { counter, .. } => *counter == debit.counter,
            _ => false,
        };
        self.context.conflicts.iter().filter(is_about).count()
    }

    /// `None` if the view is not reliable. Stale usage in a window is a lower bound. Permits and queues count only if a
    /// conflict reported them.
    fn known(&self, debit: &Debit) -> Option<CounterState> {
        let mut state = self.view.counter(&debit.counter)?;
        if !self.is_exact && self.conflicts(debit) == 0 {
            if matches!(debit.limit.window, WindowKind::Concurrency | WindowKind::Total) {
                return None;
            }
            state.queued = false;
        }
        if state.ends_ms > 0 && self.context.now_ms >= state.ends_ms {
            (state.used, state.ends_ms) = (0, 0);
        }
        Some(state)
    }

    /// A turn that waits for the counter, or was admitted before all waiting turns, does not yield. Otherwise turns
    /// that need several counters would yield to each other forever.
    fn is_behind_queue(&self, debit: &Debit) -> Result<bool, Undecided> {
        if debit.limit.is_shadow() {
            return Ok(false);
        }
        let Some((waits_for, place)) = self.waits else { return Ok(true) };
        if debit.counter == *waits_for {
            return Ok(false);
        }
        if !self.known(debit).is_some_and(|state| state.queued) {
            return Ok(true);
        }
        let first = self.view.first(&keys::throttle_queue(&debit.counter), None, 1)?;
        Ok(first.first().is_some_and(|(_, first)| *first < place))
    }

    fn rejection(&self, stop: &Debit, calls: usize) -> Result<Option<LimitRejection>, Undecided> {
        if self.permits_only {
            return Ok(None);
        }
        let resolved = &stop.limit;
        let limit = || resolved.name.to_string();
        let all = if stop.is_uniform() { calls } else { 1 };
        let first = stop.amounts.first().copied().flatten();
        let rejection = match first {
            None => LimitRejection { calls: 1, reason: EndReason::NoAmount { limit: limit() }, until_ms: None },
            Some(amount) if amount > resolved.max && !resolved.is_built_in() => {
                LimitRejection { calls: all, reason: EndReason::OverLimit { limit: limit() }, until_ms: None }
            }
            Some(amount) if self.is_rejected(stop, amount)? => {
                let left = resolved.max.saturating_sub(self.used(stop));
                let too_much = |amount: &&Option<u64>| amount.is_some_and(|amount| amount > left);
                let more = stop.amounts.iter().skip(1).take(calls.saturating_sub(1)).take_while(too_much).count();
                let ends_ms = self.room_ms(stop);
                let reason = resolved.reached(ends_ms.unwrap_or(0));
                LimitRejection { calls: all.max(1 + more), reason, until_ms: ends_ms }
            }
            Some(_) => return Ok(None),
        };
        Ok(Some(rejection))
    }

    /// False if the call waits: the limit makes calls wait, other turns come first, or concurrent decisions use up the
    /// room faster.
    fn is_rejected(&self, stop: &Debit, amount: u64) -> Result<bool, Undecided> {
        if stop.limit.on_reach == OnReach::Wait || self.used(stop).saturating_add(amount) <= stop.limit.max {
            return Ok(false);
        }
        Ok(!(self.known(stop).is_some_and(|state| state.queued) && self.is_behind_queue(stop)?))
    }

    fn used(&self, debit: &Debit) -> u64 {
        self.known(debit).map_or(0, |state| state.used)
    }

    fn room_ms(&self, stop: &Debit) -> Option<i64> {
        let known = self.known(stop).map(|state| state.ends_ms).filter(|ends_ms| *ends_ms > 0);
        match stop.limit.window.at(self.context.now_ms, stop.stagger_ms) {
            Window::Fixed { end_ms, .. } | Window::Day { end_ms, .. } => Some(known.unwrap_or(end_ms)),
            Window::Rolling { .. } => known,
            Window::Concurrency | Window::Total => None,
        }
    }

    fn wait(&self, stop: &Debit) -> Wait {
        let now_ms = self.context.now_ms;
        let first = stop.amounts.first().copied().flatten().unwrap_or(0);
        let is_full = self.used(stop).saturating_add(first) > stop.limit.max;
        let due_ms = match (stop.limit.window, self.room_ms(stop)) {
            (WindowKind::Total, _) => now_ms + IN_FLIGHT_CHECK_MS,
            (_, Some(ends_ms)) if is_full => ends_ms.min(now_ms + WINDOW_CHECK_MS),
            // Check at once: other turns come first, or a permit may have been returned before the queue's timer
            // existed.
            _ => now_ms,
        };
        Wait { counter: stop.counter.clone(), due_ms, woken: stop.limit.window == WindowKind::Concurrency }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tickfleet_model::limit::LimitMode;

    use super::*;
    use crate::transaction::Version;
    use crate::turn::limit::ResolvedLimit;
    use crate::view::{Query, Value};

    fn debit(name: &str, max: u64, amounts: &[u64]) -> Debit {
        let resolved = ResolvedLimit {
            name: name.into(),
            max,
            window: WindowKind::Fixed { length_ms: 100 },
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            counters_max: 9,
        };
        let amounts = amounts.iter().map(|amount| Some(*amount)).collect();
        Debit { limit: Arc::new(resolved), counter: CounterKey::new(name, "k"), stagger_ms: 0, amounts }
    }

    fn conflict(view: &mut View, context: &mut Context, debit: &Debit, used: u64, queued: bool) {
        let state = CounterState { used, ends_ms: 1_100, began_ms: 1_000, queued };
        let conflict = Conflict::LimitReached { counter: debit.counter.clone(), state };
        view.learn(&conflict);
        context.conflicts.push(conflict);
    }

    fn context() -> Context {
        let conflicts = Vec::new();
        Context { now_ms: 1_050, epoch: 1, epoch_began_ms: 0, pressure: false, version: Version::new("v"), conflicts }
    }

    fn plan(view: &View, context: &Context, waits: Option<(&CounterKey, u64)>, debits: &[Debit]) -> NextDispatch {
        let evaluator = Evaluator { view, context, waits, is_exact: false, permits_only: false, lease_ends_ms: None };
        let from = |from: usize| {
            let rest = |debit: &Debit| Debit { amounts: debit.amounts[from..].to_vec(), ..debit.clone() };
            LimitDecision::Debits(debits.iter().map(rest).collect())
        };
        evaluator.plan(debits[0].amounts.len(), from).unwrap().next
    }

    fn calls(planned: &NextDispatch) -> usize {
        match planned {
            NextDispatch::Dispatch { calls, .. } => *calls,
            _ => 0,
        }
    }

    #[test]
    fn the_tightest_counter_limits_the_dispatched_calls() {
        let mut view = View::default();
        let mut context = context();
        let debits = [debit("a", 9, &[1, 1, 1, 1]), debit("b", 10, &[0, 5, 0, 5])];
        assert_eq!(calls(&plan(&view, &context, None, &debits)), 4, "room is assumed");
        conflict(&mut view, &mut context, &debits[1], 2, false);
        assert_eq!(calls(&plan(&view, &context, None, &debits)), 3);
        conflict(&mut view, &mut context, &debits[0], 8, false);
        assert_eq!(calls(&plan(&view, &context, None, &debits)), 1);
        conflict(&mut view, &mut context, &debits[0], 9, false);
        let wait = Wait { counter: debits[0].counter.clone(), due_ms: 1_100, woken: false };
        assert_eq!(plan(&view, &context, None, &debits), NextDispatch::Wait(wait));
        context.now_ms = 1_100;
        assert!(calls(&plan(&view, &context, None, &debits)) > 0, "the window has ended");
    }

    #[test]
    fn the_oldest_waiting_turn_is_not_blocked_by_other_throttle_queues() {
        let mut view = View::default();
        let mut context = context();
        let own = debit("a", 9, &[1]);
        let other = debit("b", 9, &[1]);
        let debits = [own.clone(), other.clone()];
        conflict(&mut view, &mut context, &own, 0, true);
        conflict(&mut view, &mut context, &other, 0, true);
        let first = Query::First { set: keys::throttle_queue(&other.counter), upto: None, count: 1 };
        view.insert(first, Value::Members(vec![("t:x".into(), 5)]));
        let waits = |place| Some((&own.counter, place));
        assert_eq!(calls(&plan(&view, &context, waits(4), &debits)), 1);
        let wait = Wait { counter: other.counter.clone(), due_ms: 1_050, woken: false };
        assert_eq!(plan(&view, &context, waits(6), &debits), NextDispatch::Wait(wait));
        assert_eq!(calls(&plan(&view, &context, None, &debits)), 0, "a new turn is behind all");
    }

    /// Concurrent decisions debit the day's counter faster than this decision.
    #[test]
    fn calls_within_a_counters_room_are_not_rejected() {
        let mut view = View::default();
        let mut context = context();
        let mut day = debit("_day", 9, &[1, 1, 1]);
        day.limit = Arc::new(ResolvedLimit { on_reach: OnReach::Reject, ..(*day.limit).clone() });
        for used in [6, 7, 8] {
            conflict(&mut view, &mut context, &day, used, false);
        }
        let wait = Wait { counter: day.counter.clone(), due_ms: 1_050, woken: false };
        assert_eq!(plan(&view, &context, None, std::slice::from_ref(&day)), NextDispatch::Wait(wait));
        conflict(&mut view, &mut context, &day, 9, false);
        assert_eq!(plan(&view, &context, None, &[day]), NextDispatch::Over);
    }

    #[test]
    fn a_stale_permit_count_does_not_block_dispatch() {
        let mut view = View::default();
        let mut context = context();
        let mut held = debit("a", 1, &[1]);
        held.limit = Arc::new(ResolvedLimit { window: WindowKind::Concurrency, ..(*held.limit).clone() });
        view.insert(
            Query::Counter(held.counter.clone()),
            Value::Counter(Some(CounterState { used: 1, ..CounterState::default() })),
        );
        assert_eq!(calls(&plan(&view, &context, None, std::slice::from_ref(&held))), 1);
        conflict(&mut view, &mut context, &held, 1, false);
        let wait = Wait { counter: held.counter.clone(), due_ms: 1_050, woken: true };
        assert_eq!(plan(&view, &context, None, &[held]), NextDispatch::Wait(wait));
    }
}
