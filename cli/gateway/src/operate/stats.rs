use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::stats::{StatsDimension, StatsQuery, StatsRow, count_on, stats};
use tickfleet_client::usage::{ModelUseTotal, add_use};
use tickfleet_client::verbs::FilteredNames;
use tickfleet_model::{AgentId, TenantId};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, bounded, check_filter, optional};
use crate::Shared;
use crate::problem::Problem;
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(show))
}

/// Default and maximum.
pub(super) const DAYS: (usize, usize) = (1, 400);
/// Each step counts 1,000 entries per shard.
const STEPS: usize = 20;
pub(super) const DAY_MS: i64 = 86_400_000;

/// Filter and grouping of calls.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallStatsQuery {
    /// Only this tenant.
    tenant: Option<String>,
    /// Only this agent.
    agent: Option<String>,
    /// Only this tool (name or id).
    tool: Option<String>,
    /// Grouping: `day`, `tenant`, `agent` and `tool`, separated by commas. Default: `tool`.
    #[param(example = "day,tool")]
    by: Option<String>,
    /// Days in UTC, including today. Default: 1.
    #[param(minimum = 1, maximum = 400)]
    days: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CallStatsResponse {
    rows: Vec<StatsRow>,
    /// Absent if rows are per tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<ModelUseTotal>,
    counted_upto_ms: i64,
    /// True if the log has entries that are not counted yet: repeat the request.
    more: bool,
    /// True if entries may have been trimmed from the log before they were counted.
    gap: bool,
    now_ms: i64,
}

/// Count calls by outcome and duration.
///
/// The request counts new audit entries first, at most 20,000 per shard. Counts are kept for 400 days. Rows without
/// tools include `used`: model usage in tokens and money, by days of the tenant's time zone.
#[utoipa::path(get, path = "/v1/operate/stats", tag = "operators", params(CallStatsQuery),
    responses((status = 200, description = "`rows`, `models` with model usage, the counted time, `more` and `gap`", body = Object)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<CallStatsQuery>, QueryRejection>,
) -> Result<Json<CallStatsResponse>, Problem> {
    operator.require_permission(Verb::View)?;
    let filters = query(filters)?;
    let tenant = operator.restrict_tenant(filters.tenant)?;
    let days = i64::try_from(bounded("days", filters.days, DAYS.0, DAYS.1)?).unwrap_or(1);
    let by =
        filters.by.as_deref().unwrap_or("tool").split(',').map(parse_grouping).collect::<Result<BTreeSet<_>, _>>()?;
    let agent: Option<AgentId> = optional("agent", filters.agent)?;
    let progress = count_new_entries(&shared, tenant.as_ref()).await?;
    let now_ms = progress.now_ms;
    let counted_upto_ms = progress.upto_ms;
    let more = progress.more;
    let gap = progress.gap;
    let mut response = CallStatsResponse { rows: Vec::new(), models: None, counted_upto_ms, more, gap, now_ms };
    let today = now_ms.div_euclid(DAY_MS);
    let tool = super::resolve_tool_filter(&shared, filters.tool).await?;
    let agent = agent.map(|agent| agent.to_string());
    let stats_query = StatsQuery { tenant, agent, tool, from_day: today - days + 1, until_day: today, by };
    response.rows = stats(shared.client.stores(), &stats_query).await?;
    if response.rows.is_empty() {
        let StatsQuery { tenant, agent, tool, .. } = &stats_query;
        let names = FilteredNames {
            tenant: tenant.as_ref(),
            agent: agent.as_deref(),
            tool: tool.as_deref(),
            ..FilteredNames::default()
        };
        check_filter(&shared, names).await?;
    }
    response.models = add_use(&shared.client, &shared.backend.zones().await?, &stats_query, &mut response.rows).await?;
    Ok(Json(response))
}

pub(super) struct CountProgress {
    pub(super) upto_ms: i64,
    pub(super) more: bool,
    pub(super) gap: bool,
    pub(super) now_ms: i64,
}

/// At most 20,000 entries per shard. `None` counts all shards.
pub(super) async fn count_new_entries(shared: &Shared, tenant: Option<&TenantId>) -> Result<CountProgress, Problem> {
    let now_ms = shared.client.now_ms().await?;
    let mut all = CountProgress { upto_ms: now_ms, more: false, gap: false, now_ms };
    for store in shared.client.stores() {
        if tenant.is_some_and(|tenant| !store.is_home_of(tenant)) {
            continue;
        }
        let counted = count_on(store, STEPS).await?;
        all.upto_ms = all.upto_ms.min(counted.upto_ms);
        (all.more, all.gap) = (all.more || counted.more, all.gap || counted.gap);
    }
    Ok(all)
}

fn parse_grouping(word: &str) -> Result<StatsDimension, Problem> {
    match word {
        "day" => Ok(StatsDimension::Day),
        "tenant" => Ok(StatsDimension::Tenant),
        "agent" => Ok(StatsDimension::Agent),
        "tool" => Ok(StatsDimension::Tool),
        _ => Err(Problem::invalid("by: expected a comma-separated list of day, tenant, agent and tool")),
    }
}
