//! Requeues a slice that its holder does not run.

use std::time::Duration;

use tickfleet_model::RejectionCode;
use tickfleet_model::retry::DoublingDelay;

use super::expire::begin_ending;
use super::holder;
use super::parked::join_parked;
use super::slice::{Slice, dispatch, fields, last_calls};
use super::state::{EndReason, State, Turn, WaitReason};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::record::Stored;
use crate::recovery::reap::{HeldEntry, dead_letter};
use crate::transaction::{Conflict, EntryId, Guard, TimerRule, Transaction};
use crate::view::{Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequeueReason {
    /// The next call was never sent, but may be recorded as begun.
    Unsent {
        /// The holder's nonce, see [`super::Begun::by`]. `None` if the holder recorded no call as begun.
        nonce: Option<String>,
    },
    Interrupted,
    /// Parallel `read` calls were interrupted. After a restart of the store, another worker may also have run `read`
    /// calls of the slice.
    ParallelReads,
    /// The holder never received the slice, or a restart of the store lost the slice's end.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
pub struct RequeueSlice<'a> {
    pub slice: &'a Slice,
    pub reason: &'a RequeueReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequeueResult {
    Redelivered,
    /// The slice is offered again at this time (ms).
    Waits(i64),
    Ends,
    Stale,
}

impl Decision for RequeueSlice<'_> {
    type Output = RequeueResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<RequeueResult>, Undecided> {
        let slice = self.slice;
        let mut transaction = Transaction::new(context.version.clone());
        if !holder::is_stale(slice, context) {
            holder::guard_version(&mut transaction, slice);
            if *self.reason == RequeueReason::Unknown {
                guard_restart(&mut transaction, context);
            }
            self.redeliver(&mut transaction, slice.turn.clone(), context);
            return Ok(Step::Commit(transaction, RequeueResult::Redelivered));
        }
        if *self.reason != RequeueReason::Unknown || context.failed(|conflict| *conflict == Conflict::NotHeld) {
            return Ok(Step::Return(RequeueResult::Stale));
        }
        // The holder does not run the slice, so the stored record is redelivered.
        let Some(stored) = slice_of_entry(view, &slice.name, &slice.entry)? else {
            transaction.guard(Guard::Held(slice.queue.clone(), slice.entry.clone()));
            return Ok(Step::Commit(transaction, RequeueResult::Stale));
        };
        transaction.guard(Guard::Version(slice.name.record(), stored.version));
        // The store lost the holder's read. A second holder then read the entry too, and wrote this record.
        let turn = Turn { may_have_run: true, ..stored.value };
        self.redeliver(&mut transaction, turn, context);
        Ok(Step::Commit(transaction, RequeueResult::Redelivered))
    }
}

impl RequeueSlice<'_> {
    fn redeliver(&self, transaction: &mut Transaction, mut turn: Turn, context: &Context) {
        let slice = self.slice;
        turn.requeue(self.reason, context);
        let done = turn.position.saturating_sub(slice.turn.position).min(slice.calls.len());
        let calls = holder::texts(slice.calls.get(done..).unwrap_or_default());
        dispatch(transaction, &slice.name, &mut turn, &calls);
        transaction.dedupe_record = Some(slice.name.record());
        holder::acknowledge(transaction, slice, context);
    }
}

/// Guards that the store does not restart again. Otherwise calls of the slice might have run on another worker.
fn guard_restart(transaction: &mut Transaction, context: &Context) {
    if !mutant!("requeue_guards_the_epoch") {
        transaction.guard(Guard::Epoch { number: context.epoch, lease_ms: 0 });
    }
}

/// `None` if the turn's slice is not in this entry. The holder must then remove the entry.
fn slice_of_entry(view: &View, name: &TurnName, entry: &EntryId) -> Result<Option<Stored<Turn>>, Undecided> {
    Ok(view.record::<Turn>(&name.record())?.filter(|stored| stored.in_flight_entry() == Some(entry)))
}

impl Turn {
    const fn is_from_before_restart(&self, context: &Context) -> bool {
        context.epoch_began_ms > 0 && self.admitted_ms <= context.epoch_began_ms
    }

    fn requeue(&mut self, reason: &RequeueReason, context: &Context) {
        match reason {
            // A call stays begun if an earlier holder began it.
            RequeueReason::Unsent { nonce } => {
                let is_own = |by: &str| nonce.as_deref() == Some(by);
                self.begun = self.begun.take().filter(|begun| !is_own(&begun.by));
            }
            RequeueReason::Interrupted => self.attempts += 1,
            RequeueReason::ParallelReads => self.may_have_run = true,
            // A restart of the store may have lost the write that ended the slice.
            RequeueReason::Unknown => self.may_have_run |= self.is_from_before_restart(context),
        }
    }
}

/// The delay lets a worker of another build take the slice. Each failed attempt doubles the delay.
#[derive(Debug, Clone, Copy)]
pub struct RequeueUnreadable<'a> {
    pub entry: &'a HeldEntry,
    /// For an entry without a turn, see [`DeadLetterStrayEntry`].
    pub name: &'a TurnName,
    /// The turn ends after this many failed attempts to read its slices.
    pub attempts_max: u32,
}

const READER_DELAY: DoublingDelay = DoublingDelay::new(Duration::from_secs(1), Duration::from_secs(24 * 3_600));

impl Decision for RequeueUnreadable<'_> {
    type Output = RequeueResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<RequeueResult>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        if context.failed(|conflict| *conflict == Conflict::NotHeld) {
            return Ok(Step::Return(RequeueResult::Stale));
        }
        let requeued = match slice_of_entry(view, self.name, &self.entry.entry)? {
            Some(stored) => {
                transaction.guard(Guard::Version(self.name.record(), stored.version.clone()));
                guard_restart(&mut transaction, context);
                self.park(&mut transaction, stored, context)
            }
            None => RequeueResult::Stale,
        };
        transaction.guard(self.entry.is_held());
        Ok(Step::Commit(transaction, requeued))
    }
}

impl RequeueUnreadable<'_> {
    fn park(&self, transaction: &mut Transaction, stored: Stored<Turn>, context: &Context) -> RequeueResult {
        let name = self.name;
        let now_ms = context.now_ms;
        let mut turn = stored.value;
        // The record is newer than the entry: an earlier holder wrote the record, and the store lost that holder's
        // read.
        let is_taken_twice = self.entry.text(fields::VERSION) != Some(stored.version.as_str());
        turn.may_have_run |= is_taken_twice || turn.is_from_before_restart(context);
        turn.unreadable += 1;
        let upto = turn.state.in_flight_upto().unwrap_or(turn.position);
        let calls = last_calls(&self.entry.fields, upto - turn.position);
        if turn.unreadable >= self.attempts_max {
            let reason = EndReason::Quarantined { crashes: turn.crashes };
            begin_ending(transaction, name, turn, reason, &calls, now_ms, now_ms);
            return RequeueResult::Ends;
        }
        let attempts = turn.unreadable;
        let delay_ms = i64::try_from(READER_DELAY.after(attempts - 1).as_millis()).unwrap_or(i64::MAX);
        let due_ms = turn.head.deadline_ms.min(now_ms.saturating_add(delay_ms));
        turn.entry = None;
        holder::keep_calls(transaction, name, turn.position, &calls);
        turn.state = State::Waiting { upto, reason: WaitReason::Reader { attempts }, due_ms };
        transaction.put(&name.record(), &turn);
        transaction.timer(name.timer(), due_ms, TimerRule::Earlier);
        join_parked(transaction, name, &turn, now_ms);
        holder::count_in_flight(transaction, name, -1);
        RequeueResult::Waits(due_ms)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct DeadLetterStrayEntry<'a> {
    pub entry: &'a HeldEntry,
    pub why: &'a str,
    pub bounds: &'a Bounds,
}

impl Decision for DeadLetterStrayEntry<'_> {
    type Output = bool;

    fn decide(&self, _: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        if context.failed(|conflict| *conflict == Conflict::NotHeld) {
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        dead_letter(&mut transaction, self.entry, RejectionCode::Unreadable, self.why, self.bounds);
        transaction.guard(self.entry.is_held());
        Ok(Step::Commit(transaction, true))
    }
}

impl HeldEntry {
    /// A guard that the entry is held. If all guards hold, the store also removes the entry.
    fn is_held(&self) -> Guard {
        Guard::Held(self.queue.clone(), self.entry.clone())
    }
}
