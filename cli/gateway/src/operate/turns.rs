use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Query;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use serde::Deserialize;
use tickfleet_client::operate::{TurnFilter, TurnState, TurnSummary, list_turns};
use tickfleet_client::{Cursor, Page};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, bounded, check_filter, optional};
use crate::Shared;
use crate::problem::Problem;
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Default and maximum.
const LISTED: (usize, usize) = (50, 500);

/// Filter of turns.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TurnsQuery {
    /// Only this tenant.
    tenant: Option<String>,
    /// Only this agent.
    agent: Option<String>,
    /// Only turns with an unfinished call of this tool (name or id).
    tool: Option<String>,
    /// Only this state.
    #[param(inline)]
    state: Option<TurnState>,
    /// Only turns that wait for this cap or limit. Turns of a paused agent wait for `max_calls_per_tick`.
    waits_for: Option<String>,
    /// Only turns that a worker runs. Excludes turns with a call that runs in its caller's process.
    in_workers: Option<bool>,
    /// Only turns that were admitted at least this many seconds ago.
    older_than_s: Option<u32>,
    /// Only turns that were admitted at or after this time (ms of shard time).
    from_ms: Option<i64>,
    /// Only turns that were admitted before this time (ms of shard time).
    until_ms: Option<i64>,
    /// Turns per page. Default: 50. A page can have a few more.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: `next` of the previous one.
    #[param(value_type = Option<String>)]
    from: Option<Cursor>,
}

/// List unfinished turns, in no order.
///
/// Turns have no index: a page scans up to about 50,000 keys. With `in_workers`, a page that holds all such turns needs
/// no scan.
#[utoipa::path(get, path = "/v1/operate/turns", tag = "operators", params(TurnsQuery),
    responses((status = 200, description = "`items`, `now_ms`, and `next` if more follow", body = Object)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<TurnsQuery>, QueryRejection>,
) -> Result<Json<Page<TurnSummary>>, Problem> {
    operator.require_permission(Verb::View)?;
    let filters = query(filters)?;
    let filter = TurnFilter {
        tenant: operator.restrict_tenant(filters.tenant)?,
        agent: optional("agent", filters.agent)?,
        tool: super::resolve_tool_filter(&shared, filters.tool).await?,
        state: filters.state,
        waits_for: filters.waits_for.filter(|limit| !limit.is_empty()),
        in_workers: filters.in_workers.unwrap_or_default(),
        older_than: filters.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        from_ms: filters.from_ms,
        until_ms: filters.until_ms,
        limit: bounded("limit", filters.limit, LISTED.0, LISTED.1)?,
    };
    let page = list_turns(&shared.client, &filter, filters.from.as_ref()).await?;
    if page.items.is_empty() && filters.from.is_none() {
        check_filter(&shared, (&filter).into()).await?;
    }
    Ok(Json(page))
}
