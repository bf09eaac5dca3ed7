//! Delegates a task to workers or to an external runtime.

use bytes::Bytes;
use tickfleet_model::{TaskId, TurnId};

use super::cancel::{cancel_of, take_early};
use super::lists::add_to_list;
pub use super::refusal::Refusal;
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName, limits};
use crate::mutant;
use crate::recovery::inbound::TakenInbound;
use crate::transaction::{ConditionalDebit, Conflict, CounterKey, Guard, TimerRule, Transaction, Write};
use crate::turn::end::parts::call as call_part;
use crate::turn::end::{GivenId, GivenState};
use crate::turn::holder::count_in_flight;
use crate::turn::slice::dispatch;
use crate::turn::state::{EndReason, Finished};
use crate::turn::{Destination, Head, State, TaskPart, Turn};
use crate::view::{Query, Undecided, Value, View};

/// While memory is short, an inbound task is accepted only if its queue has fewer slices than this.
pub const TIGHT_SLICES: u64 = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Inbound(TakenInbound),
    /// A call delegates the task, see [`Head::delegated_by`].
    Call,
}

#[derive(Debug, Clone)]
pub struct Delegate<'a> {
    pub name: TurnName,
    /// True if the producer chose the ID.
    pub given: bool,
    pub source: Source,
    /// If the parent's deadline is earlier, it replaces the task's deadline.
    pub head: Head,
    /// JSON.
    pub call: Bytes,
    pub destination: Destination,
    /// Maximum number of calls of turns below the task. They are deducted from the parent's budget.
    pub budget: u64,
    pub parent: Option<TaskId>,
    /// If true, the task ends with the turn of the delegating call.
    pub awaited: bool,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelegateResult {
    Offered,
    Ends,
    Duplicate,
    Conflict,
    /// The task is refused. If the task is inbound, the caller must reject its entry.
    Refused(Refusal),
    /// The store's memory is short. An inbound task waits. A call can be retried.
    Pressure,
}

impl Decision for Delegate<'_> {
    type Output = DelegateResult;

    fn reads(&self) -> Vec<Query> {
        let turns = [Some(self.name.clone()), self.parent_name(), self.delegating_turn()];
        turns.into_iter().flatten().map(|name| Query::Record(name.record())).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<DelegateResult>, Undecided> {
        if let Some(delegated) = self.conflicted(context) {
            return Ok(Step::Return(delegated));
        }
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(known) = self.known(&mut transaction, view)? {
            return Ok(self.acknowledge_only(known, context));
        }
        let parent = match self.parent(&mut transaction, view)? {
            Ok(parent) => parent,
            Err(refusal) => return Ok(Step::Return(DelegateResult::Refused(refusal))),
        };
        if let Err(refusal) = self.delegating_turn_is_active(&mut transaction, view)? {
            return Ok(Step::Return(DelegateResult::Refused(refusal)));
        }
        let mut turn = self.turn(parent.as_ref(), context.now_ms);
        let cancel = cancel_of(view, &self.name, turn.admitted_ms)?;
        if matches!(cancel.guard, Guard::Version(..)) {
            take_early(&mut transaction, &self.name);
        }
        transaction.guard(cancel.guard);
        turn.canceled = cancel.reason;
        let reason = turn.canceled.is_some().then_some(EndReason::Canceled);
        let is_late = turn.head.deadline_ms <= context.now_ms;
        if is_late && self.source == Source::Call {
            return Ok(Step::Return(DelegateResult::Refused(Refusal::DeadlinePassed)));
        }
        let reason = reason.or_else(|| is_late.then_some(EndReason::Expired));
        self.guard_bounds(&mut transaction, &turn, context);
        self.list(&mut transaction, view, &turn, context.now_ms)?;
        let ends = reason.is_some();
        self.write(&mut transaction, turn, reason, context.now_ms);
        if let Source::Inbound(entry) = &self.source
            && !mutant!("delegate_acknowledges_the_message")
        {
            entry.acknowledge(keys::tasks(), &mut transaction);
        }
        let delegated = if ends { DelegateResult::Ends } else { DelegateResult::Offered };
        Ok(Step::Commit(transaction, delegated))
    }
}

impl Delegate<'_> {
    fn of_tenant(&self, turn: &str) -> Option<TurnName> {
        Some(TurnName { tenant: self.name.tenant.clone(), turn: TurnId::new(turn).ok()? })
    }

    fn parent_name(&self) -> Option<TurnName> {
        self.of_tenant(self.parent.as_ref()?.as_str())
    }

    fn delegating_turn(&self) -> Option<TurnName> {
        self.of_tenant(self.head.delegated_by.as_deref()?.rsplit_once('/')?.0)
    }

    fn bytes(&self) -> u64 {
        (self.head_bytes() + self.call.len()) as u64
    }

    fn head_bytes(&self) -> usize {
        serde_json::to_string(&self.head).map_or(0, |text| text.len())
    }

    fn conflicted(&self, context: &Context) -> Option<DelegateResult> {
        if let Source::Inbound(entry) = &self.source
            && entry.is_lost(context)
        {
            // Another scheduler handles the message, or this scheduler takes the message again later.
            return Some(DelegateResult::Duplicate);
        }
        let above = self.parent_name().map(|name| name.to_string());
        context.conflicts.iter().find_map(|conflict| match conflict {
            Conflict::LimitReached { counter, .. }
                if *counter.limit == *limits::TASK && above.as_deref() == Some(&*counter.counter) =>
            {
                Some(DelegateResult::Refused(Refusal::BudgetExceedsParent))
            }
            Conflict::LimitReached { .. } => Some(DelegateResult::Refused(Refusal::TenantQueueFull)),
            Conflict::InboxFull => Some(DelegateResult::Refused(Refusal::InboxFull)),
            Conflict::TooManyInboxes => Some(DelegateResult::Refused(Refusal::TooManyInboxes)),
            Conflict::Pressure if self.source == Source::Call => Some(DelegateResult::Pressure),
            Conflict::Full => Some(DelegateResult::Pressure),
            _ => None,
        })
    }

    /// The record of the ID can belong to this inbound message. If so, the ID counts as unknown.
    fn known(&self, transaction: &mut Transaction, view: &View) -> Result<Option<DelegateResult>, Undecided> {
        let of = |digest: &str| {
            if digest == self.head.digest { DelegateResult::Duplicate } else { DelegateResult::Conflict }
        };
        let given = view.record::<GivenId>(&self.name.given())?;
        let waits = given.as_ref().is_some_and(|given| given.value.state == GivenState::Queued);
        if let Some(given) = &given {
            let is_this = waits && self.source != Source::Call && given.value.digest == self.head.digest;
            if !is_this {
                return Ok(Some(of(&given.value.digest)));
            }
        }
        if let Some(turn) = view.record::<Turn>(&self.name.record())? {
            return Ok(Some(of(&turn.value.head.digest)));
        }
        if let Some(finished) = view.record::<Finished>(&self.name.finished())? {
            return Ok(Some(of(&finished.value.digest)));
        }
        if !mutant!("delegate_guards_the_absence") {
            transaction.guard(Guard::Absent(self.name.record())).guard(Guard::Absent(self.name.finished()));
        }
        transaction.guard_read(&self.name.given(), given.as_ref());
        Ok(None)
    }

    fn acknowledge_only(&self, known: DelegateResult, context: &Context) -> Step<DelegateResult> {
        match &self.source {
            Source::Inbound(entry) if known == DelegateResult::Duplicate => {
                let mut transaction = Transaction::new(context.version.clone());
                entry.acknowledge(keys::tasks(), &mut transaction);
                Step::Commit(transaction, known)
            }
            _ => Step::Return(known),
        }
    }

    fn parent(&self, transaction: &mut Transaction, view: &View) -> Result<Result<Option<Turn>, Refusal>, Undecided> {
        let Some(name) = self.parent_name() else { return Ok(Ok(None)) };
        let Some(parent) = view.record::<Turn>(&name.record())? else {
            let is_finished = !matches!(view.get(&Query::Record(name.finished()))?, Value::Record(None));
            return Ok(Err(if is_finished { Refusal::ParentEnded } else { Refusal::UnknownParent }));
        };
        let Some(task) = &parent.value.task else { return Ok(Err(Refusal::UnknownParent)) };
        if !is_active(transaction, view, &name, &parent.value)? {
            return Ok(Err(Refusal::ParentEnded));
        }
        if !mutant!("delegate_guards_the_parent") {
            transaction.guard(Guard::Version(name.record(), parent.version.clone()));
        }
        if !mutant!("delegate_carves_the_budget") {
            transaction.guard(total(CounterKey::new(limits::TASK, name.to_string()), self.budget, task.budget));
        }
        Ok(Ok(Some(parent.value)))
    }

    fn delegating_turn_is_active(
        &self,
        transaction: &mut Transaction,
        view: &View,
    ) -> Result<Result<(), Refusal>, Undecided> {
        let Some(name) = self.delegating_turn() else { return Ok(Ok(())) };
        let Some(turn) = view.record::<Turn>(&name.record())? else { return Ok(Err(Refusal::ParentEnded)) };
        if !is_active(transaction, view, &name, &turn.value)? {
            return Ok(Err(Refusal::ParentEnded));
        }
        transaction.guard(Guard::Version(name.record(), turn.version));
        Ok(Ok(()))
    }

    fn turn(&self, parent: Option<&Turn>, now_ms: i64) -> Turn {
        let mut head = self.head.clone();
        let mut above = Vec::new();
        if let Some(parent) = parent {
            head.deadline_ms = head.deadline_ms.min(parent.head.deadline_ms);
            if let Some(task) = &parent.task {
                above.extend(task.parent.iter().chain(&task.above).cloned());
            }
        }
        let parent = self.parent.clone();
        Turn {
            bytes: self.bytes(),
            given: self.given,
            debited: 1,
            task: Some(TaskPart { budget: self.budget, parent, above, ..TaskPart::default() }),
            ..Turn::new(head, self.destination.clone(), State::Ready { upto: 1 }, now_ms)
        }
    }

    fn guard_bounds(&self, transaction: &mut Transaction, turn: &Turn, context: &Context) {
        let bounds = self.bounds;
        let of_tenant = |limit| CounterKey::new(limit, self.name.tenant.as_str());
        if !mutant!("delegate_guards_the_tenant") {
            transaction.guard(total(of_tenant(limits::UNFINISHED), 1, bounds.tenant_turns_max));
            transaction.guard(total(of_tenant(limits::BYTES), turn.bytes, bounds.tenant_bytes_max));
        }
        if let Some(inbox) = &self.head.reply_to {
            // The admission of the call's turn has already checked this inbox, so no maximum applies.
            let unread_max = if self.source == Source::Call { u64::MAX } else { bounds.inbox_unread_max };
            let inbox = keys::inbox(&self.name.tenant, inbox);
            transaction.guard(Guard::Inbox { inbox, unread_max, inboxes_max: bounds.inboxes_max });
        }
        let is_nearly_full = context.failed(|conflict| *conflict == Conflict::Pressure);
        transaction.guard(if is_nearly_full {
            Guard::Within(turn.queue(&self.name.tenant), TIGHT_SLICES)
        } else {
            Guard::MemoryAvailable
        });
    }

    fn list(&self, transaction: &mut Transaction, view: &View, turn: &Turn, now_ms: i64) -> Result<(), Undecided> {
        let of_tenant = keys::tasks_of(&self.name.tenant);
        let of_parent = self.parent_name().map(|parent| keys::children(&parent));
        for list in std::iter::once(of_tenant).chain(of_parent) {
            add_to_list(transaction, view, list, &self.name, now_ms)?;
        }
        // An ancestor must find this task even if the tasks between them have ended.
        let ancestors = turn.task.iter().flat_map(|task| task.parent.iter().chain(&task.above));
        let far = if mutant!("delegate_joins_all_ancestors") { 1 } else { usize::MAX };
        let mut above: Vec<TurnName> = ancestors.filter_map(|task| self.of_tenant(task.as_str())).take(far).collect();
        above.extend(self.delegating_turn().filter(|_| self.awaited));
        for name in above {
            transaction.join(name.descendants(), self.name.turn.as_str(), now_ms);
        }
        Ok(())
    }

    fn write(&self, transaction: &mut Transaction, mut turn: Turn, reason: Option<EndReason>, now_ms: i64) {
        if self.given {
            let given = GivenId { digest: self.head.digest.clone(), state: GivenState::Admitted };
            transaction.put(&self.name.given(), &given);
        }
        transaction.dedupe_record = Some(self.name.record());
        if let Some(reason) = reason {
            // The task was never dispatched, so no call was debited.
            turn.debited = 0;
            turn.state = State::Ending { reason, due_ms: now_ms };
            transaction.put(&self.name.record(), &turn);
            transaction.write(Write::PutPart(self.name.record(), call_part(0), self.call.clone()));
            transaction.timer(self.name.timer(), now_ms, TimerRule::Earlier);
            return;
        }
        let due_ms = match self.destination {
            Destination::External { lease_ms } => {
                let queue = turn.queue(&self.name.tenant);
                transaction.join(keys::externals(), queue.as_str(), 0);
                turn.head.deadline_ms.min(now_ms + lease_ms)
            }
            Destination::Workers(_) => turn.head.deadline_ms,
        };
        dispatch(transaction, &self.name, &mut turn, std::slice::from_ref(&self.call));
        transaction.timer(self.name.timer(), due_ms, TimerRule::Earlier);
        if turn.is_in_flight() {
            count_in_flight(transaction, &self.name, 1);
        }
    }
}

fn is_active(transaction: &mut Transaction, view: &View, name: &TurnName, turn: &Turn) -> Result<bool, Undecided> {
    let is_over = turn.canceled.is_some() || matches!(turn.state, State::Ending { .. });
    let cancel = cancel_of(view, name, turn.admitted_ms)?;
    if !mutant!("delegate_guards_the_cancel_of_the_parent") {
        transaction.guard(cancel.guard);
    }
    Ok(!is_over && cancel.reason.is_none())
}

fn total(counter: CounterKey, amount: u64, max: u64) -> Guard {
    Guard::Debit(ConditionalDebit::total(counter, amount, max))
}
