//! Reads the usage and the waiting work of a tenant, in one round trip.

use tickfleet_core::keys::limits;
use tickfleet_core::{CounterKey, Query};
use tickfleet_model::{AgentId, TenantId};

use super::budgets::{AgentBudget, of_agent};
use super::counter;
use crate::{Store, StoreError};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantUsage {
    pub now_ms: i64,
    /// Includes tasks.
    pub unfinished: u64,
    /// Slices that wait on queues or that workers have taken.
    pub in_flight: u64,
    /// For all agents in the tenant's current day; 0 if the last day with calls has ended.
    pub day_used: u64,
    /// In shard time; `None` if no call was counted on this day.
    pub day_ends_ms: Option<i64>,
    /// In the order of the request. All zero for an agent that has never made a call.
    pub agents: Vec<AgentBudget>,
}

impl Store {
    pub async fn tenant_usage(&self, tenant: &TenantId, agents: &[AgentId]) -> Result<TenantUsage, StoreError> {
        let of_tenant = |limit: &str| Query::Counter(CounterKey::new(limit, tenant.as_str()));
        let mut queries = [limits::UNFINISHED, limits::IN_FLIGHT, limits::TENANT_DAY].map(of_tenant).to_vec();
        queries.extend(agents.iter().flat_map(|agent| of_agent(&format!("{tenant}:{agent}"))));
        let (mut found, now_ms) = tokio::try_join!(self.values(&queries), self.now_ms())?;
        let unfinished = counter(found.next());
        let in_flight = counter(found.next());
        let day = counter(found.next());
        let day_ends_ms = Some(day.ends_ms).filter(|end| *end > now_ms);
        let agents = agents.iter().map(|_| AgentBudget::of(counter(found.next()), counter(found.next())));
        Ok(TenantUsage {
            now_ms,
            unfinished: unfinished.used,
            in_flight: in_flight.used,
            day_used: if day_ends_ms.is_some() { day.used } else { 0 },
            day_ends_ms,
            agents: agents.collect(),
        })
    }
}
