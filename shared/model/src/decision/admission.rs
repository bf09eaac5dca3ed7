//! The admission decision: how many calls of a turn fit the budgets of its chain.

use super::Reason;
use super::budget::{AgentBudgets, Budget, TaskBudget};
use super::limits::{self, Debit, Stopped};
use crate::{Caps, DayCapAction};

/// What the decision is made by, beside the counters.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The caps in force.
    pub caps: Caps,
    /// When the present epoch of Redis began, ms; 0 in the first.
    pub epoch_ms: i64,
    /// Whether the tenant may have one more slice out.
    pub room: bool,
}

/// The counters that one admission debits, all at once.
#[derive(Debug)]
pub struct Chain<'a> {
    /// The agent's.
    pub agent: &'a mut AgentBudgets,
    /// The tenant's day.
    pub tenant_day: &'a mut Budget,
    /// The task's, where the turn runs under one.
    pub task: Option<&'a mut TaskBudget>,
    /// The counters of limits that the calls debit.
    pub limits: &'a mut [Debit],
    /// Found out: which of them cuts the calls short, so that the rest waits for it.
    pub cut: Option<usize>,
}

/// What is decided about the calls of a turn that were not admitted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// So many of them go out as a slice; every budget of the chain is debited.
    Dispatch(usize),
    /// None fits before this instant, ms.
    Wait(i64),
    /// None fits before a limit's counter has room: which of the debits that is. It goes behind others (none), or there
    /// is none before this instant, ms.
    WaitFor(usize, Option<i64>),
    /// So many of them end for this reason; the number is when there is room, ms.
    Refuse(Reason, i64, usize),
    /// None ever fits: they end for this reason; the number explains it (when the day resets, the task's budget).
    End(Reason, i64),
}

/// Decides about `wanted` calls, and debits what it admits. The chain's windows must have been rolled to now.
pub fn decide(wanted: usize, rules: Rules, chain: &mut Chain<'_>) -> Verdict {
    let task_left = chain.task.as_ref().map(|t| t.left());
    if let (Some(0), Some(task)) = (task_left, chain.task.as_ref()) {
        return Verdict::End(Reason::TaskBudgetReached, i64::from(task.max));
    }
    let (day_left, resets_ms) = day(rules.caps, chain);
    if day_left == 0 {
        return match rules.caps.on_day_cap {
            DayCapAction::Reject => Verdict::End(Reason::DailyCapReached, resets_ms),
            DayCapAction::Defer => Verdict::Wait(resets_ms),
        };
    }
    // Rule 8: the last debits of a window that began before Redis restarted may be lost.
    let lost = chain.agent.tick_began_ms < rules.epoch_ms;
    let tick_left = if lost { 0 } else { chain.agent.tick.left(rules.caps.calls_per_tick) };
    let fits = tick_left.min(day_left).min(task_left.unwrap_or(u32::MAX));
    let fits = u32::try_from(wanted).unwrap_or(u32::MAX).min(fits);
    if fits == 0 || !rules.room {
        return Verdict::Wait(chain.agent.tick.end_ms);
    }
    let (fits, cut, stopped) = limits::fit(chain.limits, fits as usize, rules.epoch_ms);
    chain.cut = cut;
    match stopped {
        Some(Stopped::Behind(at)) => return Verdict::WaitFor(at, None),
        Some(Stopped::Wait(at, until_ms)) => return Verdict::WaitFor(at, Some(until_ms)),
        Some(Stopped::Refused(reason, info, calls)) => return Verdict::Refuse(reason, info, calls),
        None => limits::debit(chain.limits, fits),
    }
    let fits = u32::try_from(fits).unwrap_or(u32::MAX);
    chain.agent.tick.used += fits;
    chain.agent.day.used += fits;
    chain.tenant_day.used += fits;
    if let Some(task) = chain.task.as_mut() {
        task.used += fits;
    }
    Verdict::Dispatch(fits as usize)
}

/// How many calls the day allows, agent's and tenant's, and when more are allowed, ms. A cap that was lowered below
/// what is used already counts as used up all the more.
fn day(caps: Caps, chain: &Chain<'_>) -> (u32, i64) {
    let left = |cap: u32, budget: &Budget| i64::from(cap) - i64::from(budget.used);
    let agent = (left(caps.calls_per_day, &chain.agent.day), chain.agent.day.end_ms);
    let (left, resets_ms) =
        match caps.tenant_calls_per_day.map(|cap| (left(cap, chain.tenant_day), chain.tenant_day.end_ms)) {
            Some(tenant) if tenant.0 < agent.0 => tenant,
            _ => agent,
        };
    (u32::try_from(left).unwrap_or(0), resets_ms)
}
