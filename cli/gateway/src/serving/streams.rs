//! Streams, bounded in number. A stream ends when the listener's credential becomes invalid.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::Shared;
use crate::caller::{Caller, grant_of};
use crate::problem::Problem;
use crate::serving::permits::{Permit, PermitBounds, PermitPool};
use crate::verbs::{CallerIdentity, Verb};

/// Each stream needs a connection and regular polls.
const STREAMS_MAX: PermitBounds = PermitBounds { all: 1_000, tenant: 250, caller: 200 };
const PERMISSION_CHECK_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Streams(PermitPool);

impl Default for Streams {
    fn default() -> Self {
        Self(PermitPool::new(STREAMS_MAX))
    }
}

impl Streams {
    fn reserve(&self, holder: &CallerIdentity) -> Result<Permit, Problem> {
        self.0.take(holder).ok_or_else(|| Problem::too_many_follow(STREAMS_MAX))
    }
}

/// The credential is secret, so this type has no `Debug`.
pub(crate) struct StreamRequester {
    pub(crate) caller: Caller,
    parts: Parts,
}

impl FromRequestParts<Arc<Shared>> for StreamRequester {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, shared).await?;
        Ok(Self { caller, parts: parts.clone() })
    }
}

pub(crate) struct OpenStream {
    shared: Arc<Shared>,
    requester: StreamRequester,
    verb: Verb,
    _permit: Permit,
}

impl OpenStream {
    /// The listener must keep the permission for `verb`. 429: too many streams are open.
    pub(crate) fn begin(shared: &Arc<Shared>, requester: StreamRequester, verb: Verb) -> Result<Self, Problem> {
        let reserve = shared.streams.reserve(&requester.caller.holder())?;
        Ok(Self { shared: Arc::clone(shared), requester, verb, _permit: reserve })
    }

    pub(crate) async fn permission_lost(self) {
        loop {
            tokio::time::sleep(PERMISSION_CHECK_INTERVAL).await;
            let may = match grant_of(&self.requester.parts, &self.shared).await {
                Ok(grant) => {
                    self.requester.caller.has_same_scope(&grant) && grant.require_permission(self.verb).is_ok()
                }
                // Keep the stream if a later check may succeed, for example if the issuer is unavailable now.
                Err(problem) => problem.summary().1,
            };
            if !may {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::verbs::{CredentialKind, TenantScope};

    #[test]
    fn streams_are_limited_per_caller_per_tenant_and_per_process() {
        let streams = Streams::default();
        let reserve = |tenant: &str, id: &str| {
            let tenant = TenantScope::One(tickfleet_model::TenantId::new(tenant).unwrap());
            streams.reserve(&CallerIdentity { credential: CredentialKind::Key, tenant, id: id.into() })
        };
        let PermitBounds { all, tenant, caller } = STREAMS_MAX;
        let mut acme: Vec<_> = (0..caller).map(|_| reserve("acme", "shop").unwrap()).collect();
        assert!(reserve("acme", "shop").err().unwrap().summary().1, "it may be tried again");
        acme.extend((caller..tenant).map(|_| reserve("acme", "till").unwrap()));
        assert!(reserve("acme", "till").is_err(), "the tenant has a bound, too");
        let others: Vec<_> =
            (tenant..all).map(|number| reserve(&format!("tenant{}", number % 7), "a").unwrap()).collect();
        assert!(reserve("demo", "a").is_err(), "the process has a bound, too");
        acme.pop();
        assert!(reserve("demo", "a").is_ok());
        drop(others);
    }
}
