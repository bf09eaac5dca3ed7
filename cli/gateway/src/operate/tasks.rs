use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::tasks::{TaskCursor, TaskFilter, TaskSummary, task_page};
use tickfleet_model::Outcome;
use utoipa::IntoParams;

use super::{Operator, bounded, optional, parse_cursor};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::tasks::TaskStateParam;
use crate::turns::query;
use crate::verbs::Verb;

/// Tasks per page: default and maximum.
const LISTED: (usize, usize) = (50, 500);

/// Filter of tasks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AllTasksQuery {
    /// Only this tenant.
    tenant: Option<String>,
    /// Only tasks of this agent.
    agent: Option<String>,
    /// Only this state.
    #[param(inline)]
    state: Option<TaskStateParam>,
    /// Only this outcome: `ok`, `permanent`, `cancelled` …
    outcome: Option<String>,
    /// Only tasks that were accepted at least this many seconds ago.
    older_than_s: Option<u32>,
    /// Tasks per page. Default: 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: `next` of the previous one.
    from: Option<String>,
}

/// A page of tasks.
#[derive(Debug, Serialize)]
pub(crate) struct AllTasksPage {
    tasks: Vec<TaskSummary>,
    /// Position of the next page; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// True if the requested position has expired: the list of the position's tenant then starts at its newest task.
    list_restarted: bool,
    /// The current time (ms of shard time).
    now_ms: i64,
}

/// List tasks by tenant, the newest first.
///
/// A page reads about 2,000 tasks and contains the position to continue from. `POST /v1/operate/cancel` cancels tasks
/// too.
#[utoipa::path(get, path = "/v1/operate/tasks", tag = "operators", params(AllTasksQuery),
    responses((status = 200, description = "`tasks`, `now_ms`, and `next` if more follow", body = Object),
        (status = 400, description = "Invalid query parameter", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<AllTasksQuery>, QueryRejection>,
) -> Result<Json<AllTasksPage>, Problem> {
    operator.may(Verb::View)?;
    let filters = query(filters)?;
    let filter = TaskFilter {
        agent: optional("agent", filters.agent)?,
        state: filters.state.map(Into::into),
        outcome: filters.outcome.filter(|outcome| !outcome.is_empty()).map(outcome).transpose()?,
        older_than: filters.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        limit: bounded("limit", filters.limit, LISTED.0, LISTED.1)?,
    };
    let from: Option<TaskCursor> = parse_cursor(filters.from)?;
    let tenants = match operator.restrict_tenant(filters.tenant)? {
        Some(tenant) => BTreeSet::from([tenant]),
        None => shared.backend.tenants().await?,
    };
    let page = task_page(&shared.client, &tenants, &filter, from.as_ref()).await?;
    let next = page.next.map(|next| next.to_string());
    let now_ms = super::views::now_ms(&shared).await?;
    Ok(Json(AllTasksPage { tasks: page.tasks, next, list_restarted: page.list_restarted, now_ms }))
}

fn outcome(word: String) -> Result<String, Problem> {
    let known = Outcome::ALL.into_iter().any(|outcome| outcome.as_str() == word);
    if known {
        Ok(word)
    } else {
        Err(Problem::invalid("outcome: expected an outcome of a call, such as ok, permanent or cancelled"))
    }
}
