//! A [`ResolvedLimit`] sets a maximum for each of its counters. A [`Debit`] names one counter and the amount of each
//! call. [`evaluate`] compares debits with the counters in a view.

pub mod evaluate;

use std::sync::Arc;

use tickfleet_model::day::{Tz, day_bounds, zone};
use tickfleet_model::limit::{LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::{Policy as Declared, TenantPolicy};
use tickfleet_model::{AgentId, Call, Caps, DayCapAction, Limit, TaskId, TenantId};

use super::state::{EndReason, Head};
use crate::keys::{TurnName, limits};
use crate::transaction::{ConditionalDebit, CounterKey, Window};

pub use evaluate::{AdmissionPlan, Evaluator, FittingCalls, LimitRejection, NextDispatch, Wait};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowKind {
    /// Windows of a fixed length, offset by [`Debit::stagger_ms`].
    Fixed { length_ms: i64 },
    /// Calendar days.
    Day { zone: Tz },
    /// No period of `length_ms` may exceed the maximum.
    Rolling { length_ms: i64 },
    /// Counts the permits of dispatched slices.
    Concurrency,
    /// No window.
    Total,
}

impl WindowKind {
    /// `stagger_ms` keeps the windows of different counters from opening at the same time.
    #[must_use]
    pub fn at(self, now_ms: i64, stagger_ms: i64) -> Window {
        match self {
            Self::Fixed { length_ms } => {
                let length_ms = length_ms.max(1);
                let start_ms = now_ms - (now_ms - stagger_ms).rem_euclid(length_ms);
                Window::Fixed { start_ms, end_ms: start_ms + length_ms, length_ms }
            }
            Self::Day { zone } => {
                let (start_ms, end_ms) = day_bounds(now_ms, zone);
                Window::Day { start_ms, end_ms }
            }
            Self::Rolling { length_ms } => Window::Rolling { length_ms },
            Self::Concurrency => Window::Concurrency,
            Self::Total => Window::Total,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedLimit {
    /// A name that begins with `_` belongs to a built-in limit, see [`limits`].
    pub name: Arc<str>,
    pub max: u64,
    pub window: WindowKind,
    pub on_reach: OnReach,
    pub mode: LimitMode,
    /// Limits on permits ignore this maximum.
    pub counters_max: u64,
}

impl ResolvedLimit {
    /// `owner` is the policy of the counters' tenant.
    #[must_use]
    pub fn configured(policy: &Declared, owner: &TenantPolicy, limit: &Limit, (shard, shards): (u32, u32)) -> Self {
        let limit = owner.limit(limit);
        let time_zone = if limit.is_of_tenants() { policy.time_zone(owner) } else { &policy.defaults.time_zone };
        let window = match (limit.every, limit.period_ms(policy.defaults.tick_ms)) {
            (LimitWindow::Concurrency, _) => WindowKind::Concurrency,
            (LimitWindow::Rolling(length_ms), _) => WindowKind::Rolling { length_ms },
            (_, Some(length_ms)) => WindowKind::Fixed { length_ms },
            // The configuration's check guarantees a valid zone.
            (_, None) => WindowKind::Day { zone: zone(time_zone).unwrap_or(Tz::UTC) },
        };
        Self {
            name: limit.name.as_str().into(),
            max: limit.share(shard, shards),
            window,
            on_reach: limit.on_reach,
            mode: limit.mode,
            counters_max: limit.keys_max,
        }
    }

    fn built_in(name: &str, max: u64, window: WindowKind, on_reach: OnReach) -> Self {
        Self { name: name.into(), max, window, on_reach, mode: LimitMode::Enforce, counters_max: u64::MAX }
    }

    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.mode == LimitMode::Shadow
    }

    fn is_built_in(&self) -> bool {
        self.name.starts_with('_')
    }

    /// `resets_ms` is the time (ms) when the limit allows calls again; 0 if unknown.
    fn reached(&self, resets_ms: i64) -> EndReason {
        match &*self.name {
            limits::DAY | limits::TENANT_DAY => EndReason::DailyCapReached { resets_ms },
            limits::TASK => EndReason::TaskBudgetReached,
            name => EndReason::LimitReached { limit: name.to_owned(), resets_ms },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debit {
    pub limit: Arc<ResolvedLimit>,
    pub counter: CounterKey,
    pub stagger_ms: i64,
    /// One amount per call, in order. `None` if the call lacks the amount that the limit sums up.
    pub amounts: Vec<Option<u64>>,
}

impl Debit {
    fn of_each(resolved: &Arc<ResolvedLimit>, counter: &str, stagger_ms: i64, calls: usize) -> Self {
        let counter = CounterKey::new(&resolved.name, counter);
        Self { limit: Arc::clone(resolved), counter, stagger_ms, amounts: vec![Some(1); calls] }
    }

    #[must_use]
    pub fn sum(&self, calls: usize) -> u64 {
        self.amounts.iter().take(calls).flatten().fold(0, |sum, amount| sum.saturating_add(*amount))
    }

    #[must_use]
    pub fn conditional(&self, calls: usize, behind_queue: bool, now_ms: i64) -> Option<ConditionalDebit> {
        let amount = self.sum(calls);
        let held = self.limit.window == WindowKind::Concurrency;
        (amount > 0).then(|| ConditionalDebit {
            counter: self.counter.clone(),
            amount,
            max: self.limit.max,
            window: self.limit.window.at(now_ms, self.stagger_ms),
            behind_queue,
            shadow: self.limit.is_shadow(),
            // Permits must return to the debited counter, so [`ConditionalDebit::OTHERS`] never has permits.
            counters_max: if held { u64::MAX } else { self.limit.counters_max },
        })
    }

    /// `usize::MAX` if no call has an amount other than 0.
    #[must_use]
    pub fn first(&self) -> usize {
        self.amounts.iter().position(|amount| *amount != Some(0)).unwrap_or(usize::MAX)
    }

    fn is_uniform(&self) -> bool {
        let first = self.amounts.first().copied().flatten();
        first.is_some() && self.amounts.iter().all(|amount| *amount == first)
    }
}

#[derive(Debug, Clone)]
pub struct ResolvedCaps {
    tick: Arc<ResolvedLimit>,
    day: Arc<ResolvedLimit>,
    tenant_day: Option<Arc<ResolvedLimit>>,
}

impl ResolvedCaps {
    #[must_use]
    pub fn new(caps: &Caps, zone: Tz) -> Self {
        let tick = WindowKind::Fixed { length_ms: caps.tick_ms };
        let on_day_cap = match caps.on_day_cap {
            DayCapAction::Reject => OnReach::Reject,
            DayCapAction::Defer => OnReach::Wait,
        };
        let day =
            |name, max: u32| Arc::new(ResolvedLimit::built_in(name, max.into(), WindowKind::Day { zone }, on_day_cap));
        Self {
            tick: Arc::new(ResolvedLimit::built_in(limits::TICK, caps.calls_per_tick.into(), tick, OnReach::Wait)),
            day: day(limits::DAY, caps.calls_per_day),
            tenant_day: caps.tenant_calls_per_day.map(|max| day(limits::TENANT_DAY, max)),
        }
    }

    #[must_use]
    pub fn debits(&self, tenant: &TenantId, agent: &AgentId, stagger_ms: i64, calls: usize) -> Vec<Debit> {
        let of_agent = format!("{tenant}:{agent}");
        let mut debits = vec![Debit::of_each(&self.day, &of_agent, 0, calls)];
        debits.extend(self.tenant_day.as_ref().map(|resolved| Debit::of_each(resolved, tenant.as_str(), 0, calls)));
        debits.push(Debit::of_each(&self.tick, &of_agent, stagger_ms, calls));
        debits
    }
}

#[must_use]
pub fn task_debit(tenant: &TenantId, task: &TaskId, budget: u64, calls: usize) -> Debit {
    let resolved = ResolvedLimit::built_in(limits::TASK, budget, WindowKind::Total, OnReach::Reject);
    Debit::of_each(&Arc::new(resolved), &format!("{tenant}:{task}"), 0, calls)
}

/// One debit for the slice, regardless of the number of calls.
#[must_use]
pub fn in_flight_debit(tenant: &TenantId, max: u64, calls: usize) -> Debit {
    let resolved = ResolvedLimit::built_in(limits::IN_FLIGHT, max, WindowKind::Total, OnReach::Wait);
    let mut debit = Debit::of_each(&Arc::new(resolved), tenant.as_str(), 0, calls);
    debit.amounts.iter_mut().skip(1).for_each(|amount| *amount = Some(0));
    debit
}

#[derive(Debug, Clone)]
pub enum LimitDecision {
    /// Caps come first ([`ResolvedCaps::debits`]), then configured limits.
    Debits(Vec<Debit>),
    AgentRemoved,
    Withheld,
}

pub trait Policy: Sync {
    fn rules(&self, name: &TurnName, head: &Head, calls: &[Call]) -> LimitDecision;

    fn generations(&self) -> Generations;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generations {
    pub policy: u64,
    pub settings: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_window_contains_now_and_starts_at_its_stagger() {
        for (now_ms, stagger_ms, start_ms) in [(1_000, 0, 1_000), (1_000, 1, 901), (1_099, 0, 1_000), (5, 30, -70)] {
            let window = WindowKind::Fixed { length_ms: 100 }.at(now_ms, stagger_ms);
            assert_eq!(window, Window::Fixed { start_ms, end_ms: start_ms + 100, length_ms: 100 });
        }
        let day = WindowKind::Day { zone: Tz::UTC }.at(90_000_000, 7);
        assert_eq!(day, Window::Day { start_ms: 86_400_000, end_ms: 172_800_000 });
    }

    #[test]
    fn a_slice_debits_the_out_counter_once() {
        let debit = in_flight_debit(&TenantId::new("acme").unwrap(), 5, 3);
        assert_eq!((debit.sum(1), debit.sum(3)), (1, 1));
    }
}
