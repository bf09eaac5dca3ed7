use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tickfleet_client::tasks::{CanceledTask, TaskDetails, TaskFilter, TaskState, TaskSummary, task_page_of};
use tickfleet_client::{Cursor, ReplyStatus, UndecidedTurn};
use tickfleet_protocol::{TaskMessage, parse_task_message, with_owner};
use tickfleet_store::TurnName;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Shared;
use crate::caller::Caller;
use crate::events::{self, position};
use crate::names;
use crate::owners::{RecordOwner, may_act_on, record_owner};
use crate::problem::{Problem, ProblemBody};
use crate::serving::streams::{OpenStream, StreamRequester};
use crate::turns::{
    CancelReason, WaitQuery, bounded, chosen_id, named_turn, optional, query, read_body, reason, reply_response,
    reserve_wait, trace,
};
use crate::verbs::Verb;
use crate::waiting::TurnLookup;

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(delegate, list))
        .routes(routes!(story))
        .routes(routes!(events))
        .routes(routes!(cancel))
}

/// Default and maximum.
const LISTED: (usize, usize) = (20, 500);

const NEXT: HeaderName = HeaderName::from_static("tickfleet-next");
const LIST_RESTARTED: HeaderName = HeaderName::from_static("tickfleet-list-restarted");

/// An accepted task.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DelegatedTask {
    /// Id of the task. `GET /v1/tasks/{task_id}/events` streams its progress.
    task_id: String,
    /// `accepted`.
    state: &'static str,
}

/// Filter of tasks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TasksQuery {
    /// Only tasks of this agent.
    agent: Option<String>,
    /// Only this state.
    #[param(inline)]
    state: Option<TaskState>,
    /// Tasks per page. Default: 20.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: the header `tickfleet-next` of the previous one.
    #[param(value_type = Option<String>)]
    from: Option<Cursor>,
}

/// Delegate a task to an agent.
///
/// Send an id (`task_id`, or the header `Idempotency-Key`) to make the request safe to repeat.
#[utoipa::path(post, path = "/v1/tasks", tag = "tasks", params(WaitQuery, ("idempotency-key" = Option<String>, Header, description = "Id of the task, if the body has none: `A-Z a-z 0-9 _ . -`")),
    request_body = crate::shapes::TaskBody,
    responses((status = 200, description = "The reply of the finished turn or task", body = crate::shapes::ReplyBody),
        (status = 202, description = "Accepted, and not finished yet", body = DelegatedTask),
        (status = 404, description = "The parent task has ended, or the key does not cover it", body = ProblemBody),
        (status = 409, description = "The id belongs to a task or turn with different content", body = ProblemBody),
        (status = 422, description = "Rejected. The reply contains `error`", body = crate::shapes::ReplyBody)))]
pub(crate) async fn delegate(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    wait: Result<Query<WaitQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    caller.require_permission(Verb::Submit)?;
    let wait = query(wait)?.time()?;
    let body = with_owner(read_body(body)?.to_vec(), Some(caller.tenant()), None);
    let TaskMessage::Delegate(mut task) = parse_task_message(&body)? else {
        return Err(Problem::invalid("op: expected delegate or no value; cancel a running task with its own path"));
    };
    if task.tenant != *caller.tenant() {
        return Err(Problem::forbidden("the task names another tenant than the key's; remove the field"));
    }
    caller.require_agent(&task.target)?;
    task.delegator.as_ref().map_or(Ok(()), |delegator| caller.require_agent(delegator))?;
    let id = task.id.take();
    task.id = chosen_id(&headers, "task_id", id)?;
    names::chosen("task_id", task.id.as_ref())?;
    names::no_inbox(task.reply_to.as_ref())?;
    names::session(&shared, &caller, &task.context).await?;
    trace(&headers, &mut task.context);
    names::under_parent(&shared, &caller, &mut task).await?;
    task.reply_to = Some(shared.waiting.inbox(&task.tenant));
    if shared.client.has_id_conflict(&task).await? {
        return Err(taken());
    }
    let permit = reserve_wait(&shared, &caller, wait)?;
    let id = shared.client.delegate(task.as_ref().clone()).await?;
    let name = TurnName::task(caller.tenant(), &id);
    if let Some(permit) = permit
        && let TurnLookup::Ended(reply) = shared.waiting.reply(&name, wait, &permit, None).await?
    {
        // The id may already belong to another task or to a turn, and this reply may be the reply to that work.
        let is_others = reply.status == ReplyStatus::Done && reply.agent != task.target.as_str();
        let is_taken = is_others || shared.client.has_id_conflict(&task).await?;
        return if is_taken { Err(taken()) } else { Ok(reply_response(&reply)) };
    }
    Ok((StatusCode::ACCEPTED, Json(DelegatedTask { task_id: id.to_string(), state: "accepted" })).into_response())
}

/// List the tasks that the key can see, the newest first.
///
/// A page reads about 2,000 tasks of the tenant and can be short or empty although more pages follow.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(TasksQuery),
    responses((status = 200, description = "Tasks, the newest first", body = Vec<Object>,
            headers(("tickfleet-next" = String, description = "Position of the next page, for `from`. Absent on the last page"),
                ("tickfleet-list-restarted" = String, description = "`true` if the position has expired or its task is not visible to the key, so that the list starts over")))))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    filters: Result<Query<TasksQuery>, QueryRejection>,
) -> Result<(HeaderMap, Json<Vec<TaskSummary>>), Problem> {
    caller.require_permission(Verb::Read)?;
    let filters = query(filters)?;
    let filter = TaskFilter {
        agent: optional("agent", filters.agent)?,
        state: filters.state,
        limit: bounded("limit", filters.limit, LISTED.0, LISTED.1)?,
        ..TaskFilter::default()
    };
    let tenants = BTreeSet::from([caller.tenant().clone()]);
    let sees = |agent: Option<&str>| caller.can_read_agent(agent);
    let page = task_page_of(&shared.client, &tenants, &filter, filters.from.as_ref(), &sees).await?;
    let mut headers = HeaderMap::new();
    // The list contains the task of the position anyway, so the position reveals nothing.
    if let Some(next) = page.next.and_then(|next| HeaderValue::from_str(&next.to_string()).ok()) {
        headers.insert(NEXT, next);
    }
    if page.list_restarted {
        headers.insert(LIST_RESTARTED, HeaderValue::from_static("true"));
    }
    Ok((headers, Json(page.items)))
}

/// Return the history of a task: steps, calls, waits and subtasks.
#[utoipa::path(get, path = "/v1/tasks/{task_id}", tag = "tasks", params(("task_id" = String, Path, description = "Id of the task")),
    responses((status = 200, description = "The history of the task", body = Object),
        (status = 404, description = "Unknown task", body = ProblemBody)))]
pub(crate) async fn story(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<TaskDetails>, Problem> {
    caller.require_permission(Verb::Read)?;
    let name = named_turn(&caller, id)?;
    if !may_act_on(&shared, &caller, &name).await? {
        return Err(unknown(&name));
    }
    let story = shared.client.task(&name).await?.filter(|story| caller.can_read_agent(story.summary.agent.as_deref()));
    story.map(Json).ok_or_else(|| unknown(&name))
}

/// Stream the events of a task as server-sent events, from its start to its end.
///
/// The header `Last-Event-ID` continues an interrupted stream.
#[utoipa::path(get, path = "/v1/tasks/{task_id}/events", tag = "tasks", params(("task_id" = String, Path, description = "Id of the task"),
        ("last-event-id" = Option<String>, Header, description = "Id of the last received event")),
    responses((status = 200, description = "Events: accepted, plan, execute, result, waiting, capped, answer, failed …", body = String, content_type = "text/event-stream"),
        (status = 404, description = "Unknown task", body = ProblemBody)))]
pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    requester: StreamRequester,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    requester.caller.require_permission(Verb::Read)?;
    let name = named_turn(&requester.caller, id)?;
    let position = position(&headers)?;
    let caller = requester.caller.clone();
    let open_stream = OpenStream::begin(&shared, requester, Verb::Read)?;
    // Until a scheduler admits or rejects the task, the id may still become a task of another agent. Only the first
    // event names the agent, so the stream must then start with that event.
    let position = if is_decided(&shared, &caller, &name).await? { position } else { 0 };
    Ok(events::of_task(open_stream, caller, shared.client.watch_from(&name, position), shared.draining.clone()))
}

/// True if a scheduler has admitted or rejected the task. A decided task takes precedence over an undecided message
/// with the same id, because any caller can send such a message. A task may be decided between the two reads, so there
/// is a second round.
async fn is_decided(shared: &Shared, caller: &Caller, name: &TurnName) -> Result<bool, Problem> {
    let agent = |task: &UndecidedTurn| task.agent.as_ref().map(ToString::to_string);
    for _ in 0..2 {
        // The check takes equally long for a task of another agent and for an unknown id.
        let owner =
            if caller.can_read_agent(None) { RecordOwner::Own } else { record_owner(shared, caller, name).await? };
        if owner == RecordOwner::Own && shared.client.task(name).await?.is_some() {
            return Ok(true);
        }
        let waits = shared.client.undecided(name).await?;
        if owner != RecordOwner::Others && waits.is_some_and(|task| caller.can_read_agent(agent(&task).as_deref())) {
            return Ok(false);
        }
    }
    Err(unknown(name))
}

/// Cancel a task, its running turn and its subtasks.
#[utoipa::path(post, path = "/v1/tasks/{task_id}/cancel", tag = "tasks", params(("task_id" = String, Path, description = "Id of the task")),
    request_body = Option<CancelReason>,
    responses((status = 200, description = "One result per task", body = Object),
        (status = 404, description = "Unknown task", body = ProblemBody)))]
pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<CanceledTask>, Problem> {
    caller.require_permission(Verb::Cancel)?;
    let name = named_turn(&caller, id)?;
    let reason = reason(&read_body(body)?)?;
    if !may_act_on(&shared, &caller, &name).await? {
        return Err(unknown(&name));
    }
    Ok(Json(shared.client.cancel_task(&name, &reason).await?))
}

fn taken() -> Problem {
    Problem::conflict("the id belongs to a task or turn with other content")
}

fn unknown(name: &TurnName) -> Problem {
    Problem::not_found(format!("unknown task {}: not accepted yet, rejected, or its record has expired", name.turn))
}
