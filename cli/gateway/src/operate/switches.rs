//! Tools that are disabled for all agents at run time.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};
use tickfleet_client::operate::{self, Operator as Actor, SWITCHED_BYTES_MAX};
use utoipa::ToSchema;

use super::pauses::ChangeResult;
use super::{Operator, body, require_known, validate_reason};
use crate::Shared;
use crate::operator_backend::FleetName;
use crate::problem::{Problem, ProblemBody};
use crate::turns::read_body;
use crate::verbs::Verb;

/// A disabled tool.
#[derive(Debug, Serialize)]
pub(crate) struct DisabledTool {
    /// The tool's name or id.
    tool: String,
    /// The shards in which the tool is disabled; absent if it is disabled in all shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_in: Option<Vec<u32>>,
}

/// The tools that were disabled at run time.
#[derive(Debug, Serialize)]
pub(crate) struct DisabledToolsResponse {
    disabled: Vec<DisabledTool>,
}

/// Tool to switch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Which)]
pub(crate) struct SwitchToolRequest {
    /// Name, or id of a version.
    #[schema(example = "post_to_x")]
    tool: String,
    /// Reason for the audit log.
    #[schema(example = "it posts twice")]
    reason: String,
}

/// List tools that were disabled at run time.
///
/// Tools that the configuration disables are in `config`. The audit log has the operator and the reason.
#[utoipa::path(get, path = "/v1/operate/tools", tag = "operators",
    responses((status = 200, description = "`disabled`: names or ids, with `only_in` if some shards differ", body = Object),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<DisabledToolsResponse>, Problem> {
    operator.may(Verb::View)?;
    let shards = shared.client.stores();
    let disabled = operate::switched_off(shards).await?;
    let disabled_tool =
        |(tool, of): (String, Vec<u32>)| DisabledTool { tool, only_in: (of.len() < shards.len()).then_some(of) };
    Ok(Json(DisabledToolsResponse { disabled: disabled.into_iter().map(disabled_tool).collect() }))
}

/// Disable a tool for every agent at run time. Requires a key of all tenants.
///
/// Workers apply it within a quarter of `worker.lease`. Calls that already run finish.
#[utoipa::path(post, path = "/v1/operate/tools/disable", tag = "operators", request_body = SwitchToolRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 400, description = "Invalid name, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
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
        (status = 400, description = "Invalid name, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
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
    operator.may(Verb::Operate)?;
    operator.sees_all()?;
    let request: SwitchToolRequest = body(&read_body(bytes)?, "{\"tool\": \"…\", \"reason\": \"…\"}")?;
    if !operate::is_switchable_name(&request.tool) {
        return Err(Problem::invalid(format!(
            "tool: expected its name or id, at most {SWITCHED_BYTES_MAX} of A-Z a-z 0-9 _ . - @"
        )));
    }
    if !on {
        require_known(shared, FleetName::Tool(&request.tool)).await?;
    }
    let redactor = shared.backend.redactor();
    let by = Actor { by: operator.by(), reason: validate_reason(&request.reason)?, redactor: &redactor };
    let name = shared.backend.tool_switched(&request.tool).await?;
    let mut changed = operate::switch_tool(shared.client.stores(), &name, on, by).await?;
    // The tool may have been disabled under its id, at a time when the id could not be resolved to a name.
    if on && !changed && name != request.tool {
        changed = operate::switch_tool(shared.client.stores(), &request.tool, on, by).await?;
    }
    Ok(Json(ChangeResult { changed }))
}
