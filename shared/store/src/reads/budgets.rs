use tickfleet_core::keys::{self, TurnName, limits};
use tickfleet_core::{CounterKey, CounterState, Query};

use super::counter;
use crate::{Store, StoreError};

/// The usage of a window is valid until the window ends, in shard time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentBudget {
    pub tick_used: i64,
    pub tick_ends_ms: i64,
    pub day_used: i64,
    pub day_ends_ms: i64,
    pub tick_began_ms: i64,
}

impl AgentBudget {
    pub(crate) fn of(tick: CounterState, day: CounterState) -> Self {
        Self {
            tick_used: amount(tick.used),
            tick_ends_ms: tick.ends_ms,
            day_used: amount(day.used),
            day_ends_ms: day.ends_ms,
            tick_began_ms: tick.began_ms,
        }
    }
}

/// `agent` is `<tenant>:<agent>`.
pub(crate) fn of_agent(agent: &str) -> [Query; 2] {
    [limits::TICK, limits::DAY].map(|limit| Query::Counter(CounterKey::new(limit, agent)))
}

pub(crate) fn amount(used: u64) -> i64 {
    i64::try_from(used).unwrap_or(i64::MAX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetFacts {
    pub tick_used: i64,
    pub tick_ends_ms: i64,
    /// True if the store has restarted since the tick began. This tick then admits no more calls.
    pub tick_is_closed: bool,
    pub day_used: i64,
    pub day_ends_ms: i64,
    pub tenant_day_used: i64,
    pub tenant_day_ends_ms: i64,
    /// Turns ahead of this turn in its throttle queue; `None` if the turn is in no throttle queue.
    pub ahead_on_lane: Option<u64>,
    pub counter: Option<CounterFacts>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterFacts {
    /// Calls, or millionths of a unit.
    pub used: u64,
    pub ends_ms: i64,
    /// Permits in use, if the counter has no window.
    pub held: u64,
}

impl From<CounterState> for CounterFacts {
    fn from(state: CounterState) -> Self {
        if state.ends_ms == 0 {
            Self { held: state.used, ..Self::default() }
        } else {
            Self { used: state.used, ends_ms: state.ends_ms, held: 0 }
        }
    }
}

impl Store {
    pub async fn budget(
        &self,
        agent: &str,
        name: &TurnName,
        waits: Option<&CounterKey>,
    ) -> Result<BudgetFacts, StoreError> {
        let mut queries = of_agent(&format!("{}:{agent}", name.tenant)).to_vec();
        queries.push(Query::Counter(CounterKey::new(limits::TENANT_DAY, name.tenant.as_str())));
        queries.extend(waits.map(|counter| Query::Counter(counter.clone())));
        let mut found = self.values(&queries).await?;
        let tick = counter(found.next());
        let day = counter(found.next());
        let tenant = counter(found.next());
        let epoch_began_ms = self.seam().shard_stats().await?.shard.epoch_began_ms;
        let ahead_on_lane = match waits {
            Some(waits) => self.seam().rank(&keys::throttle_queue(waits), &name.to_string()).await?,
            None => None,
        };
        Ok(BudgetFacts {
            tick_used: amount(tick.used),
            tick_ends_ms: tick.ends_ms,
            tick_is_closed: tick.began_ms < epoch_began_ms,
            day_used: amount(day.used),
            day_ends_ms: day.ends_ms,
            tenant_day_used: amount(tenant.used),
            tenant_day_ends_ms: tenant.ends_ms,
            ahead_on_lane,
            counter: waits.map(|_| counter(found.next()).into()),
        })
    }
}
