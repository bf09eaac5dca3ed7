//! Approvals: what waits for people, and what they say.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_client::approvals::{APPROVALS_LISTED_MAX, ApprovalFilter, ApprovalsAt, Needed, approval_page};
use tickfleet_client::{Approval, ApprovalError, Counted, Verdict};
use tickfleet_model::approval::{Narrowed, is_same};
use tickfleet_model::{TenantId, limits};
use utoipa::{IntoParams, ToSchema};

use super::{Operator, because, body, optional, placed, within};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query, whole};
use crate::verbs::Verb;

/// Approvals that are listed where nobody says how many.
const LISTED: usize = 50;

/// Which approvals are wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Those of this tenant.
    tenant: Option<String>,
    /// Those of calls of this agent.
    agent: Option<String>,
    /// Those of calls of this tool.
    tool: Option<String>,
    /// Those that were asked for at least so many seconds ago.
    older_than_s: Option<u32>,
    /// So many at most, from 1 to 500; 50 unless said otherwise.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Go on where a page has ended: its `next`.
    from: Option<String>,
}

/// The approvals that wait.
#[derive(Debug, Serialize)]
pub(crate) struct Waiting {
    approvals: Vec<Approval>,
    /// Where the list goes on; none at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Now, ms of shard time.
    now_ms: i64,
}

/// The calls that wait for a person's consent, those first that end first, page by page.
#[utoipa::path(get, path = "/v1/operate/approvals", tag = "operators", params(Wanted),
    responses((status = 200, description = "A page: `approvals`, `now_ms`, and `next` where it goes on", body = Object),
        (status = 400, description = "That cannot be asked", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Waiting>, Problem> {
    operator.may(Verb::View)?;
    let wanted = query(wanted)?;
    let filter = ApprovalFilter {
        agent: optional("agent", wanted.agent)?,
        tool: super::tool_wanted(&shared, wanted.tool).await?,
        older_than: wanted.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        limit: within("limit", wanted.limit, LISTED, APPROVALS_LISTED_MAX)?,
    };
    let from: Option<ApprovalsAt> = placed(wanted.from)?;
    let tenants = tenants(&shared, operator.within(wanted.tenant)?).await?;
    let page = approval_page(&shared.client, &tenants, &filter, from.as_ref()).await?;
    let next = page.next.map(|next| next.to_string());
    Ok(Json(Waiting { approvals: page.approvals, next, now_ms: super::views::now_ms(&shared).await? }))
}

async fn tenants(shared: &Shared, asked: Option<TenantId>) -> Result<Vec<TenantId>, Problem> {
    match asked {
        Some(tenant) => Ok(vec![tenant]),
        None => Ok(shared.desk.tenants().await?.into_iter().collect()),
    }
}

/// One approval: what asks, who has to agree, and what was said.
#[utoipa::path(get, path = "/v1/operate/approvals/{approval}", tag = "operators", params(("approval" = String, Path, description = "`tenant:id`; `id` alone is looked for at all tenants of the key")),
    responses((status = 200, description = "The approval", body = Object),
        (status = 400, description = "That is no name", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 404, description = "Never asked for, or it ended more than seven days ago", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Approval>, Problem> {
    operator.may(Verb::View)?;
    find(&shared, &operator, &path(name)?).await.map(Json)
}

async fn find(shared: &Shared, operator: &Operator, name: &str) -> Result<Approval, Problem> {
    let (tenant, id) = operator.parted(name)?;
    let found = shared.client.approval_of_any(&tenants(shared, tenant).await?, id).await?;
    found.ok_or_else(|| Problem::not_found(format!("{name}: {}", ApprovalError::Unknown)))
}

/// Why, and with which arguments.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Agrees {
    /// Why, for the audit log.
    #[serde(default)]
    #[schema(example = "agreed with Ben")]
    reason: String,
    /// Other values for arguments that may be changed, by JSON pointers.
    #[serde(default)]
    #[schema(value_type = Option<Object>, example = json!({}))]
    set: Option<Narrowed>,
    /// What another approver has changed already: the approval's `narrowed` as it was shown. If it is another by now, the
    /// answer is a 409.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    narrowed: Option<Box<RawValue>>,
}

/// Why a call is denied.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Denies {
    /// Why, for the agent and the audit log.
    #[schema(example = "not this month")]
    reason: String,
}

/// Agree to a call, as the approver that the key's row names.
#[utoipa::path(post, path = "/v1/operate/approvals/{approval}/approve", tag = "operators", params(("approval" = String, Path, description = "`tenant:id`")),
    request_body = Agrees,
    responses((status = 200, description = "`state`: approved, or waiting for `missing` more people", body = Object),
        (status = 400, description = "The arguments cannot be changed so", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this, or none of the approver's roles may decide", body = ProblemBody),
        (status = 404, description = "Never asked for, or it ended more than seven days ago", body = ProblemBody),
        (status = 409, description = "It has ended, was agreed to before by the same one, or its arguments were changed", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away, or the configuration cannot be read", body = ProblemBody)))]
pub(crate) async fn approve(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    name: Result<Path<String>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Counted>, Problem> {
    operator.may(Verb::Approve)?;
    let said: Agrees = body(&whole(bytes)?, "{\"reason\": \"…\"}")?;
    if said.reason.len() > limits::CANCEL_REASON_BYTES_MAX {
        return Err(Problem::invalid(format!("reason: at most {} bytes", limits::CANCEL_REASON_BYTES_MAX)));
    }
    decide(&shared, &operator, &path(name)?, (true, &said.reason), &said).await
}

/// Deny a call, as the approver that the key's row names: it ends, and its agent is told why.
#[utoipa::path(post, path = "/v1/operate/approvals/{approval}/deny", tag = "operators", params(("approval" = String, Path, description = "`tenant:id`")),
    request_body = Denies,
    responses((status = 200, description = "`state`: denied", body = Object),
        (status = 400, description = "There is no reason", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this, or none of the approver's roles may decide", body = ProblemBody),
        (status = 404, description = "Never asked for, or it ended more than seven days ago", body = ProblemBody),
        (status = 409, description = "It has ended", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is away, or the configuration cannot be read", body = ProblemBody)))]
pub(crate) async fn deny(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    name: Result<Path<String>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Counted>, Problem> {
    operator.may(Verb::Approve)?;
    let said: Denies = body(&whole(bytes)?, "{\"reason\": \"…\"}")?;
    decide(&shared, &operator, &path(name)?, (false, because(&said.reason)?), &Agrees::default()).await
}

async fn decide(
    shared: &Shared,
    operator: &Operator,
    name: &str,
    (agrees, reason): (bool, &str),
    said: &Agrees,
) -> Result<Json<Counted>, Problem> {
    let by = operator.approver()?;
    let unknown = || Problem::forbidden(format!("permissions.yaml names no approver {by:?}"));
    let roles = shared.desk.approver(by).await?.ok_or_else(unknown)?;
    let approval = find(shared, operator, name).await?;
    let verdict = Verdict {
        by,
        roles: &roles,
        agrees,
        reason: reason.trim(),
        narrow: said.set.clone().unwrap_or_default(),
        seen: seen(&approval, said.narrowed.as_deref())?,
        redactor: &shared.desk.redactor(),
    };
    let counted = shared.client.decide_approval(&approval.tenant, &approval.id, &verdict).await;
    let counted = counted.map_err(|error| refused(error, &approval))?;
    // Two keys may decide as one approver: the log tells which it was.
    tracing::info!(key = operator.by(), by, approval = %approval.id, agrees, state = %counted.state, "an approver has decided");
    Ok(Json(counted))
}

/// What had been changed of the arguments when the approver looked, as the record has it. Values are compared to the last
/// digit, for a reader of JSON writes them in its own way; the script compares what is given here with what is there then.
fn seen<'a>(approval: &'a Approval, shown: Option<&RawValue>) -> Result<Option<&'a RawValue>, Problem> {
    let Some(shown) = shown else { return Ok(None) };
    let now = approval.narrowed.as_deref();
    if now.is_some_and(|now| is_same(now, shown)) { Ok(now) } else { Err(refused(ApprovalError::Changed, approval)) }
}

fn refused(error: ApprovalError, approval: &Approval) -> Problem {
    let message = format!("{}:{}: {error}", approval.tenant, approval.id);
    match error {
        ApprovalError::Store(error) => error.into(),
        ApprovalError::Unknown => Problem::not_found(message),
        ApprovalError::Role(_) => {
            let needs: Vec<String> = approval.needs.iter().map(Needed::in_words).collect();
            Problem::forbidden(format!("{message}; it needs {}", needs.join(" and ")))
        }
        ApprovalError::Own => Problem::forbidden(message),
        ApprovalError::Ended(_) | ApprovalError::Gone | ApprovalError::Changed | ApprovalError::Again(_) => {
            Problem::conflict(message)
        }
        ApprovalError::Narrow(_) | ApprovalError::TooLong(_) => Problem::invalid(message),
    }
}
