//! Tools that are disabled for all agents at run time.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tickfleet_client::verbs::DisabledTools;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Operator;
use crate::Shared;
use crate::problem::Problem;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list))
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
