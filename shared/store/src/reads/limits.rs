//! Reads the counters of limits, for `tickfleet limits`.

use std::collections::BTreeMap;

use tickfleet_core::keys::{self, limits};
use tickfleet_core::turn::Turn;
use tickfleet_core::{CounterKey, CounterState, Query, Stored};
use tickfleet_model::TenantId;

use super::budgets::{AgentBudget, CounterFacts, amount, of_agent};
use super::{counter, size};
use crate::keys::CounterName;
use crate::{Store, StoreError, TurnName};

const PAGE: usize = 500;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenCounters {
    pub counters: BTreeMap<String, CounterFacts>,
    pub complete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskBudget {
    /// `<tenant>:<task>`.
    pub task: String,
    pub agent: String,
    /// Includes the calls that the task has passed to tasks that it delegated.
    pub used: i64,
    /// In calls.
    pub allowed: i64,
    pub deadline_ms: i64,
}

impl Store {
    /// Reads pages until it has all counters, or at least `seen_max`. For a limit of permits (`is_held`), returns only
    /// counters with permits in use.
    pub async fn counters(&self, limit: &str, is_held: bool, seen_max: usize) -> Result<SeenCounters, StoreError> {
        let (states, complete) = self.states_of(limit, seen_max).await?;
        let counters = states.into_iter().map(|(name, state)| (name, CounterFacts::from(state)));
        Ok(SeenCounters { counters: counters.filter(|(_, facts)| !is_held || facts.held > 0).collect(), complete })
    }

    /// By name. The flag is true if the result has all counters.
    pub(crate) async fn states_of(
        &self,
        limit: &str,
        seen_max: usize,
    ) -> Result<(BTreeMap<String, CounterState>, bool), StoreError> {
        let mut seen = BTreeMap::new();
        let mut cursor = 0;
        while seen.len() < seen_max {
            let (page, next) = self.seam().scan_counters(limit, cursor, PAGE).await?;
            // Store by name, because a scan may return a counter twice.
            seen.extend(page.into_iter().map(|(name, state)| (name.to_string(), state)));
            cursor = next;
            if cursor == 0 {
                return Ok((seen, true));
            }
        }
        Ok((seen, false))
    }

    /// By name (`tenant:agent`). The flag is true if the result has all agents. The result can have more than
    /// `seen_max` agents.
    pub async fn budgets(&self, seen_max: usize) -> Result<(BTreeMap<String, AgentBudget>, bool), StoreError> {
        let (ticks, all_ticks) = self.states_of(limits::TICK, seen_max).await?;
        let (days, all_days) = self.states_of(limits::DAY, seen_max).await?;
        let budget = |name: &String| {
            let state = |states: &BTreeMap<String, CounterState>| states.get(name).copied().unwrap_or_default();
            (name.clone(), AgentBudget::of(state(&ticks), state(&days)))
        };
        Ok((ticks.keys().chain(days.keys()).map(budget).collect(), all_ticks && all_days))
    }

    /// Omits an agent that has never made a call.
    pub async fn budgets_of(&self, names: &[String]) -> Result<BTreeMap<String, AgentBudget>, StoreError> {
        let mut seen = BTreeMap::new();
        for page in names.chunks(PAGE) {
            let queries: Vec<Query> = page.iter().flat_map(|name| of_agent(name)).collect();
            let mut found = self.values(&queries).await?;
            for name in page {
                let budget = AgentBudget::of(counter(found.next()), counter(found.next()));
                if budget != AgentBudget::default() {
                    seen.insert(name.clone(), budget);
                }
            }
        }
        Ok(seen)
    }

    /// For each tenant, the calls of the day and the end of the day in shard time (ms).
    pub async fn tenant_days(&self, tenants: &[TenantId]) -> Result<Vec<(i64, i64)>, StoreError> {
        let mut days = Vec::with_capacity(tenants.len());
        for page in tenants.chunks(PAGE) {
            let query = |tenant: &TenantId| Query::Counter(CounterKey::new(limits::TENANT_DAY, tenant.as_str()));
            let found = self.values(&page.iter().map(query).collect::<Vec<_>>()).await?;
            days.extend(found.map(|value| counter(Some(value))).map(|day| (amount(day.used), day.ends_ms)));
        }
        Ok(days)
    }

    /// Also returns the number of tasks that were read, and true if every tenant has fewer than `of_tenant` tasks.
    pub async fn task_budgets(
        &self,
        tenants: &[TenantId],
        of_tenant: usize,
    ) -> Result<(Vec<TaskBudget>, u64, bool), StoreError> {
        let mut names = Vec::new();
        let mut complete = true;
        for tenant in tenants {
            let tasks = self.seam().last(&keys::tasks_of(tenant), 0, of_tenant).await?;
            complete &= tasks.len() < of_tenant;
            names.extend(tasks.iter().filter_map(|(id, _)| TurnName::parse(&format!("{tenant}:{id}"))));
        }
        let mut budgets = Vec::new();
        for page in names.chunks(PAGE) {
            let queries = page.iter().flat_map(|task| {
                let used = Query::Counter(CounterKey::new(limits::TASK, task.to_string()));
                [Query::Record(task.record()), used]
            });
            let mut found = self.values(&queries.collect::<Vec<_>>()).await?;
            for task in page {
                let record = found.next();
                let used = counter(found.next()).used;
                // A task that has ended has no turn record.
                let Ok(Some(Stored::<Turn> { value: turn, .. })) = super::stored(&task.record(), record) else {
                    continue;
                };
                if let Some(part) = &turn.task {
                    budgets.push(TaskBudget {
                        task: task.to_string(),
                        agent: turn.head.agent.to_string(),
                        used: amount(used),
                        allowed: amount(part.budget),
                        deadline_ms: turn.head.deadline_ms,
                    });
                }
            }
        }
        Ok((budgets, names.len() as u64, complete))
    }

    pub async fn waiting_on(&self, agent: &str) -> Result<u64, StoreError> {
        let queue = |limit: &str| Query::Size(keys::throttle_queue(&CounterKey::new(limit, agent)));
        Ok(self.values(&[limits::TICK, limits::DAY].map(queue)).await?.map(|value| size(Some(value))).sum())
    }

    /// In the order of `counters`.
    pub async fn waiting_for(&self, counters: &[CounterName]) -> Result<Vec<u64>, StoreError> {
        let queue =
            |name: &CounterName| Query::Size(keys::throttle_queue(&CounterKey::new(&name.limit, &name.counter)));
        let found = self.values(&counters.iter().map(queue).collect::<Vec<_>>()).await?;
        Ok(found.map(|value| size(Some(value))).collect())
    }
}
