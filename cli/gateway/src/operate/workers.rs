use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::verbs::DrainWorkerRequest;
use tickfleet_client::workers::{WorkerSummary, no_worker, worker, workers};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{ChangeResult, Operator, body, check_optional_reason, check_reason};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(drain)).routes(routes!(resume))
}

const NAME_BYTES_MAX: usize = 128;

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

/// Drain a worker: it takes no new work, finishes its current work, and stays alive until it is resumed. Takes effect
/// with its next heartbeat.
#[utoipa::path(post, path = "/v1/operate/workers/drain", tag = "operators", request_body = DrainWorkerRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 404, description = "Unknown worker", body = ProblemBody),
        (status = 409, description = "Too many drained workers", body = ProblemBody)))]
pub(crate) async fn drain(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&shared, &operator, bytes, true).await
}

/// Resume a drained worker.
#[utoipa::path(post, path = "/v1/operate/workers/resume", tag = "operators", request_body = DrainWorkerRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 404, description = "Unknown worker", body = ProblemBody)))]
pub(crate) async fn resume(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&shared, &operator, bytes, false).await
}

async fn change(
    shared: &Shared,
    operator: &Operator,
    bytes: Result<Bytes, BytesRejection>,
    drains: bool,
) -> Result<Json<ChangeResult>, Problem> {
    operator.require_permission(Verb::Operate)?;
    operator.require_all_tenants()?;
    let mut request: DrainWorkerRequest = body(bytes, "{\"worker\": \"…\", \"reason\": \"…\"}")?;
    if request.worker.is_empty() || request.worker.len() > NAME_BYTES_MAX {
        return Err(Problem::invalid("worker: expected a name from GET /v1/operate/workers"));
    }
    if drains {
        check_reason(&mut request.reason)?;
    } else {
        check_optional_reason(&mut request.reason)?;
    }
    let changed = request.run(&operator.context(shared).await?, drains).await?;
    Ok(Json(ChangeResult { changed }))
}
