//! Model usage. Token and money budgets are debited for a request's maximum before the request is sent. The response
//! corrects the debit.

use std::sync::Arc;

use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::Stored;
use crate::section::Section;
use crate::transaction::{
    ConditionalDebit, Conflict, CounterKey, EntryId, Guard, TimerRule, Transaction, Version, Window, Write,
};
use crate::turn::Turn;
use crate::turn::state::{BudgetUnit, Reservation};
use crate::usage::{Day, ModelUse, count_use};
use crate::view::{Query, Undecided, View};

/// Small, because each woken turn reads the history of its task.
const WOKEN_MAX: usize = 4;
const RECHECK_MS: i64 = 250;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetDebit {
    /// The amount is in tokens, or in millionths of money.
    pub debit: ConditionalDebit,
    pub unit: BudgetUnit,
    /// If false, a request that exceeds the budget is rejected.
    pub waits: bool,
}

#[derive(Debug, Clone)]
pub struct Reserve {
    pub name: TurnName,
    pub entry: EntryId,
    /// Unique within the task. Another holder's request with the same name is debited again.
    pub request: String,
    pub debits: Vec<BudgetDebit>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ReserveResult {
    Ok(Box<Fenced>),
    /// The holder has reserved the request before.
    Already(Box<Fenced>),
    Short(Shortage),
    Stale,
    /// A window has ended, and the caller must compute the windows again.
    WindowOver,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Fenced {
    pub version: Version,
    pub turn: Turn,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub counter: CounterKey,
    pub used: u64,
    pub amount: u64,
    /// 0 without a window.
    pub ends_ms: i64,
    pub action: ShortageAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShortageAction {
    Wait,
    Reject,
    Never,
}

pub(super) fn held(view: &View, name: &TurnName, entry: &EntryId) -> Result<Option<Stored<Turn>>, Undecided> {
    Ok(view.record::<Turn>(&name.record())?.filter(|stored| stored.in_flight_entry() == Some(entry)))
}

impl Decision for Reserve {
    type Output = ReserveResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<ReserveResult>, Undecided> {
        if context.failed(|conflict| matches!(conflict, Conflict::Time { .. })) {
            return Ok(Step::Return(ReserveResult::WindowOver));
        }
        if let Some(shortage) = self.shortage(context) {
            return Ok(Step::Return(ReserveResult::Short(shortage)));
        }
        let Some(stored) = held(view, &self.name, &self.entry)? else { return Ok(Step::Return(ReserveResult::Stale)) };
        let mut turn = stored.value.clone();
        let Some(task) = &mut turn.task else { return Ok(Step::Return(ReserveResult::Stale)) };
        // Another holder may have sent the same request. Then both requests are billed, so each is debited.
        let is_own = |reserved: &Reservation| {
            reserved.request == self.request && (reserved.entry == self.entry || mutant!("reserve_debits_each_holder"))
        };
        if task.reserved.as_ref().is_some_and(is_own) {
            let fenced = Fenced { version: stored.version, turn };
            return Ok(Step::Return(ReserveResult::Already(Box::new(fenced))));
        }
        let mut transaction = Transaction::new(context.version.clone());
        // If `stamped` is true, the store adds the counters' states to the record. The states show which windows were
        // debited.
        transaction.stamped = true;
        transaction.dedupe_record = Some(self.name.record());
        transaction.guard(Guard::Version(self.name.record(), stored.version));
        for BudgetDebit { debit, .. } in &self.debits {
            if !mutant!("reserve_debits_the_budget") {
                transaction.guard(Guard::Debit(debit.clone()));
            }
            let set = keys::budget_queue(&debit.counter);
            transaction.leave(set, self.name.to_string());
        }
        // Earlier debits remain, because the earlier request may be billed without a stored response.
        task.reserved = Some(Reservation {
            request: self.request.clone(),
            entry: self.entry.clone(),
            debits: self.debits.iter().map(BudgetDebit::reserved).collect(),
        });
        turn.entry = Some(self.entry.clone());
        transaction.put(&self.name.record(), &turn);
        let fenced = Fenced { version: context.version.clone(), turn };
        Ok(Step::Commit(transaction, ReserveResult::Ok(Box::new(fenced))))
    }
}

impl BudgetDebit {
    fn reserved(&self) -> (CounterKey, BudgetUnit, u64, i64) {
        let ConditionalDebit { counter, amount, window, .. } = &self.debit;
        let ends_ms = match *window {
            Window::Fixed { end_ms, .. } | Window::Day { end_ms, .. } => end_ms,
            Window::Rolling { .. } | Window::Concurrency | Window::Total => 0,
        };
        (counter.clone(), self.unit, *amount, ends_ms)
    }
}

impl Reserve {
    fn shortage(&self, context: &Context) -> Option<Shortage> {
        context.conflicts.iter().rev().find_map(|conflict| {
            let Conflict::LimitReached { counter, state } = conflict else { return None };
            let BudgetDebit { debit, waits, .. } = self.debits.iter().find(|one| one.debit.counter == *counter)?;
            let action = match waits {
                _ if debit.amount > debit.max => ShortageAction::Never,
                true => ShortageAction::Wait,
                false => ShortageAction::Reject,
            };
            let used = state.used;
            let ends_ms = state.ends_ms;
            Some(Shortage { counter: counter.clone(), used, amount: debit.amount, ends_ms, action })
        })
    }
}

#[derive(Debug, Clone)]
pub struct Unreserve {
    pub name: TurnName,
    pub entry: EntryId,
    pub request: String,
}

impl Decision for Unreserve {
    type Output = Option<Box<Fenced>>;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Self::Output>, Undecided> {
        let Some(stored) = held(view, &self.name, &self.entry)? else { return Ok(Step::Return(None)) };
        let reserved = stored.value.task.as_ref().and_then(|task| task.reserved.as_ref());
        let Some(reserved) = reserved.filter(|reserved| reserved.request == self.request).cloned() else {
            let fenced = Fenced { version: stored.version, turn: stored.value };
            return Ok(Step::Return(Some(Box::new(fenced))));
        };
        let mut transaction = Transaction::new(context.version.clone());
        transaction.dedupe_record = Some(self.name.record());
        transaction.guard(Guard::Version(self.name.record(), stored.version.clone()));
        correct(&mut transaction, view, &stored, &reserved, 0, 0, context)?;
        let mut turn = stored.value;
        turn.entry = Some(self.entry.clone());
        if let Some(task) = &mut turn.task {
            task.reserved = None;
        }
        transaction.put(&self.name.record(), &turn);
        Ok(Step::Commit(transaction, Some(Box::new(Fenced { version: context.version.clone(), turn }))))
    }
}

/// A debit in a window that has ended stays uncorrected.
fn correct(
    transaction: &mut Transaction,
    view: &View,
    stored: &Stored<Turn>,
    reserved: &Reservation,
    tokens: u64,
    money: u64,
    context: &Context,
) -> Result<(), Undecided> {
    let stamped = stored.debits.len() == reserved.debits.len();
    for (at, (counter, unit, amount, ends_ms)) in reserved.debits.iter().enumerate() {
        let used = match unit {
            BudgetUnit::Tokens => tokens,
            BudgetUnit::Money => money,
        };
        let ends_ms = stored.debits.get(at).filter(|_| stamped).map_or(*ends_ms, |debit| debit.ends_ms);
        let difference = i64::try_from(used).unwrap_or(i64::MAX).saturating_sub_unsigned(*amount);
        let ends_ms = (!mutant!("a_correction_is_of_its_window")).then_some(ends_ms);
        transaction.write(Write::Add { counter: counter.clone(), amount: difference, ends_ms });
        if difference < 0 {
            wake_waiters(transaction, view, counter, context)?;
        }
    }
    Ok(())
}

/// Guards that no turn joins the queue concurrently. Otherwise such a turn would wait although there is room.
pub fn wake_waiters(
    transaction: &mut Transaction,
    view: &View,
    counter: &CounterKey,
    context: &Context,
) -> Result<(), Undecided> {
    let set = keys::budget_queue(counter);
    // A larger count is a new query, so the queue is read again after a conflict.
    let joined = context.conflicts.iter().filter(|conflict| **conflict == Conflict::Full).count();
    let count = WOKEN_MAX + joined.min(WOKEN_MAX);
    let members = view.first(&set, None, count)?;
    if members.len() < count && joined < WOKEN_MAX && !mutant!("wake_knows_all_that_wait") {
        let max = members.len() as u64 + 1;
        transaction.guard(Guard::Fits { set: set.clone(), member: "".into(), max });
    }
    for (member, _) in members {
        transaction.timer(format!("turn:{member}"), context.now_ms, TimerRule::Wake);
        transaction.leave(set.clone(), member.clone());
    }
    Ok(())
}

/// Room may appear between the check and the wait, so a task checks again soon after it joins the queue.
#[derive(Debug, Clone)]
pub struct BudgetWait {
    pub name: TurnName,
    pub counter: CounterKey,
    /// The score in the queue: smaller for tasks that were admitted earlier.
    pub place: u64,
}

impl Section for BudgetWait {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let set = keys::budget_queue(&self.counter);
        let member: Arc<str> = self.name.to_string().into();
        let was_woken = context.failed(|conflict| *conflict == Conflict::NoMember);
        if view.score(&set, &member)?.is_some() && !was_woken {
            transaction.guard(Guard::Member(set, member));
            return Ok(());
        }
        if !mutant!("budget_wait_looks_again") {
            transaction.timer(self.name.timer(), context.now_ms + RECHECK_MS, TimerRule::Earlier);
        }
        transaction.write(Write::AddMember { set, member, score: self.place, queue_of: None });
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedModelUse {
    /// The field `request` has the same value as in the reservation.
    pub used: ModelUse,
    pub day: Day,
}

impl ReportedModelUse {
    pub fn add_to(
        &self,
        transaction: &mut Transaction,
        view: &View,
        name: &TurnName,
        stored: &Stored<Turn>,
        turn: &mut Turn,
        context: &Context,
    ) -> Result<(), Undecided> {
        let owner = (&name.tenant, &turn.head.agent);
        let (Some(task), used) = (&mut turn.task, &self.used) else { return Ok(()) };
        // Each holder's usage of the same request is counted.
        let holder = stored.in_flight_entry().map_or("", EntryId::as_str);
        let counted = ModelUse { request: format!("{holder}/{}", used.request), ..used.clone() };
        if !count_use(task, &counted, owner, self.day, context.now_ms, transaction) {
            return Ok(());
        }
        if let Some(reserved) = task.reserved.take_if(|reserved| reserved.request == used.request) {
            let tokens = used.tokens_in.saturating_add(used.tokens_out);
            correct(transaction, view, stored, &reserved, tokens, used.cost, context)?;
        }
        Ok(())
    }
}
