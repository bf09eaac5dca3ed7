use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use tickfleet_client::Cursor;
use tickfleet_client::audit::{ArgumentConditions, AuditPage, AuditQuery};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, bounded, check_filter};
use crate::Shared;
use crate::problem::Problem;
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(search))
}

/// Default and maximum per shard.
const ENTRIES: (usize, usize) = (50, 500);
/// Per request and shard.
const READ_MAX: usize = 20_000;

/// Filter of audit entries. An entry must match all of it.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditSearchQuery {
    /// Only this tenant.
    tenant: Option<String>,
    /// Only this agent.
    agent: Option<String>,
    /// Only entries about this tool (name or id): calls, approvals, pauses and switches.
    tool: Option<String>,
    /// Only this outcome.
    outcome: Option<String>,
    /// Only entries that contain this text.
    text: Option<String>,
    /// Only calls whose arguments meet these conditions, joined by `and`. Operators: `=`, `!=`, `<`, `<=`, `>`, `>=`.
    #[serde(rename = "where")]
    #[param(example = "amount > 100 and customer = \"c-17\"")]
    conditions: Option<String>,
    /// Only entries of the last `since_s` seconds.
    since_s: Option<u32>,
    /// Only entries at or after this time (ms by Redis' clock).
    from_ms: Option<i64>,
    /// Only entries before this time (ms by Redis' clock).
    until_ms: Option<i64>,
    /// Entries per shard. Default: 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position in one shard to continue from: one of the previous `cursors`.
    #[param(value_type = Option<String>)]
    cursor: Option<Cursor>,
}

/// Search the audit log, the newest entries first.
///
/// A request reads at most 20,000 entries per shard. The response contains the positions to continue from.
#[utoipa::path(get, path = "/v1/operate/audit", tag = "operators", params(AuditSearchQuery),
    responses((status = 200, description = "`entries`, the number of entries `read`, and `cursors` to continue from", body = Object)))]
pub(crate) async fn search(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<AuditSearchQuery>, QueryRejection>,
) -> Result<Json<AuditPage>, Problem> {
    operator.require_permission(Verb::View)?;
    let filters = query(filters)?;
    let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
    let now_ms = shared.client.now_ms().await?;
    let audit_query = AuditQuery {
        tenant: operator.restrict_tenant(filters.tenant)?,
        agent: non_empty(filters.agent),
        tool: super::resolve_tool_filter(&shared, filters.tool).await?,
        outcome: non_empty(filters.outcome),
        text: non_empty(filters.text),
        conditions: non_empty(filters.conditions).map(|text| parse_conditions(&text)).transpose()?.unwrap_or_default(),
        from_ms: filters.from_ms.max(filters.since_s.map(|seconds| now_ms - i64::from(seconds) * 1_000)),
        until_ms: filters.until_ms,
        found_max: bounded("limit", filters.limit, ENTRIES.0, ENTRIES.1)?,
        read_max: READ_MAX,
    };
    let page = audit_query.search(&shared.client, filters.cursor.as_ref()).await?;
    if page.entries.is_empty() && filters.cursor.is_none() {
        check_filter(&shared, (&audit_query).into()).await?;
    }
    Ok(Json(page))
}

fn parse_conditions(text: &str) -> Result<ArgumentConditions, Problem> {
    text.parse().map_err(|error: String| Problem::invalid(format!("where: {error}")))
}
