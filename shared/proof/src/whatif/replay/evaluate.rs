//! Evaluates a turn's next calls with the counter values under the policy.

use tickfleet_core::keys::limits;
use tickfleet_core::turn::limit::{Debit, Evaluator, LimitDecision, LimitRejection, NextDispatch, WindowKind};
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::{Context, Query, Value, Version, View};

use super::{Replay, ReplayTurn, WAIT_MS_MAX, agent_of};
use crate::whatif::TICK;
use crate::whatif::counters::{CounterDebit, TurnCaller, UnknownLimit};
use crate::whatif::turns::{Decision, DispatchDecision, Turn};

/// Time (ms) until the next check of a turn that waits for a permit.
const RECHECK_MS: i64 = 5_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AdmissionVerdict {
    /// The number of dispatched calls.
    Dispatch(usize),
    /// `behind` is true if other turns wait for the same limit and come first.
    Wait { behind: bool },
    /// The reason, and the number of ended calls.
    Refuse(EndReason, usize),
    /// All calls end, because a cap is used up.
    End(EndReason),
}

pub(super) struct TurnEvaluation {
    pub(super) verdict: AdmissionVerdict,
    /// The cap or limit that stops calls.
    pub(super) by: String,
    /// Stopped calls wait in this throttle queue, at least until `until_ms`.
    pub(super) queue: String,
    pub(super) until_ms: i64,
    pub(super) counter_debits: Vec<CounterDebit>,
    pub(super) unknown: Vec<UnknownLimit>,
    /// When the windows of the tick and of the day cap began. `i64::MAX` if a recorded admission states the used part
    /// of the window.
    pub(super) known_ms: (i64, i64),
    pub(super) knows_task: bool,
}

impl TurnEvaluation {
    /// True if `by` cannot be evaluated. The replay then assumes that `by` stops the same calls as in the fleet.
    pub(super) fn is_unknown(&self, by: &str) -> bool {
        self.unknown.iter().any(|unknown| unknown.by == by)
    }
}

/// Also returns the index of the debit that stops calls.
fn decide(wanted: usize, counter_debits: &[CounterDebit], now_ms: i64) -> (AdmissionVerdict, Option<usize>) {
    let mut view = View::default();
    for counter_debit in counter_debits {
        view.insert(Query::Counter(counter_debit.debit.counter.clone()), Value::Counter(Some(counter_debit.state)));
    }
    let context = Context {
        now_ms,
        epoch: 1,
        epoch_began_ms: 0,
        pressure: false,
        version: Version::new("-"),
        conflicts: Vec::new(),
    };
    let evaluator = Evaluator {
        view: &view,
        context: &context,
        waits: None,
        is_exact: true,
        permits_only: false,
        lease_ends_ms: None,
    };
    let debits: Vec<Debit> = counter_debits.iter().map(|counter_debit| counter_debit.debit.clone()).collect();
    let stop = evaluator.fit(&debits, wanted).ok().and_then(|fit| fit.stop);
    // Calls after the rejected calls are evaluated separately.
    let rules = |from| if from == 0 { LimitDecision::Debits(debits.clone()) } else { LimitDecision::Withheld };
    let Ok(plan) = evaluator.plan(wanted, rules) else { return (AdmissionVerdict::Wait { behind: true }, stop) };
    let verdict = match (plan.refused.into_iter().next(), plan.next) {
        (
            Some(LimitRejection {
                reason: reason @ (EndReason::DailyCapReached { .. } | EndReason::TaskBudgetReached),
                ..
            }),
            _,
        ) => AdmissionVerdict::End(reason),
        (Some(LimitRejection { reason, calls, .. }), _) => AdmissionVerdict::Refuse(reason, calls),
        (None, NextDispatch::Dispatch { calls, .. }) => AdmissionVerdict::Dispatch(calls),
        (None, _) => {
            let behind = stop
                .and_then(|at| counter_debits.get(at))
                .is_some_and(|counter_debit| counter_debit.is_limit() && counter_debit.state.queued);
            AdmissionVerdict::Wait { behind }
        }
    };
    (verdict, stop)
}

/// True if the verdict agrees with the recorded decision, or if unknown limits or calls can explain the difference.
fn agrees(live: &ReplayTurn, on: &Decision, verdict: &AdmissionVerdict, unknown: &[UnknownLimit]) -> bool {
    let is_unknown = |by: &str| unknown.iter().any(|unknown| unknown.by == by);
    match (&on.what, verdict) {
        (DispatchDecision::Wait(by, _), AdmissionVerdict::Dispatch(_)) => is_unknown(by),
        (DispatchDecision::Refuse(_, Some(by)), AdmissionVerdict::Dispatch(_) | AdmissionVerdict::Wait { .. }) => {
            is_unknown(by)
        }
        (DispatchDecision::Wait(..), AdmissionVerdict::Wait { .. }) => true,
        (DispatchDecision::Refuse(..), AdmissionVerdict::Refuse(..) | AdmissionVerdict::End(_)) => true,
        (DispatchDecision::Go(calls, _), AdmissionVerdict::Dispatch(fits)) => {
            let went = calls - (live.next - on.first).min(*calls);
            *fits == went || *fits > went && (!live.turn.is_whole || !unknown.is_empty())
        }
        _ => false,
    }
}

impl Replay<'_> {
    /// Raises the agent's counters to the values in the recorded note, without the admission's own calls. Returns
    /// `TurnEvaluation::known_ms`.
    fn anchor(&mut self, turn: &Turn, counter_debits: &mut [CounterDebit], on: Option<&Decision>) -> (i64, i64) {
        let name = agent_of(turn);
        if let Some(DispatchDecision::Go(_, note)) = on.map(|on| &on.what)
            && !self.apart.contains(&name)
        {
            // The recorded values apply only while the replay agrees with the fleet about all calls of the agent.
            let before = |used: u32| u64::from(used.saturating_sub(note.calls));
            for counter_debit in counter_debits.iter_mut() {
                match &*counter_debit.debit.limit.name {
                    limits::TICK if counter_debit.state.ends_ms == note.tick.2 => {
                        counter_debit.state.used = counter_debit.state.used.max(before(note.tick.0));
                    }
                    limits::DAY => counter_debit.state.used = counter_debit.state.used.max(before(note.day.0)),
                    _ => {}
                }
            }
            self.anchored.insert(name.clone());
        }
        let is_known = self.anchored.contains(&name);
        let began_ms =
            |limit| of_cap(counter_debits, limit).map_or(i64::MAX, |counter_debit| counter_debit.state.began_ms);
        let has_tenant_cap = of_cap(counter_debits, limits::TENANT_DAY).is_some();
        let known_tick_ms = if is_known { i64::MAX } else { began_ms(limits::TICK) };
        let known_day_ms = if is_known && !has_tenant_cap { i64::MAX } else { began_ms(limits::DAY) };
        (known_tick_ms, known_day_ms)
    }

    /// `on` is the fleet's decision at this moment. `queue` is set if the turn is the first in this throttle queue.
    pub(super) fn evaluate(
        &mut self,
        caller: &TurnCaller<'_>,
        live: &ReplayTurn,
        (on, wanted): (Option<&Decision>, usize),
        queue: Option<&str>,
        now_ms: i64,
    ) -> TurnEvaluation {
        let turn = &live.turn;
        let mut caps = self.fleet.policy.caps(caller.owner, caller.policy);
        let paused_ms = self.pauses.until(turn, on, now_ms);
        if paused_ms.is_some() {
            // During a pause, schedulers set this cap to 0, too.
            caps.calls_per_tick = 0;
        }
        let fleet = self.fleet;
        let task = self.tasks.of(turn);
        let mut counter_debits = self.ledger.cap_debits(&fleet, caller, (turn, wanted), (&caps, task), now_ms);
        let known_ms = self.anchor(turn, &mut counter_debits, on);
        // Store the counters without a debit, because the calls may still have to wait.
        self.ledger.store_states(&counter_debits);
        let (of_limits, unknown) = self.ledger.limit_debits(&fleet, caller, turn, live.next, now_ms);
        counter_debits.extend(of_limits);
        for counter_debit in &mut counter_debits {
            counter_debit.debit.amounts.truncate(wanted);
            // Turns that wait for any cap are in the queue of the agent's tick.
            let is_queue = counter_debit.is_limit() || &*counter_debit.debit.limit.name == limits::TICK;
            counter_debit.state.queued = is_queue
                && queue != Some(counter_debit.queue.as_str())
                && self.queues.contains_key(&counter_debit.queue);
        }
        // Evaluate the debits in the order of the core.
        counter_debits.sort_by_key(|counter_debit| counter_debit.debit.first());
        let (mut verdict, mut stop) = decide(wanted, &counter_debits, now_ms);
        let has_returned = counter_debits.iter().any(|counter_debit| counter_debit.returned > 0);
        if has_returned && !on.is_some_and(|on| agrees(live, on, &verdict, &unknown)) {
            for counter_debit in counter_debits.iter_mut().filter(|counter_debit| counter_debit.returned > 0) {
                counter_debit.state.used = counter_debit.state.used.saturating_sub(counter_debit.returned);
                self.ledger.free_returned(&counter_debit.counter);
            }
            (verdict, stop) = decide(wanted, &counter_debits, now_ms);
        }
        let fits = if let AdmissionVerdict::Dispatch(calls) = verdict { calls } else { 0 };
        let (by, queue, until_ms) =
            match stop.and_then(|at| counter_debits.get(at)).or_else(|| next_cap(&counter_debits, fits)) {
                Some(counter_debit) => (
                    counter_debit.by.clone(),
                    counter_debit.queue.clone(),
                    until_ms(counter_debit, (caps.calls_per_tick, paused_ms), now_ms),
                ),
                None => (TICK.to_owned(), agent_of(turn), now_ms),
            };
        TurnEvaluation { verdict, by, queue, until_ms, counter_debits, unknown, known_ms, knows_task: task.is_some() }
    }
}

fn of_cap<'a>(counter_debits: &'a [CounterDebit], limit: &str) -> Option<&'a CounterDebit> {
    counter_debits.iter().find(|counter_debit| &*counter_debit.debit.limit.name == limit)
}

/// A day cap, if the next `calls` use it up, or else the tick cap.
fn next_cap(counter_debits: &[CounterDebit], calls: usize) -> Option<&CounterDebit> {
    let is_full = |counter_debit: &&CounterDebit| {
        counter_debit.state.used.saturating_add(counter_debit.debit.sum(calls)) >= counter_debit.debit.limit.max
    };
    let days = [limits::DAY, limits::TENANT_DAY];
    let full = days.into_iter().filter_map(|day| of_cap(counter_debits, day)).find(is_full);
    full.or_else(|| of_cap(counter_debits, limits::TICK))
}

fn until_ms(counter_debit: &CounterDebit, (calls_per_tick, paused_ms): (u32, Option<i64>), now_ms: i64) -> i64 {
    match (&*counter_debit.debit.limit.name, counter_debit.debit.limit.window) {
        (limits::TASK, _) => now_ms,
        (limits::TICK, _) => match paused_ms {
            Some(until_ms) => counter_debit.state.ends_ms.max(until_ms),
            // With a cap of 0, no call is admitted, so the turn waits until it expires.
            None if calls_per_tick == 0 => now_ms + WAIT_MS_MAX + 1,
            None => counter_debit.state.ends_ms,
        },
        (_, WindowKind::Concurrency) => now_ms + RECHECK_MS,
        _ => counter_debit.state.ends_ms,
    }
}
