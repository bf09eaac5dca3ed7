//! The tools of an agent, as a request to a model has them.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tickfleet_model::{AgentId, Dialect};
use tickfleet_protocol::define_shared;
use utoipa::IntoParams;

use crate::Shared;
use crate::caller::Caller;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query};
use crate::verbs::Verb;

/// In which form.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Form {
    /// A dialect, such as `openai_chat`, `openai_responses`, `anthropic`, `gemini` or `mcp`; `openai_chat` unless said
    /// otherwise.
    format: Option<String>,
}

/// The definitions of the tools that an agent may call, for a request to a model.
#[utoipa::path(get, path = "/v1/agents/{agent}/tools", tag = "agents", params(("agent" = String, Path, description = "The agent"), Form),
    responses((status = 200, description = "Definitions, as the format has them", body = Object),
        (status = 400, description = "That is no agent, or no format", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 404, description = "No worker has written a list for this agent", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    agent: Result<Path<String>, PathRejection>,
    form: Result<Query<Form>, QueryRejection>,
) -> Result<Response, Problem> {
    caller.may(Verb::Read)?;
    let agent = AgentId::new(path(agent)?).map_err(|error| Problem::invalid(error.to_string()))?;
    caller.speaks_for(&agent)?;
    let form = query(form)?.format;
    let dialect = form.map_or(Some(Dialect::OpenaiChat), |word| Dialect::parse(&word)).ok_or_else(|| {
        let known: Vec<_> = Dialect::ALL.iter().map(|dialect| dialect.as_str()).collect();
        Problem::invalid(format!("format: expected one of {}", known.join(", ")))
    })?;
    let list = shared.client.store(caller.tenant()).tool_list(caller.tenant(), &agent).await?;
    let list = list.ok_or_else(|| {
        Problem::not_found(format!(
            "there is no list of tools for {agent}: it is no agent of the tenant, or no worker runs"
        ))
    })?;
    let definitions = define_shared(dialect, &list).map_err(|error| {
        tracing::error!(%error, %agent, "a list of tools in Redis cannot be read");
        Problem::unavailable("the list of tools in Redis cannot be read")
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], definitions.to_string()).into_response())
}
