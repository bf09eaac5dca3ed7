//! Views of the fleet, of one turn, of limits and of the configuration.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, bounded, optional};
use crate::Shared;
use crate::operator_backend::LimitFilter;
use crate::problem::{Problem, ProblemBody};
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(overview))
        .routes(routes!(explain))
        .routes(routes!(limits))
        .routes(routes!(configuration))
}

/// Default and maximum.
const TOP: (usize, usize) = (5, 100);

/// Return the state of the fleet, as `tickfleet top --json` prints it. Requires a key of all tenants.
///
/// A finding has `kind`, `severity` (`bad`, `doubt` or `info`), `text`, `count`, `subject` (the name of a tool, worker,
/// limit or tenant, or null) and `action`, a command.
#[utoipa::path(get, path = "/v1/operate/overview", tag = "operators",
    responses((status = 200, description = "Backlog by state with ages, rates, slots, processes, waiting agents, tools by outcome, and `findings`: what needs a person, the most urgent first", body = Object)))]
pub(crate) async fn overview(State(shared): State<Arc<Shared>>, operator: Operator) -> Result<Json<Value>, Problem> {
    operator.require_permission(Verb::View)?;
    operator.require_all_tenants()?;
    Ok(Json(shared.backend.overview().await?))
}

/// Return the configuration of the gateway, with sources and masked secrets. Requires a key of all tenants.
///
/// It contains the settings and the files with agents, tools, permissions, rules and limits.
#[utoipa::path(get, path = "/v1/operate/config", tag = "operators",
    responses((status = 200, description = "`digest` of the policy, the digest `in_force` at each shard, `settings`, `files`, `warnings`, and `problem` if the files are invalid", body = Object)))]
pub(crate) async fn configuration(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<Value>, Problem> {
    operator.require_permission(Verb::View)?;
    operator.require_all_tenants()?;
    Ok(Json(shared.backend.configuration().await?))
}

/// Turn, call or task to explain.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExplainQuery {
    /// `tenant:turn`, `tenant:turn/position`, or the id of a task. Without a tenant, all tenants of the key are
    /// searched.
    id: String,
}

/// Explain a turn, call or task: decisions, waits, attempts and outcome.
#[utoipa::path(get, path = "/v1/operate/explain", tag = "operators", params(ExplainQuery),
    responses((status = 200, description = "`story` as `tickfleet explain --json` prints it, and `lines`, the same as text", body = Object),
        (status = 404, description = "Unknown, or ended longer ago than `retention.records`", body = ProblemBody)))]
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<ExplainQuery>, QueryRejection>,
) -> Result<Json<Box<RawValue>>, Problem> {
    operator.require_permission(Verb::View)?;
    let ExplainQuery { id } = query(filters)?;
    let (tenant, id) = operator.split_tenant(id.trim())?;
    Ok(Json(shared.backend.explain(tenant.as_ref(), id).await?))
}

/// Filter of limits.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LimitsQuery {
    /// One limit or cap.
    limit: Option<String>,
    /// Only limits for calls of this tenant.
    tenant: Option<String>,
    /// Only limits for calls of this agent of the tenant.
    agent: Option<String>,
    /// Counters per limit, the fullest first. Default: 5.
    #[param(minimum = 1, maximum = 100)]
    top: Option<usize>,
}

/// List limits and caps with their fullest counters and the number of waiting turns.
#[utoipa::path(get, path = "/v1/operate/limits", tag = "operators", params(LimitsQuery),
    responses((status = 200, description = "`caps` and `limits`, as `tickfleet limits --json` prints them", body = Object),
        (status = 404, description = "Unknown limit, tenant or agent", body = ProblemBody)))]
pub(crate) async fn limits(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<LimitsQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    operator.require_permission(Verb::View)?;
    let filters = query(filters)?;
    let filter = LimitFilter {
        limit: filters.limit.filter(|limit| !limit.is_empty()),
        tenant: operator.restrict_tenant(filters.tenant)?,
        agent: optional("agent", filters.agent)?,
        top: bounded("top", filters.top, TOP.0, TOP.1)?.try_into().unwrap_or(u8::MAX),
    };
    if filter.agent.is_some() && filter.tenant.is_none() {
        return Err(Problem::invalid("agent: requires tenant"));
    }
    Ok(Json(shared.backend.limits(&filter).await?))
}
