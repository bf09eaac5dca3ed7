//! Turns in progress: list and cancel.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::State;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use serde::{Deserialize, Serialize};
use tickfleet_client::end_many::end_many;
use tickfleet_client::operate::{Operator as Who, TurnCursor, TurnFilter, TurnState, TurnSummary, list_turns};
use tickfleet_client::tasks::CancelStatus;
use utoipa::{IntoParams, ToSchema};

use super::{Operator, because, body, optional, placed, within};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{query, whole};
use crate::verbs::Verb;

/// Turns per page: default and maximum.
const LISTED: (usize, usize) = (50, 500);
/// Maximum turns per cancel request.
const ENDED_MAX: usize = 500;

/// State of a turn.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Standing {
    /// Waits in a throttle queue: for a tick, a day, a limit, or the end of a pause.
    Lane,
    /// Waits for a worker.
    Ready,
    /// Runs on a worker.
    Running,
    /// Waits for its next attempt, for an approval, or for a task that it started.
    Parked,
    /// Its remaining calls are being ended without running.
    Ending,
}

impl From<Standing> for TurnState {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Lane => Self::Lane,
            Standing::Ready => Self::Ready,
            Standing::Running => Self::Running,
            Standing::Parked => Self::Parked,
            Standing::Ending => Self::Ending,
        }
    }
}

/// Filter of turns.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only this tenant.
    tenant: Option<String>,
    /// Only this agent.
    agent: Option<String>,
    /// Only turns with an unfinished call of this tool.
    tool: Option<String>,
    /// Only this state.
    #[param(inline)]
    state: Option<Standing>,
    /// Only turns that were admitted at least this many seconds ago.
    older_than_s: Option<u32>,
    /// Turns per page. Default: 50. A page can have a few more.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: `next` of the previous one.
    from: Option<String>,
}

/// A page of turns.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    turns: Vec<TurnSummary>,
    /// Position of the next page; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// List unfinished turns, in no order.
///
/// Turns have no index: a page scans up to about 200,000 keys.
#[utoipa::path(get, path = "/v1/operate/turns", tag = "operators", params(Wanted),
    responses((status = 200, description = "`turns`, `now_ms`, and `next` if more follow", body = Object),
        (status = 400, description = "Invalid query parameter", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Page>, Problem> {
    operator.may(Verb::View)?;
    let wanted = query(wanted)?;
    let filter = TurnFilter {
        tenant: operator.within(wanted.tenant)?,
        agent: optional("agent", wanted.agent)?,
        tool: super::tool_wanted(&shared, wanted.tool).await?,
        state: wanted.state.map(Into::into),
        older_than: wanted.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        limit: within("limit", wanted.limit, LISTED.0, LISTED.1)?,
    };
    let from: Option<TurnCursor> = placed(wanted.from)?;
    let page = list_turns(shared.client.stores(), &filter, from.unwrap_or_default()).await?;
    let now_ms = super::views::now_ms(&shared).await?;
    Ok(Json(Page { turns: page.turns, next: page.next.map(|next| next.to_string()), now_ms }))
}

/// Turns and tasks to cancel.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ends {
    /// Names, as `tenant:id`, at most 500.
    #[schema(example = json!(["demo:order-17"]))]
    ids: Vec<String>,
    /// Reason for the audit log and the agents.
    #[schema(example = "sold out")]
    reason: String,
}

/// Result for one turn or task.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ended {
    /// Its name.
    id: String,
    /// `ok`: canceled. `flagged`: ends when its worker sees the cancel. `ended`: had already ended. `waiting`: ends
    /// once it is admitted. `full`: too many cancels wait; this one was not stored. `unknown`: no such turn or task;
    /// nothing was stored.
    #[schema(value_type = String, example = "ok")]
    answer: CancelStatus,
}

/// Cancel turns, and tasks with their subtasks. Running calls are stopped; a `once` call ends as `outcome_unknown`.
#[utoipa::path(post, path = "/v1/operate/cancel", tag = "operators", request_body = Ends,
    responses((status = 200, description = "One result per id, in order", body = Vec<Ended>),
        (status = 400, description = "Invalid list of names, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable. The first ids may have been canceled; repeat the request", body = ProblemBody)))]
pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<Ended>>, Problem> {
    operator.may(Verb::Operate)?;
    let asked: Ends = body(&whole(bytes)?, "{\"ids\": [\"tenant:id\"], \"reason\": \"…\"}")?;
    if asked.ids.is_empty() || asked.ids.len() > ENDED_MAX {
        return Err(Problem::invalid(format!("ids: expected 1 to {ENDED_MAX}")));
    }
    let redactor = shared.desk.redactor();
    let who = Who { by: operator.by(), reason: because(&asked.reason)?, redactor: &redactor };
    let names = asked.ids.iter().map(|id| operator.named(id)).collect::<Result<Vec<_>, _>>()?;
    let answers = end_many(&shared.client, &names, "", who).await?;
    let ended: Vec<Ended> =
        names.iter().zip(answers).map(|(name, answer)| Ended { id: name.to_string(), answer }).collect();
    tracing::info!(key = operator.by(), turns = ended.len(), "operator cancelled turns");
    Ok(Json(ended))
}
