//! The operator views of the gateway, built from the configuration folder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tickfleet_client::rules::{ConfiguredRule, rules_of};
use tickfleet_client::verbs::{FleetNames, VerbError};
use tickfleet_client::{Approval, ApprovalError, Client};
use tickfleet_gateway::{BackendFuture, LimitFilter, OperatorBackend};
use tickfleet_model::approval::NarrowedValues;
use tickfleet_model::day::Tz;
use tickfleet_model::{Redactor, TenantId};
use tickfleet_store::StoreError;
use tokio::sync::Mutex;

use super::configuration_view;
use crate::commands::approvals::narrowing;
use crate::commands::top::{Frame, Poller};
use crate::commands::{explain, limits, usage};
use crate::failure::Failure;
use crate::fleet::modules::fingerprint;
use crate::setup::Setup;

/// A frame is the state of the fleet at one poll. While the last frame is younger than this, no new poll is made.
const FRAME_FRESH: Duration = Duration::from_secs(1);
/// A frame that is older than this is useless for rates, so two polls are made.
const FRAME_STALE: Duration = Duration::from_secs(15);

pub(super) struct LocalBackend {
    client: Client,
    setup: ArcSwap<Setup>,
    /// All requests share the frames, because each poll takes some round trips to Redis.
    frames: Mutex<FrameCache>,
    /// The result of [`Self::shown`], with the fingerprint of its configuration.
    shown: Mutex<Option<(String, Value)>>,
}

struct FrameCache {
    poller: Poller,
    last: Option<(Instant, Frame)>,
}

impl FrameCache {
    #[allow(clippy::disallowed_methods, reason = "the edge: how old a picture is, is a question to the clock")]
    async fn now(&mut self, setup: &Setup) -> Result<Frame, Failure> {
        let age = self.last.as_ref().map(|(at, _)| at.elapsed());
        match (&self.last, age) {
            (Some((_, frame)), Some(age)) if age < FRAME_FRESH => return Ok(frame.clone()),
            (Some(_), Some(age)) if age < FRAME_STALE => {}
            _ => {
                self.poller.poll(setup).await?;
                tokio::time::sleep(FRAME_FRESH).await;
            }
        }
        let frame = self.poller.poll(setup).await?;
        self.last = Some((Instant::now(), frame.clone()));
        Ok(frame)
    }
}

impl LocalBackend {
    pub(super) fn new(setup: &Setup, client: &Client) -> Result<Self, Failure> {
        Ok(Self {
            client: client.clone(),
            setup: ArcSwap::from_pointee(setup.clone()),
            frames: Mutex::new(FrameCache { poller: Poller::new(setup)?, last: None }),
            shown: Mutex::new(None),
        })
    }

    async fn current(&self) -> Result<Arc<Setup>, VerbError> {
        let previous = self.setup.load_full();
        let read = tokio::task::spawn_blocking(move || -> Result<Arc<Setup>, Failure> {
            let sources = previous.sources();
            if fingerprint(sources, &tickfleet_config::load_modules(sources)) == previous.fingerprint {
                return Ok(previous);
            }
            let read = Setup::of(sources, &previous.extensions, None)?;
            Ok(Arc::new(read.with_store_of(&previous).sharing(&previous.mcp, &previous.knowledge)))
        });
        let read = read.await.unwrap_or_else(|error| Err(Failure::failed(error)));
        let setup = read.map_err(|failure| VerbError::Unavailable(failure.message().unwrap_or_default()))?;
        self.setup.store(Arc::clone(&setup));
        Ok(setup)
    }
}

impl LocalBackend {
    /// Operators search for problems when a file has an error, so the previous setup stays in use.
    async fn current_or_previous(&self) -> Arc<Setup> {
        match self.current().await {
            Ok(setup) => setup,
            Err(error) => {
                tracing::warn!(%error, "cannot read the configuration; operator views use the previous one");
                self.setup.load_full()
            }
        }
    }
}

impl LocalBackend {
    /// `is_whole` is false if the configuration files cannot be read now. A view that is not cached then lacks their
    /// texts.
    async fn shown(&self, setup: &Arc<Setup>, is_whole: bool) -> Result<Value, VerbError> {
        let mut known = self.shown.lock().await;
        if let Some((_, view)) = known.as_ref().filter(|(fingerprint, _)| *fingerprint == setup.fingerprint) {
            return Ok(view.clone());
        }
        if !is_whole {
            return Ok(configuration_view::view(&setup.configuration));
        }
        let read = Arc::clone(setup);
        let read = tokio::task::spawn_blocking(move || -> Result<(String, Value), Failure> {
            let setup = Setup::with_text(read.sources(), &read.extensions, None)?;
            Ok((setup.fingerprint.clone(), configuration_view::view(&setup.configuration)))
        });
        let read = read.await.unwrap_or_else(|error| Err(Failure::failed(error)));
        let read = read.map_err(|failure| VerbError::Unavailable(failure.message().unwrap_or_default()))?;
        let view = read.1.clone();
        *known = Some(read);
        Ok(view)
    }
}

impl OperatorBackend for LocalBackend {
    fn overview(&self) -> BackendFuture<'_> {
        async {
            let setup = self.current_or_previous().await;
            let frame = self.frames.lock().await.now(&setup).await.map_err(refused)?;
            serde_json::to_value(frame).map_err(|error| VerbError::Unavailable(error.to_string()))
        }
        .boxed()
    }

    fn explain<'a>(&'a self, tenant: Option<&'a TenantId>, id: &'a str) -> BackendFuture<'a, Box<RawValue>> {
        async move {
            let setup = self.current_or_previous().await;
            let view = explain::render(&setup, &self.client, tenant, id).await.map_err(refused)?;
            to_raw_value(&view).map_err(|error| VerbError::Unavailable(error.to_string()))
        }
        .boxed()
    }

    fn limits<'a>(&'a self, asked: &'a LimitFilter) -> BackendFuture<'a> {
        async move {
            let setup = self.current_or_previous().await;
            limits::as_json(&setup, &self.client, asked).await.map_err(refused)
        }
        .boxed()
    }

    fn configuration(&self) -> BackendFuture<'_> {
        async move {
            let (setup, problem) = match self.current().await {
                Ok(setup) => (setup, None),
                Err(error) => (self.setup.load_full(), Some(error.to_string())),
            };
            let mut in_force = Vec::new();
            for store in self.client.stores() {
                let digest =
                    store.policy_in_force().await.map_err(|error| VerbError::Unavailable(error.to_string()))?;
                in_force.push(digest);
            }
            let mut view = self.shown(&setup, problem.is_none()).await?;
            view["digest"] = json!(setup.configuration.digest);
            view["in_force"] = json!(in_force);
            view["problem"] = json!(problem);
            Ok(view)
        }
        .boxed()
    }

    fn rules(&self) -> BackendFuture<'_, Vec<ConfiguredRule>> {
        async move { Ok(rules_of(&self.current_or_previous().await.configuration.policy)) }.boxed()
    }

    fn names(&self) -> BackendFuture<'_, FleetNames> {
        async move { Ok(self.current_or_previous().await.names()) }.boxed()
    }

    fn zones(&self) -> BackendFuture<'_, BTreeMap<TenantId, Tz>> {
        async move {
            let setup = self.current_or_previous().await;
            usage::zones(&setup, &self.client).await.map_err(refused)
        }
        .boxed()
    }

    fn approver<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<BTreeSet<String>>> {
        async move {
            // Read the current configuration: an approver loses the right to decide as soon as the file changes.
            let setup = self.current().await?;
            Ok(setup.configuration.policy.permissions.approvers.get(name).cloned())
        }
        .boxed()
    }

    fn check_narrowed<'a>(
        &'a self,
        approval: &'a Approval,
        changes: &'a NarrowedValues,
    ) -> BoxFuture<'a, Result<(), ApprovalError>> {
        narrowing::check(&self.client, approval, changes).boxed()
    }

    fn redactor(&self) -> Arc<Redactor> {
        self.setup.load().report().redactor
    }
}

fn refused(failure: Failure) -> VerbError {
    let message = failure.message().unwrap_or_default();
    match failure {
        Failure::Usage(_) => VerbError::Invalid(message),
        Failure::Redis(_) | Failure::RedisReported(_) => VerbError::Unavailable(message),
        Failure::Failed(reason) if reason.downcast_ref::<StoreError>().is_some() => VerbError::Unavailable(message),
        Failure::Failed(_) | Failure::Reported => VerbError::Unknown(message),
    }
}
