//! The counters of limits, seen from outside, however many there are. Reads only; for `tickfleet limits`.

use std::collections::{BTreeMap, BTreeSet};

use crate::connection::pool::Pool;
use crate::keys::CounterName;
use crate::reads::diagnosis::CounterFacts;
use crate::records::budgets::AgentBudget;
use crate::records::schema::{tenant as fields_of, turn};
use crate::{Keys, StoreError, TurnName};
use tickfleet_model::TenantId;

/// Counters that one command looks at: Redis answers others in between.
const PAGE: usize = 500;
/// Bytes of a counter as scripts pack it. One of another length was changed by a hand, and counts as used up.
const PACKED_BYTES: usize = 24;

/// The counters of one limit in one shard, as far as they were looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenCounters {
    /// By name; none where what is there cannot be read, which counts as used up.
    pub counters: BTreeMap<String, Option<CounterFacts>>,
    /// Counters that there are.
    pub total: u64,
    /// True if these are all.
    pub complete: bool,
}

/// What the turns under a task that is under way may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskBudget {
    /// The task, `<tenant>:<task>`.
    pub task: String,
    /// The agent that carries it out.
    pub agent: String,
    /// Calls that were used, or given to tasks that were delegated from it.
    pub used: i64,
    /// Calls that it was given.
    pub allowed: i64,
    /// When it ends at the latest, ms of shard time.
    pub deadline_ms: i64,
}

/// Bytes of an agent's budgets, likewise.
const BUDGET_BYTES: usize = 40;

/// An agent's budgets; none where a hand has changed them.
fn budget(packed: &[u8]) -> Option<AgentBudget> {
    (packed.len() == BUDGET_BYTES).then(|| AgentBudget::unpack(packed))
}

impl Pool {
    /// The names of the limits that have counters in a shard.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn limits(&self, keys: &Keys) -> Result<BTreeSet<String>, StoreError> {
        self.at(keys)?.query("limits", redis::cmd("SMEMBERS").arg(keys.key("limits"))).await
    }

    /// Looks at the counters of a limit, a page at a time, until it has seen all of them or `seen_max`; a page may be some
    /// more. Of a limit of calls that are out at the same time (`is_held`), those that have places taken.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn counters(
        &self,
        keys: &Keys,
        limit: &str,
        is_held: bool,
        seen_max: usize,
    ) -> Result<SeenCounters, StoreError> {
        let key = keys.key(format_args!("counters:{limit}"));
        let total = self.at(keys)?.query("counters", redis::cmd("HLEN").arg(&key)).await?;
        let mut seen = SeenCounters { total, ..SeenCounters::default() };
        let mut cursor = 0_u64;
        while seen.counters.len() < seen_max {
            let command = redis::cmd("HSCAN").arg(&key).arg(cursor).arg("COUNT").arg(PAGE).to_owned();
            type Page = (u64, Vec<(Vec<u8>, Vec<u8>)>);
            let (next, page): Page = self.at(keys)?.query("counters", &command).await?;
            // A scan may show one twice.
            seen.counters.extend(page.into_iter().map(|(name, packed)| {
                let facts = (packed.len() == PACKED_BYTES).then(|| CounterFacts::unpack(&packed, 0));
                (String::from_utf8_lossy(&name).into_owned(), facts)
            }));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        seen.complete = cursor == 0;
        if is_held {
            self.count_places(keys, limit, &mut seen).await?;
        }
        Ok(seen)
    }

    /// The places that are held of these counters; those of which none is are left out.
    async fn count_places(&self, keys: &Keys, limit: &str, seen: &mut SeenCounters) -> Result<(), StoreError> {
        let names: Vec<String> = seen.counters.keys().cloned().collect();
        let before = names.len() as u64;
        for page in names.chunks(PAGE) {
            let mut pipe = redis::pipe();
            for name in page {
                pipe.cmd("ZCARD").arg(keys.key(format_args!("held:{limit}@{name}")));
            }
            let held: Vec<u64> = self.at(keys)?.pipeline("places", &pipe).await?;
            for (name, held) in page.iter().zip(held) {
                if held == 0 {
                    seen.counters.remove(name);
                } else {
                    seen.counters.insert(name.clone(), Some(CounterFacts { held, ..CounterFacts::default() }));
                }
            }
        }
        seen.total -= before.min(seen.total) - seen.counters.len() as u64;
        Ok(())
    }

    /// The budgets of agents by name (`tenant:agent`), none where what is there cannot be read; and whether these are all.
    /// A page may be some more than `seen_max`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn budgets(
        &self,
        keys: &Keys,
        seen_max: usize,
    ) -> Result<(BTreeMap<String, Option<AgentBudget>>, bool), StoreError> {
        let (key, mut cursor, mut seen) = (keys.key("budgets"), 0_u64, BTreeMap::new());
        while seen.len() < seen_max {
            let command = redis::cmd("HSCAN").arg(&key).arg(cursor).arg("COUNT").arg(PAGE).to_owned();
            type Page = (u64, Vec<(Vec<u8>, Vec<u8>)>);
            let (next, page): Page = self.at(keys)?.query("budgets", &command).await?;
            let named =
                |(name, packed): (Vec<u8>, Vec<u8>)| (String::from_utf8_lossy(&name).into_owned(), budget(&packed));
            seen.extend(page.into_iter().map(named));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok((seen, cursor == 0))
    }

    /// The budgets of these agents, of those that have one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn budgets_of(
        &self,
        keys: &Keys,
        names: &[String],
    ) -> Result<BTreeMap<String, Option<AgentBudget>>, StoreError> {
        let mut seen = BTreeMap::new();
        for page in names.chunks(PAGE) {
            // One by one, for onlookers may do no more.
            let mut pipe = redis::pipe();
            for name in page {
                pipe.cmd("HGET").arg(keys.key("budgets")).arg(name);
            }
            let found: Vec<Option<Vec<u8>>> = self.at(keys)?.pipeline("budgets", &pipe).await?;
            let there = page.iter().zip(found).filter_map(|(name, packed)| Some((name.clone(), budget(&packed?))));
            seen.extend(there);
        }
        Ok(seen)
    }

    /// How many calls of each of these tenants' days are used, and when these end, ms of shard time.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tenant_days(&self, keys: &Keys, tenants: &[TenantId]) -> Result<Vec<(i64, i64)>, StoreError> {
        let mut days = Vec::with_capacity(tenants.len());
        for page in tenants.chunks(PAGE) {
            let mut pipe = redis::pipe();
            for tenant in page {
                for field in [fields_of::DAY_USED, fields_of::DAY_END] {
                    pipe.cmd("HGET").arg(keys.key(format_args!("tenant:{tenant}"))).arg(field);
                }
            }
            let found: Vec<Option<f64>> = self.at(keys)?.pipeline("tenant_days", &pipe).await?;
            // Lua may write a large number as a float.
            let whole = |number: Option<f64>| number.unwrap_or(0.0) as i64;
            days.extend(found.chunks_exact(2).map(|day| (whole(day[0]), whole(day[1]))));
        }
        Ok(days)
    }

    /// The budgets of those tasks of these tenants that are under way, among the newest `of_tenant` of each; how many tasks
    /// were looked at; and whether these are all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn task_budgets(
        &self,
        keys: &Keys,
        tenants: &[TenantId],
        of_tenant: usize,
    ) -> Result<(Vec<TaskBudget>, u64, bool), StoreError> {
        const FIELDS: [&str; 4] = [turn::AGENT, turn::BUDGET, turn::BUDGET_USED, turn::DEADLINE_MS];
        let (mut names, mut complete) = (Vec::new(), true);
        for page in tenants.chunks(PAGE) {
            let mut pipe = redis::pipe();
            for tenant in page {
                pipe.cmd("ZREVRANGE").arg(keys.tasks(tenant)).arg(0).arg(of_tenant.saturating_sub(1));
            }
            let found: Vec<Vec<String>> = self.at(keys)?.pipeline("tasks", &pipe).await?;
            complete &= found.iter().all(|tasks| tasks.len() < of_tenant);
            let tasks = page.iter().zip(found);
            names.extend(tasks.flat_map(|(tenant, ids)| {
                ids.into_iter().filter_map(move |id| TurnName::parse(&format!("{tenant}:{id}")))
            }));
        }
        let mut budgets = Vec::new();
        for page in names.chunks(PAGE) {
            let mut pipe = redis::pipe();
            for task in page {
                pipe.cmd("HMGET").arg(keys.turn(task)).arg(&FIELDS);
            }
            let found: Vec<Vec<Option<String>>> = self.at(keys)?.pipeline("tasks", &pipe).await?;
            // What has ended has no such record any more.
            let budget = |(task, record): (&TurnName, Vec<Option<String>>)| {
                let number = |at: usize| record.get(at)?.as_ref()?.parse::<i64>().ok();
                let agent = record.first()?.clone()?;
                let (allowed, deadline_ms) = (number(1)?, number(3)?);
                Some(TaskBudget { task: task.to_string(), agent, used: number(2).unwrap_or(0), allowed, deadline_ms })
            };
            budgets.extend(page.iter().zip(found).filter_map(budget));
        }
        Ok((budgets, names.len() as u64, complete))
    }

    /// The number of turns on an agent's lane (`tenant:agent`).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn waiting_on(&self, keys: &Keys, agent: &str) -> Result<u64, StoreError> {
        let lane = keys.key(format_args!("lane:{agent}"));
        self.at(keys)?.query("lanes", redis::cmd("ZCARD").arg(lane)).await
    }

    /// The number of turns on the lane of each of these counters, in their order.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn waiting_for(&self, keys: &Keys, counters: &[CounterName]) -> Result<Vec<u64>, StoreError> {
        if counters.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for counter in counters {
            pipe.cmd("ZCARD").arg(keys.key(format_args!("lane:{counter}")));
        }
        self.at(keys)?.pipeline("lanes", &pipe).await
    }
}
