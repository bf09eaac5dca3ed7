//! The operator API. The [`verbs`](tickfleet_client::verbs) define the actions, and [`run`] makes a route of each. The [`OperatorBackend`](crate::OperatorBackend) has the fleet's configuration.

pub(crate) mod approvals;
pub(crate) mod audit;
pub(crate) mod dead;
pub(crate) mod history;
pub(crate) mod live;
pub(crate) mod pauses;
pub(crate) mod rules;
mod run;
pub(crate) mod stats;
pub(crate) mod tasks;
pub(crate) mod tools;
pub(crate) mod turns;
pub(crate) mod views;
pub(crate) mod workers;

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::extract::rejection::BytesRejection;
use axum::http::request::Parts;
use chrono::SecondsFormat;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tickfleet_client::verbs::{
    self, CancelTurnsRequest, DisableToolRequest, DrainWorkerRequest, DropRequest, EnableToolRequest, FilteredNames,
    PauseRequest, ReplayRequest, ResumeRequest, ResumeWorkerRequest, VerbContext,
};
use tickfleet_model::{TenantId, limits};
use tickfleet_protocol::json::{self, Bounds};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Shared;
use crate::caller::authenticate;
use crate::problem::Problem;
use crate::turns::{bounded, optional, read_body};
use crate::verbs::{CallerIdentity, Grant, Verb};

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(me))
        .merge(views::routes())
        .merge(live::routes())
        .merge(turns::routes())
        .merge(audit::routes())
        .merge(stats::routes())
        .merge(history::routes())
        .merge(rules::routes())
        .merge(approvals::routes())
        .merge(dead::routes())
        .merge(pauses::routes())
        .merge(workers::routes())
        .merge(tasks::routes())
        .merge(tools::routes())
        .routes(run::route::<PauseRequest>())
        .routes(run::route::<ResumeRequest>())
        .routes(run::route::<DrainWorkerRequest>())
        .routes(run::route::<ResumeWorkerRequest>())
        .routes(run::route::<DisableToolRequest>())
        .routes(run::route::<EnableToolRequest>())
        .routes(run::route::<CancelTurnsRequest>())
        .routes(run::route::<ReplayRequest>())
        .routes(run::route::<DropRequest>())
}

/// `given` is a name or an id. `None` if the filter has no tool.
async fn resolve_tool_filter(shared: &Shared, given: Option<String>) -> Result<Option<String>, Problem> {
    Ok(shared.backend.names().await?.tool_filter(&shared.client, given.as_deref()).await?)
}

/// 404 with the nearest names if the fleet lacks a tenant, agent or tool of the filter.
async fn check_filter(shared: &Shared, filter: FilteredNames<'_>) -> Result<(), Problem> {
    Ok(shared.backend.names().await?.check_filter(&shared.client, filter).await?)
}

/// Each handler must check the permission that it needs.
#[derive(Debug)]
pub(crate) struct Operator {
    grant: Arc<Grant>,
}

impl FromRequestParts<Arc<Shared>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        Ok(Self { grant: authenticate(parts, shared).await? })
    }
}

impl Operator {
    pub(crate) fn require_permission(&self, verb: Verb) -> Result<(), Problem> {
        self.grant.require_permission(verb)
    }

    pub(crate) fn holder(&self) -> CallerIdentity {
        self.grant.holder()
    }

    /// The audit log uses this name.
    pub(crate) fn by(&self) -> &str {
        &self.grant.id
    }

    pub(crate) fn approver(&self) -> Result<&str, Problem> {
        let no_approver = || {
            Problem::forbidden(format!(
                "{} has no approver; configure one for this key or token rule",
                self.grant.named()
            ))
        };
        self.grant.approver.as_deref().ok_or_else(no_approver)
    }

    /// `None` means all tenants.
    pub(crate) fn restrict_tenant(&self, requested: Option<String>) -> Result<Option<TenantId>, Problem> {
        Ok(verbs::restrict_tenant(self.grant.tenant.one(), requested.as_deref())?)
    }

    /// Splits `tenant:id`. Without a tenant in the text, returns the key's tenant, or `None` for a key for all tenants.
    pub(crate) fn split_tenant<'a>(&self, text: &'a str) -> Result<(Option<TenantId>, &'a str), Problem> {
        Ok(verbs::split_tenant(self.grant.tenant.one(), text)?)
    }

    async fn context(&self, shared: &Shared) -> Result<VerbContext<'static>, Problem> {
        Ok(VerbContext {
            client: shared.client.clone(),
            names: shared.backend.names().await?,
            by: self.by().to_owned(),
            tenant: self.grant.tenant.one().cloned(),
            redactor: shared.backend.redactor(),
            remarks: &(),
        })
    }

    pub(crate) fn require_all_tenants(&self) -> Result<(), Problem> {
        match self.grant.tenant.one() {
            None => Ok(()),
            Some(own) => Err(Problem::forbidden(format!(
                "the key is for tenant {own}; fleet figures need a key for all tenants"
            ))),
        }
    }
}

/// The caller and the permissions of its key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    /// Name of the key, or name in the token.
    id: String,
    /// Tenant of the key. Absent for a key of all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Permissions.
    verbs: Vec<&'static str>,
    /// Expiry, RFC 3339. Absent if the key does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    /// Approver of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    approver: Option<String>,
}

/// Return the caller and the permissions of its key.
#[utoipa::path(get, path = "/v1/operate/me", tag = "operators",
    responses((status = 200, description = "The caller and its permissions", body = Me)))]
pub(crate) async fn me(operator: Operator) -> Json<Me> {
    let grant = &operator.grant;
    Json(Me {
        id: grant.id.clone(),
        tenant: grant.tenant.one().map(ToString::to_string),
        verbs: grant.verbs.iter().map(|verb| verb.as_str()).collect(),
        expires: grant.expires.map(|end| end.to_rfc3339_opts(SecondsFormat::Secs, true)),
        approver: grant.approver.clone(),
    })
}

/// Rejects duplicate keys at any depth, because JSON readers disagree on which one counts.
fn body<T: DeserializeOwned>(bytes: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    let bytes = &read_body(bytes)?;
    let bounds = Bounds { bytes_max: bytes.len(), depth_max: limits::JSON_DEPTH_MAX };
    let wrong = |error: &dyn fmt::Display| Problem::invalid(format!("invalid body: {error}"));
    json::check(bytes, bounds).map_err(|error| wrong(&error))?;
    serde_json::from_slice(bytes).map_err(|error| wrong(&error))
}
