//! The verbs of operators: what the commands `turns`, `approvals`, `dead`, `pause`, `tools disable`, `explain`, `limits`, `stats`,
//! `audit search` and `top` do, over HTTP. The [`Client`](tickfleet_client::Client) has the verbs; what takes the fleet's configuration comes from
//! the [`Desk`](crate::Desk). A key with `view` looks, one with `operate` pauses, resumes and ends, one with `approve`
//! decides about approvals as the approver that its row names. Tokens of an issuer may do what a rule about their claims
//! says.

pub(crate) mod approvals;
pub(crate) mod audit;
pub(crate) mod dead;
pub(crate) mod live;
pub(crate) mod pauses;
pub(crate) mod rules;
pub(crate) mod stats;
pub(crate) mod switches;
pub(crate) mod tasks;
pub(crate) mod turns;
pub(crate) mod views;
pub(crate) mod workers;

use std::fmt;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Json, Router};
use chrono::SecondsFormat;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tickfleet_model::{TenantId, TurnId, limits};
use tickfleet_protocol::json::{self, Bounds};
use tickfleet_store::TurnName;
use utoipa::ToSchema;

use crate::Shared;
use crate::caller::asked_by;
use crate::desk::Named;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{optional, placed, within};
use crate::verbs::{Grant, Holder, Verb};

/// The paths of operators.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/operate/me", get(me))
        .route("/v1/operate/overview", get(views::overview))
        .route("/v1/operate/events", get(live::events))
        .route("/v1/operate/config", get(views::configuration))
        .route("/v1/operate/explain", get(views::explain))
        .route("/v1/operate/limits", get(views::limits))
        .route("/v1/operate/turns", get(turns::list))
        .route("/v1/operate/cancel", post(turns::cancel))
        .route("/v1/operate/approvals", get(approvals::list))
        .route("/v1/operate/approvals/{approval}", get(approvals::show))
        .route("/v1/operate/approvals/{approval}/approve", post(approvals::approve))
        .route("/v1/operate/approvals/{approval}/deny", post(approvals::deny))
        .route("/v1/operate/dead", get(dead::list))
        .route("/v1/operate/dead/replay", post(dead::replay))
        .route("/v1/operate/dead/drop", post(dead::discard))
        .route("/v1/operate/dead/causes", get(dead::causes))
        .route("/v1/operate/dead/{id}", get(dead::show))
        .route("/v1/operate/pauses", get(pauses::list))
        .route("/v1/operate/pause", post(pauses::pause))
        .route("/v1/operate/resume", post(pauses::resume))
        .route("/v1/operate/tools", get(switches::list))
        .route("/v1/operate/tools/disable", post(switches::disable))
        .route("/v1/operate/tools/enable", post(switches::enable))
        .route("/v1/operate/tasks", get(tasks::list))
        .route("/v1/operate/workers", get(workers::list))
        .route("/v1/operate/workers/drain", post(workers::drain))
        .route("/v1/operate/workers/resume", post(workers::resume))
        .route("/v1/operate/rules", get(rules::show))
        .route("/v1/operate/stats", get(stats::show))
        .route("/v1/operate/audit", get(audit::search))
}

/// The name of the tool that a filter gives by its name or id; none where it gives none.
///
/// # Errors
/// 503.
async fn tool_wanted(shared: &Shared, given: Option<String>) -> Result<Option<String>, Problem> {
    match given.filter(|tool| !tool.is_empty()) {
        Some(tool) => Ok(Some(shared.desk.tool_name(&tool).await?)),
        None => Ok(None),
    }
}

/// The holder of a key that is good. What it is for, each verb asks.
#[derive(Debug)]
pub(crate) struct Operator {
    grant: Arc<Grant>,
}

impl FromRequestParts<Arc<Shared>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        Ok(Self { grant: asked_by(parts, shared).await? })
    }
}

impl Operator {
    /// Lets a request pass that the key is for.
    ///
    /// # Errors
    /// 403, with what the key may not.
    pub(crate) fn may(&self, verb: Verb) -> Result<(), Problem> {
        self.grant.may(verb)
    }

    /// Who asks, for what is counted by callers.
    pub(crate) fn holder(&self) -> Holder {
        self.grant.holder()
    }

    /// Who it is, for the audit log: the name of the key, or the one in the token.
    pub(crate) fn by(&self) -> &str {
        &self.grant.id
    }

    /// The approver that decides with this key.
    ///
    /// # Errors
    /// 403: the key's row names none.
    pub(crate) fn approver(&self) -> Result<&str, Problem> {
        let nobody = || {
            Problem::forbidden(format!(
                "{} has no approver; configure one for this key or token rule",
                self.grant.named()
            ))
        };
        self.grant.approver.as_deref().ok_or_else(nobody)
    }

    /// The tenant that is asked about, where the key is for it; none: all tenants.
    ///
    /// # Errors
    /// 400, 403.
    pub(crate) fn within(&self, asked: Option<String>) -> Result<Option<TenantId>, Problem> {
        let asked: Option<TenantId> = optional("tenant", asked)?;
        match (self.grant.tenant.one(), asked) {
            (None, asked) => Ok(asked),
            (Some(own), None) => Ok(Some(own.clone())),
            (Some(own), Some(asked)) if *own == asked => Ok(Some(asked)),
            (Some(own), Some(_)) => Err(Problem::forbidden(format!("the key is for tenant {own} only"))),
        }
    }

    /// Takes `tenant:id` apart; `id` alone is of the key's tenant, or of none that is known yet.
    ///
    /// # Errors
    /// 400, 403.
    pub(crate) fn parted<'a>(&self, text: &'a str) -> Result<(Option<TenantId>, &'a str), Problem> {
        match text.split_once(':') {
            Some((tenant, id)) => Ok((self.within(Some(tenant.to_owned()))?, id)),
            None => Ok((self.within(None)?, text)),
        }
    }

    /// A turn or task by its name.
    ///
    /// # Errors
    /// 400, 403.
    pub(crate) fn named(&self, text: &str) -> Result<TurnName, Problem> {
        let (tenant, id) = self.parted(text)?;
        let turn = TurnId::new(id).map_err(|error| Problem::invalid(format!("{text:?}: {error}")))?;
        let tenant = tenant.ok_or_else(|| Problem::invalid(format!("{text:?}: expected tenant:id")))?;
        Ok(TurnName { tenant, turn })
    }

    /// Lets pass what concerns no tenant in particular.
    ///
    /// # Errors
    /// 403 for a key of one tenant.
    pub(crate) fn sees_all(&self) -> Result<(), Problem> {
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
    responses((status = 200, description = "The caller and its permissions", body = Me),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "Not returned: every valid key is allowed", body = ProblemBody),
        (status = 503, description = "Not returned: the route does not use Redis", body = ProblemBody)))]
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

/// Lets a name pass that the fleet has.
///
/// # Errors
/// 404, with the nearest names.
async fn known(shared: &Shared, named: Named<'_>) -> Result<(), Problem> {
    match shared.desk.unknown(named).await? {
        Some(message) => Err(Problem::not_found(message)),
        None => Ok(()),
    }
}

/// Reads a body. A key that comes twice, at any depth, is refused: readers disagree on which one counts.
fn body<T: DeserializeOwned>(bytes: &[u8], expected: &str) -> Result<T, Problem> {
    let bounds = Bounds { bytes_max: bytes.len(), depth_max: limits::JSON_DEPTH_MAX };
    let wrong = |error: &dyn fmt::Display| Problem::invalid(format!("expected {expected}: {error}"));
    json::check(bytes, bounds).map_err(|error| wrong(&error))?;
    serde_json::from_slice(bytes).map_err(|error| wrong(&error))
}

/// A reason, for the audit log.
fn because(reason: &str) -> Result<&str, Problem> {
    let (reason, max) = (reason.trim(), limits::CANCEL_REASON_BYTES_MAX);
    if reason.is_empty() || reason.len() > max {
        return Err(Problem::invalid(format!("reason: expected 1 to {max} bytes (written to the audit log)")));
    }
    Ok(reason)
}
