//! Handles a turn's due timer. `resume` dispatches waiting calls, and `expire` ends turns that no worker holds.

use std::fmt;
use std::sync::Arc;

use super::end::Render;
use super::state::{Destination, EndReason, State, Turn};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::record::Stored;
use crate::task::cancel::cancel_of;
use crate::transaction::{Guard, TimerRule, Transaction, Write};
use crate::view::{Query, Undecided, View};

/// Cleans up when a turn ends without a worker: for example, closes an open approval.
pub trait EndSection: Sync {
    fn add_to(
        &self,
        name: &TurnName,
        turn: &Turn,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<(), Undecided>;
}

#[derive(Clone, Copy)]
pub struct Due<'a> {
    pub name: &'a TurnName,
    pub render: &'a dyn Render,
    pub sections: &'a [&'a dyn EndSection],
    pub bounds: &'a Bounds,
}

impl fmt::Debug for Due<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Due({})", self.name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DueResult {
    Gone,
    /// The time (ms) of the next check.
    Later(i64),
    Dispatched,
    /// The turn must acquire its returned permits again.
    Throttled,
    /// The holder's consumer name. The holder's next heartbeat brings the cancel notice.
    Noticed(Arc<str>),
    /// The turn ends at this time (ms). Until then, workers may report results.
    Ending(i64),
    Ended,
    /// [`crate::task::external::HandleLeaseTimer`] must handle the timer. Nothing was written.
    External,
}

impl Decision for Due<'_> {
    type Output = DueResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record()), Query::Record(self.name.cancellation())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<DueResult>, Undecided> {
        let name = self.name;
        let record = self.name.record();
        let mut transaction = Transaction::new(context.version.clone());
        let Some(stored) = view.record::<Turn>(&record)? else {
            transaction.guard(Guard::Absent(record)).write(Write::ClearTimer(name.timer().into()));
            return Ok(Step::Commit(transaction, DueResult::Gone));
        };
        if !mutant!("due_guards_the_version") {
            transaction.guard(Guard::Version(record, stored.version.clone()));
        }
        // Without this guard, the decision could postpone the timer of a concurrent cancellation, and lose the
        // cancellation.
        let cancel = cancel_of(view, self.name, stored.value.admitted_ms)?;
        if !mutant!("due_guards_the_cancellation") {
            transaction.guard(cancel.guard);
        }
        let canceled = cancel.reason;
        let mut case = Case { due: self, stored: &stored, canceled, view, context, transaction };
        let fired = case.decide()?;
        Ok(if fired == DueResult::External { Step::Return(fired) } else { Step::Commit(case.transaction, fired) })
    }
}

pub(super) struct Case<'a> {
    pub due: &'a Due<'a>,
    pub stored: &'a Stored<Turn>,
    pub canceled: Option<String>,
    pub view: &'a View,
    pub context: &'a Context,
    pub transaction: Transaction,
}

impl Case<'_> {
    fn decide(&mut self) -> Result<DueResult, Undecided> {
        let turn = &self.stored.value;
        let is_external =
            matches!(turn.destination, Destination::External { .. }) && turn.state.in_flight_upto().is_some();
        if is_external {
            return Ok(DueResult::External);
        }
        if let State::Ending { reason, due_ms } = &turn.state {
            return if self.is_past(*due_ms) {
                self.end(reason.clone(), turn.clone())
            } else {
                Ok(self.later(*due_ms))
            };
        }
        if let Some(reason) = self.end_reason() {
            return self.expire(reason);
        }
        let deadline_ms = turn.head.deadline_ms;
        match &turn.state {
            State::Retrying { upto, due_ms } => {
                if self.is_past(*due_ms) {
                    self.resume(*upto)
                } else {
                    Ok(self.later(*due_ms))
                }
            }
            State::Waiting { upto, .. } => self.resume(*upto),
            State::Throttled { .. } | State::Ready { .. } | State::Running { .. } | State::Ending { .. } => {
                Ok(self.later(deadline_ms))
            }
        }
    }

    fn end_reason(&mut self) -> Option<EndReason> {
        if self.canceled.is_some() {
            return Some(EndReason::Canceled);
        }
        self.is_past(self.stored.value.head.deadline_ms).then_some(EndReason::Expired)
    }

    /// Also guards that the store's clock has passed `time_ms`.
    fn is_past(&mut self, time_ms: i64) -> bool {
        let is_past = time_ms <= self.context.now_ms;
        if is_past && !mutant!("due_guards_the_time") {
            self.transaction.guard(Guard::Since(time_ms));
        }
        is_past
    }

    pub(super) fn later(&mut self, due_ms: i64) -> DueResult {
        self.transaction.timer(self.due.name.timer(), due_ms, TimerRule::Set);
        DueResult::Later(due_ms)
    }
}
