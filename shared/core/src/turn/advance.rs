//! Admission and release use this code to apply the limits to a turn's next calls.

use bytes::Bytes;
use tickfleet_model::Call;

use super::due::EndSection;
use super::end::{EndedCall, Ending, ExecutionState, Render, RenderedCall, append_call_audits, parts};
use super::expire::begin_ending;
use super::holder::keep_calls;
use super::limit::{
    AdmissionPlan, Evaluator, Generations, LimitDecision, LimitRejection, NextDispatch, Policy, Wait, in_flight_debit,
    task_debit,
};
use super::settle::earlier_results;
use super::slice::dispatch;
use super::state::{EndReason, Note, State, Turn};
use super::throttle::{throttle, undecided_queue};
use crate::bounds::Bounds;
use crate::decision::Context;
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::recovery::epoch::{RecoveredCallsView, recovered_calls};
use crate::section::isolate;
use crate::transaction::{ConditionalDebit, CounterKey, Guard, TimerRule, Transaction, Window, Write};
use crate::view::{Undecided, View};

/// Delay (ms) until the next check if the tenant's declaration cannot be read.
const WITHHELD_RECHECK_MS: i64 = 1_000;

pub struct Candidate<'a> {
    pub name: &'a TurnName,
    pub turn: Turn,
    /// The calls from `turn.position` on.
    pub calls: Vec<Call>,
    /// `calls` as JSON.
    pub texts: Vec<Bytes>,
    pub budget: Option<u64>,
    /// True before the record is stored.
    pub is_new: bool,
    pub policy: &'a dyn Policy,
    pub render: &'a dyn Render,
    pub sections: &'a [&'a dyn EndSection],
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdvanceResult {
    Dispatched {
        calls: usize,
        /// True if the calls only acquire their permits again.
        resumed: bool,
    },
    /// The turn waits in the counter's throttle queue.
    Throttled {
        counter: CounterKey,
        /// Time of the next check.
        due_ms: i64,
    },
    /// The turn keeps its place in the throttle queue. Nothing was written.
    Stays {
        counter: CounterKey,
        /// Time of the next check.
        due_ms: i64,
        /// True if a returned amount makes the queue's timer fire early.
        woken: bool,
    },
    /// The turn has ended, or ends after the first lease that follows a restart of the store.
    Ended {
        /// `None` for a turn without calls.
        reason: Option<EndReason>,
    },
    /// Only for a new turn, if the tenant's declaration cannot be read. Nothing was written.
    Withheld,
    /// Only for a new turn. Nothing was written.
    AgentRemoved,
}

impl Candidate<'_> {
    pub fn advance(
        mut self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<AdvanceResult, Undecided> {
        let plan = self.plan(view, context)?;
        if plan.next == NextDispatch::Over {
            return self.refuse_all(&plan.refused, transaction, view, context);
        }
        match plan.next {
            NextDispatch::Withheld if self.is_new => return Ok(AdvanceResult::Withheld),
            NextDispatch::AgentRemoved if self.is_new => return Ok(AdvanceResult::AgentRemoved),
            _ => self.guard_policy(transaction),
        }
        // After a restart of the store, no call is refused for one lease. The view may be older than a restart, so a
        // guard checks the epoch.
        if !plan.refused.is_empty() && !mutant!("refuse_waits_for_the_lease") {
            transaction.guard(Guard::Epoch { number: context.epoch, lease_ms: self.bounds.lease_ms });
        }
        let refused = self.refuse(&plan.refused, transaction, view, context)?;
        match plan.next {
            NextDispatch::AgentRemoved => self.end(EndReason::AgentRemoved, transaction, view, context),
            NextDispatch::Dispatch { calls, debits } => {
                let resumed = self.resumes();
                self.dispatch(calls, debits, transaction, context.now_ms);
                self.put_results(&refused, transaction, context.now_ms);
                Ok(AdvanceResult::Dispatched { calls, resumed })
            }
            NextDispatch::Wait(wait) => Ok(self.wait(wait, &refused, transaction, context.now_ms)),
            NextDispatch::Withheld | NextDispatch::Over => {
                let counter = undecided_queue(self.name, &self.turn);
                let wait = Wait { counter, due_ms: context.now_ms + WITHHELD_RECHECK_MS, woken: false };
                Ok(self.wait(wait, &refused, transaction, context.now_ms))
            }
        }
    }

    fn wait(
        &mut self,
        wait: Wait,
        refused: &[RenderedCall],
        transaction: &mut Transaction,
        now_ms: i64,
    ) -> AdvanceResult {
        let Wait { counter, due_ms, woken } = wait;
        if refused.is_empty() && self.waits_for(&counter) {
            return AdvanceResult::Stays { counter, due_ms, woken };
        }
        self.leave_queue(transaction, Some(&counter));
        throttle(transaction, self.name, &mut self.turn, counter.clone(), due_ms, now_ms);
        self.put_calls(0, transaction);
        self.put_results(refused, transaction, now_ms);
        AdvanceResult::Throttled { counter, due_ms }
    }

    pub fn end(
        self,
        reason: EndReason,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<AdvanceResult, Undecided> {
        let recovered = self.recovered_calls(transaction, view, context)?;
        let results = self.rendered(0, self.calls.len(), &reason, &recovered, context.now_ms);
        self.finish(results, Some(reason), transaction, view, context)
    }

    /// The end waits until the first lease after a restart of the store is over. `results` start at `turn.position`.
    pub fn finish(
        self,
        results: Vec<RenderedCall>,
        reason: Option<EndReason>,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<AdvanceResult, Undecided> {
        let name = self.name;
        let now_ms = context.now_ms;
        if let Some(reason) = &reason {
            // A restart may have lost results. For one lease, workers may report these results.
            if let Some(due_ms) = lease_ends_ms(context, self.bounds) {
                let calls = if self.is_new { self.texts.as_slice() } else { &[] };
                begin_ending(transaction, name, self.turn, reason.clone(), calls, due_ms, now_ms);
                return Ok(AdvanceResult::Ended { reason: Some(reason.clone()) });
            }
            if !mutant!("end_waits_for_the_lease") {
                transaction.guard(Guard::Epoch { number: context.epoch, lease_ms: self.bounds.lease_ms });
            }
        }
        for section in self.sections {
            isolate(transaction, self.bounds, |own| section.add_to(name, &self.turn, own, view, context))?;
        }
        let frame = self.render.frame(name, &self.turn.head);
        let mut all = match self.turn.position {
            0 => Vec::new(),
            position => earlier_results(view, name, position, &frame)?,
        };
        let new_from = all.len();
        all.extend(results);
        let turn = &self.turn;
        let bounds = self.bounds;
        let results = all.as_slice();
        let ending = Ending {
            name,
            turn,
            results,
            new_from,
            reason: reason.clone(),
            debited: &[],
            frame: &frame,
            bounds,
            now_ms,
            pressure: context.pressure,
        };
        ending.add_to(transaction, view)?;
        Ok(AdvanceResult::Ended { reason })
    }

    const fn resumes(&self) -> bool {
        self.turn.debited > self.turn.position
    }

    fn plan(&self, view: &View, context: &Context) -> Result<AdmissionPlan, Undecided> {
        let Turn { position, place, debited, .. } = self.turn;
        let counter = match &self.turn.state {
            State::Throttled { counter, .. } => Some(counter),
            _ => None,
        };
        let evaluator = Evaluator {
            view,
            context,
            waits: counter.map(|counter| (counter, place)),
            is_exact: false,
            permits_only: self.resumes(),
            lease_ends_ms: lease_ends_ms(context, self.bounds),
        };
        let calls = if self.resumes() { (debited - position).min(self.calls.len()) } else { self.calls.len() };
        evaluator.plan(calls, |from| self.rules(from, calls))
    }

    /// Index 0 is the call at `turn.position`.
    fn rules(&self, from: usize, upto: usize) -> LimitDecision {
        let calls = self.calls.get(from..upto).unwrap_or_default();
        let rules = self.policy.rules(self.name, &self.turn.head, calls);
        let LimitDecision::Debits(debits) = rules else { return rules };
        let tenant = &self.name.tenant;
        let task = self.turn.head.task.as_ref().zip(self.budget);
        let task = task.map(|((task, _), budget)| task_debit(tenant, task, budget, calls.len()));
        let in_flight = in_flight_debit(tenant, self.bounds.tenant_in_flight_max, calls.len());
        LimitDecision::Debits(task.into_iter().chain(debits).chain([in_flight]).collect())
    }

    pub(super) fn guard_policy(&self, transaction: &mut Transaction) {
        let Generations { policy, settings } = self.policy.generations();
        if !mutant!("limits_guard_the_generation") {
            transaction.guard(Guard::Generation { policy, settings });
        }
    }

    fn refuse_all(
        self,
        refused: &[LimitRejection],
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<AdvanceResult, Undecided> {
        self.guard_policy(transaction);
        let recovered = self.recovered_calls(transaction, view, context)?;
        let mut results = Vec::new();
        let mut from = 0;
        for rejection in refused {
            guard_refusal(rejection, transaction);
            results.extend(self.rendered(from, from + rejection.calls, &rejection.reason, &recovered, context.now_ms));
            from += rejection.calls;
        }
        let reason = refused.last().map(|rejection| rejection.reason.clone());
        self.finish(results, reason, transaction, view, context)
    }

    fn refuse(
        &mut self,
        refused: &[LimitRejection],
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<Vec<RenderedCall>, Undecided> {
        let mut results = Vec::new();
        if refused.is_empty() {
            return Ok(results);
        }
        let recovered = self.recovered_calls(transaction, view, context)?;
        for rejection in refused {
            guard_refusal(rejection, transaction);
            let calls = rejection.calls.min(self.calls.len());
            results.extend(self.rendered(0, calls, &rejection.reason, &recovered, context.now_ms));
            self.calls.drain(..calls);
            self.texts.drain(..calls);
            self.turn.pass_calls(calls);
        }
        Ok(results)
    }

    /// Guards that the workers' reports about these calls are unchanged. Reports exist if a restart lost the dispatch.
    fn recovered_calls(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<RecoveredCallsView, Undecided> {
        let position = self.turn.position;
        let digest = &self.turn.head.digest;
        let mut recovered = recovered_calls(view, context, self.name, digest, position..position + self.calls.len())?;
        if mutant!("advance_reads_recovered_calls") {
            recovered.calls.clear();
        }
        transaction.guards.extend(recovered.guard.clone());
        Ok(recovered)
    }

    fn put_results(&self, results: &[RenderedCall], transaction: &mut Transaction, now_ms: i64) {
        let record = self.name.record();
        let first = self.turn.position - results.len();
        let entries = results.iter().map(|result| &result.audit);
        append_call_audits(transaction, entries, &self.turn, first, &[], self.bounds, now_ms);
        for (position, result) in (first..).zip(results) {
            transaction.write(Write::PutPart(record.clone(), parts::result(position), result.result.clone()));
            if !result.message.is_empty() {
                transaction.write(Write::PutPart(record.clone(), parts::message(position), result.message.clone()));
            }
            if self.turn.head.want_audits {
                transaction.write(Write::PutPart(record.clone(), parts::audit(position), result.audit.clone()));
            }
        }
        if !self.is_new && !results.is_empty() {
            let calls = (first..self.turn.position).map(parts::call).collect();
            transaction.write(Write::DeleteParts(record, calls));
        }
    }

    fn rendered(
        &self,
        from: usize,
        upto: usize,
        reason: &EndReason,
        recovered: &RecoveredCallsView,
        now_ms: i64,
    ) -> Vec<RenderedCall> {
        let render = |at: usize| {
            let position = self.turn.position + at;
            let call = self.calls.get(at);
            let recovered_call = recovered.calls.get(&position);
            if let Some(reported) = recovered_call.and_then(|recovered_call| recovered_call.result.as_ref()) {
                return reported.into();
            }
            let execution =
                if recovered_call.is_some() { ExecutionState::Begun } else { self.turn.execution_state(position) };
            self.render.ended(&EndedCall {
                name: self.name,
                turn: &self.turn,
                position,
                call,
                reason,
                execution,
                now_ms,
            })
        };
        (from..upto).map(render).collect()
    }

    fn dispatch(&mut self, calls: usize, debits: Vec<ConditionalDebit>, transaction: &mut Transaction, now_ms: i64) {
        if !mutant!("dispatch_before_the_deadline") {
            transaction.guard(Guard::Before(self.turn.head.deadline_ms));
        }
        self.leave_queue(transaction, None);
        let held = debits.iter().filter(|debit| debit.window == Window::Concurrency);
        self.turn.permits = held.map(|debit| (debit.counter.clone(), debit.amount)).collect();
        // At an admission, [`Note::Admitted`] needs the debited counters' states. A resumed slice has no such note.
        transaction.stamped = !self.resumes();
        if self.resumes() {
            self.turn.note(Note::Permits { at_ms: now_ms, calls, taken: true });
        } else {
            let limits = debits.iter().map(|debit| (debit.counter.clone(), debit.max)).collect();
            let amounts = match self.bounds.audit_admissions {
                // A limit in shadow mode allows any amount, so its debits are not noted.
                true => debits.iter().map(|debit| if debit.shadow { 0 } else { debit.amount }).collect(),
                false => Vec::new(),
            };
            self.turn.note(Note::Admitted { at_ms: now_ms, calls, limits, amounts, debited: Vec::new() });
            self.turn.debited = self.turn.position + calls;
        }
        if !mutant!("limits_guard_the_room") {
            transaction.guards.extend(debits.into_iter().map(Guard::Debit));
        }
        let texts: Vec<Bytes> = self.texts.iter().take(calls).cloned().collect();
        dispatch(transaction, self.name, &mut self.turn, &texts);
        transaction.timer(self.name.timer(), self.turn.head.deadline_ms, TimerRule::Earlier);
        if self.is_new {
            self.put_calls(calls, transaction);
        } else {
            let position = self.turn.position;
            let dispatched = (position..position + calls).map(parts::call).collect();
            transaction.write(Write::DeleteParts(self.name.record(), dispatched));
        }
    }

    /// The record of an existing turn already has the calls, so only a new turn stores them.
    fn put_calls(&self, from: usize, transaction: &mut Transaction) {
        if self.is_new {
            let left = self.texts.get(from..).unwrap_or_default();
            keep_calls(transaction, self.name, self.turn.position + from, left);
        }
    }

    fn waits_for(&self, other: &CounterKey) -> bool {
        matches!(&self.turn.state, State::Throttled { counter, .. } if counter == other)
    }

    fn leave_queue(&self, transaction: &mut Transaction, stays: Option<&CounterKey>) {
        if let State::Throttled { counter, .. } = &self.turn.state
            && stays != Some(counter)
        {
            transaction.write(leave_queue(self.name, counter));
        }
    }
}

#[must_use]
pub fn leave_queue(name: &TurnName, counter: &CounterKey) -> Write {
    Write::RemoveMember {
        set: keys::throttle_queue(counter),
        member: name.to_string().into(),
        queue_of: Some(counter.clone()),
    }
}

/// `None` if the first lease after the last restart is over, or if the store never restarted.
#[must_use]
pub fn lease_ends_ms(context: &Context, bounds: &Bounds) -> Option<i64> {
    let ends_ms = context.epoch_began_ms.saturating_add(bounds.lease_ms);
    (context.epoch_began_ms > 0 && context.now_ms < ends_ms).then_some(ends_ms)
}

/// Guards that the counter's window has not ended, because the refusal is valid only until then.
fn guard_refusal(rejection: &LimitRejection, transaction: &mut Transaction) {
    if let Some(until_ms) = rejection.until_ms {
        transaction.guard(Guard::Before(until_ms));
    }
}
