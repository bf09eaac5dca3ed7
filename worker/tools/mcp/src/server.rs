//! The connection of one server: made on first use, monitored, and made again after a loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tickfleet_config::McpDefinition;
use tickfleet_config::mcp::{McpConnection, McpServerDef};
use tickfleet_model::retry::DoublingDelay;
use tickfleet_ops::metrics::McpServer;
use tickfleet_tools::Environment;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::link::{self, Link, PinStatus, ToolsCheck};
use super::throttle::Throttle;

/// The waits between attempts to connect. Together, a worker's default retries (1, 3, 9 s) last longer than the longest
/// wait. So a retried call can outlast a restart of the server.
const RECONNECTS: DoublingDelay = DoublingDelay::new(Duration::from_millis(500), Duration::from_secs(10));
/// After a connection that lasted this long, the waits start again from the first one.
const STEADY: Duration = Duration::from_secs(30);
/// The limit for the start, the handshake and the list of tools. `npx` may have to download a package first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a call waits for a connection. A longer wait would waste the call's slot.
const PATIENCE: Duration = Duration::from_secs(5);
/// Not every server announces changes, so the tools are checked at this interval too.
const RECHECK_EVERY: Duration = Duration::from_secs(300);
const RECHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// The connection is closed when the last tool of the server is dropped.
pub(super) struct Server {
    inner: Arc<ServerShared>,
    started: AtomicBool,
    _stops: DropGuard,
}

struct ServerShared {
    name: String,
    connection: McpConnection,
    pinned: BTreeMap<String, McpDefinition>,
    environment: Environment,
    state: watch::Sender<State>,
    stop: CancellationToken,
    ended: CancellationToken,
}

enum State {
    Connecting,
    Up(Arc<Link>),
    /// The next attempt to connect follows after a wait.
    Away,
    Stopped,
}

/// No connection is available, so nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkUnavailable {
    Away,
    Stopped,
}

impl Server {
    /// Does not connect. Secrets and `PATH` come from `environment`.
    pub(super) fn new(name: &str, def: &McpServerDef, environment: Environment) -> Self {
        let stop = CancellationToken::new();
        let inner = ServerShared {
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

    pub(super) fn now(&self) -> McpServer {
        let state = self.inner.state.borrow();
        let (up, quarantined) = match &*state {
            State::Up(link) => (link.is_open(), link.quarantined()),
            State::Connecting | State::Away | State::Stopped => (false, 0),
        };
        McpServer { name: self.inner.name.clone(), up, quarantined }
    }

    /// Requires a running runtime.
    pub(super) fn start(&self) {
        if !self.started.swap(true, Ordering::AcqRel) {
            tokio::spawn(supervise(Arc::clone(&self.inner)));
        }
    }

    pub(super) fn stop(&self) {
        self.inner.stop.cancel();
    }

    pub(super) async fn ended(&self) {
        if self.started.load(Ordering::Acquire) {
            self.inner.ended.cancelled().await;
        }
    }

    /// Waits at most `PATIENCE` while a connection is being made.
    pub(super) async fn link(&self) -> Result<Arc<Link>, LinkUnavailable> {
        self.start();
        let mut state = self.inner.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting));
        let Ok(Ok(state)) = tokio::time::timeout(PATIENCE, settled).await else {
            return Err(LinkUnavailable::Away);
        };
        match &*state {
            State::Up(link) if link.is_open() => Ok(Arc::clone(link)),
            State::Up(_) | State::Connecting | State::Away => Err(LinkUnavailable::Away),
            State::Stopped => Err(LinkUnavailable::Stopped),
        }
    }
}

/// Ends when the last tool of the server is dropped or this process stops.
async fn supervise(server: Arc<ServerShared>) {
    let mut reconnects = RECONNECTS;
    loop {
        let since = tokio::select! {
            () = server.stop.cancelled() => break,
            since = run_once(&server) => since,
        };
        let up = since.map_or(Duration::ZERO, |since| since.elapsed());
        if up >= STEADY {
            reconnects.reset();
        }
        server.state.send_replace(State::Away);
        tokio::select! {
            () = server.stop.cancelled() => break,
            () = tokio::time::sleep(reconnects.next_wait()) => {}
        }
        server.state.send_replace(State::Connecting);
    }
    if let State::Up(link) = server.state.send_replace(State::Stopped) {
        link.stop().await;
    }
    server.ended.cancel();
}

async fn run_once(server: &Arc<ServerShared>) -> Option<Instant> {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected(server)).await;
    let link = match connected.unwrap_or_else(|_| Err(format!("not ready within {} s", CONNECT_TIMEOUT.as_secs()))) {
        Ok(link) => link,
        Err(reason) => {
            tracing::warn!(server = server.name, reason, "MCP server unavailable");
            return None;
        }
    };
    let since = Instant::now();
    tracing::info!(server = server.name, version = link.version(), "MCP server connected");
    server.state.send_replace(State::Up(Arc::clone(&link)));
    let reason = monitor(server, &link).await;
    tracing::warn!(server = server.name, reason, "MCP server disconnected");
    Some(since)
}

async fn connected(server: &ServerShared) -> Result<Arc<Link>, String> {
    let link = link::connect(&server.name, &server.connection, &server.environment).await?;
    let checked = link.check(&server.pinned).await?;
    report(server, &checked);
    Ok(Arc::new(link))
}

/// Returns the reason why new calls need another connection. Running calls continue on this connection.
async fn monitor(server: &ServerShared, link: &Arc<Link>) -> String {
    let mut throttle = Throttle::default();
    loop {
        let is_announced = tokio::select! {
            () = link.closed() => return "the server has ended".to_owned(),
            () = link.found_stale() => return "its session is over".to_owned(),
            () = link.changed() => true,
            () = tokio::time::sleep(RECHECK_EVERY) => false,
        };
        if is_announced {
            let pause = throttle.pause(Instant::now());
            link.set_noisy(throttle.is_noisy());
            if throttle.has_become_noisy() {
                tracing::warn!(
                    server = server.name,
                    "MCP server keeps announcing tool changes; listing its tools with growing delays"
                );
            }
            tokio::select! {
                () = link.closed() => return "the server has ended".to_owned(),
                () = link.found_stale() => return "its session is over".to_owned(),
                () = tokio::time::sleep(pause) => {}
            }
        }
        match tokio::time::timeout(RECHECK_TIMEOUT, link.check(&server.pinned)).await {
            Ok(Ok(checked)) => report(server, &checked),
            Ok(Err(reason)) => return reason,
            Err(_) => return "it did not list its tools in time".to_owned(),
        }
    }
}

fn report(server: &ServerShared, checked: &ToolsCheck) {
    for malformed in &checked.malformed {
        let tool = malformed.name.as_str();
        let reason = malformed.why.as_str();
        tracing::warn!(server = server.name, tool, reason, "unreadable definition of an MCP tool; tool left out");
    }
    for (tool, verdict) in checked.verdicts.iter().filter(|(_, verdict)| **verdict != PinStatus::AsPinned) {
        let what = match verdict {
            PinStatus::Changed(parts) => format!("different from pinned: {}", parts.join(", ")),
            PinStatus::Malformed(why) => format!("it cannot be read: {why}"),
            PinStatus::Gone | PinStatus::AsPinned => "the server no longer offers it".to_owned(),
        };
        tracing::warn!(server = server.name, tool, what, "MCP tool quarantined; review and pin it again");
    }
}
