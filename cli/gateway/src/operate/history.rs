use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use tickfleet_client::history::{History, HistoryQuery, HistoryStep, history};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Operator;
use crate::Shared;
use crate::problem::Problem;
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(show))
}

/// The resolution of points.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepParam {
    /// One point per minute, of the last 24 hours.
    #[default]
    Minute,
    /// One point per hour, of the last 35 days.
    Hour,
}

impl From<StepParam> for HistoryStep {
    fn from(step: StepParam) -> Self {
        match step {
            StepParam::Minute => Self::Minute,
            StepParam::Hour => Self::Hour,
        }
    }
}

/// Time range and resolution.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FleetHistoryQuery {
    /// Resolution. Default: `minute`.
    #[param(inline)]
    step: Option<StepParam>,
    /// Start (ms of shard time). Default: one hour before the end if `step` is `minute`, seven days if it is `hour`.
    from_ms: Option<i64>,
    /// End, exclusive (ms of shard time). Default: the end of the last full step.
    until_ms: Option<i64>,
}

/// Return the fleet's figures over time: ended calls, received turns, waiting turns and busy slots. Requires a key of
/// all tenants.
///
/// A scheduler samples the figures once a minute. Minutes are kept for 24 hours, hours for 35 days. `turns`, `waiting`
/// and `running` are null in steps without a sample. `waiting` and `running` of an hour are its highest samples. If more
/// than 20,000 audit entries per shard were written in a minute, the newest 20,000 stand for all.
#[utoipa::path(get, path = "/v1/operate/history", tag = "operators", params(FleetHistoryQuery),
    responses((status = 200, description = "`step_ms`, the range `from_ms` to `until_ms`, `points` by `at_ms` with `ok`, `failed`, `refused`, `unknown`, `turns`, `waiting` and `running`, `changes` of the policy, `gaps` without samples, and `now_ms`", body = Object)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<FleetHistoryQuery>, QueryRejection>,
) -> Result<Json<History>, Problem> {
    operator.require_permission(Verb::View)?;
    operator.require_all_tenants()?;
    let FleetHistoryQuery { step, from_ms, until_ms } = query(filters)?;
    if let (Some(from_ms), Some(until_ms)) = (from_ms, until_ms)
        && from_ms >= until_ms
    {
        return Err(Problem::invalid("until_ms: expected a time after from_ms"));
    }
    let history_query = HistoryQuery { step: step.unwrap_or_default().into(), from_ms, until_ms };
    Ok(Json(history(shared.client.stores(), &history_query).await?))
}
