//! Workers, and which of them are drained.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};
use tickfleet_client::operate::Operator as Who;
use tickfleet_client::workers::{self, WorkerDrainResult, WorkerSummary};
use utoipa::ToSchema;

use super::pauses::Done;
use super::{Operator, because, body};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::whole;
use crate::verbs::Verb;

/// Maximum bytes of a worker's name.
const NAME_BYTES_MAX: usize = 128;

/// The list of workers.
#[derive(Debug, Serialize)]
pub(crate) struct Workers {
    workers: Vec<WorkerSummary>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// Worker to drain or resume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhichWorker)]
pub(crate) struct Which {
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
pub(crate) async fn list(State(shared): State<Arc<Shared>>, operator: Operator) -> Result<Json<Workers>, Problem> {
    operator.may(Verb::View)?;
    operator.sees_all()?;
    let (workers, now_ms) = workers::workers(shared.client.stores()).await?;
    Ok(Json(Workers { workers, now_ms }))
}

/// Drain a worker: it takes no new work, finishes its current work, and stays alive until it is resumed. Takes effect
/// with its next heartbeat.
#[utoipa::path(post, path = "/v1/operate/workers/drain", tag = "operators", request_body = Which,
    responses((status = 200, description = "The change was applied", body = Done),
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
) -> Result<Json<Done>, Problem> {
    let which = asked(&operator, bytes)?;
    let redactor = shared.desk.redactor();
    let by = Who { by: operator.by(), reason: &which.reason, redactor: &redactor };
    let set = workers::drain(shared.client.stores(), &which.worker, by).await?;
    done(&shared, &which.worker, set).await
}

/// Resume a drained worker.
#[utoipa::path(post, path = "/v1/operate/workers/resume", tag = "operators", request_body = Which,
    responses((status = 200, description = "The change was applied", body = Done),
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
) -> Result<Json<Done>, Problem> {
    let which = asked(&operator, bytes)?;
    let redactor = shared.desk.redactor();
    let by = Who { by: operator.by(), reason: &which.reason, redactor: &redactor };
    let set = workers::resume(shared.client.stores(), &which.worker, by).await?;
    done(&shared, &which.worker, set).await
}

fn asked(operator: &Operator, bytes: Result<Bytes, BytesRejection>) -> Result<Which, Problem> {
    operator.may(Verb::Operate)?;
    operator.sees_all()?;
    let which: Which = body(&whole(bytes)?, "{\"worker\": \"…\", \"reason\": \"…\"}")?;
    if which.worker.is_empty() || which.worker.len() > NAME_BYTES_MAX {
        return Err(Problem::invalid("worker: expected a name from GET /v1/operate/workers"));
    }
    let reason = because(&which.reason)?.to_owned();
    Ok(Which { reason, ..which })
}

async fn done(shared: &Shared, worker: &str, set: WorkerDrainResult) -> Result<Json<Done>, Problem> {
    match set {
        WorkerDrainResult::Ok => Ok(Json(Done { changed: true })),
        WorkerDrainResult::None => Ok(Json(Done { changed: false })),
        WorkerDrainResult::Unknown => {
            Err(Problem::not_found(workers::no_worker(shared.client.stores(), worker).await?))
        }
        WorkerDrainResult::Full => Err(Problem::conflict("too many workers are drained: resume some first")),
    }
}
