//! Dead letters, and calls and tasks that failed permanently.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::dead::{self, Cause, Causes, DeadEntry, DeadEntryDetails, DeadFilter, DeadId, DeadKind};
use tickfleet_client::{Cursor, Page};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, bounded, check_filter, optional};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query};
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(causes)).routes(routes!(show))
}

/// Default and maximum.
const LISTED: (usize, usize) = (50, 500);

/// Filter of entries. An entry must match all of it.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadQuery {
    /// Only this kind.
    #[param(inline)]
    kind: Option<DeadKind>,
    /// Only this tenant.
    tenant: Option<String>,
    /// Only this agent.
    agent: Option<String>,
    /// Only calls of this tool (name or id).
    tool: Option<String>,
    /// Only this cause: a rejection code or an outcome.
    cause: Option<String>,
    /// Only entries whose error message contains this text, such as 503.
    error: Option<String>,
    /// Only entries with this error message, as `causes` shows it. `#` stands for a word with a digit.
    normalized_error: Option<String>,
    /// Only entries without an error message.
    without_error: Option<bool>,
    /// Only entries of the last `since_s` seconds.
    since_s: Option<u32>,
    /// Only entries at or after this time (ms by Redis' clock).
    from_ms: Option<i64>,
    /// Only entries before this time, in milliseconds: `now_ms` of an earlier response.
    before_ms: Option<i64>,
    /// Entries per page. Default: 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: `next` of the previous one.
    #[param(value_type = Option<String>)]
    from: Option<Cursor>,
}

/// List dead letters, then failed calls and tasks, the newest of each shard first.
///
/// A page reads at most 20,000 entries and contains the position to continue from.
#[utoipa::path(get, path = "/v1/operate/dead", tag = "operators", params(DeadQuery),
    responses((status = 200, description = "`items`, `now_ms`, and `next` if more follow", body = Object)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<DeadQuery>, QueryRejection>,
) -> Result<Json<Page<DeadEntry>>, Problem> {
    operator.require_permission(Verb::View)?;
    let now_ms = shared.client.now_ms().await?;
    let (filter, from) = query(filters)?.filter(&shared, &operator, now_ms).await?;
    let page = dead::list(&shared.client, &filter, from.as_ref()).await?;
    if page.items.is_empty() && from.is_none() {
        check_filter(&shared, (&filter).into()).await?;
    }
    Ok(Json(page))
}

impl DeadQuery {
    async fn filter(
        self,
        shared: &Shared,
        operator: &Operator,
        now_ms: i64,
    ) -> Result<(DeadFilter, Option<Cursor>), Problem> {
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let filter = DeadFilter {
            kind: self.kind,
            tenant: operator.restrict_tenant(self.tenant)?,
            agent: optional("agent", self.agent)?,
            tool: super::resolve_tool_filter(shared, self.tool).await?,
            cause: non_empty(self.cause),
            error: non_empty(self.error),
            normalized_error: non_empty(self.normalized_error),
            without_error: self.without_error.unwrap_or_default(),
            from_ms: self.from_ms.max(self.since_s.map(|seconds| now_ms - i64::from(seconds) * 1_000)),
            until_ms: self.before_ms,
            limit: bounded("limit", self.limit, LISTED.0, LISTED.1)?,
        };
        Ok((filter, self.from))
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct DeadCausesPage {
    causes: Vec<Cause>,
    read: usize,
    /// The number of entries with causes that do not fit into the response.
    others: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Cursor>,
    now_ms: i64,
}

/// Group dead letters, failed calls and failed tasks by cause.
///
/// A group has its count, newest and oldest entry and an example. The same filters, with a group's `kind`, `cause`,
/// `tool` and `normalized_error` (or `without_error`), list its entries. A response reads about 20,000 entries and contains the position
/// to continue from; `limit` counts groups.
#[utoipa::path(get, path = "/v1/operate/dead/causes", tag = "operators", params(DeadQuery),
    responses((status = 200, description = "`causes`, the most frequent first, `read`, `others`, `now_ms`, and `next` if more follow", body = Object)))]
pub(crate) async fn causes(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<DeadQuery>, QueryRejection>,
) -> Result<Json<DeadCausesPage>, Problem> {
    operator.require_permission(Verb::View)?;
    let now_ms = shared.client.now_ms().await?;
    let (filter, from) = query(filters)?.filter(&shared, &operator, now_ms).await?;
    let mut found = Causes::default();
    let next = dead::causes(&shared.client, &filter, from.as_ref(), &mut found).await?;
    if found.is_empty() && from.is_none() {
        check_filter(&shared, (&filter).into()).await?;
    }
    let read = found.read;
    let others = found.others;
    Ok(Json(DeadCausesPage { causes: found.most(filter.limit), read, others, next, now_ms }))
}

/// Return one entry with the message that a replay sends.
#[utoipa::path(get, path = "/v1/operate/dead/{id}", tag = "operators", params(("id" = String, Path, description = "Id from a list, such as `letter-0-1764130000000-0`")),
    responses((status = 200, description = "The entry, its `message`, and `becomes`: the turn or task that a replay creates", body = Object),
        (status = 404, description = "Unknown id, or no longer kept", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeadEntryDetails>, Problem> {
    operator.require_permission(Verb::View)?;
    let id = DeadId::parse(&path(id)?)?;
    let own = operator.restrict_tenant(None)?;
    let found = dead::find(shared.client.stores(), &id).await?;
    let found = found.filter(|entry| own.is_none() || entry.dead.tenant == own);
    found.map(Json).ok_or_else(|| Problem::not_found(format!("{id}: no entry with this id")))
}
