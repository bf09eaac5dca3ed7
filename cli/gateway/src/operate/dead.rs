//! Dead letters, and calls and tasks that failed permanently: list, replay and drop.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_client::dead::{
    self, Cause, Causes, DeadCursor, DeadEntry, DeadEntryDetails, DeadFilter, DeadId, DeadKind, ReplayReport,
};
use tickfleet_client::operate::Operator as Actor;
use utoipa::{IntoParams, ToSchema};

use super::{Operator, body, bounded, optional, parse_cursor, validate_reason};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{or_default, path, query, read_body};
use crate::verbs::Verb;

/// Entries per page: default and maximum.
const LISTED: (usize, usize) = (50, 500);
/// Maximum entries per replay or drop request.
const IDS_MAX: usize = 500;

/// Kind of an entry.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Sort)]
enum DeadKindParam {
    /// A message that was never executed.
    Letter,
    /// A call that failed permanently.
    Call,
    /// A delegated task that failed permanently.
    Task,
}

/// Filter of entries. An entry must match all of it.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadQuery {
    /// Only this kind.
    #[param(inline)]
    kind: Option<DeadKindParam>,
    /// Only this tenant.
    tenant: Option<String>,
    /// Only this agent.
    agent: Option<String>,
    /// Only calls of this tool.
    tool: Option<String>,
    /// Only this cause: a rejection code or an outcome.
    cause: Option<String>,
    /// Only entries whose error message contains this text, such as 503.
    error: Option<String>,
    /// Only entries with this error message, as `causes` shows it. `#` stands for a word with a digit.
    told: Option<String>,
    /// Only entries without an error message.
    untold: Option<bool>,
    /// Only entries of the last `since_s` seconds.
    since_s: Option<u32>,
    /// Only entries before this time, in milliseconds: `now_ms` of an earlier response.
    before_ms: Option<i64>,
    /// Entries per page. Default: 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: `next` of the previous one.
    from: Option<String>,
}

/// A page of entries.
#[derive(Debug, Serialize)]
pub(crate) struct DeadPage {
    dead: Vec<DeadEntry>,
    /// Entries read from the log.
    read: usize,
    /// Position of the next page; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The current time (ms of shard time).
    now_ms: i64,
}

/// List dead letters, then failed calls and tasks, the newest of each shard first.
///
/// A page reads at most 20,000 entries and contains the position to continue from.
#[utoipa::path(get, path = "/v1/operate/dead", tag = "operators", params(DeadQuery),
    responses((status = 200, description = "`dead`, `read`, `now_ms`, and `next` if more follow", body = Object),
        (status = 400, description = "Invalid query parameter", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<DeadQuery>, QueryRejection>,
) -> Result<Json<DeadPage>, Problem> {
    operator.may(Verb::View)?;
    let now_ms = super::views::now_ms(&shared).await?;
    let (filter, from) = query(filters)?.filter(&shared, &operator, now_ms).await?;
    let page = dead::list(shared.client.stores(), &filter, from).await?;
    Ok(Json(DeadPage { dead: page.dead, read: page.read, next: page.next.map(|next| next.to_string()), now_ms }))
}

impl DeadQuery {
    async fn filter(
        self,
        shared: &Shared,
        operator: &Operator,
        now_ms: i64,
    ) -> Result<(DeadFilter, DeadCursor), Problem> {
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let filter = DeadFilter {
            kind: self.kind.map(|kind| match kind {
                DeadKindParam::Letter => DeadKind::Letter,
                DeadKindParam::Call => DeadKind::Call,
                DeadKindParam::Task => DeadKind::Task,
            }),
            tenant: operator.restrict_tenant(self.tenant)?,
            agent: optional("agent", self.agent)?,
            tool: super::resolve_tool_filter(shared, self.tool).await?,
            cause: non_empty(self.cause),
            error: non_empty(self.error),
            told: non_empty(self.told),
            untold: self.untold.unwrap_or_default(),
            from_ms: self.since_s.map(|seconds| now_ms - i64::from(seconds) * 1_000),
            until_ms: self.before_ms,
            limit: bounded("limit", self.limit, LISTED.0, LISTED.1)?,
        };
        let from: Option<DeadCursor> = parse_cursor(self.from)?;
        Ok((filter, from.unwrap_or_default()))
    }
}

/// Groups of entries by cause, as far as the log was read.
#[derive(Debug, Serialize)]
pub(crate) struct DeadCausesPage {
    causes: Vec<Cause>,
    /// Entries read from the log.
    read: usize,
    /// Entries with further causes, which did not fit.
    others: u64,
    /// Position to continue from; `None` at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The current time (ms of shard time).
    now_ms: i64,
}

/// Group dead letters, failed calls and failed tasks by cause.
///
/// A group has its count, newest and oldest entry and an example. The same filters, with a group's `kind`, `cause`,
/// `tool` and `told` (or `untold`), list its entries. A response reads about 20,000 entries and contains the position
/// to continue from; `limit` counts groups.
#[utoipa::path(get, path = "/v1/operate/dead/causes", tag = "operators", params(DeadQuery),
    responses((status = 200, description = "`causes`, the most frequent first, `read`, `others`, `now_ms`, and `next` if more follow", body = Object),
        (status = 400, description = "Invalid query parameter", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn causes(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<DeadQuery>, QueryRejection>,
) -> Result<Json<DeadCausesPage>, Problem> {
    operator.may(Verb::View)?;
    let now_ms = super::views::now_ms(&shared).await?;
    let (filter, from) = query(filters)?.filter(&shared, &operator, now_ms).await?;
    let mut found = Causes::default();
    let next = dead::causes(shared.client.stores(), &filter, from, &mut found).await?;
    let read = found.read;
    let others = found.others;
    let next = next.map(|next| next.to_string());
    Ok(Json(DeadCausesPage { causes: found.most(filter.limit), read, others, next, now_ms }))
}

/// Return one entry with the message that a replay sends.
#[utoipa::path(get, path = "/v1/operate/dead/{id}", tag = "operators", params(("id" = String, Path, description = "Id from a list, such as `letter-0-1764130000000-0`")),
    responses((status = 200, description = "The entry, its `message`, and `becomes`: the turn or task that a replay creates", body = Object),
        (status = 400, description = "Invalid id", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown id, or no longer kept", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeadEntryDetails>, Problem> {
    operator.may(Verb::View)?;
    let id = parse_id(&path(id)?)?;
    let own = operator.restrict_tenant(None)?;
    let found = dead::find(shared.client.stores(), &id).await?;
    let found = found.filter(|entry| own.is_none() || entry.dead.tenant == own);
    found.map(Json).ok_or_else(|| Problem::not_found(format!("{id}: no entry with this id")))
}

fn parse_id(text: &str) -> Result<DeadId, Problem> {
    text.parse().map_err(|error: String| Problem::invalid(format!("{text:?}: {error}")))
}

/// Entries to replay.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Replays)]
pub(crate) struct ReplayRequest {
    /// Ids, at most 500.
    #[schema(example = json!(["call-0-1764130000000-0"]))]
    ids: Vec<String>,
    /// Reason for the audit log.
    #[schema(example = "the service is back")]
    reason: String,
    /// Message to send instead, of a turn or task. Requires exactly one id.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    message: Option<Box<RawValue>>,
    /// Include entries that may already have taken effect.
    #[serde(default, deserialize_with = "or_default")]
    although_it_may_have_run: bool,
}

/// Replay dead letters, calls and tasks.
///
/// Repeating the request sends nothing twice. A call becomes a new turn of its agent, with a new idempotency key,
/// under caps and permissions.
#[utoipa::path(post, path = "/v1/operate/dead/replay", tag = "operators", request_body = ReplayRequest,
    responses((status = 200, description = "One result per id, in order: `id`, `answer` and, if it was sent, `as`", body = Vec<Object>),
        (status = 400, description = "Invalid list of ids, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable. The first ids may have been sent; repeat the request", body = ProblemBody)))]
pub(crate) async fn replay(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<ReplayReport>>, Problem> {
    operator.may(Verb::Operate)?;
    let request: ReplayRequest = body(&read_body(bytes)?, "{\"ids\": [\"call-0-…\"], \"reason\": \"…\"}")?;
    let ids = parse_ids(&request.ids)?;
    if request.message.is_some() && ids.len() != 1 {
        return Err(Problem::invalid("message: requires exactly one id"));
    }
    let own = operator.restrict_tenant(None)?;
    let redactor = shared.backend.redactor();
    let who = Actor { by: operator.by(), reason: validate_reason(&request.reason)?, redactor: &redactor };
    let options = dead::ReplayRequest {
        message: request.message.as_deref().map(|message| message.get().as_bytes()),
        although_it_may_have_run: request.although_it_may_have_run,
        within: own.as_ref(),
        operator: who,
    };
    let mut replayed = Vec::with_capacity(ids.len());
    for id in &ids {
        replayed.push(dead::replay(shared.client.stores(), id, &options).await?);
    }
    Ok(Json(replayed))
}

/// Entries to drop.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Drops)]
pub(crate) struct DropRequest {
    /// Ids, at most 500.
    #[schema(example = json!(["letter-0-1764130000000-0"]))]
    ids: Vec<String>,
    /// Reason for the audit log.
    #[schema(example = "of no use")]
    reason: String,
}

/// Drop entries: dead letters are deleted, calls and tasks are no longer listed but stay in the audit log.
#[utoipa::path(post, path = "/v1/operate/dead/drop", tag = "operators", request_body = DropRequest,
    responses((status = 200, description = "One result per id, in order: `id` and `answer`", body = Vec<Object>),
        (status = 400, description = "Invalid list of ids, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable. The first ids may have been dropped; repeat the request", body = ProblemBody)))]
pub(crate) async fn discard(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<ReplayReport>>, Problem> {
    operator.may(Verb::Operate)?;
    let request: DropRequest = body(&read_body(bytes)?, "{\"ids\": [\"letter-0-…\"], \"reason\": \"…\"}")?;
    let ids = parse_ids(&request.ids)?;
    let own = operator.restrict_tenant(None)?;
    let redactor = shared.backend.redactor();
    let who = Actor { by: operator.by(), reason: validate_reason(&request.reason)?, redactor: &redactor };
    let mut dropped = Vec::with_capacity(ids.len());
    for id in &ids {
        let options = dead::DropRequest { within: own.as_ref(), operator: who };
        dropped.push(dead::drop_one(shared.client.stores(), id, &options).await?);
    }
    Ok(Json(dropped))
}

fn parse_ids(ids: &[String]) -> Result<Vec<DeadId>, Problem> {
    if ids.is_empty() || ids.len() > IDS_MAX {
        return Err(Problem::invalid(format!("ids: expected 1 to {IDS_MAX}")));
    }
    ids.iter().map(|id| parse_id(id)).collect()
}
