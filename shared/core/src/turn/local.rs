//! Calls of local tools. If the fleet allows the call ([`Offer`]), the function runs in the caller's process, and the
//! process's report ([`Conclude`]) brings the slice back to the workers. A call that a process has taken is never
//! reported as not run.

use bytes::Bytes;
use tickfleet_model::Conclusion;

use super::end::RUNTIME;
use super::holder;
use super::slice::{Slice, calls_of, dispatch, offer};
use super::state::{Begun, Destination, LocalCall, Turn};
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::record::Stored;
use crate::task::cancel::cancel_of;
use crate::transaction::{Conflict, EntryId, Guard, StreamKey, TimerRule, Transaction, Write};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    pub slice: &'a Slice,
    pub note: &'a str,
    /// JSON.
    pub message: &'a str,
    pub lease_ms: i64,
    /// True if read-only calls of this slice may have run in parallel without recorded results.
    pub had_parallel_reads: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferResult {
    Offered,
    /// The holder must settle the turn. Nothing was written.
    Canceled,
    /// The caller no longer holds the slice. Nothing was written.
    Stale,
}

impl Decision for Offer<'_> {
    type Output = OfferResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<OfferResult>, Undecided> {
        let slice = self.slice;
        let name = &slice.name;
        if holder::is_stale(slice, context) {
            return Ok(Step::Return(OfferResult::Stale));
        }
        let Destination::Workers(priority) = slice.turn.destination else {
            return Ok(Step::Return(OfferResult::Stale));
        };
        let mut transaction = Transaction::new(context.version.clone());
        holder::guard_version(&mut transaction, slice);
        let cancel = cancel_of(view, name, slice.turn.admitted_ms)?;
        if cancel.reason.is_some() {
            return Ok(Step::Return(OfferResult::Canceled));
        }
        transaction.guard(cancel.guard);
        let mut turn = slice.turn.clone();
        turn.may_have_run |= self.had_parallel_reads || turn.crashes > 0;
        turn.clear_suspicion();
        turn.destination = Destination::External { lease_ms: self.lease_ms };
        turn.local = Some(LocalCall {
            turn: name.turn.clone(),
            priority,
            offered_ms: context.now_ms,
            renewed_ms: 0,
            note: self.note.to_owned(),
            conclusion: None,
            took_ms: 0,
        });
        offer(
            &mut transaction,
            name,
            &mut turn,
            Bytes::copy_from_slice(self.message.as_bytes()),
            &holder::texts(&slice.calls),
        );
        let due_ms = turn.head.deadline_ms.min(context.now_ms + self.lease_ms);
        transaction.timer(name.timer(), due_ms, TimerRule::Earlier);
        if slice.turn.is_in_flight() {
            holder::count_in_flight(&mut transaction, name, -1);
        }
        transaction.dedupe_record = Some(name.record());
        holder::acknowledge(&mut transaction, slice, context);
        Ok(Step::Commit(transaction, OfferResult::Offered))
    }
}

#[derive(Debug, Clone)]
pub struct Conclude {
    pub name: TurnName,
    pub entry: EntryId,
    pub conclusion: Conclusion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concluded {
    Accepted,
    /// The process no longer holds the call, or has concluded the call before. Nothing was written.
    Stale,
}

impl Decision for Conclude {
    type Output = Concluded;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Concluded>, Undecided> {
        let Some(stored) = view.record::<Turn>(&self.name.record())? else {
            return Ok(Step::Return(Concluded::Stale));
        };
        if !stored.value.is_offered() || stored.in_flight_entry() != Some(&self.entry) {
            return Ok(Step::Return(Concluded::Stale));
        }
        let queue = stored.value.queue(&self.name.tenant);
        let calls = calls_of(view.entry(&queue, &self.entry)?);
        let mut transaction = Transaction::new(context.version.clone());
        if !mutant!("conclude_guards_the_version") {
            transaction.guard(Guard::Version(self.name.record(), stored.version.clone()));
        }
        let held = !context.failed(|conflict| *conflict == Conflict::NotHeld);
        let ended = LocalEnd { name: &self.name, stored, queue, entry: &self.entry, calls: &calls };
        ended.requeue_concluded(&mut transaction, self.conclusion.clone(), held, context.now_ms);
        Ok(Step::Commit(transaction, Concluded::Accepted))
    }
}

pub(crate) struct LocalEnd<'a> {
    pub name: &'a TurnName,
    pub stored: Stored<Turn>,
    pub queue: StreamKey,
    pub entry: &'a EntryId,
    pub calls: &'a [Bytes],
}

impl LocalEnd<'_> {
    /// The caller must guard the record's version. If `held` is true, the transaction also guards that the process
    /// still holds the entry.
    pub(crate) fn requeue_concluded(
        self,
        transaction: &mut Transaction,
        conclusion: Conclusion,
        held: bool,
        now_ms: i64,
    ) {
        let mut turn = self.stored.value;
        let (Some(local), Destination::External { lease_ms }) = (&mut turn.local, &turn.destination) else { return };
        // For one lease, the function's result takes precedence over a cancellation or the deadline.
        let due_ms = now_ms + lease_ms;
        local.took_ms = (now_ms - local.offered_ms).max(0);
        local.conclusion = Some(conclusion);
        turn.destination = Destination::Workers(local.priority);
        // The turn may end before a worker reads the conclusion, and must not report that the call did not run.
        if !mutant!("a_concluded_call_has_begun") {
            turn.begun = Some(Begun::new(turn.position, RUNTIME));
        }
        turn.clear_suspicion();
        dispatch(transaction, self.name, &mut turn, self.calls);
        holder::count_in_flight(transaction, self.name, 1);
        transaction.timer(self.name.timer(), due_ms, TimerRule::Set);
        transaction.write(Write::DropQueue(self.queue.clone()));
        transaction.dedupe_record = Some(self.name.record());
        if held {
            transaction.guard(Guard::Held(self.queue, self.entry.clone()));
        }
    }
}

impl Turn {
    #[must_use]
    pub fn is_offered(&self) -> bool {
        self.local.as_ref().is_some_and(|local| local.conclusion.is_none()) && !self.is_for_workers()
    }

    #[must_use]
    pub fn concluded(&self) -> Option<(&LocalCall, &Conclusion)> {
        let local = self.local.as_ref()?;
        Some((local, local.conclusion.as_ref()?))
    }

    /// 0 if unknown.
    #[must_use]
    pub(crate) fn renewed_ms(&self) -> i64 {
        match (&self.local, &self.task) {
            (Some(local), _) => local.renewed_ms,
            (None, Some(task)) => task.renewed_ms,
            (None, None) => 0,
        }
    }

    pub(crate) fn set_renewed(&mut self, at_ms: i64) {
        match (&mut self.local, &mut self.task) {
            (Some(local), _) => local.renewed_ms = at_ms,
            (None, Some(task)) => task.renewed_ms = at_ms,
            (None, None) => {}
        }
    }
}
