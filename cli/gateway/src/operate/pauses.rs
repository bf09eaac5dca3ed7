use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tickfleet_client::verbs::ActivePauses;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Operator;
use crate::Shared;
use crate::problem::Problem;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// List paused tenants, agents and tools.
#[utoipa::path(get, path = "/v1/operate/pauses", tag = "operators",
    responses((status = 200, description = "`pauses` with operator, reason and time, and `now_ms`", body = Object)))]
pub(crate) async fn list(State(shared): State<Arc<Shared>>, operator: Operator) -> Result<Json<ActivePauses>, Problem> {
    operator.require_permission(Verb::View)?;
    Ok(Json(ActivePauses::list(&shared.client, operator.restrict_tenant(None)?.as_ref()).await?))
}
