use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::audit::{ArgumentConditions, AuditMatch, AuditQuery};
use tickfleet_client::verbs::FilteredNames;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, bounded, check_filter};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
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
    cursor: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct AuditSearchResponse {
    entries: Vec<AuditMatch>,
    read: usize,
    /// The positions to continue from, one per shard. Empty if the whole time range was searched.
    cursors: Vec<String>,
}

/// Search the audit log, the newest entries first.
///
/// A request reads at most 20,000 entries per shard. The response contains the positions to continue from.
#[utoipa::path(get, path = "/v1/operate/audit", tag = "operators", params(AuditSearchQuery),
    responses((status = 200, description = "`entries`, the number of entries `read`, and `cursors` to continue from", body = Object),
        (status = 404, description = "No match, and a name in the filter does not exist", body = ProblemBody)))]
pub(crate) async fn search(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<AuditSearchQuery>, QueryRejection>,
) -> Result<Json<AuditSearchResponse>, Problem> {
    operator.require_permission(Verb::View)?;
    let filters = query(filters)?;
    let tenant = operator.restrict_tenant(filters.tenant)?;
    let at = filters.cursor.as_deref().map(parse_cursor).transpose()?;
    let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
    let audit_query = AuditQuery {
        tenant: tenant.clone(),
        agent: non_empty(filters.agent),
        tool: super::resolve_tool_filter(&shared, filters.tool).await?,
        outcome: non_empty(filters.outcome),
        text: non_empty(filters.text),
        conditions: non_empty(filters.conditions).map(|text| parse_conditions(&text)).transpose()?.unwrap_or_default(),
        until_ms: filters.until_ms,
        found_max: bounded("limit", filters.limit, ENTRIES.0, ENTRIES.1)?,
        read_max: READ_MAX,
        cursor: at.map(|(_, entry)| entry.to_owned()),
        ..AuditQuery::default()
    };
    let mut response = AuditSearchResponse::default();
    for store in shared.client.stores() {
        let is_elsewhere = tenant.as_ref().is_some_and(|tenant| !store.is_home_of(tenant));
        if is_elsewhere || at.is_some_and(|(shard, _)| shard != store.shard()) {
            continue;
        }
        let now_ms = store.now_ms().await?;
        let since_ms = filters.since_s.map(|seconds| now_ms - i64::from(seconds) * 1_000);
        let from_ms = filters.from_ms.max(since_ms);
        let found = AuditQuery { from_ms, ..audit_query.clone() }.search(store).await?;
        response.read += found.read;
        response.entries.extend(found.entries);
        response.cursors.extend(found.cursor.map(|cursor| format!("{}:{cursor}", store.shard())));
    }
    if response.entries.is_empty() && at.is_none() {
        let AuditQuery { tenant, agent, tool, outcome, .. } = &audit_query;
        let names = FilteredNames {
            tenant: tenant.as_ref(),
            agent: agent.as_deref(),
            tool: tool.as_deref(),
            outcome: outcome.as_deref(),
            ..FilteredNames::default()
        };
        check_filter(&shared, names).await?;
    }
    Ok(Json(response))
}

fn parse_conditions(text: &str) -> Result<ArgumentConditions, Problem> {
    text.parse().map_err(|error: String| Problem::invalid(format!("where: {error}")))
}

/// A cursor has the shard and the entry: `0:1700000000000-3`.
fn parse_cursor(text: &str) -> Result<(u32, &str), Problem> {
    let read = text.split_once(':').and_then(|(shard, entry)| {
        let (ms, number) = entry.split_once('-')?;
        let is_entry = ms.parse::<u64>().is_ok() && number.parse::<u64>().is_ok();
        Some((shard.parse().ok()?, entry)).filter(|_| is_entry)
    });
    read.ok_or_else(|| Problem::invalid("cursor: expected a cursor returned by a search, such as 0:1700000000000-3"))
}
