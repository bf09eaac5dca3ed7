//! Pauses: whose calls do not go out for a while.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};
use tickfleet_client::operate::{self, Operator as Who};
use tickfleet_model::AgentId;
use tickfleet_model::policy::{Pause, Paused};
use tickfleet_store::PauseSet;
use utoipa::ToSchema;

use super::{Operator, because, body, optional};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::whole;
use crate::verbs::Verb;

/// A pause that holds.
#[derive(Debug, Serialize)]
pub(crate) struct Holds {
    tenant: String,
    /// Absent where all agents of the tenant are paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<AgentId>,
    #[serde(flatten)]
    pause: Pause,
}

/// The pauses that hold.
#[derive(Debug, Serialize)]
pub(crate) struct Pauses {
    pauses: Vec<Holds>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// Whose calls, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Whom {
    /// Whose; the key's where it is for one tenant.
    #[schema(example = "demo")]
    tenant: Option<String>,
    /// The agent; left out, all agents of the tenant.
    #[schema(example = "kelly")]
    agent: Option<String>,
    /// Why, for the audit log and for whoever asks why a turn waits.
    #[schema(example = "she writes to the wrong people")]
    reason: String,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Done {
    /// False where it was so already.
    changed: bool,
}

/// The tenants and agents whose calls do not go out.
#[utoipa::path(get, path = "/v1/operate/pauses", tag = "operators",
    responses((status = 200, description = "`pauses`, each with who, why and since when, and `now_ms`", body = Object),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn list(State(shared): State<Arc<Shared>>, operator: Operator) -> Result<Json<Pauses>, Problem> {
    operator.may(Verb::View)?;
    let tenant = operator.within(None)?;
    let mut pauses = Vec::new();
    for store in shared.client.stores() {
        let held = store.at_run_time().await?.pauses.into_iter();
        let wanted = held.filter(|(who, _)| tenant.as_ref().is_none_or(|tenant| *tenant == who.tenant));
        pauses.extend(wanted.map(|(who, pause)| Holds { tenant: who.tenant.to_string(), agent: who.agent, pause }));
    }
    Ok(Json(Pauses { pauses, now_ms: super::views::now_ms(&shared).await? }))
}

/// Let no call of a tenant, or of one of its agents, go out any more, at once and in the whole fleet. What was admitted
/// goes on to its end; what comes waits.
#[utoipa::path(post, path = "/v1/operate/pause", tag = "operators", request_body = Whom,
    responses((status = 200, description = "Whether it changed anything", body = Done),
        (status = 400, description = "That is nobody, or no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 409, description = "Too many are paused already", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn pause(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Done>, Problem> {
    operator.may(Verb::Operate)?;
    let (who, reason) = asked(&operator, bytes)?;
    let redactor = shared.desk.redactor();
    let by = Who { by: operator.by(), reason: &reason, redactor: &redactor };
    match operate::pause(shared.client.store(&who.tenant), &who, by).await? {
        PauseSet::Full => Err(Problem::conflict("too many tenants and agents are paused: resume some first")),
        set => Ok(Json(Done { changed: set == PauseSet::Ok })),
    }
}

/// Let calls of a paused tenant or agent go out again, the next within a tick.
#[utoipa::path(post, path = "/v1/operate/resume", tag = "operators", request_body = Whom,
    responses((status = 200, description = "Whether it changed anything", body = Done),
        (status = 400, description = "That is nobody, or no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn resume(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Done>, Problem> {
    operator.may(Verb::Operate)?;
    let (who, reason) = asked(&operator, bytes)?;
    let redactor = shared.desk.redactor();
    let by = Who { by: operator.by(), reason: &reason, redactor: &redactor };
    let set = operate::resume(shared.client.store(&who.tenant), &who, by).await?;
    Ok(Json(Done { changed: set == PauseSet::Ok }))
}

fn asked(operator: &Operator, bytes: Result<Bytes, BytesRejection>) -> Result<(Paused, String), Problem> {
    let whom: Whom = body(&whole(bytes)?, "{\"tenant\": \"…\", \"agent\": \"…\", \"reason\": \"…\"}")?;
    let tenant = operator.within(whom.tenant)?;
    let tenant = tenant.ok_or_else(|| Problem::invalid("tenant: expected one, for the key is for all"))?;
    let reason = because(&whom.reason)?.to_owned();
    Ok((Paused { tenant, agent: optional("agent", whom.agent)? }, reason))
}
