//! The operator views of the gateway: `top`, `explain`, `limits` and `config print`, built from the configuration in
//! its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures::FutureExt;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tickfleet_client::Client;
use tickfleet_client::rules::{ConfiguredRule, rules_of};
use tickfleet_gateway::{Desk, DeskError, LimitsAsked, Named, Told};
use tickfleet_model::day::Tz;
use tickfleet_model::policy::Policy;
use tickfleet_model::{Redactor, TenantId};
use tickfleet_store::StoreError;
use tokio::sync::Mutex;

use super::shown;
use crate::commands::operate::known;
use crate::commands::top::{Frame, Poller};
use crate::commands::{explain, limits, usage};
use crate::failure::Failure;
use crate::fleet::python::fingerprint;
use crate::setup::Setup;

/// A frame up to this age is returned to all requests.
const FRAME_FRESH: Duration = Duration::from_secs(1);
/// If the last poll is older than this, its rates would cover too long a time: poll twice instead.
const FRAME_STALE: Duration = Duration::from_secs(15);

/// The operator views of this process.
pub(super) struct HereDesk {
    client: Client,
    /// The configuration as of the last request.
    setup: ArcSwap<Setup>,
    /// Shared by all requests, because each poll costs Redis some round trips.
    pictures: Mutex<Pictures>,
    /// The configuration as it is shown, with its fingerprint. The shown form includes the texts of the files, which
    /// this process does not keep otherwise, so it is read once for all requests.
    shown: Mutex<Option<(String, Value)>>,
}

struct Pictures {
    poller: Poller,
    last: Option<(Instant, Frame)>,
}

impl Pictures {
    #[allow(clippy::disallowed_methods, reason = "the edge: how old a picture is, is a question to the clock")]
    async fn now(&mut self, policy: &Policy) -> Result<Frame, Failure> {
        let age = self.last.as_ref().map(|(at, _)| at.elapsed());
        match (&self.last, age) {
            (Some((_, frame)), Some(age)) if age < FRAME_FRESH => return Ok(frame.clone()),
            (Some(_), Some(age)) if age < FRAME_STALE => {}
            _ => {
                self.poller.look(policy).await?;
                tokio::time::sleep(FRAME_FRESH).await;
            }
        }
        let frame = self.poller.look(policy).await?;
        self.last = Some((Instant::now(), frame.clone()));
        Ok(frame)
    }
}

impl HereDesk {
    /// # Errors
    /// The URL of Redis is invalid.
    pub(super) fn new(setup: &Setup, client: &Client) -> Result<Self, Failure> {
        Ok(Self {
            client: client.clone(),
            setup: ArcSwap::from_pointee(setup.clone()),
            pictures: Mutex::new(Pictures { poller: Poller::new(setup)?, last: None }),
            shown: Mutex::new(None),
        })
    }

    /// The setup for the current configuration in the folder.
    ///
    /// # Errors
    /// It cannot be read, or is invalid.
    async fn current(&self) -> Result<Arc<Setup>, DeskError> {
        let known = self.setup.load_full();
        let read = tokio::task::spawn_blocking(move || -> Result<Arc<Setup>, Failure> {
            let sources = known.sources();
            if fingerprint(sources, &tickfleet_config::load_python(sources)) == known.fingerprint {
                return Ok(known);
            }
            let read = Setup::of(sources, &known.extensions, None)?;
            Ok(Arc::new(read.on_store_of(&known).sharing(&known.mcp, &known.knowledge)))
        });
        let read = read.await.unwrap_or_else(|error| Err(Failure::failed(error)));
        let setup = read.map_err(|failure| DeskError::Unavailable(failure.message().unwrap_or_default()))?;
        self.setup.store(Arc::clone(&setup));
        Ok(setup)
    }
}

impl HereDesk {
    /// As [`Self::current`], but returns the previous setup if the configuration cannot be read. An operator who looks
    /// for a problem must not be blocked by an error in a file.
    async fn known(&self) -> Arc<Setup> {
        match self.current().await {
            Ok(setup) => setup,
            Err(error) => {
                tracing::warn!(%error, "cannot read the configuration; operator views use the previous one");
                self.setup.load_full()
            }
        }
    }
}

impl HereDesk {
    /// The configuration as it is shown. If its files cannot be read now, only the settings of the previous one.
    async fn shown(&self, setup: &Arc<Setup>, is_whole: bool) -> Result<Value, DeskError> {
        let mut known = self.shown.lock().await;
        if let Some((_, told)) = known.as_ref().filter(|(fingerprint, _)| *fingerprint == setup.fingerprint) {
            return Ok(told.clone());
        }
        if !is_whole {
            return Ok(shown::view(&setup.configuration));
        }
        let read = Arc::clone(setup);
        let read = tokio::task::spawn_blocking(move || -> Result<(String, Value), Failure> {
            let setup = Setup::with_text(read.sources(), &read.extensions, None)?;
            Ok((setup.fingerprint.clone(), shown::view(&setup.configuration)))
        });
        let read = read.await.unwrap_or_else(|error| Err(Failure::failed(error)));
        let read = read.map_err(|failure| DeskError::Unavailable(failure.message().unwrap_or_default()))?;
        let told = read.1.clone();
        *known = Some(read);
        Ok(told)
    }
}

impl Desk for HereDesk {
    fn overview(&self) -> Told<'_> {
        async {
            let setup = self.known().await;
            let frame = self.pictures.lock().await.now(&setup.configuration.policy).await.map_err(refused)?;
            serde_json::to_value(frame).map_err(|error| DeskError::Unavailable(error.to_string()))
        }
        .boxed()
    }

    fn explain<'a>(&'a self, tenant: Option<&'a TenantId>, id: &'a str) -> Told<'a, Box<RawValue>> {
        async move {
            let setup = self.known().await;
            let told = explain::told(&setup, &self.client, tenant, id).await.map_err(refused)?;
            to_raw_value(&told).map_err(|error| DeskError::Unavailable(error.to_string()))
        }
        .boxed()
    }

    fn limits<'a>(&'a self, asked: &'a LimitsAsked) -> Told<'a> {
        async move {
            let setup = self.known().await;
            limits::told(&setup, &self.client, asked).await.map_err(refused)
        }
        .boxed()
    }

    fn configuration(&self) -> Told<'_> {
        async move {
            let (setup, problem) = match self.current().await {
                Ok(setup) => (setup, None),
                // An operator who looks for an error in a file gets the error.
                Err(error) => (self.setup.load_full(), Some(error.to_string())),
            };
            let mut in_force = Vec::new();
            for store in self.client.stores() {
                let digest =
                    store.policy_in_force().await.map_err(|error| DeskError::Unavailable(error.to_string()))?;
                in_force.push(digest);
            }
            let mut told = self.shown(&setup, problem.is_none()).await?;
            told["digest"] = json!(setup.configuration.digest);
            told["in_force"] = json!(in_force);
            told["problem"] = json!(problem);
            Ok(told)
        }
        .boxed()
    }

    fn rules(&self) -> Told<'_, Vec<ConfiguredRule>> {
        async move { Ok(rules_of(&self.known().await.configuration.policy)) }.boxed()
    }

    fn tenants(&self) -> Told<'_, BTreeSet<TenantId>> {
        async move {
            let setup = self.known().await;
            known::tenants(&setup, &self.client).await.map_err(refused)
        }
        .boxed()
    }

    fn zones(&self) -> Told<'_, BTreeMap<TenantId, Tz>> {
        async move {
            let setup = self.known().await;
            usage::zones(&setup, &self.client).await.map_err(refused)
        }
        .boxed()
    }

    fn approver<'a>(&'a self, name: &'a str) -> Told<'a, Option<BTreeSet<String>>> {
        async move {
            // An approver who was just removed from the file may no longer decide. If the file cannot be read, no
            // approver may.
            let setup = self.current().await?;
            Ok(setup.configuration.policy.permissions.approvers.get(name).cloned())
        }
        .boxed()
    }

    fn tool_name<'a>(&'a self, given: &'a str) -> Told<'a, String> {
        async move {
            let setup = self.known().await;
            known::tool_name(&setup, &self.client, given).await.map_err(refused)
        }
        .boxed()
    }

    fn tool_switched<'a>(&'a self, given: &'a str) -> Told<'a, String> {
        async move {
            let setup = self.known().await;
            known::tool_switched(&setup, &self.client, given).await.map_err(refused)
        }
        .boxed()
    }

    fn unknown<'a>(&'a self, named: Named<'a>) -> Told<'a, Option<String>> {
        async move {
            let setup = self.known().await;
            let found = known::unknown(&setup, &self.client, named).await.map_err(refused)?;
            Ok(found.filter(|unknown| unknown.is_sure).map(|unknown| unknown.message))
        }
        .boxed()
    }

    fn redactor(&self) -> Arc<Redactor> {
        self.setup.load().report().redactor
    }
}

/// Maps a failure: Redis is unreachable, the request is invalid, or the name is unknown.
fn refused(failure: Failure) -> DeskError {
    let message = failure.message().unwrap_or_default();
    match failure {
        Failure::Usage(_) => DeskError::Invalid(message),
        Failure::Redis(_) | Failure::RedisTold(_) => DeskError::Unavailable(message),
        Failure::Failed(reason) if reason.downcast_ref::<StoreError>().is_some() => DeskError::Unavailable(message),
        Failure::Failed(_) | Failure::Told => DeskError::Unknown(message),
    }
}
