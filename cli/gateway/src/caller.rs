//! Finds the holder of a request's API key or token.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use chrono::Utc;
use tickfleet_model::{AgentId, TenantId};

use crate::Shared;
use crate::keys::KeysFile;
use crate::problem::Problem;
use crate::serving::connections::RequestConnection;
use crate::tokens::Tokens;
use crate::verbs::{CallerIdentity, Grant, Rate, Verb};

/// This header names the tenant that a request expects. A key for another tenant is rejected.
const TENANT: &str = "tickfleet-tenant";

#[derive(Debug, Clone, Default)]
pub struct Credentials {
    pub keys: Option<KeysFile>,
    pub tokens: Option<Tokens>,
    /// Limits the checks of invalid credentials from one address; `None` for no limit.
    pub wrong: Option<Rate>,
}

impl From<KeysFile> for Credentials {
    fn from(keys: KeysFile) -> Self {
        Self { keys: Some(keys), tokens: None, wrong: None }
    }
}

impl Credentials {
    fn has_key(&self, secret: &str) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.in_force().find(secret, now()).is_some())
    }

    /// 403: no rule grants the token a permission, or the token has the id of a key. 503: the issuer is unavailable.
    pub(crate) async fn holder(&self, secret: &str) -> Result<Arc<Grant>, Problem> {
        let keys = self.keys.as_ref().map(KeysFile::in_force);
        if let Some(grant) = keys.as_ref().and_then(|keys| keys.find(secret, now())) {
            return Ok(grant);
        }
        // A token has two dots, and a key made by tickfleet has none. A text without a dot is therefore never a token.
        let Some(tokens) = self.tokens.as_ref().filter(|_| secret.contains('.')) else {
            // Unknown and expired keys get the same message, which must not reveal that a key existed.
            return Err(Problem::unauthorized("unknown or expired API key"));
        };
        let grant = tokens.holder(secret).await?;
        // The audit log identifies holders by this id, so a token must not have the id of a key.
        if keys.is_some_and(|keys| keys.names(&grant.id)) {
            return Err(Problem::forbidden(format!("{} has the id of an API key of this gateway", grant.named())));
        }
        Ok(Arc::new(grant))
    }
}

/// The holder of a key or token for exactly one tenant. Operator keys for all tenants are rejected.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    grant: Arc<Grant>,
    tenant: TenantId,
}

impl FromRequestParts<Arc<Shared>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let grant = authenticate(parts, shared).await?;
        let all =
            || Problem::forbidden(format!("{} is an operator key for all tenants and covers no agent", grant.named()));
        let tenant = grant.tenant.one().cloned().ok_or_else(all)?;
        if parts.headers.get(TENANT).is_some_and(|named| named != tenant.as_str()) {
            let message = format!("{} is for tenant {tenant}; the request names another tenant", grant.named());
            return Err(Problem::forbidden(message));
        }
        Ok(Self { grant, tenant })
    }
}

/// Counts the request against the holder's rate, so call this function once per request. 429: the holder exceeds its
/// rate or its connections, or too many invalid credentials came from the address.
pub(crate) async fn authenticate(parts: &Parts, shared: &Shared) -> Result<Arc<Grant>, Problem> {
    let secret = sent(parts)?;
    // A valid key skips this check, so clients that guess keys do not block holders of valid keys.
    if !shared.credentials.has_key(secret) {
        shared.invalid_credentials.check_rate(parts, secret)?;
    }
    let found = shared.credentials.holder(secret).await;
    match &found {
        Ok(_) => shared.invalid_credentials.knows(parts, secret),
        Err(problem) if problem.is_unauthorized() => shared.invalid_credentials.count(parts, secret),
        Err(_) => {}
    }
    let grant = found?;
    if let Some(connection) = RequestConnection::of(parts) {
        connection.assign_to(&grant.holder())?;
    }
    shared.rates.take(&grant)?;
    Ok(grant)
}

/// Unlike [`authenticate`], does not count the request.
pub(crate) async fn grant_of(parts: &Parts, shared: &Shared) -> Result<Arc<Grant>, Problem> {
    shared.credentials.holder(sent(parts)?).await
}

fn sent(parts: &Parts) -> Result<&str, Problem> {
    let sent = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let secret =
        sent.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, secret)) = secret else {
        return Err(Problem::unauthorized("send an API key or a token as the header Authorization: Bearer <key>"));
    };
    Ok(secret.trim())
}

impl Caller {
    pub(crate) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    pub(crate) fn holder(&self) -> CallerIdentity {
        self.grant.holder()
    }

    /// `grant` is a newer grant of the same credential.
    pub(crate) fn has_same_scope(&self, grant: &Grant) -> bool {
        (&self.grant.tenant, &self.grant.agents) == (&grant.tenant, &grant.agents)
    }

    pub(crate) fn require_permission(&self, verb: Verb) -> Result<(), Problem> {
        self.grant.require_permission(verb)
    }

    pub(crate) fn require_agent(&self, agent: &AgentId) -> Result<(), Problem> {
        if self.grant.covers(agent.as_str()) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("{} does not cover the agent {:?}", self.grant.named(), agent.as_str())))
    }

    /// Only a key for all agents may read the data of an unknown agent (`None`).
    pub(crate) fn can_read_agent(&self, agent: Option<&str>) -> bool {
        self.grant.covers(agent.unwrap_or_default())
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the edge: whether a key has expired is a question to the clock on the wall"
)]
fn now() -> chrono::DateTime<Utc> {
    Utc::now()
}
