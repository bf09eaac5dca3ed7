//! The tools of an agent, as definitions for a model request.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tickfleet_model::{AgentId, Dialect, TenantId};
use tickfleet_protocol::define_shared;
use tickfleet_store::{Store, StoreError};
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Shared;
use crate::caller::Caller;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query};
use crate::verbs::Verb;

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Right after the start of a fleet, no worker has published tool lists, so a request waits this long for them.
const FIRST_WORKER_WAIT: Duration = Duration::from_secs(5);
const FIRST_WORKER_POLL: Duration = Duration::from_millis(250);

/// Format of the definitions.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ToolsQuery {
    /// Dialect, such as `openai_chat`, `openai_responses`, `anthropic`, `gemini` or `mcp`. Default: `openai_chat`.
    format: Option<String>,
}

/// Return the tool definitions of an agent for a model request.
///
/// While no worker has published tool lists, the response waits for the first worker, at most 5 s.
#[utoipa::path(get, path = "/v1/agents/{agent}/tools", tag = "agents", params(("agent" = String, Path, description = "Agent"), ToolsQuery),
    responses((status = 200, description = "Definitions in the requested format", body = Object),
        (status = 404, description = "No tool list for this agent: unknown agent, or no worker has run", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    agent: Result<Path<String>, PathRejection>,
    form: Result<Query<ToolsQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    caller.require_permission(Verb::Read)?;
    let agent = AgentId::new(path(agent)?).map_err(|error| Problem::invalid(error.to_string()))?;
    caller.require_agent(&agent)?;
    let form = query(form)?.format;
    let dialect = form.map_or(Some(Dialect::OpenaiChat), |word| Dialect::parse(&word)).ok_or_else(|| {
        let known: Vec<_> = Dialect::ALL.iter().map(|dialect| dialect.as_str()).collect();
        Problem::invalid(format!("format: expected one of {}", known.join(", ")))
    })?;
    let list = published_list(shared.client.store(caller.tenant()), caller.tenant(), &agent).await?;
    let list = list.ok_or_else(|| {
        Problem::not_found(format!("no tool list for {agent}: the tenant has no such agent, or no worker is running"))
    })?;
    let definitions = define_shared(dialect, &list).map_err(|error| {
        tracing::error!(%error, %agent, "cannot read a tool list from Redis");
        Problem::unavailable("cannot read the tool list in Redis")
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], definitions.to_string()).into_response())
}

async fn published_list(store: &Store, tenant: &TenantId, agent: &AgentId) -> Result<Option<String>, StoreError> {
    let end = Instant::now() + FIRST_WORKER_WAIT;
    loop {
        // Check before the read: workers publish all lists before the record that `has_tool_lists` checks. A list that
        // is missing after the record exists is therefore final.
        let is_final = store.has_tool_lists().await? || Instant::now() >= end;
        let list = store.tool_list(tenant, agent).await?;
        if list.is_some() || is_final {
            return Ok(list);
        }
        tokio::time::sleep(FIRST_WORKER_POLL).await;
    }
}
