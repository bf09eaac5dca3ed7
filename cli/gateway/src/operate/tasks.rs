use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use tickfleet_client::tasks::{TaskCursor, TaskFilter, TaskPage, task_page};
use tickfleet_client::verbs::FilteredNames;
use tickfleet_model::{AgentId, Outcome};
use utoipa::IntoParams;

use super::{Operator, Page, bounded, check_filter, optional, parse_cursor};
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

/// List tasks by tenant, the newest first.
///
/// A page reads about 2,000 tasks and contains the position to continue from. `POST /v1/operate/cancel` cancels tasks
/// too.
#[utoipa::path(get, path = "/v1/operate/tasks", tag = "operators", params(AllTasksQuery),
    responses((status = 200, description = "`tasks`, `now_ms`, and `next` if more follow", body = Object),
        (status = 404, description = "No match, and the fleet does not have the tenant, agent or tool", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<AllTasksQuery>, QueryRejection>,
) -> Result<Json<Page<TaskPage>>, Problem> {
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
    let tenant = operator.restrict_tenant(filters.tenant)?;
    let tenants = match &tenant {
        Some(tenant) => BTreeSet::from([tenant.clone()]),
        None => shared.backend.names().await?.tenants(&shared.client).await?,
    };
    let page = task_page(&shared.client, &tenants, &filter, from.as_ref()).await?;
    if page.tasks.is_empty() && from.is_none() {
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        check_filter(&shared, FilteredNames { tenant: tenant.as_ref(), agent, tool: None }).await?;
    }
    Page::of(&shared, page).await
}

fn outcome(word: String) -> Result<String, Problem> {
    let known = Outcome::ALL.into_iter().any(|outcome| outcome.as_str() == word);
    if known {
        Ok(word)
    } else {
        Err(Problem::invalid("outcome: expected an outcome of a call, such as ok, permanent or cancelled"))
    }
}
