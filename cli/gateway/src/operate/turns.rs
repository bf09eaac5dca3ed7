use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::State;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use serde::{Deserialize, Serialize};
use tickfleet_client::end_many::end_many;
use tickfleet_client::operate::{Operator as Actor, TurnCursor, TurnFilter, TurnState, TurnSummary, list_turns};
use tickfleet_client::tasks::CancelStatus;
use utoipa::{IntoParams, ToSchema};

use super::{Operator, body, bounded, optional, parse_cursor, validate_reason};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{query, read_body};
use crate::verbs::Verb;

/// Turns per page: default and maximum.
const LISTED: (usize, usize) = (50, 500);
/// Maximum turns per cancel request.
const IDS_MAX: usize = 500;

/// State of a turn.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Standing)]
enum TurnStateParam {
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

impl From<TurnStateParam> for TurnState {
    fn from(state: TurnStateParam) -> Self {
        match state {
            TurnStateParam::Lane => Self::Lane,
            TurnStateParam::Ready => Self::Ready,
            TurnStateParam::Running => Self::Running,
            TurnStateParam::Parked => Self::Parked,
            TurnStateParam::Ending => Self::Ending,
        }
    }
}

/// Filter of turns.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TurnsQuery {
    /// Only this tenant.
    tenant: Option<String>,
    /// Only this agent.
    agent: Option<String>,
    /// Only turns with an unfinished call of this tool.
    tool: Option<String>,
    /// Only this state.
    #[param(inline)]
    state: Option<TurnStateParam>,
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
pub(crate) struct TurnsPage {
    turns: Vec<TurnSummary>,
    /// Position of the next page; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The current time (ms of shard time).
    now_ms: i64,
}

/// List unfinished turns, in no order.
///
/// Turns have no index: a page scans up to about 200,000 keys.
#[utoipa::path(get, path = "/v1/operate/turns", tag = "operators", params(TurnsQuery),
    responses((status = 200, description = "`turns`, `now_ms`, and `next` if more follow", body = Object),
        (status = 400, description = "Invalid query parameter", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<TurnsQuery>, QueryRejection>,
) -> Result<Json<TurnsPage>, Problem> {
    operator.may(Verb::View)?;
    let filters = query(filters)?;
    let filter = TurnFilter {
        tenant: operator.restrict_tenant(filters.tenant)?,
        agent: optional("agent", filters.agent)?,
        tool: super::resolve_tool_filter(&shared, filters.tool).await?,
        state: filters.state.map(Into::into),
        older_than: filters.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        limit: bounded("limit", filters.limit, LISTED.0, LISTED.1)?,
    };
    let from: Option<TurnCursor> = parse_cursor(filters.from)?;
    let page = list_turns(shared.client.stores(), &filter, from.unwrap_or_default()).await?;
    let now_ms = super::views::now_ms(&shared).await?;
    Ok(Json(TurnsPage { turns: page.turns, next: page.next.map(|next| next.to_string()), now_ms }))
}

/// Turns and tasks to cancel.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Ends)]
pub(crate) struct CancelTurnsRequest {
    /// Names, as `tenant:id`, at most 500.
    #[schema(example = json!(["demo:order-17"]))]
    ids: Vec<String>,
    /// Reason for the audit log and the agents.
    #[schema(example = "sold out")]
    reason: String,
}

/// Result for one turn or task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Ended)]
pub(crate) struct CancelledTurn {
    /// Its name.
    id: String,
    /// `ok`: canceled. `flagged`: ends when its worker sees the cancel. `ended`: had already ended. `waiting`: ends
    /// once it is admitted. `full`: too many cancels wait; this one was not stored. `unknown`: no such turn or task;
    /// nothing was stored.
    #[schema(value_type = String, example = "ok")]
    answer: CancelStatus,
}

/// Cancel turns, and tasks with their subtasks. Running calls are stopped; a `once` call ends as `outcome_unknown`.
#[utoipa::path(post, path = "/v1/operate/cancel", tag = "operators", request_body = CancelTurnsRequest,
    responses((status = 200, description = "One result per id, in order", body = Vec<CancelledTurn>),
        (status = 400, description = "Invalid list of names, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable. The first ids may have been canceled; repeat the request", body = ProblemBody)))]
pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<CancelledTurn>>, Problem> {
    operator.may(Verb::Operate)?;
    let request: CancelTurnsRequest = body(&read_body(bytes)?, "{\"ids\": [\"tenant:id\"], \"reason\": \"…\"}")?;
    if request.ids.is_empty() || request.ids.len() > IDS_MAX {
        return Err(Problem::invalid(format!("ids: expected 1 to {IDS_MAX}")));
    }
    let redactor = shared.backend.redactor();
    let who = Actor { by: operator.by(), reason: validate_reason(&request.reason)?, redactor: &redactor };
    let names = request.ids.iter().map(|id| operator.parse_turn_name(id)).collect::<Result<Vec<_>, _>>()?;
    let answers = end_many(&shared.client, &names, "", who).await?;
    let ended: Vec<CancelledTurn> =
        names.iter().zip(answers).map(|(name, answer)| CancelledTurn { id: name.to_string(), answer }).collect();
    tracing::info!(key = operator.by(), turns = ended.len(), "operator cancelled turns");
    Ok(Json(ended))
}
