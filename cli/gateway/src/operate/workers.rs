//! Workers, and which of them take no new work.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};
use tickfleet_client::operate::Operator as Who;
use tickfleet_client::workers::{self, DrainSet, WorkerSummary};
use utoipa::ToSchema;

use super::pauses::Done;
use super::{Operator, because, body};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::whole;
use crate::verbs::Verb;

/// The longest name of a worker.
const NAME_BYTES_MAX: usize = 128;

/// The workers.
#[derive(Debug, Serialize)]
pub(crate) struct Workers {
    workers: Vec<WorkerSummary>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// Which worker, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhichWorker)]
pub(crate) struct Which {
    /// Its name, as the list has it.
    #[schema(example = "w-host-7-1a4")]
    worker: String,
    /// Why, for the audit log and for whoever looks.
    #[schema(example = "the machine gets a new kernel")]
    reason: String,
}

/// The workers that are there, and those that were drained and are gone. For keys of all tenants.
#[utoipa::path(get, path = "/v1/operate/workers", tag = "operators",
    responses((status = 200, description = "`workers`, each with its slots and who has it drained, and `now_ms`", body = Object),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn list(State(shared): State<Arc<Shared>>, operator: Operator) -> Result<Json<Workers>, Problem> {
    operator.may(Verb::View)?;
    operator.sees_all()?;
    let (workers, now_ms) = workers::workers(shared.client.stores()).await?;
    Ok(Json(Workers { workers, now_ms }))
}

/// Have a worker take no new work: it ends what it holds, and stays until it is resumed. It hears of it with its next heartbeat.
#[utoipa::path(post, path = "/v1/operate/workers/drain", tag = "operators", request_body = Which,
    responses((status = 200, description = "Whether it changed anything", body = Done),
        (status = 400, description = "That is no name, or no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 404, description = "There is no such worker", body = ProblemBody),
        (status = 409, description = "Too many are drained already", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
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

/// Let a worker take new work again.
#[utoipa::path(post, path = "/v1/operate/workers/resume", tag = "operators", request_body = Which,
    responses((status = 200, description = "Whether it changed anything", body = Done),
        (status = 400, description = "That is no name, or no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 404, description = "There is no such worker", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
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
        return Err(Problem::invalid("worker: expected its name, as GET /v1/operate/workers has it"));
    }
    let reason = because(&which.reason)?.to_owned();
    Ok(Which { reason, ..which })
}

async fn done(shared: &Shared, worker: &str, set: DrainSet) -> Result<Json<Done>, Problem> {
    match set {
        DrainSet::Ok => Ok(Json(Done { changed: true })),
        DrainSet::None => Ok(Json(Done { changed: false })),
        DrainSet::Unknown => Err(Problem::not_found(workers::no_worker(shared.client.stores(), worker).await?)),
        DrainSet::Full => Err(Problem::conflict("too many workers are drained: resume some first")),
    }
}
