//! Ends an expired or canceled turn that no worker holds.

use bytes::Bytes;
use tickfleet_model::Call;

use super::due::{Case, DueResult};
use super::end::{EndedCall, Ending, ExecutionState, RenderedCall, leave_waits, parts};
use super::holder;
use super::settle::earlier_results;
use super::slice::last_calls;
use super::state::{EndReason, State, Turn};
use crate::keys::TurnName;
use crate::mutant;
use crate::recovery::epoch::recovered_calls;
use crate::section::isolate;
use crate::transaction::{Conflict, EntryId, Guard, StreamKey, TimerRule, Transaction, Write};
use crate::view::Undecided;
use crate::workers::notify_cancel;

impl Case<'_> {
    pub(super) fn expire(&mut self, reason: EndReason) -> Result<DueResult, Undecided> {
        let mut turn = self.stored.value.clone();
        turn.canceled.clone_from(&self.canceled);
        if turn.state.in_flight_upto().is_none() {
            return self.end(reason, turn);
        }
        let queue = turn.queue(&self.due.name.tenant);
        // A later conflict may mean that the record names another entry, so only the last conflict counts.
        let was_read = self.context.conflicts.last() == Some(&Conflict::Read);
        match self.stored.in_flight_entry() {
            Some(entry) if !was_read => {
                if !mutant!("expire_guards_that_nobody_has_read") {
                    self.transaction.guard(Guard::Unread(queue.clone(), entry.clone()));
                }
                self.transaction.write(Write::Remove(queue, entry.clone()));
                // Only a holder writes `entry`. The entry is unread, so a restart lost the holder's read, and calls may
                // have run.
                turn.may_have_run |= turn.entry.is_some();
            }
            Some(entry) => {
                if let Some(consumer) = self.view.holder(&queue, entry)? {
                    return Ok(self.notify(&consumer));
                }
                self.lose(&mut turn, &queue, entry);
            }
            None => turn.may_have_run = true,
        }
        self.end(reason, turn)
    }

    /// The next heartbeat brings the notice to the holder. The holder itself tracks the deadline.
    fn notify(&mut self, consumer: &std::sync::Arc<str>) -> DueResult {
        let name = self.due.name;
        let now_ms = self.context.now_ms;
        let again_ms = now_ms + self.due.bounds.lease_ms;
        if self.canceled.is_none() {
            return self.later(again_ms);
        }
        notify_cancel(name, consumer, now_ms, &mut self.transaction);
        self.transaction.timer(name.timer(), again_ms, TimerRule::Set);
        DueResult::Noticed(consumer.clone())
    }

    /// A consumer read the slice before, and may have run calls.
    fn lose(&mut self, turn: &mut Turn, queue: &StreamKey, entry: &EntryId) {
        turn.may_have_run = true;
        self.transaction.write(Write::Remove(queue.clone(), entry.clone()));
    }

    /// For one lease after a restart of the store, the turn does not end.
    pub(super) fn end(&mut self, reason: EndReason, turn: Turn) -> Result<DueResult, Undecided> {
        let due = self.due;
        let now_ms = self.context.now_ms;
        let calls = self.remaining_calls()?;
        let reported_ms = match self.context.epoch_began_ms {
            0 => 0,
            began_ms => began_ms + due.bounds.lease_ms,
        };
        if now_ms < reported_ms {
            if matches!(turn.state, State::Ending { .. }) {
                return Ok(self.later(reported_ms));
            }
            let kept = calls.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
            begin_ending(&mut self.transaction, due.name, turn, reason, &kept, reported_ms, now_ms);
            return Ok(DueResult::Ending(reported_ms));
        }
        if !mutant!("end_guards_the_epoch") {
            let number = self.context.epoch;
            let lease_ms = due.bounds.lease_ms;
            self.transaction.guard(Guard::Epoch { number, lease_ms });
        }
        self.finish(&reason, &turn, &calls)?;
        Ok(DueResult::Ended)
    }

    fn finish(&mut self, reason: &EndReason, turn: &Turn, calls: &[Option<Bytes>]) -> Result<(), Undecided> {
        let due = self.due;
        let name = self.due.name;
        let now_ms = self.context.now_ms;
        let frame = due.render.frame(name, &turn.head);
        let mut results = earlier_results(self.view, name, turn.position, &frame)?;
        let digest = &turn.head.digest;
        let recovered = recovered_calls(self.view, self.context, name, digest, turn.position..turn.head.calls)?;
        self.transaction.guards.extend(recovered.guard);
        for (position, call) in (turn.position..).zip(calls) {
            // A result that a worker reported after a restart takes precedence over the turn's record.
            let recovered_call = recovered.calls.get(&position);
            let reported =
                recovered_call.and_then(|recovered_call| recovered_call.result.as_ref()).map(RenderedCall::from);
            let result =
                reported.unwrap_or_else(|| self.ended(turn, position, call.as_ref(), reason, recovered_call.is_some()));
            results.push(result);
        }
        for section in due.sections {
            let view = self.view;
            let context = self.context;
            isolate(&mut self.transaction, due.bounds, |own| section.add_to(name, turn, own, view, context))?;
        }
        if self.canceled.is_some() || turn.canceled.is_some() {
            self.transaction.write(Write::Delete(name.cancellation()));
        }
        let ending = Ending {
            name,
            turn,
            results: &results,
            new_from: turn.position,
            reason: Some(reason.clone()),
            debited: &[],
            frame: &frame,
            bounds: due.bounds,
            now_ms,
            pressure: self.context.pressure,
        };
        ending.add_to(&mut self.transaction, self.view)
    }

    fn ended(
        &self,
        turn: &Turn,
        position: usize,
        call: Option<&Bytes>,
        reason: &EndReason,
        is_recovered: bool,
    ) -> RenderedCall {
        let call: Option<Call> = call.and_then(|text| serde_json::from_slice(text).ok());
        let execution = if is_recovered { ExecutionState::Begun } else { turn.execution_state(position) };
        let name = self.due.name;
        let now_ms = self.context.now_ms;
        self.due.render.ended(&EndedCall { name, turn, position, call: call.as_ref(), reason, execution, now_ms })
    }

    /// `None` stands for a lost call.
    fn remaining_calls(&self) -> Result<Vec<Option<Bytes>>, Undecided> {
        let name = self.due.name;
        let turn = &self.stored.value;
        let names = (turn.position..turn.head.calls).map(parts::call).collect();
        let mut calls = self.view.parts(&name.record(), names)?.to_vec();
        let (Some(upto), Some(entry)) = (turn.state.in_flight_upto(), self.stored.in_flight_entry()) else {
            return Ok(calls);
        };
        let Some(entry) = self.view.entry(&turn.queue(&name.tenant), entry)? else { return Ok(calls) };
        let in_flight = upto - turn.position;
        let in_slice = last_calls(entry, in_flight);
        for (slot, call) in calls.iter_mut().skip(in_flight - in_slice.len()).zip(in_slice) {
            *slot = Some(call);
        }
        Ok(calls)
    }
}

/// `calls` start at the turn's position and are not stored yet. The caller has guarded the version and removed the
/// slice.
pub(crate) fn begin_ending(
    transaction: &mut Transaction,
    name: &TurnName,
    mut turn: Turn,
    reason: EndReason,
    calls: &[Bytes],
    due_ms: i64,
    now_ms: i64,
) {
    leave_waits(transaction, name, &turn, now_ms);
    turn.permits.clear();
    if turn.is_in_flight() {
        holder::count_in_flight(transaction, name, -1);
    }
    turn.entry = None;
    turn.state = State::Ending { reason, due_ms };
    holder::keep_calls(transaction, name, turn.position, calls);
    transaction.put(&name.record(), &turn);
    transaction.timer(name.timer(), due_ms, TimerRule::Set);
}
