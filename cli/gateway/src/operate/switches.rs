//! Tools that are disabled for all agents at run time.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use tickfleet_client::verbs::{DisabledTools, SwitchToolRequest};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{ChangeResult, Operator, body, check_optional_reason, check_reason};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(disable)).routes(routes!(enable))
}

/// List tools that were disabled at run time.
///
/// Tools that the configuration disables are in `config`. The audit log has the operator and the reason.
#[utoipa::path(get, path = "/v1/operate/tools", tag = "operators",
    responses((status = 200, description = "`disabled`: names or ids, with `only_in` if some shards differ", body = Object)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<DisabledTools>, Problem> {
    operator.require_permission(Verb::View)?;
    Ok(Json(DisabledTools::list(&shared.client).await?))
}

/// Disable a tool for every agent at run time. Requires a key of all tenants.
///
/// Workers apply it within a quarter of `worker.lease`. Calls that already run finish.
#[utoipa::path(post, path = "/v1/operate/tools/disable", tag = "operators", request_body = SwitchToolRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody),
        (status = 503, description = "Redis is unavailable. Some shards may have the change; repeat the request", body = ProblemBody)))]
pub(crate) async fn disable(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    switch(&shared, &operator, bytes, false).await
}

/// Enable a tool that was disabled at run time. Requires a key of all tenants.
#[utoipa::path(post, path = "/v1/operate/tools/enable", tag = "operators", request_body = SwitchToolRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody),
        (status = 503, description = "Redis is unavailable. Some shards may have the change; repeat the request", body = ProblemBody)))]
pub(crate) async fn enable(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    switch(&shared, &operator, bytes, true).await
}

async fn switch(
    shared: &Shared,
    operator: &Operator,
    bytes: Result<Bytes, BytesRejection>,
    on: bool,
) -> Result<Json<ChangeResult>, Problem> {
    operator.require_permission(Verb::Operate)?;
    operator.require_all_tenants()?;
    let mut request: SwitchToolRequest = body(bytes, "{\"tool\": \"…\", \"reason\": \"…\"}")?;
    if on {
        check_optional_reason(&mut request.reason)?;
    } else {
        check_reason(&mut request.reason)?;
    }
    let changed = request.switch(&operator.context(shared).await?, on).await?;
    Ok(Json(ChangeResult { changed }))
}
