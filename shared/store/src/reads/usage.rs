//! Reads the model usage of a tenant by day, see [`tickfleet_core::usage`].

use std::collections::BTreeMap;

use tickfleet_core::usage::UsageUnit;
use tickfleet_model::TenantId;

use crate::{Store, StoreError};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Used {
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// In millionths of the currency.
    pub cost: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DayUsage {
    /// The start of the day in shard time.
    pub day_ms: i64,
    pub total: Used,
    /// If a day has more agents than the maximum, the others share the name `~`.
    pub agents: BTreeMap<String, Used>,
}

impl Used {
    fn add(&mut self, unit: UsageUnit, amount: u64) {
        let counted = match unit {
            UsageUnit::Requests => &mut self.requests,
            UsageUnit::TokensIn => &mut self.input_tokens,
            UsageUnit::TokensOut => &mut self.output_tokens,
            UsageUnit::Cost => &mut self.cost,
        };
        *counted = counted.saturating_add(amount);
    }
}

impl Store {
    /// `days_ms` are from [`day_bounds`](tickfleet_model::day::day_bounds) for the tenant's time zone. A day without
    /// usage is all zero.
    pub async fn usage(&self, tenant: &TenantId, days_ms: &[i64]) -> Result<Vec<DayUsage>, StoreError> {
        let mut found = Vec::with_capacity(days_ms.len());
        for day_ms in days_ms {
            let mut day = DayUsage { day_ms: *day_ms, ..DayUsage::default() };
            for unit in UsageUnit::ALL {
                for (agent, state) in self.states_of(&unit.limit(tenant, *day_ms), usize::MAX).await?.0 {
                    day.total.add(unit, state.used);
                    day.agents.entry(agent).or_default().add(unit, state.used);
                }
            }
            found.push(day);
        }
        Ok(found)
    }
}
