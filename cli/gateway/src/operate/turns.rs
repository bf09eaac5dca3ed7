//! The turns under way, and the end of some of them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::State;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use serde::{Deserialize, Serialize};
use tickfleet_client::end_many::end_many;
use tickfleet_client::operate::{Operator as Who, TurnFilter, TurnState, TurnSummary, TurnsAt, list_turns};
use tickfleet_client::tasks::Word;
use utoipa::{IntoParams, ToSchema};

use super::{Operator, because, body, optional, placed, within};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{query, whole};
use crate::verbs::Verb;

/// Turns that are listed where nobody says how many, and at most.
const LISTED: (usize, usize) = (50, 500);
/// Turns that one request ends.
const ENDED_MAX: usize = 500;

/// Where a turn stands.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Standing {
    /// It waits for a tick, a day, a limit, or the end of a pause.
    Lane,
    /// It waits for a worker.
    Ready,
    /// A worker holds it.
    Running,
    /// It waits for its next try, for people, or for what it has begun.
    Parked,
    /// Its calls are being ended without having run.
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

/// Which turns are wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Those of this tenant.
    tenant: Option<String>,
    /// Those of this agent.
    agent: Option<String>,
    /// Those with a call of this tool that has no result yet.
    tool: Option<String>,
    /// Those that stand there.
    #[param(inline)]
    state: Option<Standing>,
    /// Those that were admitted at least so many seconds ago.
    older_than_s: Option<u32>,
    /// So many, from 1 to 500; 50 unless said otherwise. A page may have a few more.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Go on where a page has ended: its `next`.
    from: Option<String>,
}

/// A page of turns.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    turns: Vec<TurnSummary>,
    /// Where the list goes on; none at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// The turns under way, in no order. There is no index of them, so that calls pay nothing for it: keys are searched, some
/// 200,000 a page at most.
#[utoipa::path(get, path = "/v1/operate/turns", tag = "operators", params(Wanted),
    responses((status = 200, description = "A page: `turns`, `now_ms`, and `next` where it goes on", body = Object),
        (status = 400, description = "That cannot be asked", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
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
    let from: Option<TurnsAt> = placed(wanted.from)?;
    let page = list_turns(shared.client.stores(), &filter, from.unwrap_or_default()).await?;
    let now_ms = super::views::now_ms(&shared).await?;
    Ok(Json(Page { turns: page.turns, next: page.next.map(|next| next.to_string()), now_ms }))
}

/// Which turns and tasks are to end, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ends {
    /// Their names, `tenant:id`; at most 500.
    #[schema(example = json!(["demo:order-17"]))]
    ids: Vec<String>,
    /// Why, for the audit log and for the agents.
    #[schema(example = "sold out")]
    reason: String,
}

/// What became of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ended {
    /// Which.
    id: String,
    /// `ok` (it ends now), `flagged` (it ends as soon as its worker has heard of it), `ended` (it had), `waiting` (it was taken
    /// in, and ends when it is decided about), `full` (too many cancels wait already: this one was not kept), `unknown`
    /// (nothing of this name is there: nothing was kept).
    #[schema(value_type = String, example = "ok")]
    answer: Word,
}

/// End turns, and tasks with all that they have begun. Calls that run already end first.
#[utoipa::path(post, path = "/v1/operate/cancel", tag = "operators", request_body = Ends,
    responses((status = 200, description = "What became of each, in their order", body = Vec<Ended>),
        (status = 400, description = "That is no list of names, or no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away: those that stand first may have been ended. It may be sent again", body = ProblemBody)))]
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
    tracing::info!(key = operator.by(), turns = ended.len(), "an operator has asked turns to end");
    Ok(Json(ended))
}
