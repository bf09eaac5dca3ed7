//! An external runtime takes a task from its agent's queue, and renews the task's lease with heartbeats. If no
//! heartbeat arrives during one lease, the task is offered again. A task that a runtime took is never reported as not
//! run.

use tickfleet_model::{AgentId, Conclusion};

use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::Stored;
use crate::task::cancel::cancel_of;
use crate::transaction::{Conflict, EntryId, Guard, StreamKey, TimerRule, Transaction, Write};
use crate::turn::end::RUNTIME;
use crate::turn::expire::begin_ending;
use crate::turn::local::LocalEnd;
use crate::turn::slice::{Slice, calls_of, dispatch};
use crate::turn::state::EndReason;
use crate::turn::{Begun, Destination, Suspect, Turn};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone)]
pub struct RenewTaskLease {
    pub name: TurnName,
    pub entry: EntryId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewTaskLeaseResult {
    Renewed,
    /// The task was canceled, or is past its deadline.
    Over,
    Stale,
}

impl Decision for RenewTaskLease {
    type Output = RenewTaskLeaseResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record()), Query::Record(self.name.cancellation())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<RenewTaskLeaseResult>, Undecided> {
        let Some(stored) = view.record::<Turn>(&self.name.record())? else {
            return Ok(Step::Return(RenewTaskLeaseResult::Stale));
        };
        if stored.in_flight_entry() != Some(&self.entry) {
            return Ok(Step::Return(RenewTaskLeaseResult::Stale));
        }
        let cancel = cancel_of(view, &self.name, stored.value.admitted_ms)?;
        if cancel.reason.is_some() || stored.value.head.deadline_ms <= context.now_ms {
            return Ok(Step::Return(RenewTaskLeaseResult::Over));
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(cancel.guard).guard(Guard::Version(self.name.record(), stored.version.clone()));
        renew(&mut transaction, &self.name, &stored, context.now_ms);
        Ok(Step::Commit(transaction, RenewTaskLeaseResult::Renewed))
    }
}

fn renew(transaction: &mut Transaction, name: &TurnName, stored: &Stored<Turn>, now_ms: i64) {
    let mut turn = stored.value.clone();
    turn.entry = stored.in_flight_entry().cloned();
    turn.set_renewed(now_ms);
    transaction.put(&name.record(), &turn);
}

#[derive(Debug, Clone)]
pub struct ReadHeld {
    pub name: TurnName,
    pub entry: EntryId,
}

impl Decision for ReadHeld {
    type Output = Option<Box<Slice>>;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record())]
    }

    fn decide(&self, view: &View, _: &Context) -> Result<Step<Self::Output>, Undecided> {
        let Some(stored) = view.record::<Turn>(&self.name.record())? else { return Ok(Step::Return(None)) };
        let is_external = matches!(stored.value.destination, Destination::External { .. });
        if !is_external || !stored.value.is_task() || stored.in_flight_entry() != Some(&self.entry) {
            return Ok(Step::Return(None));
        }
        let queue = stored.value.queue(&self.name.tenant);
        let calls = calls_of(view.entry(&queue, &self.entry)?);
        let calls = calls.iter().filter_map(|call| serde_json::from_slice(call).ok()).collect();
        let name = self.name.clone();
        let entry = self.entry.clone();
        let debited = Vec::new();
        let slice = Slice { queue, entry, name, version: stored.version, turn: stored.value, debited, calls };
        Ok(Step::Return(Some(Box::new(slice))))
    }
}

#[derive(Debug, Clone)]
pub struct HandleLeaseTimer<'a> {
    pub name: TurnName,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseTimerResult {
    /// The time (ms) of the next check.
    Later(i64),
    Offered,
    Ends,
    /// The task is not on an external queue, and no runtime holds the task.
    NotOut,
    /// The task has changed, so the caller must handle the timer again.
    Raced,
}

impl Decision for HandleLeaseTimer<'_> {
    type Output = LeaseTimerResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record()), Query::Record(self.name.cancellation())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<LeaseTimerResult>, Undecided> {
        if context.failed(|conflict| matches!(conflict, Conflict::NotHeld | Conflict::Read)) {
            return Ok(Step::Return(LeaseTimerResult::Raced));
        }
        let Some(stored) = view.record::<Turn>(&self.name.record())? else {
            return Ok(Step::Return(LeaseTimerResult::NotOut));
        };
        let (Some(entry), Destination::External { lease_ms }) = (stored.in_flight_entry(), &stored.value.destination)
        else {
            return Ok(Step::Return(LeaseTimerResult::NotOut));
        };
        let entry = entry.clone();
        let lease_ms = *lease_ms;
        let queue = stored.value.queue(&self.name.tenant);
        let calls = calls_of(view.entry(&queue, &entry)?);
        let mut case = Case { lease_timer: self, context, stored, entry, queue, calls, lease_ms };
        let mut transaction = Transaction::new(context.version.clone());
        let cancel = cancel_of(view, &self.name, case.stored.value.admitted_ms)?;
        transaction.guard(cancel.guard);
        let reason = match cancel.reason {
            Some(reason) => {
                case.stored.value.canceled = Some(reason);
                Some(EndReason::Canceled)
            }
            None => (case.stored.value.head.deadline_ms <= context.now_ms).then_some(EndReason::Expired),
        };
        let is_held = view.holder(&case.queue, &case.entry)?.is_some();
        let result = if is_held { case.held(&mut transaction, reason) } else { case.waiting(&mut transaction, reason) };
        Ok(Step::Commit(transaction, result))
    }
}

struct Case<'a> {
    lease_timer: &'a HandleLeaseTimer<'a>,
    context: &'a Context,
    stored: Stored<Turn>,
    entry: EntryId,
    queue: StreamKey,
    calls: Vec<bytes::Bytes>,
    lease_ms: i64,
}

impl Case<'_> {
    fn later(&self, transaction: &mut Transaction, due_ms: i64) -> LeaseTimerResult {
        transaction.timer(self.lease_timer.name.timer(), due_ms, TimerRule::Set);
        LeaseTimerResult::Later(due_ms)
    }

    fn guard_version(&self, transaction: &mut Transaction) {
        transaction.guard(Guard::Version(self.lease_timer.name.record(), self.stored.version.clone()));
    }

    fn waiting(&self, transaction: &mut Transaction, reason: Option<EndReason>) -> LeaseTimerResult {
        self.guard_version(transaction);
        let Some(reason) = reason else {
            let due_ms = self.stored.value.head.deadline_ms.min(self.context.now_ms + self.lease_ms);
            return self.later(transaction, due_ms);
        };
        if !self.calls.is_empty() {
            transaction.guard(Guard::Unread(self.queue.clone(), self.entry.clone()));
            transaction.write(Write::Remove(self.queue.clone(), self.entry.clone()));
        }
        self.drop_local_queue(transaction);
        let turn = self.stored.value.clone();
        let now_ms = self.context.now_ms;
        begin_ending(transaction, &self.lease_timer.name, turn, reason, &self.calls, now_ms, now_ms);
        LeaseTimerResult::Ends
    }

    fn held(&self, transaction: &mut Transaction, reason: Option<EndReason>) -> LeaseTimerResult {
        let now_ms = self.context.now_ms;
        self.guard_version(transaction);
        let renewed_ms = self.stored.value.renewed_ms();
        if renewed_ms == 0 {
            renew(transaction, &self.lease_timer.name, &self.stored, now_ms);
            return self.later(transaction, now_ms + self.lease_ms);
        }
        let ends_ms = renewed_ms + self.lease_ms;
        if ends_ms > now_ms {
            // A canceled or expired task ends with its current lease.
            let due_ms = if reason.is_some() { ends_ms } else { ends_ms.min(self.stored.value.head.deadline_ms) };
            return self.later(transaction, due_ms);
        }
        self.lease_timer(transaction, reason)
    }

    /// Each local call has a queue of its own, which ends with the call.
    fn drop_local_queue(&self, transaction: &mut Transaction) {
        if self.stored.value.is_offered() {
            transaction.write(Write::DropQueue(self.queue.clone()));
        }
    }

    fn lease_timer(&self, transaction: &mut Transaction, reason: Option<EndReason>) -> LeaseTimerResult {
        let now_ms = self.context.now_ms;
        let name = &self.lease_timer.name;
        if reason.is_none() && self.stored.value.is_offered() {
            // The next worker offers the call again or reports an unknown outcome, depending on the tool's effect.
            let stored = self.stored.clone();
            let ended = LocalEnd { name, stored, queue: self.queue.clone(), entry: &self.entry, calls: &self.calls };
            ended.requeue_concluded(transaction, Conclusion::Lost, true, now_ms);
            return LeaseTimerResult::Offered;
        }
        let mut turn = self.stored.value.clone();
        if !mutant!("a_task_with_an_ended_lease_has_begun") {
            turn.begun = Some(Begun::new(turn.position, RUNTIME));
        }
        turn.set_renewed(0);
        self.drop_local_queue(transaction);
        let mut solo_crashes = turn.suspect.map_or(0, |suspect| suspect.solo_crashes);
        if reason.is_none() {
            turn.crashes += 1;
            solo_crashes += 1;
            turn.suspect = Some(Suspect { group_max: 1, solo_crashes });
        }
        let is_poison = solo_crashes >= self.lease_timer.bounds.crashes_max;
        let reason = reason.or(is_poison.then_some(EndReason::Quarantined { crashes: turn.crashes }));
        let result = match reason {
            Some(reason) => {
                begin_ending(transaction, name, turn, reason, &self.calls, now_ms, now_ms);
                LeaseTimerResult::Ends
            }
            None => {
                let due_ms = turn.head.deadline_ms.min(now_ms + self.lease_ms);
                dispatch(transaction, name, &mut turn, &self.calls);
                transaction.timer(name.timer(), due_ms, TimerRule::Set);
                LeaseTimerResult::Offered
            }
        };
        if !mutant!("lease_timer_acknowledges_the_old_entry") {
            transaction.guard(Guard::Held(self.queue.clone(), self.entry.clone()));
        }
        result
    }
}

#[derive(Debug, Clone)]
pub struct DropExternalQueue {
    pub queue: StreamKey,
}

impl DropExternalQueue {
    #[must_use]
    pub fn is_of(&self, tenant: &tickfleet_model::TenantId, agent: &AgentId) -> bool {
        self.queue == keys::external(tenant, agent)
    }
}

impl Decision for DropExternalQueue {
    type Output = bool;

    fn decide(&self, _: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        if context.failed(|conflict| *conflict == Conflict::Full) {
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Within(self.queue.clone(), 1)).write(Write::DropQueue(self.queue.clone()));
        transaction.leave(keys::externals(), self.queue.as_str());
        Ok(Step::Commit(transaction, true))
    }
}
