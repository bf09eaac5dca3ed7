//! What was put aside: dead letters and calls that failed for good, and what operators do with them.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_client::dead::{self, Cause, Causes, Dead, DeadAt, DeadFilter, DeadId, DeadWhole, Kind, Replayed};
use tickfleet_client::operate::Operator as Who;
use utoipa::{IntoParams, ToSchema};

use super::{Operator, because, body, optional, placed, within};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query, whole};
use crate::verbs::Verb;

/// Those that are listed where nobody says how many, and at most.
const LISTED: (usize, usize) = (50, 500);
/// Those that one request replays or drops.
const HANDLED_MAX: usize = 500;

/// What was put aside.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    /// A message that was never carried out.
    Letter,
    /// A call that failed for good.
    Call,
    /// A delegated task that failed for good.
    Task,
}

/// Which are wanted; all that is given has to fit.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Letters alone, or calls alone.
    #[param(inline)]
    kind: Option<Sort>,
    /// Those of this tenant.
    tenant: Option<String>,
    /// Those of this agent.
    agent: Option<String>,
    /// Calls of this tool.
    tool: Option<String>,
    /// With this cause: a code of refusal, or an outcome.
    cause: Option<String>,
    /// With this text in what was told, as 503.
    error: Option<String>,
    /// Calls and tasks of which was told this, as their cause has it: with `#` for words that have a digit.
    told: Option<String>,
    /// Calls and tasks of which nothing was told, as of a cause without `told`.
    untold: Option<bool>,
    /// Put aside at most so many seconds ago.
    since_s: Option<u32>,
    /// Put aside before this time, ms: the `now_ms` of an earlier answer.
    before_ms: Option<i64>,
    /// So many, from 1 to 500; 50 unless said otherwise.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Go on where a page has ended: its `next`.
    from: Option<String>,
}

/// A page of what was put aside.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    dead: Vec<Dead>,
    /// Entries that were read.
    read: usize,
    /// Where the list goes on; none at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// What was put aside: dead letters, then calls that failed for good, of each shard the newest first. There is no index: a
/// page reads 20,000 entries at most, and says where to go on.
#[utoipa::path(get, path = "/v1/operate/dead", tag = "operators", params(Wanted),
    responses((status = 200, description = "A page: `dead`, `read`, `now_ms`, and `next` where it goes on", body = Object),
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
    let now_ms = super::views::now_ms(&shared).await?;
    let (filter, from) = query(wanted)?.filter(&shared, &operator, now_ms).await?;
    let page = dead::list(shared.client.stores(), &filter, from).await?;
    Ok(Json(Page { dead: page.dead, read: page.read, next: page.next.map(|next| next.to_string()), now_ms }))
}

impl Wanted {
    async fn filter(self, shared: &Shared, operator: &Operator, now_ms: i64) -> Result<(DeadFilter, DeadAt), Problem> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let filter = DeadFilter {
            kind: self.kind.map(|kind| match kind {
                Sort::Letter => Kind::Letter,
                Sort::Call => Kind::Call,
                Sort::Task => Kind::Task,
            }),
            tenant: operator.within(self.tenant)?,
            agent: optional("agent", self.agent)?,
            tool: super::tool_wanted(shared, self.tool).await?,
            cause: given(self.cause),
            error: given(self.error),
            told: given(self.told),
            untold: self.untold.unwrap_or_default(),
            from_ms: self.since_s.map(|seconds| now_ms - i64::from(seconds) * 1_000),
            until_ms: self.before_ms,
            limit: within("limit", self.limit, LISTED.0, LISTED.1)?,
        };
        let from: Option<DeadAt> = placed(self.from)?;
        Ok((filter, from.unwrap_or_default()))
    }
}

/// Causes, as far as the log was read.
#[derive(Debug, Serialize)]
pub(crate) struct CausesPage {
    causes: Vec<Cause>,
    /// Entries that were read.
    read: usize,
    /// Those of further causes, for which there was no room.
    others: u64,
    /// Where it goes on; none at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// What was put aside, by its cause: what failed alike is one line, with how many, the newest, the oldest and an example. The
/// same filters, with a cause's `kind`, `cause`, `tool` and `told` (or `untold` where it has none), list those of the cause. One answer reads some 20,000
/// entries, and says where to go on; `limit` counts causes.
#[utoipa::path(get, path = "/v1/operate/dead/causes", tag = "operators", params(Wanted),
    responses((status = 200, description = "`causes`, those of most first, `read`, `others`, `now_ms`, and `next` where it goes on", body = Object),
        (status = 400, description = "That cannot be asked", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn causes(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<CausesPage>, Problem> {
    operator.may(Verb::View)?;
    let now_ms = super::views::now_ms(&shared).await?;
    let (filter, from) = query(wanted)?.filter(&shared, &operator, now_ms).await?;
    let mut found = Causes::default();
    let next = dead::causes(shared.client.stores(), &filter, from, &mut found).await?;
    let (read, others) = (found.read, found.others);
    let next = next.map(|next| next.to_string());
    Ok(Json(CausesPage { causes: found.most(filter.limit), read, others, next, now_ms }))
}

/// One that was put aside, with the message that a replay sends.
#[utoipa::path(get, path = "/v1/operate/dead/{id}", tag = "operators", params(("id" = String, Path, description = "As a list says it, `letter-0-1764130000000-0`")),
    responses((status = 200, description = "What a list says of it, `message`, and `becomes`: the turn or task that a replay makes", body = Object),
        (status = 400, description = "That is no id", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 404, description = "Nothing of this id is there, or not any more", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeadWhole>, Problem> {
    operator.may(Verb::View)?;
    let id = named(&path(id)?)?;
    let own = operator.within(None)?;
    let found = dead::find(shared.client.stores(), &id).await?;
    let found = found.filter(|whole| own.is_none() || whole.dead.tenant == own);
    found.map(Json).ok_or_else(|| Problem::not_found(format!("{id}: nothing of this id is there, or not any more")))
}

fn named(text: &str) -> Result<DeadId, Problem> {
    text.parse().map_err(|error: String| Problem::invalid(format!("{text:?}: {error}")))
}

/// Which are to be done anew, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replays {
    /// Their ids; at most 500.
    #[schema(example = json!(["call-0-1764130000000-0"]))]
    ids: Vec<String>,
    /// Why, for the audit log.
    #[schema(example = "the service is back")]
    reason: String,
    /// Another message to send, of a turn or task; with one id.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    message: Option<Box<RawValue>>,
    /// Also those that may have taken effect already.
    #[serde(default)]
    although_it_may_have_run: bool,
}

/// Have some done anew. Each is sent and done with in one step: the same request again sends nothing twice. A call becomes a
/// new turn of its agent, with an idempotency key of its own, under caps and permissions as any other.
#[utoipa::path(post, path = "/v1/operate/dead/replay", tag = "operators", request_body = Replays,
    responses((status = 200, description = "What came of each, in their order: `id`, `answer` and, where it was sent, `as`", body = Vec<Object>),
        (status = 400, description = "That is no list of ids, or no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away: those that stand first may have been sent. It may be asked again", body = ProblemBody)))]
pub(crate) async fn replay(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<Replayed>>, Problem> {
    operator.may(Verb::Operate)?;
    let asked: Replays = body(&whole(bytes)?, "{\"ids\": [\"call-0-…\"], \"reason\": \"…\"}")?;
    let ids = these(&asked.ids)?;
    if asked.message.is_some() && ids.len() != 1 {
        return Err(Problem::invalid("message: expected one id with it"));
    }
    let (own, redactor) = (operator.within(None)?, shared.desk.redactor());
    let who = Who { by: operator.by(), reason: because(&asked.reason)?, redactor: &redactor };
    let wish = dead::Replay {
        message: asked.message.as_deref().map(|message| message.get().as_bytes()),
        although_it_may_have_run: asked.although_it_may_have_run,
        within: own.as_ref(),
        operator: who,
    };
    let mut replayed = Vec::with_capacity(ids.len());
    for id in &ids {
        replayed.push(dead::replay(shared.client.stores(), id, &wish).await?);
    }
    Ok(Json(replayed))
}

/// Which are to go, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drops {
    /// Their ids; at most 500.
    #[schema(example = json!(["letter-0-1764130000000-0"]))]
    ids: Vec<String>,
    /// Why, for the audit log.
    #[schema(example = "of no use")]
    reason: String,
}

/// Be done with some: letters go, and calls, which stay in the audit log, are not listed any more.
#[utoipa::path(post, path = "/v1/operate/dead/drop", tag = "operators", request_body = Drops,
    responses((status = 200, description = "What came of each, in their order: `id` and `answer`", body = Vec<Object>),
        (status = 400, description = "That is no list of ids, or no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away: those that stand first may have been dropped. It may be asked again", body = ProblemBody)))]
pub(crate) async fn discard(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<Replayed>>, Problem> {
    operator.may(Verb::Operate)?;
    let asked: Drops = body(&whole(bytes)?, "{\"ids\": [\"letter-0-…\"], \"reason\": \"…\"}")?;
    let ids = these(&asked.ids)?;
    let (own, redactor) = (operator.within(None)?, shared.desk.redactor());
    let who = Who { by: operator.by(), reason: because(&asked.reason)?, redactor: &redactor };
    let mut dropped = Vec::with_capacity(ids.len());
    for id in &ids {
        let wish = dead::Drop { within: own.as_ref(), operator: who };
        dropped.push(dead::drop_one(shared.client.stores(), id, &wish).await?);
    }
    Ok(Json(dropped))
}

fn these(ids: &[String]) -> Result<Vec<DeadId>, Problem> {
    if ids.is_empty() || ids.len() > HANDLED_MAX {
        return Err(Problem::invalid(format!("ids: expected 1 to {HANDLED_MAX}")));
    }
    ids.iter().map(|id| named(id)).collect()
}
