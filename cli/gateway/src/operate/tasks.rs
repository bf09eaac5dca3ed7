use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::tasks::{TaskDetails, TaskFilter, TaskState, TaskSummary, task_page};
use tickfleet_client::verbs::FilteredNames;
use tickfleet_client::{Cursor, Page};
use tickfleet_model::{AgentId, Outcome, TaskId};
use tickfleet_store::TurnName;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, bounded, check_filter, optional};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query};
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show))
}

/// Default and maximum.
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
    state: Option<TaskState>,
    /// Only this outcome: `ok`, `permanent`, `cancelled` …
    outcome: Option<String>,
    /// Only tasks that were accepted at least this many seconds ago.
    older_than_s: Option<u32>,
    /// Tasks per page. Default: 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: `next` of the previous one.
    #[param(value_type = Option<String>)]
    from: Option<Cursor>,
}

/// List tasks by tenant, the newest first.
///
/// A page reads about 2,000 tasks and contains the position to continue from. `POST /v1/operate/cancel` cancels tasks
/// too.
#[utoipa::path(get, path = "/v1/operate/tasks", tag = "operators", params(AllTasksQuery),
    responses((status = 200, description = "`items`, `now_ms`, and `next` if more follow", body = Object)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<AllTasksQuery>, QueryRejection>,
) -> Result<Json<Page<TaskSummary>>, Problem> {
    operator.require_permission(Verb::View)?;
    let filters = query(filters)?;
    let filter = TaskFilter {
        agent: optional("agent", filters.agent)?,
        state: filters.state,
        outcome: filters.outcome.filter(|outcome| !outcome.is_empty()).map(outcome).transpose()?,
        older_than: filters.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        limit: bounded("limit", filters.limit, LISTED.0, LISTED.1)?,
    };
    let tenant = operator.restrict_tenant(filters.tenant)?;
    let tenants = match &tenant {
        Some(tenant) => BTreeSet::from([tenant.clone()]),
        None => shared.backend.names().await?.tenants(&shared.client).await?,
    };
    let page = task_page(&shared.client, &tenants, &filter, filters.from.as_ref()).await?;
    if page.items.is_empty() && filters.from.is_none() {
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        check_filter(&shared, FilteredNames { tenant: tenant.as_ref(), agent, tool: None, ..FilteredNames::default() })
            .await?;
    }
    Ok(Json(page))
}

#[derive(Debug, Serialize)]
pub(crate) struct TaskTree {
    task: TaskDetails,
    /// The ids from the task to the first failed task without a failed subtask. Empty if no task has failed.
    failing: Vec<TaskId>,
    now_ms: i64,
}

/// Return a task with its steps, calls, waits and subtasks, those with a failure first.
///
/// The tree has at most 200 tasks, and at most 50 subtasks per task.
#[utoipa::path(get, path = "/v1/operate/tasks/{task}", tag = "operators", params(("task" = String, Path, description = "Id of the task: `tenant:task`, or the id for a key of one tenant")),
    responses((status = 200, description = "`task` with nested `children`, `failing`: the path of ids to the first failed task, and `now_ms`", body = Object),
        (status = 404, description = "Unknown, or ended longer ago than `retention.records`", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<TaskTree>, Problem> {
    operator.require_permission(Verb::View)?;
    let id = path(id)?;
    let (tenant, task) = operator.split_tenant(&id)?;
    let tenant = tenant.ok_or_else(|| Problem::invalid("id: expected tenant:task"))?;
    let task = TaskId::new(task).map_err(|error| Problem::invalid(format!("id: {error}")))?;
    let name = TurnName::task(&tenant, &task);
    let Some(task) = shared.client.task(&name).await? else {
        return Err(Problem::not_found(format!("unknown task {name}")));
    };
    let mut task = task.without_secrets(&shared.backend.redactor());
    let failing = task.failing_first();
    Ok(Json(TaskTree { task, failing, now_ms: shared.client.now_ms().await? }))
}

fn outcome(word: String) -> Result<String, Problem> {
    let known = Outcome::ALL.into_iter().any(|outcome| outcome.as_str() == word);
    if known {
        Ok(word)
    } else {
        Err(Problem::invalid("outcome: expected an outcome of a call, such as ok, permanent or cancelled"))
    }
}
