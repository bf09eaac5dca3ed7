//! By what streams last: a bounded number at once, none of a tenant in place of another's, and each for as long as what its
//! listener sent is good.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use parking_lot::Mutex;
use tickfleet_model::TenantId;

use crate::Shared;
use crate::caller::{Caller, grant_of};
use crate::problem::Problem;
use crate::verbs::Verb;

/// Streams of one gateway, and those of one tenant: each is a connection, and something to look at.
const STREAMS_MAX: (usize, usize) = (1_000, 250);
/// How often is looked whether who listens still may.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// The streams that there are at once, by tenant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    taken: Arc<Mutex<HashMap<TenantId, usize>>>,
}

impl Streams {
    fn place(&self, tenant: &TenantId) -> Result<Place, Problem> {
        let (all, of_one) = STREAMS_MAX;
        let mut taken = self.taken.lock();
        let own = taken.get(tenant).copied().unwrap_or(0);
        if own >= of_one || taken.values().sum::<usize>() >= all {
            return Err(Problem::too_many_follow(of_one));
        }
        taken.insert(tenant.clone(), own + 1);
        Ok(Place { tenant: tenant.clone(), taken: Arc::clone(&self.taken) })
    }
}

/// One of the streams that there may be at once; given back when it is dropped.
#[derive(Debug)]
struct Place {
    tenant: TenantId,
    taken: Arc<Mutex<HashMap<TenantId, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

/// Whoever asks for a stream, and what was sent to show it: that is asked about as long as somebody listens. It holds a
/// secret, so it is never printed.
pub(crate) struct Listener {
    pub(crate) caller: Caller,
    parts: Parts,
}

impl FromRequestParts<Arc<Shared>> for Listener {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, shared).await?;
        Ok(Self { caller, parts: parts.clone() })
    }
}

/// A stream's place, and whoever listens.
pub(crate) struct Listening {
    shared: Arc<Shared>,
    listener: Listener,
    verb: Verb,
    _place: Place,
}

impl Listening {
    /// Takes a place for whoever may do `verb`.
    ///
    /// # Errors
    /// 429: there are too many streams.
    pub(crate) fn begin(shared: &Arc<Shared>, listener: Listener, verb: Verb) -> Result<Self, Problem> {
        let place = shared.streams.place(listener.caller.tenant())?;
        Ok(Self { shared: Arc::clone(shared), listener, verb, _place: place })
    }

    /// Ends when whoever listens may no longer: a key that was taken out, changed, or whose time is over.
    pub(crate) async fn over(self) {
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            let may = match grant_of(&self.listener.parts, &self.shared).await {
                Ok(grant) => self.listener.caller.is_still(&grant) && grant.may(self.verb).is_ok(),
                // An issuer that is away takes back nothing.
                Err(problem) => problem.told().1,
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

    #[test]
    fn streams_are_bounded_and_no_tenant_takes_those_of_another() {
        let streams = Streams::default();
        let place = |tenant: &str| streams.place(&TenantId::new(tenant).unwrap());
        let (all, of_one) = STREAMS_MAX;
        let mut acme: Vec<_> = (0..of_one).map(|_| place("acme").unwrap()).collect();
        assert!(place("acme").err().unwrap().told().1, "it may be tried again");
        let others: Vec<_> = (of_one..all).map(|number| place(&format!("tenant{}", number % 7)).unwrap()).collect();
        assert!(place("demo").is_err(), "the process has a bound, too");
        acme.pop();
        assert!(place("demo").is_ok());
        drop(others);
    }
}
