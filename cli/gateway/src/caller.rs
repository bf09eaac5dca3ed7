//! Who asks: the holder of an API key or of a token of an issuer, and what that may do.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use chrono::Utc;
use tickfleet_model::{AgentId, TenantId};

use crate::Shared;
use crate::keys::KeysFile;
use crate::problem::Problem;
use crate::serving::connections::Origin;
use crate::tokens::Tokens;
use crate::verbs::{Grant, Holder, Rate, Verb};

/// The header in which a request may name its tenant, so that a key for another one is not taken for it.
const TENANT: &str = "tickfleet-tenant";

/// What callers may show who they are with.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// API keys; none where there are only tokens.
    pub keys: Option<KeysFile>,
    /// Tokens of an issuer; none where there are only keys.
    pub tokens: Option<Tokens>,
    /// How many that are not good are looked at from each address; none: any number. It is no bound on what is good.
    pub wrong: Option<Rate>,
}

impl From<KeysFile> for Credentials {
    fn from(keys: KeysFile) -> Self {
        Self { keys: Some(keys), tokens: None, wrong: None }
    }
}

impl Credentials {
    /// Returns true for an API key that is good now.
    fn has_key(&self, secret: &str) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.in_force().find(secret, now()).is_some())
    }

    /// What the holder of this key or token may do.
    ///
    /// # Errors
    /// 401, 403, 503.
    async fn holder(&self, secret: &str) -> Result<Arc<Grant>, Problem> {
        let keys = self.keys.as_ref().map(KeysFile::in_force);
        if let Some(grant) = keys.as_ref().and_then(|keys| keys.find(secret, now())) {
            return Ok(grant);
        }
        // A token has two dots, a key that tickfleet made has none.
        let Some(tokens) = self.tokens.as_ref().filter(|_| secret.contains('.')) else {
            // Whether it never was one or has ended is not for everybody to know.
            return Err(Problem::unauthorized("unknown or expired API key"));
        };
        let grant = tokens.holder(secret).await?;
        // The audit log names who acted: nobody may come to have the name of a key.
        if keys.is_some_and(|keys| keys.names(&grant.id)) {
            return Err(Problem::forbidden(format!("{} has the id of an API key of this gateway", grant.named())));
        }
        Ok(Arc::new(grant))
    }
}

/// Whoever sent a request with a key or token that is good for one tenant.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    grant: Arc<Grant>,
    tenant: TenantId,
}

impl FromRequestParts<Arc<Shared>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let grant = asked_by(parts, shared).await?;
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

/// What a request was sent with, and may; counted against its rate, once a request.
///
/// # Errors
/// As [`grant_of`]. 429: its holder sends more than it may, or from there came too much that is not good.
pub(crate) async fn asked_by(parts: &Parts, shared: &Shared) -> Result<Arc<Grant>, Problem> {
    let secret = sent(parts)?;
    // A key costs no more to find than to be told that it was good: nobody who tries some holds up whoever has one.
    if !shared.credentials.has_key(secret) {
        shared.strangers.let_pass(parts, secret)?;
    }
    let found = shared.credentials.holder(secret).await;
    match &found {
        Ok(_) => shared.strangers.knows(parts, secret),
        Err(problem) if problem.is_unauthorized() => shared.strangers.count(parts, secret),
        Err(_) => {}
    }
    let grant = found?;
    if let Some(origin) = Origin::of(parts) {
        origin.is_of(&grant.holder())?;
    }
    shared.rates.take(&grant)?;
    Ok(grant)
}

/// What a request was sent with, and may.
///
/// # Errors
/// 401: there is no key or token, or it is not good. 403, 503: it says nothing that a rule knows, or its issuer is away.
pub(crate) async fn grant_of(parts: &Parts, shared: &Shared) -> Result<Arc<Grant>, Problem> {
    shared.credentials.holder(sent(parts)?).await
}

/// The key or token that a request was sent with.
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
    /// The tenant that the key belongs to.
    pub(crate) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Who asks, for what is counted by callers.
    pub(crate) fn holder(&self) -> Holder {
        self.grant.holder()
    }

    /// Whether what was sent grants as much now, and for the same.
    pub(crate) fn is_still(&self, grant: &Grant) -> bool {
        (&self.grant.tenant, &self.grant.agents) == (&grant.tenant, &grant.agents)
    }

    /// Lets a request pass that the key is for.
    ///
    /// # Errors
    /// 403, with what the key may not.
    pub(crate) fn may(&self, verb: Verb) -> Result<(), Problem> {
        self.grant.may(verb)
    }

    /// Lets a request pass that is about an agent that the key covers.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn speaks_for(&self, agent: &AgentId) -> Result<(), Problem> {
        if self.grant.covers(agent.as_str()) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("{} does not cover the agent {:?}", self.grant.named(), agent.as_str())))
    }

    /// Returns true if the key may see what is an agent's. What has no agent is nobody's: only a key for all sees it.
    pub(crate) fn sees(&self, agent: Option<&str>) -> bool {
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
