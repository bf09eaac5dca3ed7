//! Connections to a Redis Cluster: all keys of a shard lie in one slot, and one primary holds it. Any node is asked which,
//! and whoever it names has to say itself that it holds the slot: after a failover or a move, views lag behind.
//!
//! `ASK` is never followed (rule 24). Scripts declare the bare prefix of a shard, which is no key: while the slot is on
//! its way, the primary of before answers `ASK` to each of them, and the next one has only some of the keys.

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
pub use placement::{ClusterView, HolderView, NodeSays};
pub(crate) use slot::slot_of;
use view::{Place, View, place_in};

/// Longest wait for one node, to be connected to and to say who holds which slots.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often nodes are asked whether the slots are still where they were. A primary that was cut off takes writes until
/// it notices (`cluster-node-timeout`), and loses them.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// So often the same node is asked in a row: one that is cut off tells what was, and for ever.
const LOOKS_IN_A_ROW: usize = 4;
/// Longest wait for the node that is named, to be connected to and to say that it holds the slot.
const PRIMARY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest search in all. In a large cluster more nodes may be away than can be asked in vain.
const SEARCH_MAX: Duration = Duration::from_secs(8);

/// A cluster, as the connections of a process know it: they share the looks.
pub(crate) struct Cluster {
    /// The nodes that the URL names.
    seeds: Vec<Place>,
    /// What connections need beside the address of a node, which stands here for none.
    login: ConnectionInfo,
    /// The files that they need for TLS.
    tls: TlsFiles,
    /// The nodes that a node has told of, those of the last view.
    known: std::sync::RwLock<Vec<Place>>,
    /// Which of seeds and known nodes is asked first.
    first: AtomicUsize,
    looked: Mutex<Looked>,
}

/// The last look.
#[derive(Default)]
struct Looked {
    at: Option<Instant>,
    view: Option<Arc<View>>,
    /// A kept connection to the node that was asked, its host, and how often it was.
    over: Option<(MultiplexedConnection, String, usize)>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.names())
    }
}

impl Cluster {
    /// Nothing is connected to yet.
    pub(super) fn new(seeds: Vec<Place>, login: ConnectionInfo, tls: TlsFiles) -> Self {
        // The nodes shall not all be asked by all processes in the same order.
        let first = AtomicUsize::new(std::process::id() as usize % seeds.len().max(1));
        Self { seeds, login, tls, known: std::sync::RwLock::default(), first, looked: Mutex::default() }
    }

    #[cfg(test)]
    pub(super) const fn login(&self) -> &ConnectionInfo {
        &self.login
    }

    fn names(&self) -> String {
        let seeds: Vec<String> = self.seeds.iter().map(|seed| self.shown(seed)).collect();
        seeds.join(", ")
    }

    /// The address of a node as connections of this fleet reach it: with TLS, if the URL says so.
    fn address_of(&self, (host, port): &Place) -> ConnectionAddr {
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

    fn shown(&self, place: &Place) -> String {
        self.address_of(place).to_string()
    }

    async fn connect(&self, place: &Place, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let info = self.login.clone().set_addr(self.address_of(place));
        Server::new(info, self.tls.clone())?.dial(config).await
    }

    /// All whom one can ask, each once: who answered last is the first.
    fn to_ask(&self) -> Vec<Place> {
        let known = self.known.read().map(|known| known.clone()).unwrap_or_default();
        let mut all: Vec<Place> = self.seeds.clone();
        all.extend(known.into_iter().filter(|place| !self.seeds.contains(place)));
        let first = self.first.load(Ordering::Relaxed) % all.len().max(1);
        all.rotate_left(first);
        all
    }

    /// Takes note of who answered, and of the nodes that it told.
    fn answered(&self, asked: &Place, view: &View) {
        if let Ok(mut known) = self.known.write() {
            let told = view.nodes();
            // Where nobody is told, somebody may still be there.
            if !told.is_empty() {
                *known = told;
            }
            let all = self.seeds.iter().chain(known.iter().filter(|place| !self.seeds.contains(place)));
            let index = all.into_iter().position(|place| place == asked);
            self.first.store(index.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// What the node at this place says of the cluster; else why it does not.
    async fn ask(&self, place: &Place) -> Result<(View, MultiplexedConnection), String> {
        // The bound is on all of it, not on each step.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let ask = async {
            let mut connection = self.connect(place, config).await.map_err(|error| error.to_string())?;
            Ok((view_over(&mut connection, &place.0).await?, connection))
        };
        timeout(ASK_TIMEOUT, ask).await.unwrap_or_else(|_| Err(format!("no answer within {ASK_TIMEOUT:?}")))
    }

    /// What a node says of the cluster, asked within the last second; none where nobody answers.
    async fn look(&self) -> Option<Arc<View>> {
        let mut looked = self.looked.lock().await;
        if looked.at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return looked.view.clone();
        }
        looked.view = None;
        if let Some((mut connection, host, asked)) = looked.over.take().filter(|(_, _, asked)| *asked < LOOKS_IN_A_ROW)
            && let Ok(Ok(view)) = timeout(ASK_TIMEOUT, view_over(&mut connection, &host)).await
        {
            looked.view = Some(Arc::new(view));
            looked.over = Some((connection, host, asked + 1));
        } else {
            // The next one, for a change.
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
                looked.view = Some(Arc::new(view));
                looked.over = Some((connection, host, 1));
            }
        }
        looked.at = Some(Instant::now());
        looked.view.clone()
    }

    /// The view of the last second, if somebody has looked. One who is looking now is not waited for: nodes may be silent.
    fn seen_just_now(&self) -> Option<Arc<View>> {
        let looked = self.looked.try_lock().ok()?;
        looked.view.clone().filter(|_| looked.at.is_some_and(|at| at.elapsed() < LOOK_EVERY))
    }
}

/// What the node at the other end says of the cluster.
async fn view_over(connection: &mut MultiplexedConnection, host: &str) -> Result<View, String> {
    let answer = redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(connection).await;
    View::read(&answer.map_err(|error| error.to_string())?, host)
}

/// Makes connections to whoever holds one slot; or, for what concerns no key, to some primary.
pub(super) struct Holder {
    cluster: Arc<Cluster>,
    /// A key of the slot, and the slot.
    key: Option<(String, u16)>,
    /// Where the holder was found last, or why it was not; none before the first search.
    found: watch::Sender<Option<Result<String, String>>>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.address())
    }
}

/// What came of an attempt.
enum Reached {
    Primary(MultiplexedConnection),
    /// It says that another one is.
    Moved(Place),
}

/// One search for the holder: who was tried in vain, and why.
#[derive(Default)]
struct Search {
    reasons: Vec<String>,
    refused: Vec<Place>,
}

impl Holder {
    /// Connections to who holds the slot of `key`; to any primary, where there is none.
    pub(super) fn new(cluster: Arc<Cluster>, key: Option<&str>) -> Self {
        Self { cluster, key: key.map(|key| (key.to_owned(), slot_of(key))), found: watch::Sender::new(None) }
    }

    /// The places that this view names.
    fn named(&self, view: &View) -> Result<Vec<Place>, String> {
        match &self.key {
            Some((_, slot)) => view.primary_of(*slot).map(|place| vec![place.clone()]),
            None => Ok(view.primaries().into_iter().map(|(place, _)| place).collect()),
        }
    }

    /// A connection to the node at this place, if it says that it is the one; else why not.
    async fn reach(&self, place: &Place, config: AsyncConnectionConfig) -> Result<Reached, String> {
        let connect = async {
            let mut connection = self.cluster.connect(place, config).await.map_err(|error| error.to_string())?;
            let Some((key, _)) = &self.key else {
                return match role(&mut connection).await.map_err(|error| error.to_string())? {
                    Role::Other(role) => Err(format!("it reports the role {role}")),
                    Role::Primary | Role::Untold => Ok(Reached::Primary(connection)),
                };
            };
            match redis::cmd("EXISTS").arg(key).query_async::<Value>(&mut connection).await {
                Ok(_) => Ok(Reached::Primary(connection)),
                // It holds the slot, which is on its way: until it has arrived, scripts wait here.
                Err(error) if error.code() == Some("ASK") => Ok(Reached::Primary(connection)),
                Err(error) => match moved_to(&error, &place.0) {
                    Some(elsewhere) => Ok(Reached::Moved(elsewhere)),
                    None => Err(error.to_string()),
                },
            }
        };
        let silent = |_| Err(format!("no answer within {PRIMARY_TIMEOUT:?}"));
        timeout(PRIMARY_TIMEOUT, connect).await.unwrap_or_else(silent)
    }

    /// A connection to one of those whom this view names, or whom they name; else none, and the search knows why.
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
                Ok(Reached::Primary(connection)) => {
                    self.found.send_replace(Some(Ok(shown)));
                    return Some(connection);
                }
                Ok(Reached::Moved(elsewhere)) => {
                    search.reasons.push(format!("{shown} names {}", self.cluster.shown(&elsewhere)));
                    named.push(elsewhere);
                }
                Err(why) => search.reasons.push(format!("{who} names {shown}: {why}")),
            }
        }
        None
    }

    /// Asks one node after the other.
    async fn search(&self, config: &AsyncConnectionConfig, search: &mut Search) -> Option<MultiplexedConnection> {
        if let Some(view) = self.cluster.seen_just_now()
            && let Some(connection) = self.follow("the last look", &view, config, search).await
        {
            return Some(connection);
        }
        // What was in vain a moment ago is tried once more: no view of then has a say any longer.
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

    fn looks_every(&self) -> Option<Duration> {
        self.key.as_ref().map(|_| LOOK_EVERY)
    }

    async fn has_moved(&self, from: &str) -> bool {
        let Some(view) = self.cluster.look().await else { return false };
        let named = self.named(&view).unwrap_or_default();
        let elsewhere = named.iter().find(|_| named.iter().all(|place| self.cluster.shown(place) != from));
        let Some(elsewhere) = elsewhere else { return false };
        // The view may be the old one: whoever it names has to agree.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        matches!(self.reach(elsewhere, config).await, Ok(Reached::Primary(_)))
    }

    async fn is_on_its_way(&self, connection: &mut MultiplexedConnection) -> Option<RedisError> {
        let (key, _) = self.key.as_ref()?;
        let said = redis::cmd("EXISTS").arg(key).query_async::<Value>(connection).await;
        said.err().filter(|error| matches!(error.code(), Some("ASK" | "MOVED")))
    }
}

/// Where the slot is, if this says that it is elsewhere.
fn moved_to(error: &RedisError, asked: &str) -> Option<Place> {
    if error.code() != Some("MOVED") {
        return None;
    }
    place_in(error.redirect_node()?.0, asked)
}
