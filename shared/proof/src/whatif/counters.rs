//! Counters with the values that the evaluated policy would have caused, and the debits of a turn's next calls.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use tickfleet_core::counters::IDLE_MS;
use tickfleet_core::keys::limits;
use tickfleet_core::turn::limit::{Debit, ResolvedCaps, ResolvedLimit, WindowKind, task_debit};
use tickfleet_core::{CounterKey, CounterState, Window};
use tickfleet_model::day::{Tz, zone};
use tickfleet_model::limit::counters::{Debits, LimitCaller, counters};
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMode, LimitWindow};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, AgentPolicy, Call, Caps, Context, Limit, Policy, TaskId, TenantId};

use super::turns::{Turn, TurnContext};
use super::{DAY, TASK, TICK};

/// From this number on, all counters with ended windows are dropped.
const KEPT_MIN: usize = 100_000;

#[derive(Debug, Clone, Copy)]
pub struct Fleet<'a> {
    pub policy: &'a Policy,
    pub shards: u32,
    /// Offset of an agent's ticks (ms), from tenant, agent and tick length (ms).
    pub agent_stagger: fn(&TenantId, &AgentId, i64) -> i64,
    /// Offset of a counter's windows (ms), from limit, counter and window length (ms).
    pub counter_stagger: fn(&str, &str, i64) -> i64,
    /// Number of worker slots, which the log does not state.
    pub slots: Option<u64>,
    pub one_tenant: bool,
}

pub(super) struct TurnCaller<'a> {
    pub(super) tenant: TenantId,
    pub(super) agent: AgentId,
    pub(super) owner: &'a TenantPolicy,
    pub(super) policy: &'a AgentPolicy,
}

#[derive(Default)]
pub(super) struct CounterLedger {
    /// By `<shard> <limit>@<counter>`.
    pub(super) counters: HashMap<String, CounterState>,
    /// By counter. Includes permits that were returned in the current millisecond.
    held: HashMap<String, u64>,
    /// Permits that were returned at `returned_ms`, by counter. Only a decision that was recorded in this millisecond
    /// shows whether the permits were already free.
    returned: HashMap<String, u64>,
    returned_ms: i64,
    live_counters: HashMap<String, LiveCounters>,
    kept: usize,
}

/// For one limit in one shard: the end of each counter's window.
#[derive(Default)]
struct LiveCounters {
    ends: HashMap<String, i64>,
    /// Until this time, calls of the limit may share a counter.
    until_ms: i64,
}

impl LiveCounters {
    /// The window of `key` ends at `end_ms`. The log does not show which calls share a counter.
    fn may_share(&mut self, key: &str, end_ms: i64, most: u64, now_ms: i64) -> bool {
        if now_ms < self.until_ms {
            // The shared counter exists until the janitor deletes it.
            self.until_ms = self.until_ms.max(end_ms + PRUNED_MS);
            return true;
        }
        if self.until_ms > 0 {
            *self = Self::default();
        }
        self.ends.insert(key.to_owned(), end_ms);
        if self.ends.len() as u64 > most {
            self.ends.retain(|_, end_ms| *end_ms + PRUNED_MS > now_ms);
        }
        if self.ends.len() as u64 > most {
            self.until_ms = self.ends.values().max().copied().unwrap_or(now_ms) + PRUNED_MS;
        }
        now_ms < self.until_ms
    }
}

#[derive(Clone)]
pub(super) struct CounterDebit {
    /// Unique among all shards and limits.
    pub(super) counter: String,
    /// All caps of an agent share one throttle queue.
    pub(super) queue: String,
    /// The limit's name in reported differences.
    pub(super) by: String,
    pub(super) debit: Debit,
    pub(super) state: CounterState,
    /// Permits in `state` that were returned in this millisecond.
    pub(super) returned: u64,
}

impl CounterDebit {
    /// A configured limit has its own throttle queue.
    pub(super) fn is_limit(&self) -> bool {
        self.queue == self.counter
    }
}

pub(super) struct UnknownLimit {
    /// The limit's name in reported differences.
    pub(super) by: String,
    pub(super) why: &'static str,
    /// One per call. `None` if the limit may count any call.
    counted: Option<Vec<bool>>,
}

impl UnknownLimit {
    /// `None` for a limit in shadow mode, because such a limit stops no call.
    fn of(limit: &Limit, why: &'static str, debits: &Debits) -> Option<Self> {
        // A call with an unreadable amount counts.
        let counted = || debits.amounts.iter().map(|amount| *amount != Some(0)).collect();
        let by = super::limit(&limit.name);
        (limit.mode != LimitMode::Shadow).then(|| Self { by, why, counted: Some(counted()) })
    }

    pub(super) fn counts(&self, at: usize) -> bool {
        self.counted.as_ref().is_none_or(|counted| counted.get(at).copied().unwrap_or(true))
    }
}

/// Maximum time (ms) from the end of a window to the deletion by the janitor, with an hour for the janitor's scan.
const PRUNED_MS: i64 = IDLE_MS + 3_600_000;

const SHARED_COUNTERS: &str =
    "had more counters at once than keys_max: calls shared one, and the log does not show which";
const NO_ARGUMENTS: &str = "counts by arguments that are incomplete in the log";
const NO_CONTEXT: &str = "counts by user, session or task, which the entries lack (audit.policy_inputs)";
const ONE_TENANT: &str = "counts calls of several tenants, but only one tenant's calls are read";
const ROLLING: &str = "is rolling: when its amounts stop counting is not in the log";
const NO_SLOTS: &str = "is a percentage of the workers' slots, whose number is not in the log (pass --slots)";
pub const SHARE: &str =
    "is a share of the workers' slots, which depends on all waiting calls: its waits stay as recorded";
pub const OF_MODELS: &str = "counts model requests, which are not in the log: tasks that it counts";

impl CounterLedger {
    pub(super) fn return_permits(&mut self, counter: &str, permits: u64, now_ms: i64) {
        self.advance_to(now_ms);
        self.returned_ms = now_ms;
        *self.returned.entry(counter.to_owned()).or_default() += permits;
    }

    pub(super) fn take_permits(&mut self, counter: &str, permits: u64) {
        *self.held.entry(counter.to_owned()).or_default() += permits;
    }

    pub(super) fn advance_to(&mut self, now_ms: i64) {
        if now_ms > self.returned_ms && !self.returned.is_empty() {
            let returned: Vec<String> = self.returned.keys().cloned().collect();
            returned.iter().for_each(|counter| self.free_returned(counter));
        }
    }

    /// A recorded decision shows that these permits were already free.
    pub(super) fn free_returned(&mut self, counter: &str) {
        let permits = self.returned.remove(counter).unwrap_or(0);
        if let Some(held) = self.held.get_mut(counter) {
            *held = held.saturating_sub(permits);
        }
    }

    /// The next debit would reset these counters anyway.
    pub(super) fn drop_ended(&mut self, now_ms: i64) {
        if self.counters.len() < self.kept.max(KEPT_MIN) {
            return;
        }
        self.counters.retain(|_, counter| counter.ends_ms > now_ms);
        self.held.retain(|_, permits| *permits > 0);
        self.kept = 2 * self.counters.len();
    }

    /// `task` is the task's budget and the used part.
    pub(super) fn cap_debits(
        &self,
        fleet: &Fleet<'_>,
        caller: &TurnCaller<'_>,
        (turn, calls): (&Turn, usize),
        (caps, task): (&Caps, Option<(u64, u64)>),
        now_ms: i64,
    ) -> Vec<CounterDebit> {
        let queue = format!("{}:{}", turn.tenant, turn.agent);
        let zone = zone(fleet.policy.time_zone(caller.owner)).unwrap_or(Tz::UTC);
        let stagger_ms = (fleet.agent_stagger)(&caller.tenant, &caller.agent, caps.tick_ms);
        let budget = task.and_then(|(max, used)| {
            let task = TaskId::new(turn.context.as_ref()?.task.as_deref()?).ok()?;
            Some((task_debit(&caller.tenant, &task, max, calls), CounterState { used, ..CounterState::default() }))
        });
        let budget = budget.map(|(debit, state)| CounterDebit {
            counter: String::new(),
            queue: queue.clone(),
            by: TASK.to_owned(),
            debit,
            state,
            returned: 0,
        });
        let counter_debit = |debit: Debit| {
            let by = if &*debit.limit.name == limits::TICK { TICK } else { DAY };
            let (counter, state) = self.state(turn.shard, &debit, now_ms);
            CounterDebit { counter, queue: queue.clone(), by: by.to_owned(), debit, state, returned: 0 }
        };
        let rows = ResolvedCaps::new(caps, zone).debits(&caller.tenant, &caller.agent, stagger_ms, calls);
        budget.into_iter().chain(rows.into_iter().map(counter_debit)).collect()
    }

    fn state(&self, shard: u32, debit: &Debit, now_ms: i64) -> (String, CounterState) {
        let name = format!("{shard} {}@{}", debit.limit.name, debit.counter.counter);
        let window = debit.limit.window.at(now_ms, debit.stagger_ms);
        let state = self.counters.get(&name).copied().unwrap_or_default().opened(&window, now_ms);
        match window {
            Window::Concurrency => {
                let used = self.held.get(&name).copied().unwrap_or(0);
                (name, CounterState { used, ..CounterState::default() })
            }
            _ => (name, state),
        }
    }

    /// For the calls from index `from` on. Also returns the limits with unknown debits.
    pub(super) fn limit_debits(
        &mut self,
        fleet: &Fleet<'_>,
        caller: &TurnCaller<'_>,
        turn: &Turn,
        from: usize,
        now_ms: i64,
    ) -> (Vec<CounterDebit>, Vec<UnknownLimit>) {
        let limits = &fleet.policy.limits;
        if limits.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let known = turn.context.as_ref();
        let context = known.map(context).unwrap_or_default();
        let task = known.and_then(|known| TaskId::new(known.task.as_deref()?).ok());
        let calls: Vec<Call> = turn.calls[from..].iter().map(call).collect();
        let limit_caller = LimitCaller {
            tenant: &caller.tenant,
            owner: caller.owner,
            agent: &caller.agent,
            policy: caller.policy,
            context: &context,
            task: task.as_ref(),
            parallel_reads: known.is_some_and(|known| known.parallel_reads),
        };
        let mut counter_debits = Vec::new();
        let mut unknown = Vec::new();
        for debits in counters(limits, &fleet.policy.known_tools, &limit_caller, &calls) {
            let limit = caller.owner.limit(&limits[debits.limit]);
            // With enough slots for all tenants, this limit stops no call.
            if matches!(limit.bound, LimitBound::Share(_)) {
                continue;
            }
            let is_of_others = fleet.one_tenant && fleet.policy.tenants.len() > 1 && !limit.is_of_tenants();
            let unknown_reason =
                is_of_others.then_some(ONE_TENANT).or_else(|| unknown_reason(&limit, &debits, turn, from));
            let unknown_limit = |why| UnknownLimit::of(&limit, why, &debits);
            let max = match (unknown_reason, self.max(fleet, &limit, turn.shard)) {
                (None, Some(max)) => max,
                (why, _) => {
                    unknown.extend(unknown_limit(why.unwrap_or(NO_SLOTS)));
                    continue;
                }
            };
            let crowded = unknown_limit(SHARED_COUNTERS);
            let key = debits.key.clone();
            let counter_debit = self.limit_debit(fleet, caller, &limit, (debits, max), (turn.shard, now_ms));
            let live = self.live_counters.entry(format!("{} {}", turn.shard, limit.name)).or_default();
            if limit.every != LimitWindow::Concurrency
                && live.may_share(&key, counter_debit.state.ends_ms, limit.keys_max, now_ms)
            {
                unknown.extend(crowded);
                continue;
            }
            counter_debits.push(counter_debit);
        }
        if known.is_none() {
            unknown.extend(of_tasks(limits));
        }
        (counter_debits, unknown)
    }

    /// `None` if the maximum depends on an unknown number of slots.
    fn max(&self, fleet: &Fleet<'_>, limit: &Limit, shard: u32) -> Option<u64> {
        match limit.bound {
            LimitBound::Part(percent) => fleet.slots.map(|slots| limit.permits_of(percent, slots, fleet.shards)),
            _ => Some(limit.share(shard, fleet.shards)),
        }
    }

    fn limit_debit(
        &self,
        fleet: &Fleet<'_>,
        caller: &TurnCaller<'_>,
        limit: &Limit,
        (debits, max): (Debits, u64),
        (shard, now_ms): (u32, i64),
    ) -> CounterDebit {
        let mut resolved = ResolvedLimit::configured(fleet.policy, caller.owner, limit, (shard, fleet.shards));
        resolved.max = max;
        let stagger_ms = match resolved.window {
            WindowKind::Fixed { length_ms } => (fleet.counter_stagger)(&limit.name, &debits.key, length_ms),
            _ => 0,
        };
        let counter = CounterKey::new(&*resolved.name, &*debits.key);
        let debit = Debit { limit: Arc::new(resolved), counter, stagger_ms, amounts: debits.amounts };
        let (counter, state) = self.state(shard, &debit, now_ms);
        let returned = self.returned.get(&counter).copied().unwrap_or(0);
        CounterDebit { queue: counter.clone(), counter, by: super::limit(&limit.name), debit, state, returned }
    }

    pub(super) fn store_states(&mut self, counter_debits: &[CounterDebit]) {
        for counter_debit in
            counter_debits.iter().filter(|counter_debit| counter_debit.debit.limit.window != WindowKind::Total)
        {
            self.counters.insert(counter_debit.counter.clone(), counter_debit.state);
        }
    }

    pub(super) fn debit(&mut self, counter_debits: Vec<CounterDebit>, calls: usize) -> Vec<(String, u64)> {
        let mut permits = Vec::new();
        for CounterDebit { counter, debit, state, .. } in counter_debits {
            let amount = debit.sum(calls);
            match debit.limit.window {
                WindowKind::Concurrency if amount > 0 => {
                    *self.held.entry(counter.clone()).or_default() += amount;
                    permits.push((counter, amount));
                }
                WindowKind::Concurrency | WindowKind::Total => {}
                WindowKind::Fixed { .. } | WindowKind::Day { .. } | WindowKind::Rolling { .. } => {
                    let used = state.used.saturating_add(amount);
                    self.counters.insert(counter, CounterState { used, queued: false, ..state });
                }
            }
        }
        permits
    }
}

/// Limits per task count only calls with a task. An entry without policy inputs does not show the task.
fn of_tasks(limits: &[Limit]) -> impl Iterator<Item = UnknownLimit> {
    let counts = |limit: &&Limit| limit.per.contains(&LimitKey::Task) && limit.mode != LimitMode::Shadow;
    let unknown_limit = |limit: &Limit| UnknownLimit { by: super::limit(&limit.name), why: NO_CONTEXT, counted: None };
    limits.iter().filter(counts).map(unknown_limit)
}

fn unknown_reason(limit: &Limit, debits: &Debits, turn: &Turn, from: usize) -> Option<&'static str> {
    if matches!(limit.every, LimitWindow::Rolling(_)) {
        return Some(ROLLING);
    }
    let counted = |(at, amount): (usize, &Option<u64>)| (*amount != Some(0)).then(|| &turn.calls[from + at]);
    let without_arguments = || {
        let mut calls = debits.amounts.iter().enumerate().filter_map(counted);
        calls.any(|call| call.arguments.is_none()).then_some(NO_ARGUMENTS)
    };
    let without_context = |recorded: fn(&TurnContext) -> Option<&RawValue>| match &turn.context {
        Some(context) if !recorded(context).is_some_and(|value| value.get().contains("[REDACTED]")) => None,
        _ => Some(NO_CONTEXT),
    };
    let unknown = |key: &LimitKey| match key {
        LimitKey::Argument(_) => without_arguments(),
        LimitKey::User => without_context(|context| context.user.as_deref()),
        LimitKey::Session => without_context(|context| context.session.as_deref()),
        LimitKey::Tenant | LimitKey::Agent | LimitKey::Task | LimitKey::Tool | LimitKey::Category => None,
    };
    let unsummed = if matches!(limit.bound, LimitBound::Sum { .. }) { without_arguments() } else { None };
    unsummed.or_else(|| limit.per.iter().find_map(unknown))
}

fn context(recorded: &TurnContext) -> Context {
    Context { user_context: recorded.user.clone(), session_data: recorded.session.clone(), ..Context::default() }
}

fn call(call: &super::turns::TurnCall) -> Call {
    let arguments = call.arguments.clone().unwrap_or_default();
    Call { provider_id: None, tool: call.tool.clone(), arguments }
}
