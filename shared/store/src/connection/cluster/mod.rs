//! Connections to a Redis Cluster. The view of a node may be out of date, so the reported owner must confirm that it
//! owns the slot. `ASK` redirections are never followed: while a slot is migrating, the new primary has only some of
//! the keys.

mod placement;
mod slot;
mod view;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisError, RedisResult, Value};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use super::dial::Dial;
use super::role::{Role, role};
use super::tls::{Server, TlsFiles};
pub use placement::{ClusterView, HolderView, NodeReport};
pub(crate) use slot::slot_of;
use view::{NodeAddress, View, place_in};

const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// Check this often for a new primary. An old primary that lost the other nodes accepts writes until
/// `cluster-node-timeout` has passed, and these writes are lost.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// After this many checks of one node, the next check goes to another node. A disconnected node never updates its view.
const CHECKS_IN_A_ROW: usize = 4;
const PRIMARY_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time of a search. In a large cluster, many nodes can be down, and asking all of them would take too
/// long.
const SEARCH_MAX: Duration = Duration::from_secs(8);

pub(crate) struct Cluster {
    seeds: Vec<NodeAddress>,
    /// The user, password and protocol for all nodes. The address is a placeholder.
    login: ConnectionInfo,
    tls: TlsFiles,
    known: std::sync::RwLock<Vec<NodeAddress>>,
    /// Index of the first node to ask, among seeds and known nodes.
    first: AtomicUsize,
    cached: Mutex<CachedView>,
}

#[derive(Default)]
struct CachedView {
    at: Option<Instant>,
    view: Option<Arc<View>>,
    /// The connection to the node that replied last, the node's host, and the number of consecutive checks.
    over: Option<(MultiplexedConnection, String, usize)>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.names())
    }
}

impl Cluster {
    pub(super) fn new(seeds: Vec<NodeAddress>, login: ConnectionInfo, tls: TlsFiles) -> Self {
        // Begin at a different node in each process, so that not all processes ask the same node first.
        let first = AtomicUsize::new(std::process::id() as usize % seeds.len().max(1));
        Self { seeds, login, tls, known: std::sync::RwLock::default(), first, cached: Mutex::default() }
    }

    #[cfg(test)]
    pub(super) const fn login(&self) -> &ConnectionInfo {
        &self.login
    }

    fn names(&self) -> String {
        let seeds: Vec<String> = self.seeds.iter().map(|seed| self.shown(seed)).collect();
        seeds.join(", ")
    }

    fn address_of(&self, (host, port): &NodeAddress) -> ConnectionAddr {
        match self.login.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.clone(), *port),
        }
    }

    fn shown(&self, place: &NodeAddress) -> String {
        self.address_of(place).to_string()
    }

    async fn connect(&self, place: &NodeAddress, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let info = self.login.clone().set_addr(self.address_of(place));
        Server::new(info, self.tls.clone())?.dial(config).await
    }

    /// The node that replied last comes first.
    fn to_ask(&self) -> Vec<NodeAddress> {
        let known = self.known.read().map(|known| known.clone()).unwrap_or_default();
        let mut all: Vec<NodeAddress> = self.seeds.clone();
        all.extend(known.into_iter().filter(|place| !self.seeds.contains(place)));
        let first = self.first.load(Ordering::Relaxed) % all.len().max(1);
        all.rotate_left(first);
        all
    }

    fn answered(&self, source: &NodeAddress, view: &View) {
        if let Ok(mut known) = self.known.write() {
            let nodes = view.nodes();
            // An empty list does not mean that the known nodes no longer exist.
            if !nodes.is_empty() {
                *known = nodes;
            }
            let all = self.seeds.iter().chain(known.iter().filter(|place| !self.seeds.contains(place)));
            let index = all.into_iter().position(|place| place == source);
            self.first.store(index.unwrap_or(0), Ordering::Relaxed);
        }
    }

    async fn ask(&self, place: &NodeAddress) -> Result<(View, MultiplexedConnection), String> {
        // The steps have no timeouts, because a time limit applies to the whole exchange.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let ask = async {
            let mut connection = self.connect(place, config).await.map_err(|error| error.to_string())?;
            Ok((view_over(&mut connection, &place.0).await?, connection))
        };
        timeout(ASK_TIMEOUT, ask).await.unwrap_or_else(|_| Err(format!("no answer within {ASK_TIMEOUT:?}")))
    }

    /// `None` if no node replied in time.
    async fn recent_view(&self) -> Option<Arc<View>> {
        let mut cached = self.cached.lock().await;
        if cached.at.is_some_and(|at| at.elapsed() < POLL_EVERY) {
            return cached.view.clone();
        }
        cached.view = None;
        if let Some((mut connection, host, checks)) =
            cached.over.take().filter(|(_, _, checks)| *checks < CHECKS_IN_A_ROW)
            && let Ok(Ok(view)) = timeout(ASK_TIMEOUT, view_over(&mut connection, &host)).await
        {
            cached.view = Some(Arc::new(view));
            cached.over = Some((connection, host, checks + 1));
        } else {
            self.first.fetch_add(1, Ordering::Relaxed);
            let search = async {
                for place in self.to_ask() {
                    if let Ok((view, connection)) = self.ask(&place).await {
                        self.answered(&place, &view);
                        return Some((view, connection, place.0));
                    }
                }
                None
            };
            if let Some((view, connection, host)) = timeout(SEARCH_MAX, search).await.ok().flatten() {
                cached.view = Some(Arc::new(view));
                cached.over = Some((connection, host, 1));
            }
        }
        cached.at = Some(Instant::now());
        cached.view.clone()
    }

    /// `None` if the view is older than a second. Does not wait for a check in progress, because nodes may not reply.
    fn seen_just_now(&self) -> Option<Arc<View>> {
        let cached = self.cached.try_lock().ok()?;
        cached.view.clone().filter(|_| cached.at.is_some_and(|at| at.elapsed() < POLL_EVERY))
    }
}

async fn view_over(connection: &mut MultiplexedConnection, host: &str) -> Result<View, String> {
    let answer = redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(connection).await;
    View::read(&answer.map_err(|error| error.to_string())?, host)
}

pub(super) struct Holder {
    cluster: Arc<Cluster>,
    /// A key and its slot; `None` for commands without a key.
    key: Option<(String, u16)>,
    /// The owner's address at the last search, or the reason why the search failed. `None` before the first search
    /// ends.
    found: watch::Sender<Option<Result<String, String>>>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.address())
    }
}

enum ConnectResult {
    Primary(MultiplexedConnection),
    Moved(NodeAddress),
}

#[derive(Default)]
struct Search {
    reasons: Vec<String>,
    refused: Vec<NodeAddress>,
}

impl Holder {
    pub(super) fn new(cluster: Arc<Cluster>, key: Option<&str>) -> Self {
        Self { cluster, key: key.map(|key| (key.to_owned(), slot_of(key))), found: watch::Sender::new(None) }
    }

    fn named(&self, view: &View) -> Result<Vec<NodeAddress>, String> {
        match &self.key {
            Some((_, slot)) => view.primary_of(*slot).map(|place| vec![place.clone()]),
            None => Ok(view.primaries().into_iter().map(|(place, _)| place).collect()),
        }
    }

    async fn reach(&self, place: &NodeAddress, config: AsyncConnectionConfig) -> Result<ConnectResult, String> {
        let connect = async {
            let mut connection = self.cluster.connect(place, config).await.map_err(|error| error.to_string())?;
            let Some((key, _)) = &self.key else {
                return match role(&mut connection).await.map_err(|error| error.to_string())? {
                    Role::Other(role) => Err(format!("it reports the role {role}")),
                    Role::Primary | Role::Unreported => Ok(ConnectResult::Primary(connection)),
                };
            };
            match redis::cmd("EXISTS").arg(key).query_async::<Value>(&mut connection).await {
                Ok(_) => Ok(ConnectResult::Primary(connection)),
                // The node owns the slot, and the slot is migrating. Until the migration ends, scripts wait at this
                // node.
                Err(error) if error.code() == Some("ASK") => Ok(ConnectResult::Primary(connection)),
                Err(error) => match moved_to(&error, &place.0) {
                    Some(elsewhere) => Ok(ConnectResult::Moved(elsewhere)),
                    None => Err(error.to_string()),
                },
            }
        };
        let silent = |_| Err(format!("no answer within {PRIMARY_TIMEOUT:?}"));
        timeout(PRIMARY_TIMEOUT, connect).await.unwrap_or_else(silent)
    }

    /// Connects to an owner in `view`, or to another owner that this node reports. If no node confirms, adds the
    /// reasons to `search`.
    async fn follow(
        &self,
        who: &str,
        view: &View,
        config: &AsyncConnectionConfig,
        search: &mut Search,
    ) -> Option<MultiplexedConnection> {
        let mut named = match self.named(view) {
            Ok(named) if named.is_empty() => {
                search.reasons.push(format!("{who} reports no owner of slots"));
                return None;
            }
            Ok(named) => named,
            Err(why) => {
                search.reasons.push(format!("{who} {why}"));
                return None;
            }
        };
        while let Some(place) = named.pop() {
            let shown = self.cluster.shown(&place);
            if search.refused.contains(&place) {
                search.reasons.push(format!("{who} names {shown}, too"));
                continue;
            }
            search.refused.push(place.clone());
            match self.reach(&place, config.clone()).await {
                Ok(ConnectResult::Primary(connection)) => {
                    self.found.send_replace(Some(Ok(shown)));
                    return Some(connection);
                }
                Ok(ConnectResult::Moved(elsewhere)) => {
                    search.reasons.push(format!("{shown} names {}", self.cluster.shown(&elsewhere)));
                    named.push(elsewhere);
                }
                Err(why) => search.reasons.push(format!("{who} names {shown}: {why}")),
            }
        }
        None
    }

    async fn search(&self, config: &AsyncConnectionConfig, search: &mut Search) -> Option<MultiplexedConnection> {
        if let Some(view) = self.cluster.seen_just_now()
            && let Some(connection) = self.follow("the last look", &view, config, search).await
        {
            return Some(connection);
        }
        *search = Search::default();
        for place in self.cluster.to_ask() {
            let who = self.cluster.shown(&place);
            match self.cluster.ask(&place).await {
                Ok((view, _)) => {
                    self.cluster.answered(&place, &view);
                    if let Some(connection) = self.follow(&who, &view, config, search).await {
                        return Some(connection);
                    }
                }
                Err(why) => search.reasons.push(format!("{who}: {why}")),
            }
        }
        None
    }
}

#[async_trait]
impl Dial for Holder {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let mut search = Search::default();
        let found = timeout(SEARCH_MAX, self.search(&config, &mut search)).await;
        if let Ok(Some(connection)) = found {
            return Ok(connection);
        }
        if found.is_err() {
            search.reasons.push(format!("search stopped after {SEARCH_MAX:?}"));
        }
        let why = format!("cannot find the owner of {}: {}", self.address(), search.reasons.join("; "));
        self.found.send_replace(Some(Err(why.clone())));
        Err(std::io::Error::new(std::io::ErrorKind::NotConnected, why).into())
    }

    fn address(&self) -> String {
        match &self.key {
            Some((_, slot)) => format!("slot {slot} (cluster {})", self.cluster.names()),
            None => format!("any slot (cluster {})", self.cluster.names()),
        }
    }

    fn primary(&self) -> Option<Result<String, String>> {
        self.found.borrow().clone()
    }

    fn check_interval(&self) -> Option<Duration> {
        self.key.as_ref().map(|_| POLL_EVERY)
    }

    async fn has_moved(&self, from: &str) -> bool {
        let Some(view) = self.cluster.recent_view().await else { return false };
        let named = self.named(&view).unwrap_or_default();
        let elsewhere = named.iter().find(|_| named.iter().all(|place| self.cluster.shown(place) != from));
        let Some(elsewhere) = elsewhere else { return false };
        // The view may be out of date, so the node must confirm that it is the owner.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        matches!(self.reach(elsewhere, config).await, Ok(ConnectResult::Primary(_)))
    }

    async fn migration_redirect(&self, connection: &mut MultiplexedConnection) -> Option<RedisError> {
        let (key, _) = self.key.as_ref()?;
        let reply = redis::cmd("EXISTS").arg(key).query_async::<Value>(connection).await;
        reply.err().filter(|error| matches!(error.code(), Some("ASK" | "MOVED")))
    }
}

fn moved_to(error: &RedisError, own_host: &str) -> Option<NodeAddress> {
    if error.code() != Some("MOVED") {
        return None;
    }
    place_in(error.redirect_node()?.0, own_host)
}
