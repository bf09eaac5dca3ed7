//! Reads the model usage of a tenant by day, see [`tickfleet_core::usage`].

use std::collections::BTreeMap;

use tickfleet_core::usage::UsageUnit;
use tickfleet_model::TenantId;

use crate::{Store, StoreError};

const STEP: usize = 1_000;

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
                for (agent, used) in self.amounts_of(&unit.limit(tenant, *day_ms)).await? {
                    day.total.add(unit, used);
                    day.agents.entry(agent).or_default().add(unit, used);
                }
            }
            found.push(day);
        }
        Ok(found)
    }

    async fn amounts_of(&self, limit: &str) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut amounts = BTreeMap::new();
        let mut cursor = 0;
        loop {
            let (page, next) = self.seam().scan_counters(limit, cursor, STEP).await?;
            // Store by name, because a scan may return a counter twice.
            amounts.extend(page.into_iter().map(|(counter, state)| (counter.to_string(), state.used)));
            cursor = next;
            if cursor == 0 {
                return Ok(amounts);
            }
        }
    }
}
