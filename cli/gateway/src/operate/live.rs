//! The live state of the fleet. One poll of Redis every two seconds serves all watchers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::Response;
use axum::response::sse::Event;
use futures::stream::{self, Stream};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Operator;
use crate::Shared;
use crate::caller::grant_of;
use crate::events::{named, stream};
use crate::operator_backend::OperatorBackend;
use crate::problem::Problem;
use crate::serving::permits::{Permit, PermitBounds, PermitPool};
use crate::verbs::{CallerIdentity, Verb};

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(events))
}

const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Each watcher needs a connection.
const WATCHERS_MAX: PermitBounds = PermitBounds { all: 200, tenant: 200, caller: 50 };

#[derive(Debug, Clone)]
enum FleetSnapshot {
    Nothing,
    /// The number increases with every change.
    Fleet(u64, Value),
    /// The state could not be read: the gateway's log has the reason.
    Away,
}

#[derive(Debug, Clone)]
pub(crate) struct FleetPoller {
    snapshot: watch::Sender<Arc<FleetSnapshot>>,
    watcher_arrived: Arc<Notify>,
    permits: PermitPool,
}

impl FleetPoller {
    pub(crate) fn new() -> Self {
        let (snapshot, _) = watch::channel(Arc::new(FleetSnapshot::Nothing));
        Self { snapshot, watcher_arrived: Arc::default(), permits: PermitPool::new(WATCHERS_MAX) }
    }

    pub(crate) async fn poll(self, backend: Arc<dyn OperatorBackend>, stop: CancellationToken) {
        let polling = async {
            let mut changes = 0;
            let mut before = Value::Null;
            loop {
                if self.snapshot.receiver_count() == 0 {
                    // Without watchers, polling pauses. The next watcher must not get an old snapshot as current.
                    self.snapshot.send_replace(Arc::new(FleetSnapshot::Nothing));
                    self.watcher_arrived.notified().await;
                    continue;
                }
                let snapshot = match backend.overview().await {
                    Ok(fleet) => {
                        let change_marker = change_marker(&fleet);
                        changes += u64::from(change_marker != before || is_busy(&fleet));
                        before = change_marker;
                        FleetSnapshot::Fleet(changes, fleet)
                    }
                    Err(error) => {
                        tracing::warn!(%error, "live view cannot read the fleet");
                        FleetSnapshot::Away
                    }
                };
                self.snapshot.send_replace(Arc::new(snapshot));
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(polling).await;
    }

    /// A slow reader skips to the newest snapshot.
    fn watch<F, Fut>(
        &self,
        holder: &CallerIdentity,
        is_still_allowed: F,
    ) -> Result<impl Stream<Item = Event> + Send + 'static + use<F, Fut>, Problem>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send,
    {
        let permit = self.permits.take(holder).ok_or_else(|| Problem::too_many_watch(WATCHERS_MAX))?;
        let mut snapshot = self.snapshot.subscribe();
        snapshot.mark_changed();
        self.watcher_arrived.notify_one();
        let watcher = Watcher { snapshot, is_still_allowed, _permit: permit };
        Ok(stream::unfold(watcher, |mut watcher| async {
            let event = watcher.next().await?;
            Some((event, watcher))
        }))
    }
}

struct Watcher<F> {
    snapshot: watch::Receiver<Arc<FleetSnapshot>>,
    is_still_allowed: F,
    _permit: Permit,
}

impl<F, Fut> Watcher<F>
where
    F: Fn() -> Fut,
    Fut: Future<Output = bool>,
{
    /// `None` if the watcher has lost its permission or polling has ended.
    async fn next(&mut self) -> Option<Event> {
        loop {
            // The poll may hang on Redis, so the permission is checked on a timeout too.
            let changed = tokio::time::timeout(POLL_INTERVAL, self.snapshot.changed()).await;
            if matches!(changed, Ok(Err(_))) || !(self.is_still_allowed)().await {
                return None;
            }
            if changed.is_err() {
                continue;
            }
            let snapshot = Arc::clone(&self.snapshot.borrow_and_update());
            match &*snapshot {
                FleetSnapshot::Nothing => {}
                FleetSnapshot::Fleet(changes, fleet) => {
                    return Some(named("fleet", &json!({"changes": changes, "fleet": fleet})));
                }
                FleetSnapshot::Away => {
                    return Some(named("away", &json!({"message": "the fleet's state is unavailable"})));
                }
            }
        }
    }
}

/// Leaves out ages, rates and the texts of findings, because they always differ.
fn change_marker(fleet: &Value) -> Value {
    let counts: Vec<&Value> = fleet["backlog"].as_array().into_iter().flatten().map(|one| &one["count"]).collect();
    let findings = fleet["findings"].as_array().into_iter().flatten();
    let findings: Vec<[&Value; 4]> =
        findings.map(|one| ["kind", "severity", "subject", "count"].map(|field| &one[field])).collect();
    json!([counts, fleet["paused"], fleet["policy_generation"], fleet["slots"], findings])
}

/// True while there is traffic, which can change other views without changing the counts in `change_marker`.
fn is_busy(fleet: &Value) -> bool {
    ["turns", "slices", "calls"].iter().any(|rate| fleet["rates"][rate].as_f64().is_some_and(|rate| rate > 0.0))
}

/// Stream the state of the fleet every two seconds, as `overview` returns it. Requires a key of all tenants.
///
/// The stream ends when the key or token expires. `changes` increases when other views may have new data.
#[utoipa::path(get, path = "/v1/operate/events", tag = "operators",
    responses((status = 200, description = "Server-sent events: `fleet` with `changes` and `fleet`, or `away`", content_type = "text/event-stream")))]
pub(crate) async fn events(State(shared): State<Arc<Shared>>, request: WatchRequest) -> Result<Response, Problem> {
    let WatchRequest { operator, parts } = request;
    may_watch(&operator)?;
    let known = Arc::clone(&shared);
    let parts = Arc::new(parts);
    let is_still_allowed = move || {
        let shared = Arc::clone(&known);
        let parts = Arc::clone(&parts);
        async move {
            let found = grant_of(&parts, &shared).await;
            found.is_ok_and(|grant| may_watch(&Operator { grant }).is_ok())
        }
    };
    let holder = operator.holder();
    Ok(stream(shared.live.watch(&holder, is_still_allowed)?, shared.draining.clone()))
}

fn may_watch(operator: &Operator) -> Result<(), Problem> {
    operator.require_permission(Verb::View)?;
    operator.require_all_tenants()
}

pub(crate) struct WatchRequest {
    operator: Operator,
    parts: Parts,
}

impl FromRequestParts<Arc<Shared>> for WatchRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let operator = Operator::from_request_parts(parts, shared).await?;
        Ok(Self { operator, parts: parts.clone() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use futures::future::BoxFuture;
    use futures::{FutureExt, StreamExt};
    use serde_json::value::RawValue;
    use tickfleet_client::rules::ConfiguredRule;
    use tickfleet_client::verbs::FleetNames;
    use tickfleet_client::{Approval, ApprovalError};
    use tickfleet_model::approval::NarrowedValues;
    use tickfleet_model::day::Tz;
    use tickfleet_model::{Redactor, TenantId};

    use super::*;
    use crate::operator_backend::{BackendFuture, LimitFilter};
    use crate::verbs::{CredentialKind, TenantScope};

    #[derive(Default)]
    struct Counting(AtomicU64);

    impl OperatorBackend for Counting {
        fn overview(&self) -> BackendFuture<'_> {
            let looks = self.0.fetch_add(1, Ordering::SeqCst);
            async move { Ok(json!({"backlog": [{"count": looks / 2}], "paused": 0})) }.boxed()
        }
        fn explain<'a>(&'a self, _: Option<&'a TenantId>, _: &'a str) -> BackendFuture<'a, Box<RawValue>> {
            async { Ok(RawValue::NULL.to_owned()) }.boxed()
        }
        fn limits<'a>(&'a self, _: &'a LimitFilter) -> BackendFuture<'a> {
            async { Ok(Value::Null) }.boxed()
        }
        fn configuration(&self) -> BackendFuture<'_> {
            async { Ok(Value::Null) }.boxed()
        }
        fn rules(&self) -> BackendFuture<'_, Vec<ConfiguredRule>> {
            async { Ok(Vec::new()) }.boxed()
        }
        fn names(&self) -> BackendFuture<'_, FleetNames> {
            async { Ok(FleetNames::default()) }.boxed()
        }
        fn zones(&self) -> BackendFuture<'_, BTreeMap<TenantId, Tz>> {
            async { Ok(BTreeMap::new()) }.boxed()
        }
        fn approver<'a>(&'a self, _: &'a str) -> BackendFuture<'a, Option<BTreeSet<String>>> {
            async { Ok(None) }.boxed()
        }
        fn check_narrowed<'a>(
            &'a self,
            _: &'a Approval,
            _: &'a NarrowedValues,
        ) -> BoxFuture<'a, Result<(), ApprovalError>> {
            async { Ok(()) }.boxed()
        }
        fn redactor(&self) -> Arc<Redactor> {
            Arc::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_poll_serves_all_watchers_and_stops_without_watchers() {
        let live = FleetPoller::new();
        let backend = Arc::new(Counting::default());
        let stop = CancellationToken::new();
        drop(tokio::spawn(live.clone().poll(Arc::clone(&backend) as Arc<dyn OperatorBackend>, stop.clone())));
        // The test's clock is paused: sleeping advances the clock.
        tokio::time::sleep(POLL_INTERVAL * 10).await;
        assert_eq!(backend.0.load(Ordering::SeqCst), 0, "nobody watches");

        let may = Arc::new(AtomicBool::new(true));
        let with = |key: usize| {
            let may = Arc::clone(&may);
            let holder =
                CallerIdentity { credential: CredentialKind::Key, tenant: TenantScope::All, id: format!("key-{key}") };
            live.watch(&holder, move || std::future::ready(may.load(Ordering::SeqCst))).map(Box::pin)
        };
        let PermitBounds { all, caller, .. } = WATCHERS_MAX;
        let mut watchers: Vec<_> = (0..all).map(|number| with(number / caller).unwrap()).collect();
        assert!(with(0).err().unwrap().summary().0.contains("50 with this key"), "one more than may");
        let watch = || with(all / caller);
        assert!(watch().err().unwrap().summary().0.contains("200"), "one more than all may");
        for _ in 0..5 {
            for watcher in &mut watchers {
                assert!(watcher.next().await.is_some());
            }
        }
        assert_eq!(backend.0.load(Ordering::SeqCst), 5, "one look for all of them");

        may.store(false, Ordering::SeqCst);
        assert!(watchers[0].next().await.is_none());
        drop(watchers.remove(0));
        may.store(true, Ordering::SeqCst);
        assert!(watch().is_ok());
        drop(watchers);
        // Sleeping advances the paused clock.
        tokio::time::sleep(POLL_INTERVAL * 2).await;
        let looks = backend.0.load(Ordering::SeqCst);
        // Sleeping advances the paused clock.
        tokio::time::sleep(POLL_INTERVAL * 10).await;
        assert_eq!(backend.0.load(Ordering::SeqCst), looks, "and nobody looks on when all have gone");
        stop.cancel();
    }
}
