use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::workers::{WorkerSummary, no_worker, worker, workers};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Operator;
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Debug, Serialize)]
pub(crate) struct WorkersResponse {
    workers: Vec<WorkerSummary>,
    now_ms: i64,
}

/// Which workers to return.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WorkersQuery {
    /// Only this worker, with `running`: the turn, tool and start of each busy slot, the oldest first, at most 100.
    worker: Option<String>,
}

/// List live workers, and drained workers that are gone. Requires a key of all tenants.
#[utoipa::path(get, path = "/v1/operate/workers", tag = "operators", params(WorkersQuery),
    responses((status = 200, description = "`workers` with their slots and drains, and `now_ms`", body = Object),
        (status = 404, description = "Unknown worker", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<WorkersQuery>, QueryRejection>,
) -> Result<Json<WorkersResponse>, Problem> {
    operator.require_permission(Verb::View)?;
    operator.require_all_tenants()?;
    if let Some(name) = query(filters)?.worker {
        let stores = shared.client.stores();
        let Some((worker, now_ms)) = worker(stores, &name).await? else {
            return Err(Problem::not_found(no_worker(stores, &name).await?));
        };
        return Ok(Json(WorkersResponse { workers: vec![worker], now_ms }));
    }
    let (workers, now_ms) = workers(shared.client.stores()).await?;
    Ok(Json(WorkersResponse { workers, now_ms }))
}
