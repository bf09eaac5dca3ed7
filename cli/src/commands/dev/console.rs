//! The console of `tickfleet dev`: a gateway in the same process, with one key that is made for it.

use std::net::{Ipv4Addr, SocketAddr};

use tickfleet_gateway::{KeyRow, KeysFile, NewKey, Verb, Whose};
use tokio_util::sync::CancellationToken;

use crate::commands::gateway;
use crate::failure::Failure;
use crate::setup::Setup;

/// The console that runs, and the key for it.
pub(super) struct Console {
    address: SocketAddr,
    secret: String,
    serving: tokio::task::JoinHandle<()>,
}

impl Console {
    /// Serves it on this port of 127.0.0.1, until `draining`.
    ///
    /// # Errors
    /// The port is taken; Redis is away.
    pub(super) async fn start(setup: &Setup, port: u16, draining: CancellationToken) -> Result<Self, Failure> {
        let key = NewKey::random().map_err(Failure::failed)?;
        let keys = KeysFile::only(row(setup, &key)).map_err(Failure::failed)?;
        let gateway = gateway::of(setup, keys, draining).await?;
        let (address, serving) = gateway::listen(gateway, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), None).await?;
        Ok(Self { address, secret: key.secret, serving })
    }

    /// Where it is, for the welcome.
    pub(super) fn in_words(&self) -> String {
        format!("Console: http://{}/console/ with the key {}\n", self.address, self.secret)
    }

    /// Waits until what was asked last is answered.
    pub(super) async fn ended(self) {
        // It panicked, and the log has told why: the fleet has ended well all the same.
        let _ = self.serving.await;
    }
}

/// Whoever runs a fleet of their own may do everything: as the first of its approvers, where it has any.
fn row(setup: &Setup, key: &NewKey) -> KeyRow {
    let approver = setup.configuration.policy.permissions.approvers.keys().next().cloned();
    let decides = approver.is_some().then_some(Verb::Approve);
    KeyRow {
        id: "dev".into(),
        sha256: key.sha256.clone(),
        tenant: Whose::All,
        agents: vec!["*".into()],
        verbs: [Verb::View, Verb::Operate].into_iter().chain(decides).collect(),
        approver,
        expires: None,
    }
}
