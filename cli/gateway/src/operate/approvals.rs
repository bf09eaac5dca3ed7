use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::value::RawValue;
use tickfleet_client::approvals::{
    APPROVALS_LISTED_MAX, ApprovalCursor, ApprovalFilter, ApprovalPage, RequiredApprovers, approval_page,
    nearest_approvals,
};
use tickfleet_client::verbs::{FilteredNames, or_default};
use tickfleet_client::{Approval, ApprovalError, ApprovalVerdict, VerdictResult};
use tickfleet_model::approval::{NarrowedValues, is_same};
use tickfleet_model::{AgentId, TenantId, limits};
use utoipa::{IntoParams, ToSchema};

use super::{Operator, Page, body, bounded, check_filter, check_reason, optional, parse_cursor};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query};
use crate::verbs::Verb;

/// Default number of approvals per page.
const LISTED: usize = 50;

/// Filter of approvals.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApprovalsQuery {
    /// Only this tenant.
    tenant: Option<String>,
    /// Only calls of this agent.
    agent: Option<String>,
    /// Only calls of this tool (name or id).
    tool: Option<String>,
    /// Only calls that have waited at least this many seconds.
    older_than_s: Option<u32>,
    /// Approvals per page. Default: 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Position of the next page: `next` of the previous one.
    from: Option<String>,
}

/// List calls that wait for approval, the first to expire first, page by page. `arguments` are masked and may be
/// shortened: `arguments_exact` is true if they are complete. `GET /v1/operate/approvals/{approval}` returns the
/// complete arguments.
#[utoipa::path(get, path = "/v1/operate/approvals", tag = "operators", params(ApprovalsQuery),
    responses((status = 200, description = "`approvals`, `now_ms`, and `next` if more follow", body = Object),
        (status = 404, description = "No match, and the fleet does not have the tenant, agent or tool", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<ApprovalsQuery>, QueryRejection>,
) -> Result<Json<Page<ApprovalPage>>, Problem> {
    operator.may(Verb::View)?;
    let filters = query(filters)?;
    let filter = ApprovalFilter {
        agent: optional("agent", filters.agent)?,
        tool: super::resolve_tool_filter(&shared, filters.tool).await?,
        older_than: filters.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        limit: bounded("limit", filters.limit, LISTED, APPROVALS_LISTED_MAX)?,
    };
    let from: Option<ApprovalCursor> = parse_cursor(filters.from)?;
    let tenant = operator.restrict_tenant(filters.tenant)?;
    let tenants = tenants(&shared, tenant.clone()).await?;
    let mut page = approval_page(&shared.client, &tenants, &filter, from.as_ref()).await?;
    if page.approvals.is_empty() && from.is_none() {
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        let tool = filter.tool.as_deref();
        check_filter(&shared, FilteredNames { tenant: tenant.as_ref(), agent, tool }).await?;
    }
    let redactor = shared.backend.redactor();
    page.approvals = page.approvals.into_iter().map(|approval| approval.for_onlookers(&redactor)).collect();
    Page::of(&shared, page).await
}

async fn tenants(shared: &Shared, asked: Option<TenantId>) -> Result<Vec<TenantId>, Problem> {
    match asked {
        Some(tenant) => Ok(vec![tenant]),
        None => Ok(shared.backend.names().await?.tenants(&shared.client).await?.into_iter().collect()),
    }
}

/// Return one approval: the call, the required approvers and their decisions. A key whose approver may decide receives
/// the exact arguments until the approval ends (`arguments_exact`). Other keys receive the masked form of the list.
#[utoipa::path(get, path = "/v1/operate/approvals/{approval}", tag = "operators", params(("approval" = String, Path, description = "`tenant:id`. An `id` alone is searched in all tenants of the key")),
    responses((status = 200, description = "The approval", body = Object),
        (status = 400, description = "Invalid name", body = ProblemBody),
        (status = 404, description = "Unknown approval, or it ended more than seven days ago", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Approval>, Problem> {
    operator.may(Verb::View)?;
    let approval = find_approval(&shared, &operator, &path(name)?).await?;
    let may_decide = may_decide(&shared, &operator, &approval).await;
    Ok(Json(if may_decide { approval } else { approval.for_onlookers(&shared.backend.redactor()) }))
}

/// Returns true if the key's approver may decide this approval. False while the configuration cannot be read.
async fn may_decide(shared: &Shared, operator: &Operator, approval: &Approval) -> bool {
    let Ok(by) = operator.may(Verb::Approve).and_then(|()| operator.approver()) else { return false };
    let roles = shared.backend.approver(by).await.ok().flatten();
    roles.is_some_and(|roles| approval.may_be_decided_by(by, &roles))
}

async fn find_approval(shared: &Shared, operator: &Operator, name: &str) -> Result<Approval, Problem> {
    let (tenant, id) = operator.split_tenant(name)?;
    let among = tenants(shared, tenant.clone()).await?;
    if let Some(found) = shared.client.approval_of_any(&among, id).await? {
        return Ok(found);
    }
    check_filter(shared, FilteredNames { tenant: tenant.as_ref(), ..FilteredNames::default() }).await?;
    let near = nearest_approvals(&shared.client, &among, id).await?;
    let near = if near.is_empty() { String::new() } else { format!(". Nearest waiting: {}", near.join(", ")) };
    Err(Problem::not_found(format!("{name}: {}{near}", ApprovalError::Unknown)))
}

/// An approval with its reason and changed arguments.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Agrees)]
pub(crate) struct ApproveRequest {
    /// Reason for the audit log.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(example = "agreed with Ben")]
    reason: String,
    /// New values of arguments that can be changed, by JSON pointer.
    #[serde(default)]
    #[schema(value_type = Option<Object>, example = json!({}))]
    set: Option<NarrowedValues>,
    /// Changes by another approver: the approval's `narrowed` as it was shown. If it has changed since, the response
    /// is 409.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    narrowed: Option<Box<RawValue>>,
}

/// The reason for a denial.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Denies)]
pub(crate) struct DenyRequest {
    /// Reason for the agent and the audit log.
    #[schema(example = "not this month")]
    reason: String,
}

/// Approve a call as the approver of the key.
#[utoipa::path(post, path = "/v1/operate/approvals/{approval}/approve", tag = "operators", params(("approval" = String, Path, description = "`tenant:id`")),
    request_body = ApproveRequest,
    responses((status = 200, description = "`state` is `approved`, or `waiting` with the number of `missing` approvals", body = Object),
        (status = 400, description = "The change is not narrower, or does not fit the tool's schema. The approval waits as before", body = ProblemBody),
        (status = 403, description = "The key lacks the permission, or the approver lacks the required role", body = ProblemBody),
        (status = 404, description = "Unknown approval, or it ended more than seven days ago", body = ProblemBody),
        (status = 409, description = "The approval has ended, the approver already approved, or the arguments have changed", body = ProblemBody),
        (status = 503, description = "Redis is unavailable, or the configuration is invalid", body = ProblemBody)))]
pub(crate) async fn approve(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    name: Result<Path<String>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<VerdictResult>, Problem> {
    operator.may(Verb::Approve)?;
    let request: ApproveRequest = body(bytes, "{\"reason\": \"…\"}")?;
    if request.reason.len() > limits::CANCEL_REASON_BYTES_MAX {
        return Err(Problem::invalid(format!("reason: at most {} bytes", limits::CANCEL_REASON_BYTES_MAX)));
    }
    decide(&shared, &operator, &path(name)?, (true, &request.reason), &request).await
}

/// Deny a call as the approver of the key. The call ends, and its agent receives the reason.
#[utoipa::path(post, path = "/v1/operate/approvals/{approval}/deny", tag = "operators", params(("approval" = String, Path, description = "`tenant:id`")),
    request_body = DenyRequest,
    responses((status = 200, description = "`state` is `denied`", body = Object),
        (status = 400, description = "Missing reason", body = ProblemBody),
        (status = 403, description = "The key lacks the permission, or the approver lacks the required role", body = ProblemBody),
        (status = 404, description = "Unknown approval, or it ended more than seven days ago", body = ProblemBody),
        (status = 409, description = "The approval has ended", body = ProblemBody),
        (status = 503, description = "Redis is unavailable, or the configuration is invalid", body = ProblemBody)))]
pub(crate) async fn deny(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    name: Result<Path<String>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<VerdictResult>, Problem> {
    operator.may(Verb::Approve)?;
    let mut request: DenyRequest = body(bytes, "{\"reason\": \"…\"}")?;
    check_reason(&mut request.reason)?;
    decide(&shared, &operator, &path(name)?, (false, &request.reason), &ApproveRequest::default()).await
}

async fn decide(
    shared: &Shared,
    operator: &Operator,
    name: &str,
    (agrees, reason): (bool, &str),
    request: &ApproveRequest,
) -> Result<Json<VerdictResult>, Problem> {
    let by = operator.approver()?;
    let unknown = || Problem::forbidden(format!("permissions.yaml has no approver {by:?}"));
    let roles = shared.backend.approver(by).await?.ok_or_else(unknown)?;
    let approval = find_approval(shared, operator, name).await?;
    let verdict = ApprovalVerdict {
        by,
        roles: &roles,
        agrees,
        reason: reason.trim(),
        narrow: request.set.clone().unwrap_or_default(),
        seen: changes_seen(&approval, request.narrowed.as_deref())?,
        redactor: &shared.backend.redactor(),
    };
    if !verdict.narrow.is_empty() {
        let checked = shared.backend.check_narrowed(&approval, &verdict.narrow).await;
        checked.map_err(|error| decision_problem(error, &approval))?;
    }
    let counted = shared.client.decide_approval(&approval.tenant, &approval.id, &verdict).await;
    let counted = counted.map_err(|error| decision_problem(error, &approval))?;
    // Two keys may have the same approver: the log shows which one was used.
    tracing::info!(key = operator.by(), by, approval = %approval.id, agrees, state = %counted.state, "approval decided");
    Ok(Json(counted))
}

/// Returns the changed arguments that the approver saw, as stored in the record. The changes are compared by value,
/// with all digits, because JSON clients format values differently. When the store's script decides, the script
/// compares the returned text with the record again.
fn changes_seen<'a>(approval: &'a Approval, shown: Option<&RawValue>) -> Result<Option<&'a RawValue>, Problem> {
    let Some(shown) = shown else { return Ok(None) };
    let now = approval.narrowed.as_deref();
    if now.is_some_and(|now| is_same(now, shown)) {
        Ok(now)
    } else {
        Err(decision_problem(ApprovalError::Changed, approval))
    }
}

fn decision_problem(error: ApprovalError, approval: &Approval) -> Problem {
    let message = format!("{}:{}: {error}", approval.tenant, approval.id);
    match error {
        ApprovalError::Store(error) => error.into(),
        ApprovalError::Unknown => Problem::not_found(message),
        ApprovalError::Role(_) => {
            let needs: Vec<String> = approval.needs.iter().map(RequiredApprovers::in_words).collect();
            Problem::forbidden(format!("{message}; it needs {}", needs.join(" and ")))
        }
        ApprovalError::Own => Problem::forbidden(message),
        ApprovalError::Ended(_) | ApprovalError::Gone | ApprovalError::Changed | ApprovalError::Again(_) => {
            Problem::conflict(message)
        }
        ApprovalError::Narrow(_) | ApprovalError::Schema(_) | ApprovalError::TooLong(_) => Problem::invalid(message),
    }
}
