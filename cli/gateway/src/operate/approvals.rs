use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use tickfleet_client::approvals::{APPROVALS_LISTED_MAX, ApprovalFilter, approval_page};
use tickfleet_client::verbs::{ApproveRequest, Approver, DenyRequest, FilteredNames, VerbContext, rejected_decision};
use tickfleet_client::{Approval, Cursor, Page, VerdictResult};
use tickfleet_model::{AgentId, TenantId};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, body, bounded, check_filter, optional};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{path, query};
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(approve)).routes(routes!(deny))
}

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
    #[param(value_type = Option<String>)]
    from: Option<Cursor>,
}

/// List calls that wait for approval, the first to expire first, page by page. `arguments` are masked and may be
/// shortened: `arguments_exact` is true if they are complete. `GET /v1/operate/approvals/{approval}` returns the
/// complete arguments.
#[utoipa::path(get, path = "/v1/operate/approvals", tag = "operators", params(ApprovalsQuery),
    responses((status = 200, description = "`items`, `now_ms`, and `next` if more follow", body = Object)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<ApprovalsQuery>, QueryRejection>,
) -> Result<Json<Page<Approval>>, Problem> {
    operator.require_permission(Verb::View)?;
    let filters = query(filters)?;
    let filter = ApprovalFilter {
        agent: optional("agent", filters.agent)?,
        tool: super::resolve_tool_filter(&shared, filters.tool).await?,
        older_than: filters.older_than_s.map(|seconds| Duration::from_secs(seconds.into())),
        limit: bounded("limit", filters.limit, LISTED, APPROVALS_LISTED_MAX)?,
    };
    let tenant = operator.restrict_tenant(filters.tenant)?;
    let tenants = tenants(&shared, tenant.clone()).await?;
    let mut page = approval_page(&shared.client, &tenants, &filter, filters.from.as_ref()).await?;
    if page.items.is_empty() && filters.from.is_none() {
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        let tool = filter.tool.as_deref();
        check_filter(&shared, FilteredNames { tenant: tenant.as_ref(), agent, tool, ..FilteredNames::default() })
            .await?;
    }
    let redactor = shared.backend.redactor();
    page.items = page.items.into_iter().map(|approval| approval.without_secrets(&redactor)).collect();
    Ok(Json(page))
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
        (status = 404, description = "Unknown approval, or it ended more than seven days ago", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Approval>, Problem> {
    operator.require_permission(Verb::View)?;
    let approval = operator.context(&shared).await?.find_approval(&path(name)?).await?;
    let may_decide = may_decide(&shared, &operator, &approval).await;
    Ok(Json(if may_decide { approval } else { approval.without_secrets(&shared.backend.redactor()) }))
}

async fn may_decide(shared: &Shared, operator: &Operator, approval: &Approval) -> bool {
    let Ok(by) = operator.require_permission(Verb::Approve).and_then(|()| operator.approver()) else { return false };
    let roles = shared.backend.approver(by).await.ok().flatten();
    roles.is_some_and(|roles| approval.may_be_decided_by(by, &roles))
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
    operator.require_permission(Verb::Approve)?;
    let request: ApproveRequest = body(bytes)?;
    let deciding = Deciding::begin(&shared, &operator, &path(name)?).await?;
    if !request.set.is_empty() {
        let checked = shared.backend.check_narrowed(&deciding.approval, &request.set).await;
        checked.map_err(|error| rejected_decision(&deciding.approval, error))?;
    }
    let counted = request.run(&deciding.context, &deciding.approval, deciding.approver()).await?;
    Ok(Json(deciding.log(counted)))
}

/// Deny a call as the approver of the key. The call ends, and its agent receives the reason.
#[utoipa::path(post, path = "/v1/operate/approvals/{approval}/deny", tag = "operators", params(("approval" = String, Path, description = "`tenant:id`")),
    request_body = DenyRequest,
    responses((status = 200, description = "`state` is `denied`", body = Object),
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
    operator.require_permission(Verb::Approve)?;
    let request: DenyRequest = body(bytes)?;
    let deciding = Deciding::begin(&shared, &operator, &path(name)?).await?;
    let counted = request.run(&deciding.context, &deciding.approval, deciding.approver()).await?;
    Ok(Json(deciding.log(counted)))
}

struct Deciding {
    context: VerbContext<'static>,
    approval: Approval,
    by: String,
    roles: BTreeSet<String>,
}

impl Deciding {
    async fn begin(shared: &Shared, operator: &Operator, name: &str) -> Result<Self, Problem> {
        let by = operator.approver()?;
        let unknown = || Problem::forbidden(format!("permissions.yaml has no approver {by:?}"));
        let roles = shared.backend.approver(by).await?.ok_or_else(unknown)?;
        let context = operator.context(shared).await?;
        let approval = context.find_approval(name).await?;
        Ok(Self { context, approval, by: by.to_owned(), roles })
    }

    fn approver(&self) -> Approver<'_> {
        Approver { name: &self.by, roles: &self.roles }
    }

    /// Two keys may have the same approver, so the log also names the key.
    fn log(&self, counted: VerdictResult) -> VerdictResult {
        let (key, by, approval) = (&self.context.by, &self.by, &self.approval.id);
        tracing::info!(key, by, %approval, state = %counted.state, "approval decided");
        counted
    }
}
