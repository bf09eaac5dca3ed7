//! HTTP clients and access tokens, shared by the tools of one configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_outbound::Guard;

use super::client::Client;
use super::tokens::Tokens;

/// Shorter than the tool's timeout. An unreachable host is then reported as not executed, and not as a timeout with an
/// unknown outcome.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Loading trust roots takes tens of milliseconds, so tools with the same guard and kind of effect share a client.
#[derive(Default)]
pub struct HttpClients {
    clients: Mutex<BTreeMap<(Guard, bool), Arc<Client>>>,
    tokens: Arc<Tokens>,
}

impl fmt::Debug for HttpClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpClients(..)")
    }
}

impl HttpClients {
    pub(super) fn get(&self, guard: Guard, once: bool) -> Result<Arc<Client>, String> {
        let mut clients = self.clients.lock();
        let key = (guard, once);
        if let Some(client) = clients.get(&key) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(Client::new(key.0.clone(), once, CONNECT_TIMEOUT)?);
        clients.insert(key, Arc::clone(&client));
        Ok(client)
    }

    pub(super) fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.tokens)
    }
}
