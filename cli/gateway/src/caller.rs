//! Who asks: the holder of an API key, and what that key may do.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use chrono::Utc;
use tickfleet_model::{AgentId, TenantId};

use crate::Shared;
use crate::keys::KeyRow;
use crate::problem::Problem;
use crate::verbs::Verb;

/// Whoever sent a request with a key that is good for one tenant.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    row: Arc<KeyRow>,
    tenant: TenantId,
}

impl FromRequestParts<Arc<Shared>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let row = row_of(parts, shared)?;
        let all =
            || Problem::forbidden(format!("the key {:?} is for operators of all tenants, and for no agent", row.id));
        let tenant = row.tenant.one().cloned().ok_or_else(all)?;
        Ok(Self { row, tenant })
    }
}

/// The row of the key that a request was sent with.
///
/// # Errors
/// 401: there is none, or it is not good.
pub(crate) fn row_of(parts: &Parts, shared: &Shared) -> Result<Arc<KeyRow>, Problem> {
    let sent = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let secret =
        sent.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, secret)) = secret else {
        return Err(Problem::unauthorized("send an API key as the header Authorization: Bearer <key>"));
    };
    // Whether it never was one or has ended is not for everybody to know.
    let unknown = || Problem::unauthorized("this API key is not known here, or its time is over");
    shared.keys.in_force().find(secret.trim(), now()).ok_or_else(unknown)
}

impl Caller {
    /// The tenant that the key belongs to.
    pub(crate) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Lets a request pass that the key is for.
    ///
    /// # Errors
    /// 403, with what the key may not.
    pub(crate) fn may(&self, verb: Verb) -> Result<(), Problem> {
        self.row.may(verb)
    }

    /// Lets a request pass that is about an agent that the key covers.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn speaks_for(&self, agent: &AgentId) -> Result<(), Problem> {
        if self.row.covers(agent.as_str()) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("the key {:?} does not speak for the agent {:?}", self.row.id, agent.as_str())))
    }

    /// Returns true if the key may see what is an agent's. What has no agent is nobody's: only a key for all sees it.
    pub(crate) fn sees(&self, agent: Option<&str>) -> bool {
        self.row.covers(agent.unwrap_or_default())
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the edge: whether a key has expired is a question to the clock on the wall"
)]
fn now() -> chrono::DateTime<Utc> {
    Utc::now()
}
