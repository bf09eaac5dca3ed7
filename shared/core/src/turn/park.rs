//! Parks a slice while its next call waits, to free the worker's slot.

use super::end::return_permits;
use super::holder;
use super::parked::join_parked;
use super::slice::Slice;
use super::state::{Note, State, Turn, WaitReason};
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::section::{self, Section};
use crate::task::cancel::cancel_of;
use crate::transaction::{Guard, RecordKey, TimerRule, Transaction};
use crate::view::{Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParkReason {
    Retry {
        attempts: u32,
        delay_ms: i64,
        cause: String,
        /// If true, the record still states that the call has begun. The next holder then asks the tool for the
        /// outcome.
        keeps_begun: bool,
    },
    Wait {
        reason: WaitReason,
        /// Maximum wait (ms) without a wake-up.
        most_ms: i64,
        /// True if the call began work outside its turn. The work continues during the wait.
        has_begun: bool,
        /// Only for [`WaitReason::Breaker`].
        cause: String,
    },
}

#[derive(Clone, Copy)]
pub struct Park<'a> {
    pub slice: &'a Slice,
    pub reason: &'a ParkReason,
    /// True if read-only calls may have run in parallel without recorded results. After a restart of the store, another
    /// worker may have read the slice too.
    pub had_parallel_reads: bool,
    /// If one of these guards fails, the wait is over, and the call continues at once. Only guards on records are
    /// allowed.
    pub waits_while: &'a [Guard],
    pub sections: &'a [&'a dyn Section],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkResult {
    /// The timer is due at this time (ms).
    Until(i64),
    /// The holder must settle the turn. Nothing was written.
    Canceled,
    /// The caller no longer holds the slice. Nothing was written.
    Stale,
}

impl Decision for Park<'_> {
    type Output = ParkResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<ParkResult>, Undecided> {
        let slice = self.slice;
        let name = &self.slice.name;
        if holder::is_stale(slice, context) {
            return Ok(Step::Return(ParkResult::Stale));
        }
        let mut transaction = Transaction::new(context.version.clone());
        holder::guard_version(&mut transaction, slice);
        let cancel = cancel_of(view, name, slice.turn.admitted_ms)?;
        if cancel.reason.is_some() {
            return Ok(Step::Return(ParkResult::Canceled));
        }
        transaction.guard(cancel.guard);
        let has_ended = self.guard_wait(&mut transaction, context);
        section::add_all(self.sections, &mut transaction, view, context)?;
        let due_ms = self.write(&mut transaction, context.now_ms, has_ended);
        holder::acknowledge(&mut transaction, slice, context);
        Ok(Step::Commit(transaction, ParkResult::Until(due_ms)))
    }
}

impl Park<'_> {
    /// Guards that the wait is not over yet. Otherwise a wake-up before the park would be lost. Returns true if an
    /// earlier attempt failed on one of these guards.
    fn guard_wait(&self, transaction: &mut Transaction, context: &Context) -> bool {
        let mut guards = self.waits_while.to_vec();
        if let ParkReason::Wait { reason, .. } = self.reason {
            guards.extend(awaited(&self.slice.name, reason).map(|turn| Guard::Absent(turn.finished())));
        }
        if guards.iter().filter_map(guarded_record).any(|record| holder::has_changed(record, context)) {
            return true;
        }
        if !mutant!("park_guards_what_it_waits_for") {
            transaction.guards.extend(guards);
        }
        false
    }

    fn write(&self, transaction: &mut Transaction, now_ms: i64, has_ended: bool) -> i64 {
        let slice = self.slice;
        let name = &self.slice.name;
        let mut turn = slice.turn.clone();
        turn.entry = None;
        turn.may_have_run |= self.had_parallel_reads;
        let delay_ms = match self.reason {
            ParkReason::Retry { delay_ms, .. } => *delay_ms,
            ParkReason::Wait { .. } if has_ended => 0,
            ParkReason::Wait { most_ms, .. } => *most_ms,
        };
        let due_ms = turn.head.deadline_ms.min(now_ms + delay_ms);
        let mut upto = turn.position + slice.calls.len();
        turn.state = match self.reason {
            ParkReason::Retry { attempts, delay_ms, cause, keeps_begun } => {
                turn.retry(*attempts, *keeps_begun);
                let position = turn.position;
                let attempt = if *keeps_begun { 0 } else { *attempts };
                let delay_ms = *delay_ms;
                let cause = cause.clone();
                turn.note(Note::Failed { at_ms: now_ms, position, attempt, delay_ms, cause });
                State::Retrying { upto, due_ms }
            }
            ParkReason::Wait { reason, has_begun, cause, .. } => {
                turn.wait(reason, *has_begun);
                if let Some(since_ms) = reason.unavailable_since_ms() {
                    turn.note_unavailable(since_ms, due_ms, cause);
                }
                let is_idle = !has_begun && !has_ended && reason.is_for_others();
                if is_idle && !turn.permits.is_empty() {
                    return_permits(transaction, &turn, now_ms);
                    turn.permits.clear();
                    turn.note(Note::Permits { at_ms: now_ms, calls: slice.calls.len(), taken: false });
                    upto = turn.position;
                }
                State::Waiting { upto, reason: reason.clone(), due_ms }
            }
        };
        holder::keep_calls(transaction, name, turn.position, &holder::texts(&slice.calls));
        transaction.put(&name.record(), &turn);
        transaction.timer(name.timer(), due_ms, TimerRule::Earlier);
        join_parked(transaction, name, &turn, now_ms);
        if slice.turn.is_in_flight() {
            holder::count_in_flight(transaction, name, -1);
        }
        transaction.dedupe_record = Some(name.record());
        due_ms
    }
}

impl Turn {
    fn retry(&mut self, attempts: u32, keeps_begun: bool) {
        self.attempts = attempts;
        if !keeps_begun {
            self.retries += 1;
            self.forget_begun();
            self.local = None;
        }
    }

    /// A call at a later position stays begun if an earlier holder began it.
    fn forget_begun(&mut self) {
        self.begun = self.begun.take().filter(|begun| begun.position > self.position);
    }

    /// Work outside the turn is progress of the slice, so earlier crashes no longer count.
    fn wait(&mut self, reason: &WaitReason, has_begun: bool) {
        if has_begun {
            self.may_have_run |= self.crashes > 0;
            self.clear_suspicion();
            self.forget_begun();
            self.attempts = 0;
            self.began_child = true;
        } else if reason.is_for_others() {
            // The session's facts are checked again when the call continues.
            self.session = None;
        }
        if let WaitReason::Approval { approval } = reason {
            self.approval = Some(approval.clone());
        }
    }

    /// Consecutive waits with the same cause share one note.
    fn note_unavailable(&mut self, since_ms: i64, until: i64, why: &str) {
        let next = self.position;
        if let Some(Note::ToolUnavailable { position, times, until_ms, cause, .. }) = self.notes.last_mut()
            && *position == next
            && cause == why
        {
            *times += 1;
            *until_ms = until;
            return;
        }
        self.note(Note::ToolUnavailable {
            at_ms: since_ms,
            position: next,
            times: 1,
            until_ms: until,
            cause: why.to_owned(),
        });
    }

    /// Start (ms) of the wait, if the last note is a wait of the next call with this cause. Otherwise `None`.
    #[must_use]
    pub fn unavailable_since(&self, why: &str) -> Option<i64> {
        match self.notes.last() {
            Some(Note::ToolUnavailable { at_ms, position, cause, .. })
                if *position == self.position && cause == why =>
            {
                Some(*at_ms)
            }
            _ => None,
        }
    }
}

fn awaited(name: &TurnName, reason: &WaitReason) -> Option<TurnName> {
    reason.awaits().map(|turn| TurnName { tenant: name.tenant.clone(), turn: turn.clone() })
}

const fn guarded_record(guard: &Guard) -> Option<&RecordKey> {
    match guard {
        Guard::Version(record, _) | Guard::Absent(record) | Guard::Present(record) => Some(record),
        _ => None,
    }
}
