//! Model usage: requests, tokens and cost by day, tenant and agent. Models are not tools, so rows of tools have no
//! usage.

use std::collections::{BTreeMap, HashMap};

use futures::future::try_join_all;
use serde::Serialize;
use tickfleet_model::day::{Tz, day_bounds};
use tickfleet_model::{TenantId, limits};
use tickfleet_store::{DayUsage, Store, StoreError, Used};

use crate::Client;
pub use crate::model_use::ModelUse;
use crate::stats::{StatsDimension, StatsQuery, StatsRow};

const TOGETHER: usize = 32;
/// Maximum product of tenants and days in one response.
const READ_MAX: usize = 4_000;

/// The total model usage of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ModelUseTotal {
    /// Requests, tokens and cost.
    #[serde(flatten)]
    pub used: ModelUse,
    /// False if the query has too many tenants and days for one response, or more than 40 days. Usage is kept for 40
    /// days.
    pub complete: bool,
}

/// Adds model usage to rows, and rows for usage without calls. A tenant's days begin at midnight in its time zone in
/// `zones`. Returns the total, or `None` if the query is about tools.
pub async fn add_use(
    client: &Client,
    zones: &BTreeMap<TenantId, Tz>,
    query: &StatsQuery,
    rows: &mut Vec<StatsRow>,
) -> Result<Option<ModelUseTotal>, StoreError> {
    if query.tool.is_some() || query.by.contains(&StatsDimension::Tool) {
        return Ok(None);
    }
    let asked = query.until_day.saturating_sub(query.from_day).saturating_add(1);
    let days = usize::try_from(asked.clamp(0, limits::USAGE_DAYS_MAX)).unwrap_or(0);
    let wanted: Vec<_> =
        zones.iter().filter(|(tenant, _)| query.tenant.as_ref().is_none_or(|own| own == *tenant)).collect();
    let read = wanted.len().min(READ_MAX / days.max(1));
    let mut total =
        ModelUseTotal { complete: read == wanted.len() && asked <= limits::USAGE_DAYS_MAX, ..ModelUseTotal::default() };
    let mut found: BTreeMap<[Option<String>; 4], ModelUse> = BTreeMap::new();
    for some in wanted[..read].chunks(TOGETHER) {
        let looks = some.iter().map(|(tenant, zone)| days_of(client.store(tenant), tenant, **zone, days));
        for ((tenant, zone), of_tenant) in some.iter().zip(try_join_all(looks).await?) {
            for day in &of_tenant {
                for (key, used) in keyed(query, (tenant, **zone), day) {
                    total.used.add(used);
                    found.entry(key).or_default().add(used);
                }
            }
        }
    }
    join(rows, found);
    Ok(Some(total))
}

async fn days_of(store: &Store, tenant: &TenantId, zone: Tz, days: usize) -> Result<Vec<DayUsage>, StoreError> {
    let mut at_ms = store.now_ms().await?;
    let mut starts = Vec::with_capacity(days);
    for _ in 0..days {
        let (start_ms, _) = day_bounds(at_ms, zone);
        starts.push(start_ms);
        at_ms = start_ms - 1;
    }
    store.usage(tenant, &starts).await
}

fn keyed<'a>(
    query: &StatsQuery,
    (tenant, zone): (&TenantId, Tz),
    day: &'a DayUsage,
) -> Vec<([Option<String>; 4], &'a Used)> {
    let date = || {
        let time = chrono::DateTime::from_timestamp_millis(day.day_ms).unwrap_or_default();
        time.with_timezone(&zone).format("%Y-%m-%d").to_string()
    };
    let key = |agent: Option<&str>| {
        let grouped = |by: StatsDimension, text: &dyn Fn() -> String| query.by.contains(&by).then(text);
        let agent = agent.filter(|_| query.by.contains(&StatsDimension::Agent)).map(ToOwned::to_owned);
        [grouped(StatsDimension::Day, &date), grouped(StatsDimension::Tenant, &|| tenant.to_string()), agent, None]
    };
    if query.agent.is_none() && !query.by.contains(&StatsDimension::Agent) {
        return vec![(key(None), &day.total)];
    }
    let wanted = day.agents.iter().filter(|(agent, _)| query.agent.as_ref().is_none_or(|own| own == *agent));
    wanted.map(|(agent, used)| (key(Some(agent)), used)).collect()
}

fn join(rows: &mut Vec<StatsRow>, found: BTreeMap<[Option<String>; 4], ModelUse>) {
    let at: HashMap<[Option<String>; 4], usize> = rows.iter().enumerate().map(|(at, row)| (row.key(), at)).collect();
    rows.iter_mut().for_each(|row| row.used = Some(ModelUse::default()));
    for (key, used) in found.into_iter().filter(|(_, used)| *used != ModelUse::default()) {
        match at.get(&key) {
            Some(at) => rows[*at].used = Some(used),
            None => {
                let [day, tenant, agent, tool] = key;
                rows.push(StatsRow { day, tenant, agent, tool, used: Some(used), ..StatsRow::default() });
            }
        }
    }
    rows.sort_by_cached_key(StatsRow::key);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn model_usage_joins_rows_of_calls_and_adds_rows_of_its_own() {
        let row = |agent: &str| StatsRow { agent: Some(agent.into()), calls: 2, ..StatsRow::default() };
        let mut rows = vec![row("fran"), row("kelly")];
        let used = ModelUse { requests: 1, input_tokens: 10, output_tokens: 3, cost: 1_500_000 };
        let key = |agent: &str| [None, None, Some(agent.to_owned()), None];
        join(&mut rows, [(key("kelly"), used), (key("atlas"), used), (key("zoe"), ModelUse::default())].into());
        let rows: Vec<_> =
            rows.iter().map(|row| (row.agent.as_deref().unwrap(), row.calls, row.used.unwrap().requests)).collect();
        assert_eq!(rows, [("atlas", 0, 1), ("fran", 2, 0), ("kelly", 2, 1)]);
        assert_eq!(serde_json::to_value(used).unwrap()["cost"], 1.5);
    }

    #[test]
    fn usage_of_a_day_is_grouped_by_the_requested_dimensions() {
        let tenant = TenantId::new("demo").unwrap();
        let one = Used { requests: 1, ..Used::default() };
        let all = Used { requests: 3, ..Used::default() };
        let day = DayUsage {
            day_ms: 1_764_111_600_000,
            total: all,
            agents: [("kelly".into(), one), ("~".into(), one)].into(),
        };
        let berlin: Tz = "Europe/Berlin".parse().unwrap();
        let asked = |by: &[StatsDimension], agent: Option<&str>| {
            let query =
                StatsQuery { by: by.iter().copied().collect(), agent: agent.map(Into::into), ..StatsQuery::default() };
            keyed(&query, (&tenant, berlin), &day)
                .into_iter()
                .map(|(key, used)| (key, used.requests))
                .collect::<Vec<_>>()
        };
        let of = |day: Option<&str>, agent: Option<&str>| [day.map(Into::into), None, agent.map(Into::into), None];
        assert_eq!(
            asked(&[StatsDimension::Day], None),
            [(of(Some("2025-11-26"), None), 3)],
            "a day begins at midnight there"
        );
        assert_eq!(asked(&[StatsDimension::Agent], None), [(of(None, Some("kelly")), 1), (of(None, Some("~")), 1)]);
        assert_eq!(asked(&[], Some("kelly")), [(of(None, None), 1)]);
    }
}
