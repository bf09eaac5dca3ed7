use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};
use tickfleet_client::operate::Operator as Actor;
use tickfleet_client::workers::{self, WorkerDrainResult, WorkerSummary};
use utoipa::ToSchema;

use super::pauses::ChangeResult;
use super::{Operator, body, validate_reason};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::read_body;
use crate::verbs::Verb;

const NAME_BYTES_MAX: usize = 128;

/// The list of workers.
#[derive(Debug, Serialize)]
pub(crate) struct WorkersResponse {
    workers: Vec<WorkerSummary>,
    /// The current time (ms of shard time).
    now_ms: i64,
}

/// Worker to drain or resume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhichWorker)]
pub(crate) struct DrainWorkerRequest {
    /// Name from the list.
    #[schema(example = "w-host-7-1a4")]
    worker: String,
    /// Reason for the audit log and the list.
    #[schema(example = "the machine gets a new kernel")]
    reason: String,
}

/// List live workers, and drained workers that are gone. Requires a key of all tenants.
#[utoipa::path(get, path = "/v1/operate/workers", tag = "operators",
    responses((status = 200, description = "`workers` with their slots and drains, and `now_ms`", body = Object),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<WorkersResponse>, Problem> {
    operator.may(Verb::View)?;
    operator.sees_all()?;
    let (workers, now_ms) = workers::workers(shared.client.stores()).await?;
    Ok(Json(WorkersResponse { workers, now_ms }))
}

/// Drain a worker: it takes no new work, finishes its current work, and stays alive until it is resumed. Takes effect
/// with its next heartbeat.
#[utoipa::path(post, path = "/v1/operate/workers/drain", tag = "operators", request_body = DrainWorkerRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 400, description = "Invalid name, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown worker", body = ProblemBody),
        (status = 409, description = "Too many drained workers", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn drain(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    let request = parse_request(&operator, bytes)?;
    let redactor = shared.backend.redactor();
    let by = Actor { by: operator.by(), reason: &request.reason, redactor: &redactor };
    let set = workers::drain(shared.client.stores(), &request.worker, by).await?;
    change_result(&shared, &request.worker, set).await
}

/// Resume a drained worker.
#[utoipa::path(post, path = "/v1/operate/workers/resume", tag = "operators", request_body = DrainWorkerRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 400, description = "Invalid name, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown worker", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn resume(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    let request = parse_request(&operator, bytes)?;
    let redactor = shared.backend.redactor();
    let by = Actor { by: operator.by(), reason: &request.reason, redactor: &redactor };
    let set = workers::resume(shared.client.stores(), &request.worker, by).await?;
    change_result(&shared, &request.worker, set).await
}

fn parse_request(operator: &Operator, bytes: Result<Bytes, BytesRejection>) -> Result<DrainWorkerRequest, Problem> {
    operator.may(Verb::Operate)?;
    operator.sees_all()?;
    let request: DrainWorkerRequest = body(&read_body(bytes)?, "{\"worker\": \"…\", \"reason\": \"…\"}")?;
    if request.worker.is_empty() || request.worker.len() > NAME_BYTES_MAX {
        return Err(Problem::invalid("worker: expected a name from GET /v1/operate/workers"));
    }
    let reason = validate_reason(&request.reason)?.to_owned();
    Ok(DrainWorkerRequest { reason, ..request })
}

async fn change_result(shared: &Shared, worker: &str, set: WorkerDrainResult) -> Result<Json<ChangeResult>, Problem> {
    match set {
        WorkerDrainResult::Ok => Ok(Json(ChangeResult { changed: true })),
        WorkerDrainResult::None => Ok(Json(ChangeResult { changed: false })),
        WorkerDrainResult::Unknown => {
            Err(Problem::not_found(workers::no_worker(shared.client.stores(), worker).await?))
        }
        WorkerDrainResult::Full => Err(Problem::conflict("too many workers are drained: resume some first")),
    }
}
