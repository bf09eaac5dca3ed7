//! The console of `tickfleet dev`, `tickfleet demo` and `tickfleet mcp wrap`: a gateway in the same process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tickfleet_gateway::{KeyRow, KeysFile, NewKey, TenantScope, Verb};
use tickfleet_model::TenantId;
use tickfleet_ops::metrics::{Metrics, ProcessRole};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::setup::Setup;

pub(crate) const PORT: u16 = 8080;
/// Running requests get this long when the console stops.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

pub(crate) struct Console {
    address: SocketAddr,
    keys: Keys,
    serving: JoinHandle<()>,
    ending: CancellationToken,
}

/// The keys are valid only as long as this process runs.
struct Keys {
    console: NewKey,
    service: NewKey,
}

impl Console {
    pub(crate) async fn start(setup: &Setup, port: u16, draining: &CancellationToken) -> Result<Self, Failure> {
        let key = || NewKey::random().map_err(Failure::failed);
        let keys = Keys { console: key()?, service: key()? };
        let ending = draining.child_token();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (address, serving) = serve(setup, &keys, address, &ending).await?;
        Ok(Self { address, keys, serving, ending })
    }

    /// The key follows the `#`, so browsers do not send it. The page removes the key from the address bar.
    pub(crate) fn link(&self) -> String {
        format!("http://{}/console/#key={}", self.address, self.keys.console.secret)
    }

    /// The key is for the tenant of [`Setup::example_caller`].
    pub(crate) fn for_services(&self) -> (SocketAddr, &str) {
        (self.address, &self.keys.service.secret)
    }

    pub(crate) async fn ended(self) {
        let Self { mut serving, ending, .. } = self;
        ending.cancel();
        // After a panic of the console, the log contains the reason, and the fleet still ends normally.
        if tokio::time::timeout(LAST_ANSWERS, &mut serving).await.is_err() {
            serving.abort();
        }
    }
}

async fn serve(
    setup: &Setup,
    keys: &Keys,
    address: SocketAddr,
    ending: &CancellationToken,
) -> Result<(SocketAddr, JoinHandle<()>), Failure> {
    let service = setup.example_caller().map(|(tenant, _)| service_row(tenant, &keys.service));
    let rows = std::iter::once(row(setup, &keys.console)).chain(service);
    let keys = KeysFile::of(rows).map_err(Failure::failed)?;
    // The request metrics of the console are not exported. The fleet's own metrics cover everything else.
    let metrics = Arc::new(Metrics::of(ProcessRole::Gateway).map_err(Failure::failed)?);
    let client = setup.client().await?.observed_by(metrics.clone());
    super::listen(super::of(setup, client, keys, metrics, ending.clone(), None)?, address, None).await
}

/// The owner of a private fleet can view and operate all tenants, and decides approvals as the first approver.
fn row(setup: &Setup, key: &NewKey) -> KeyRow {
    let approver = setup.configuration.policy.permissions.approvers.keys().next().cloned();
    let decides = approver.is_some().then_some(Verb::Approve);
    KeyRow {
        id: "dev".into(),
        sha256: key.sha256.clone(),
        tenant: TenantScope::All,
        agents: vec!["*".into()],
        verbs: [Verb::View, Verb::Operate].into_iter().chain(decides).collect(),
        approver,
        rate: None,
        expires: None,
    }
}

fn service_row(tenant: &TenantId, key: &NewKey) -> KeyRow {
    KeyRow {
        id: "dev-service".into(),
        sha256: key.sha256.clone(),
        tenant: TenantScope::One(tenant.clone()),
        agents: vec!["*".into()],
        verbs: Verb::OF_SERVICES.into(),
        approver: None,
        rate: None,
        expires: None,
    }
}
