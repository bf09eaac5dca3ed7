//! The servers of a process: one connection each, made when it is first needed, watched, and made again after a loss.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tickfleet_config::mcp::{McpConnection, McpFile, McpServerDef};
use tickfleet_config::{McpDefinition, default_id};
use tickfleet_model::ToolSpec;
use tickfleet_ops::metrics::McpServer;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::link::{self, Link, Verdict, Verdicts};
use super::tool::McpTool;
use crate::tools::http::Environment;
use crate::tools::{RegisteredTool, RegistryError};

/// Waits before a server is connected to again. The last one goes on; the sum of a worker's usual waits before a
/// retry (1, 3, 9 s) is longer, so a call can outlive a restart.
const LADDER: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];
/// A connection that held this long starts the ladder from its first rung.
const STEADY: Duration = Duration::from_secs(30);
/// Limit of starting a server, shaking hands and asking for its tools: `npx` may have to fetch a package first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a call waits for a server that is being connected to: its slot is worth more.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the tools are looked at without a notice: not every server sends one.
const RECHECK_EVERY: Duration = Duration::from_secs(300);
/// Limit of asking for the tools of a server that is up.
const RECHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest try of a tool that reports progress in time, where the configuration says nothing.
const TIMEOUT_MAX_DEFAULT: Duration = Duration::from_secs(300);
/// Limit of waiting for all servers to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What one connection can serve: the same server, reached in the same way, with the same pins.
type Key = (String, McpConnection, Vec<String>);

/// The MCP servers of a process. Registries that are built from the same configuration share their connections.
pub struct Servers {
    environment: Environment,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Whether servers are connected to without being called.
    eager: bool,
    servers: BTreeMap<Key, Weak<Server>>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Servers(..)")
    }
}

impl Servers {
    /// No server yet. Secrets and `PATH` are looked up in `environment`.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment, known: Mutex::default() }
    }

    /// The imported tools of all servers of `file`. Nothing is connected to for that. `timeout_default` is the longest
    /// silence of a call where the configuration says nothing.
    ///
    /// # Errors
    /// Every tool whose schema cannot be used.
    pub fn tools(&self, file: &McpFile, timeout_default: Duration) -> Result<Vec<RegisteredTool>, Vec<RegistryError>> {
        let (mut tools, mut errors) = (Vec::new(), Vec::new());
        for (name, def) in &file.servers {
            let server = self.server(name, def);
            let configured = !def.connection.secrets.values().any(|secret| self.is_missing(secret));
            for tool in &def.tools {
                let timeout = def.timeout.unwrap_or(timeout_default);
                let spec = spec(def, tool, timeout, configured);
                let handler = McpTool::new(Arc::clone(&server), tool.name.clone(), timeout);
                match registered(spec, Arc::new(handler)) {
                    Ok(tool) => tools.push(tool),
                    Err(error) => errors.push(error),
                }
            }
        }
        if errors.is_empty() { Ok(tools) } else { Err(errors) }
    }

    /// A secret in a file may still appear.
    fn is_missing(&self, secret: &tickfleet_config::tools::SecretRef) -> bool {
        match secret {
            tickfleet_config::tools::SecretRef::Env(variable) => self.environment.get(variable).is_none(),
            tickfleet_config::tools::SecretRef::File(_) => false,
        }
    }

    fn server(&self, name: &str, def: &McpServerDef) -> Arc<Server> {
        let digests = def.tools.iter().map(McpDefinition::digest).collect();
        let key = (name.to_owned(), def.connection.clone(), digests);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = known.servers.get(&key).and_then(Weak::upgrade) {
            return server;
        }
        known.servers.retain(|_, server| server.strong_count() > 0);
        let server = Arc::new(Server::new(name, def, self.environment.clone()));
        known.servers.insert(key, Arc::downgrade(&server));
        if known.eager {
            server.start();
        }
        server
    }

    /// What is known of each server now. Of two ways to one server, as during a reload, the better one counts.
    #[must_use]
    pub fn state(&self) -> Vec<McpServer> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut by_name: BTreeMap<String, McpServer> = BTreeMap::new();
        for server in known.servers.values().filter_map(Weak::upgrade) {
            let now = server.now();
            let best = by_name.entry(now.name.clone()).or_insert_with(|| now.clone());
            if now.up && !best.up {
                *best = now;
            }
        }
        by_name.into_values().collect()
    }

    /// Connects to every server now, and to later ones as soon as their tools are asked for. Call it in a runtime.
    pub fn start(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.eager = true;
        known.servers.values().filter_map(Weak::upgrade).for_each(|server| server.start());
    }

    /// Closes every connection and waits, for 5 s at most, until the child processes have ended. No server is
    /// connected to afterwards.
    pub async fn stop(&self) {
        let servers: Vec<Arc<Server>> = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.servers.values().filter_map(Weak::upgrade).collect()
        };
        servers.iter().for_each(|server| server.inner.stop.cancel());
        let ended = futures::future::join_all(servers.iter().map(|server| server.ended()));
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("an MCP server did not end in time; it is killed with this process");
        }
    }
}

/// The tool. What a server promises of its results is its own word: where that cannot be checked, the tool goes without.
fn registered(spec: ToolSpec, handler: Arc<McpTool>) -> Result<RegisteredTool, RegistryError> {
    match RegisteredTool::new(spec.clone(), Arc::clone(&handler) as _) {
        Err(error @ RegistryError::Schema { which: "output", .. }) => {
            tracing::warn!(%error, "results of an MCP tool are not checked");
            RegisteredTool::new(ToolSpec { output_schema: None, ..spec }, handler)
        }
        made => made,
    }
}

fn spec(def: &McpServerDef, tool: &McpDefinition, timeout: Duration, configured: bool) -> ToolSpec {
    let name = def.tool_name(&tool.name);
    let title = tool.title.clone().or_else(|| tool.annotations.title.clone());
    ToolSpec {
        id: default_id(&name),
        display_name: title.unwrap_or_else(|| name.clone()),
        description: tool.description.clone().unwrap_or_default(),
        input_schema: tool.input_schema.clone(),
        output_schema: tool.output_schema.clone(),
        category: def.category.clone().unwrap_or_else(|| "mcp".to_owned()),
        version: def.server_version.clone().filter(|v| is_semver(v)).unwrap_or_else(|| "1.0.0".to_owned()),
        effect: def.effect(tool),
        timeout: def.timeout_max.unwrap_or(TIMEOUT_MAX_DEFAULT).max(timeout),
        required_capabilities: def.required_capabilities.iter().cloned().collect(),
        required_features: def.required_features.iter().cloned().collect(),
        requires_approval: def.requires_approval,
        configured,
        name,
    }
}

fn is_semver(version: &str) -> bool {
    let numbers: Vec<&str> = version.split(['-', '+']).next().unwrap_or_default().split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

/// One server. When its last tool is dropped, its connection is closed.
pub(super) struct Server {
    inner: Arc<Inner>,
    started: AtomicBool,
    _stops: DropGuard,
}

struct Inner {
    name: String,
    connection: McpConnection,
    pinned: BTreeMap<String, McpDefinition>,
    environment: Environment,
    state: watch::Sender<State>,
    stop: CancellationToken,
    ended: CancellationToken,
}

/// What is known of a server.
enum State {
    /// It is being connected to.
    Connecting,
    /// It can be called.
    Up(Arc<Link>),
    /// It could not be connected to, and is left alone for a while.
    Away,
    /// The process is about to end.
    Stopped,
}

/// Why a call cannot be sent. Nothing was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoLink {
    /// It is not there, or not yet.
    Away,
    /// The process is about to end.
    Stopped,
}

impl Server {
    fn new(name: &str, def: &McpServerDef, environment: Environment) -> Self {
        let stop = CancellationToken::new();
        let inner = Inner {
            name: name.to_owned(),
            connection: def.connection.clone(),
            pinned: def.tools.iter().map(|tool| (tool.name.clone(), tool.clone())).collect(),
            environment,
            state: watch::Sender::new(State::Connecting),
            stop: stop.clone(),
            ended: CancellationToken::new(),
        };
        Self { inner: Arc::new(inner), started: AtomicBool::new(false), _stops: stop.drop_guard() }
    }

    pub(super) fn name(&self) -> &str {
        &self.inner.name
    }

    fn now(&self) -> McpServer {
        let state = self.inner.state.borrow();
        let (up, quarantined) = match &*state {
            State::Up(link) => (link.is_open(), link.quarantined()),
            State::Connecting | State::Away | State::Stopped => (false, 0),
        };
        McpServer { name: self.inner.name.clone(), up, quarantined }
    }

    fn start(&self) {
        if !self.started.swap(true, Ordering::AcqRel) {
            tokio::spawn(supervise(Arc::clone(&self.inner)));
        }
    }

    async fn ended(&self) {
        if self.started.load(Ordering::Acquire) {
            self.inner.ended.cancelled().await;
        }
    }

    /// The connection, once it is there.
    ///
    /// # Errors
    /// [`NoLink`] where it is not, after a bounded wait for one that is being made.
    pub(super) async fn link(&self) -> Result<Arc<Link>, NoLink> {
        self.start();
        let mut state = self.inner.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting));
        let Ok(Ok(state)) = tokio::time::timeout(PATIENCE, settled).await else {
            return Err(NoLink::Away);
        };
        match &*state {
            State::Up(link) if link.is_open() => Ok(Arc::clone(link)),
            State::Up(_) | State::Connecting | State::Away => Err(NoLink::Away),
            State::Stopped => Err(NoLink::Stopped),
        }
    }
}

/// Connects, watches, and connects again, until the last tool of the server is dropped or the process stops.
async fn supervise(server: Arc<Inner>) {
    let mut rung = 0;
    loop {
        let since = tokio::select! {
            () = server.stop.cancelled() => break,
            since = run_once(&server) => since,
        };
        let up = since.map_or(Duration::ZERO, |since| since.elapsed());
        rung = if up >= STEADY { 0 } else { rung };
        let wait = LADDER[rung.min(LADDER.len() - 1)];
        rung += 1;
        server.state.send_replace(State::Away);
        tokio::select! {
            () = server.stop.cancelled() => break,
            () = tokio::time::sleep(wait) => {}
        }
        server.state.send_replace(State::Connecting);
    }
    if let State::Up(link) = server.state.send_replace(State::Stopped) {
        link.stop().await;
    }
    server.ended.cancel();
}

/// One connection from its beginning to its end. Answers when it came up, if it did.
async fn run_once(server: &Arc<Inner>) -> Option<Instant> {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected(server)).await;
    let link = match connected.unwrap_or_else(|_| Err(format!("not ready within {} s", CONNECT_TIMEOUT.as_secs()))) {
        Ok(link) => link,
        Err(reason) => {
            tracing::warn!(server = server.name, reason, "an MCP server cannot be used");
            return None;
        }
    };
    let since = Instant::now();
    tracing::info!(server = server.name, version = link.version(), "an MCP server is connected");
    server.state.send_replace(State::Up(Arc::clone(&link)));
    let reason = tend(server, &link).await;
    tracing::warn!(server = server.name, reason, "the connection to an MCP server is over");
    Some(since)
}

async fn connected(server: &Inner) -> Result<Arc<Link>, String> {
    let link = link::connect(&server.name, &server.connection, &server.environment).await?;
    let verdicts = link.check(&server.pinned).await?;
    report(server, &verdicts);
    Ok(Arc::new(link))
}

/// Watches a connection. Answers why it cannot be used any more; calls that run on it go on as long as they can.
async fn tend(server: &Inner, link: &Arc<Link>) -> String {
    loop {
        tokio::select! {
            () = link.closed() => return "the server has ended".to_owned(),
            () = link.found_stale() => return "its session is over".to_owned(),
            () = link.changed() => {}
            () = tokio::time::sleep(RECHECK_EVERY) => {}
        }
        match tokio::time::timeout(RECHECK_TIMEOUT, link.check(&server.pinned)).await {
            Ok(Ok(verdicts)) => report(server, &verdicts),
            Ok(Err(reason)) => return reason,
            Err(_) => return "it did not list its tools in time".to_owned(),
        }
    }
}

/// Says which tools are quarantined.
fn report(server: &Inner, verdicts: &Verdicts) {
    for (tool, verdict) in verdicts.iter().filter(|(_, verdict)| **verdict != Verdict::AsPinned) {
        let what = match verdict {
            Verdict::Changed(parts) => format!("other than pinned: {}", parts.join(", ")),
            Verdict::Gone | Verdict::AsPinned => "the server has it no more".to_owned(),
        };
        tracing::warn!(server = server.name, tool, what, "an MCP tool is quarantined; see `tickfleet mcp pin`");
    }
}
