//! Lists the caps of agents, tenants and tasks in the form of limits.

use tickfleet_client::turn_status::{DAY_NAME, TICK_NAME};
use tickfleet_model::limit::{LimitMode, OnReach};
use tickfleet_model::policy::{AgentPolicy, TenantPolicy};
use tickfleet_model::{AgentId, DayCapAction, Policy, TenantId, limits};
use tickfleet_store::{AgentBudget, TaskBudget};

use super::counters::{COUNTERS_MAX, Shard};
use super::views::{CounterView, LimitView};
use crate::failure::Failure;

/// Without a tenant, the counters of all tenants are shown.
#[derive(Clone, Copy, Default)]
pub(super) struct CounterOwner<'a> {
    pub(super) tenant: Option<&'a TenantId>,
    pub(super) agent: Option<&'a AgentId>,
}

/// At least this many tasks of each tenant are read, even if there are many tenants.
const TASKS_MIN: usize = 10;

pub(super) async fn of(
    shards: &[Shard<'_>],
    policy: &Policy,
    owner: CounterOwner<'_>,
    top: usize,
) -> Result<Vec<LimitView>, Failure> {
    let defaults = &policy.defaults;
    let at_day = match defaults.on_day_cap {
        DayCapAction::Reject => OnReach::Reject,
        DayCapAction::Defer => OnReach::Wait,
    };
    let tick = format!("{} calls per agent in a tick, unless the agent has its own cap", defaults.calls_per_tick);
    let day = format!("{} calls per agent in a day, unless the agent has its own cap", defaults.max_actions_per_day);
    let mut ticks = CapCounters::new(TICK_NAME, tick, OnReach::Wait);
    let mut days = CapCounters::new(DAY_NAME, day, at_day);
    let of_tenants = "calls per tenant in a day, as configured for the tenant".to_owned();
    let mut tenants = CapCounters::new("max_actions_per_day of the tenant", of_tenants, at_day);
    let of_tasks = format!("calls per task; {} unless the delegation sets a budget", limits::TASK_BUDGET_DEFAULT);
    let mut tasks = CapCounters::new("budget of the task", of_tasks, OnReach::Reject);
    for shard in shards {
        add_tasks(shard, policy, owner, &mut tasks).await?;
        add_agents(shard, policy, owner, (&mut ticks, &mut days)).await?;
        add_tenants(shard, policy, owner, &mut tenants).await?;
    }
    for cap in [&mut ticks, &mut days] {
        cap.keep_fullest(top);
        for counter in &mut cap.view.counters {
            let mut waiting = 0;
            for shard in shards {
                waiting += shard.store.waiting_on(&counter.counter).await?;
            }
            counter.waiting = Some(waiting);
        }
    }
    tenants.keep_fullest(top);
    tasks.keep_fullest(top);
    Ok(vec![ticks.view, days.view, tenants.view, tasks.view])
}

/// If no agent is requested, adds up to `COUNTERS_MAX` agents.
async fn add_agents(
    shard: &Shard<'_>,
    policy: &Policy,
    owner: CounterOwner<'_>,
    (ticks, days): (&mut CapCounters, &mut CapCounters),
) -> Result<(), Failure> {
    let named: Option<Vec<String>> = owner.tenant.map(|tenant| {
        let all = policy.agents.keys().filter(|agent| owner.agent.is_none_or(|wanted| wanted == *agent));
        all.map(|agent| format!("{tenant}:{agent}")).take(COUNTERS_MAX).collect()
    });
    let (budgets, complete) = match named {
        Some(names) => (shard.store.budgets_of(&names).await?, names.len() < COUNTERS_MAX),
        None => shard.store.budgets(COUNTERS_MAX).await?,
    };
    for cap in [&mut *ticks, &mut *days] {
        cap.view.complete &= complete;
        cap.view.counters_read += budgets.len() as u64;
    }
    for (name, budget) in budgets {
        let caps = agent_of(policy, &name).map(|(owner, agent)| policy.caps(owner, agent));
        let AgentBudget { tick_used, tick_ends_ms, day_used, day_ends_ms, .. } = budget;
        let tick_cap = caps.map(|caps| caps.calls_per_tick);
        let day_cap = caps.map(|caps| caps.calls_per_day);
        ticks.add(&name, (tick_used, tick_ends_ms), tick_cap, shard.now_ms);
        days.add(&name, (day_used, day_ends_ms), day_cap, shard.now_ms);
    }
    Ok(())
}

/// If no tenant is requested, adds all tenants that have their own cap.
async fn add_tenants(
    shard: &Shard<'_>,
    policy: &Policy,
    owner: CounterOwner<'_>,
    cap: &mut CapCounters,
) -> Result<(), Failure> {
    let wanted = |tenant: &TenantId, policy: &TenantPolicy| match owner.tenant {
        Some(wanted) => wanted == tenant,
        None => policy.max_actions_per_day.is_some(),
    };
    let here = policy.tenants.iter().filter(|(tenant, owner)| wanted(tenant, owner) && shard.store.is_home_of(tenant));
    let here: Vec<(&TenantId, &TenantPolicy)> = here.take(COUNTERS_MAX).collect();
    let names: Vec<TenantId> = here.iter().map(|(tenant, _)| (*tenant).clone()).collect();
    let days = shard.store.tenant_days(&names).await?;
    cap.view.counters_read += days.len() as u64;
    cap.view.complete &= here.len() < COUNTERS_MAX;
    for ((tenant, owner), day) in here.into_iter().zip(days) {
        cap.add(tenant.as_str(), day, owner.max_actions_per_day, shard.now_ms);
    }
    Ok(())
}

/// A call beyond a task's budget ends at once, so no turn waits for such a budget.
async fn add_tasks(
    shard: &Shard<'_>,
    policy: &Policy,
    owner: CounterOwner<'_>,
    cap: &mut CapCounters,
) -> Result<(), Failure> {
    let wanted = |tenant: &&TenantId| owner.tenant.is_none_or(|wanted| wanted == *tenant);
    let here = policy.tenants.keys().filter(wanted).filter(|tenant| shard.store.is_home_of(tenant));
    let names: Vec<TenantId> = here.take(COUNTERS_MAX).cloned().collect();
    let of_tenant = (COUNTERS_MAX / names.len().max(1)).max(TASKS_MIN);
    let (budgets, counters_read, complete) = shard.store.task_budgets(&names, of_tenant).await?;
    cap.view.counters_read += counters_read;
    cap.view.complete &= complete && names.len() < COUNTERS_MAX;
    for TaskBudget { task, agent, used, allowed, deadline_ms } in budgets {
        if owner.agent.is_none_or(|wanted| wanted.as_str() == agent) {
            cap.add(&task, (used, deadline_ms), u32::try_from(allowed).ok(), shard.now_ms);
        }
    }
    for counter in &mut cap.view.counters {
        counter.waiting = Some(0);
    }
    Ok(())
}

/// `name` is `tenant:agent`. `None` if this configuration does not have the agent.
fn agent_of<'a>(policy: &'a Policy, name: &str) -> Option<(&'a TenantPolicy, &'a AgentPolicy)> {
    let (tenant, agent) = name.split_once(':')?;
    policy.look_up(&TenantId::new(tenant).ok()?, &AgentId::new(agent).ok()?).ok()
}

struct CapCounters {
    view: LimitView,
}

impl CapCounters {
    fn new(name: &str, allows: String, on_reach: OnReach) -> Self {
        let view = LimitView {
            name: name.to_owned(),
            allows: Some(allows),
            on_reach: Some(on_reach),
            mode: Some(LimitMode::Enforce),
            is_held: false,
            total: 0,
            counters_read: 0,
            complete: true,
            counters: Vec::new(),
        };
        Self { view }
    }

    /// Skips a counter after the end of its window. An unreadable counter counts as used up.
    fn add(&mut self, name: &str, (used, ends_ms): (i64, i64), cap: Option<u32>, now_ms: i64) {
        if ends_ms <= now_ms {
            return;
        }
        self.view.total += 1;
        let used = used.max(0).unsigned_abs();
        let allowed = cap.map(u64::from);
        self.view.counters.push(CounterView {
            counter: name.to_owned(),
            shard: None,
            used: used.into(),
            allowed: allowed.map(Into::into),
            window_ends_ms: Some(ends_ms),
            waiting: None,
            full_in: u32::from(allowed.is_some_and(|allowed| used >= allowed)),
            shares: 1,
        });
    }

    fn keep_fullest(&mut self, top: usize) {
        let fullness = |counter: &CounterView| {
            let used = counter.used.as_u64().unwrap_or(0);
            let allowed = counter.allowed.as_ref().and_then(serde_json::Number::as_u64);
            let part = allowed.map_or(0, |allowed| used.saturating_mul(1_000_000) / allowed.max(1));
            std::cmp::Reverse((part, used))
        };
        self.view.counters.sort_by_key(fullness);
        self.view.counters.truncate(top);
    }
}
