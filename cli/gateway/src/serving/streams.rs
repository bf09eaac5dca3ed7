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
