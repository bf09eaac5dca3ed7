use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use tickfleet_client::verbs::{ActivePauses, PauseRequest};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{ChangeResult, Operator, body, check_optional_reason, check_reason};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(pause)).routes(routes!(resume))
}

const EXPECTED: &str = "{\"tenant\": \"…\", \"agent\": \"…\" or \"tool\": \"…\", \"reason\": \"…\"}";

/// List paused tenants, agents and tools.
#[utoipa::path(get, path = "/v1/operate/pauses", tag = "operators",
    responses((status = 200, description = "`pauses` with operator, reason and time, and `now_ms`", body = Object)))]
pub(crate) async fn list(State(shared): State<Arc<Shared>>, operator: Operator) -> Result<Json<ActivePauses>, Problem> {
    operator.require_permission(Verb::View)?;
    Ok(Json(ActivePauses::list(&shared.client, operator.restrict_tenant(None)?.as_ref()).await?))
}

/// Pause a tenant, agent or tool.
///
/// Admitted calls finish, except calls to a paused tool, which wait. New turns wait.
#[utoipa::path(post, path = "/v1/operate/pause", tag = "operators", request_body = PauseRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody),
        (status = 409, description = "Too many pauses. For a tool of all tenants, the message names the shards", body = ProblemBody)))]
pub(crate) async fn pause(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    operator.require_permission(Verb::Operate)?;
    let mut request: PauseRequest = body(bytes, EXPECTED)?;
    check_reason(&mut request.reason)?;
    let changed = request.pause(&operator.context(&shared).await?).await?.changed;
    Ok(Json(ChangeResult { changed }))
}

/// Resume a paused tenant or agent within a tick, or a paused tool within a minute.
#[utoipa::path(post, path = "/v1/operate/resume", tag = "operators", request_body = PauseRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody)))]
pub(crate) async fn resume(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    operator.require_permission(Verb::Operate)?;
    let mut request: PauseRequest = body(bytes, EXPECTED)?;
    check_optional_reason(&mut request.reason)?;
    let changed = request.resume(&operator.context(&shared).await?).await?.changed;
    Ok(Json(ChangeResult { changed }))
}
