//! A connection to a server that is up: what is heard on it, and which tools still are what was pinned.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientRequest, Implementation, ListToolsRequest, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ServerResult,
};
use rmcp::service::{
    ClientInitializeError, NotificationContext, Peer, RoleClient, RunningService, serve_client_with_ct,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use tickfleet_config::McpDefinition;
use tickfleet_config::mcp::{McpConnection, McpTransport};
use tickfleet_model::limits;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::bounded::Bounded;
use super::child::{self, ServerProcess};
use super::definition;
use super::http::Answering;
use tickfleet_outbound::client_for;
use tickfleet_tools::Environment;
use tickfleet_tools::Secrets;
use tickfleet_tools::standard_error::Tail;
use tickfleet_tools::wording;

/// Limit of resolving, connecting and the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls on one connection whose requests are under way; more than a worker has slots.
const REQUESTS_MAX: usize = 256;
/// The number of times that a stream that broke off is asked to go on, and the time from the break to the first of
/// them.
const RESUMPTIONS_MAX: usize = 3;
const RESUMED_AFTER: Duration = Duration::from_millis(250);
/// Bytes of a server's words that go into a reason.
const REASON_BYTES_MAX: usize = 300;

/// The verdict whether a tool still is what was pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is.
    AsPinned,
    /// These parts of its definition are others.
    Changed(Vec<&'static str>),
    /// The server has no such tool any more.
    Gone,
}

/// The verdicts by the server's own names.
pub(super) type Verdicts = BTreeMap<String, Verdict>;

/// The news that a server gives without being asked.
#[derive(Debug)]
struct Heard {
    /// Calls that wait, by what their progress is known by.
    progress: Mutex<HashMap<ProgressToken, Arc<Notify>>>,
    /// None while the tools are looked at.
    verdicts: watch::Sender<Option<Arc<Verdicts>>>,
    changed: Notify,
}

/// Our end of the protocol: it offers a server nothing.
#[derive(Debug, Clone)]
struct Listener(Arc<Heard>);

impl rmcp::ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let ours = Implementation::new("tickfleet", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), ours)
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let waiting = self.0.progress.lock();
        if let Some(call) = waiting.get(&params.progress_token) {
            call.notify_one();
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        // From here on no call is sent until the tools were looked at again.
        self.0.verdicts.send_replace(None);
        self.0.changed.notify_one();
    }
}

/// A connection. Dropping it closes it, and ends a child process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Peer<RoleClient>,
    /// The secrets that it was made with.
    pub(super) secrets: Arc<Secrets>,
    heard: Arc<Heard>,
    /// Cancelled when no message can come any more.
    closed: CancellationToken,
    /// Cancelled when a call has found that the session is over, or may be.
    stale: CancellationToken,
    /// Cancelled when the child process has ended too.
    gone: CancellationToken,
    stop: CancellationToken,
    _stops: DropGuard,
}

/// Connects and shakes hands.
///
/// # Errors
/// Why not, in words for an operator, without secrets.
pub(super) async fn connect(name: &str, connection: &McpConnection, environment: &Environment) -> Result<Link, String> {
    connect_heard(name, connection, environment, &Arc::default()).await
}

/// As [`connect`]; what a server that is a child process says on standard error can be read in `tail` meanwhile.
///
/// # Errors
/// As [`connect`].
pub(super) async fn connect_heard(
    name: &str,
    connection: &McpConnection,
    environment: &Environment,
    tail: &Arc<Tail>,
) -> Result<Link, String> {
    let secrets = Secrets::resolve(&connection.secrets, environment, None).await;
    let secrets = Arc::new(secrets.map_err(|name| format!("the secret '{name}' is missing"))?);
    let heard = Heard { progress: Mutex::default(), verdicts: watch::Sender::new(None), changed: Notify::new() };
    let (heard, stop) = (Arc::new(heard), CancellationToken::new());
    let listener = Listener(Arc::clone(&heard));
    let in_words = |error: ClientInitializeError| {
        wording::cut(&secrets.scrub(&format!("it did not shake hands ({error})")), REASON_BYTES_MAX)
    };
    let (service, process) = match &connection.transport {
        stdio @ McpTransport::Stdio { .. } => {
            let (process, output, input) = child::start(name, stdio, &secrets, environment, tail)?;
            let messages = AsyncRwTransport::new_client(Bounded::new(output, name), input);
            let messages = messages.with_max_line_length(limits::MCP_MESSAGE_BYTES_MAX);
            match serve_client_with_ct(listener, messages, stop.clone()).await {
                Ok(service) => (service, Some(process)),
                Err(error) => {
                    let ended = process.end().await.map(|status| format!("; it ended with {status}"));
                    return Err(format!("{}{}{}", in_words(error), ended.unwrap_or_default(), tail.words()));
                }
            }
        }
        McpTransport::Http { url, headers, allow_private } => {
            let client = client_for(url, allow_private, CONNECT_TIMEOUT)?;
            let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                .custom_headers(filled(headers, &secrets)?)
                .max_concurrent_requests(REQUESTS_MAX)
                .max_sse_event_size(limits::MCP_MESSAGE_BYTES_MAX)
                // A session that has ended is a server that may be another: it is looked at before it is called.
                .reinit_on_expired_session(false);
            config.channel_buffer_capacity = REQUESTS_MAX;
            config.retry_config = Arc::new(resumptions());
            let messages = StreamableHttpClientTransport::with_client(Answering(client), config);
            (serve_client_with_ct(listener, messages, stop.clone()).await.map_err(in_words)?, None)
        }
    };
    Ok(Link::new(service, process, heard, secrets, stop))
}

/// Returns how often a stream that broke off is asked to go on: a server that has ended should be found out, not waited
/// for.
fn resumptions() -> ExponentialBackoff {
    let mut policy = ExponentialBackoff::default();
    policy.max_times = Some(RESUMPTIONS_MAX);
    policy.base_duration = RESUMED_AFTER;
    policy
}

fn filled(headers: &BTreeMap<String, String>, secrets: &Secrets) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let fill = |(name, template): (&String, &String)| {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("'{name}' is no header name"))?;
        let value = HeaderValue::from_str(&secrets.fill(template));
        let mut value = value.map_err(|_| format!("the header '{name}' would not be valid"))?;
        value.set_sensitive(true);
        Ok((header, value))
    };
    headers.iter().map(fill).collect()
}

impl Link {
    fn new(
        service: RunningService<RoleClient, Listener>,
        process: Option<ServerProcess>,
        heard: Arc<Heard>,
        secrets: Arc<Secrets>,
        stop: CancellationToken,
    ) -> Self {
        let (closed, gone) = (CancellationToken::new(), CancellationToken::new());
        let peer = service.peer().clone();
        let (is_closed, is_gone) = (closed.clone(), gone.clone());
        tokio::spawn(async move {
            // An error says that the task which reads was cancelled or panicked: closed either way.
            drop(service.waiting().await);
            is_closed.cancel();
            if let Some(process) = process {
                process.end().await;
            }
            is_gone.cancel();
        });
        let stale = CancellationToken::new();
        Self { peer, secrets, heard, closed, stale, gone, _stops: stop.clone().drop_guard(), stop }
    }

    /// Returns true if calls can be sent on it.
    pub(super) fn is_open(&self) -> bool {
        !self.closed.is_cancelled() && !self.stale.is_cancelled()
    }

    /// A call has found that the session is over, or may be: another connection is made for the next one.
    pub(super) fn mark_stale(&self) {
        self.stale.cancel();
    }

    /// Waits until a call has found that the session is over.
    pub(super) async fn found_stale(&self) {
        self.stale.cancelled().await;
    }

    /// Waits until no message can come any more.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Closes the connection and waits for the end of the child process.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.gone.cancelled().await;
    }

    /// A call has waited in vain: whether the server still answers is found out by looking at its tools again.
    pub(super) fn doubt(&self) {
        self.heard.changed.notify_one();
    }

    /// Waits until the server says that its tools are others, or somebody doubts that it answers.
    pub(super) async fn changed(&self) {
        self.heard.changed.notified().await;
    }

    /// The version that the server gives of itself.
    pub(super) fn version(&self) -> Option<String> {
        let info = self.peer.peer_info()?;
        info.server_info.as_ref().map(|server| wording::cut(&server.version, REASON_BYTES_MAX))
    }

    /// Asks for all tools.
    ///
    /// # Errors
    /// Why not, in words; more tools than a server may have are an error too.
    pub(super) async fn tools(&self) -> Result<Vec<McpDefinition>, String> {
        let (mut tools, mut cursor) = (Vec::new(), None);
        loop {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let request =
                ListToolsRequest { method: Default::default(), params: Some(page), extensions: Default::default() };
            let answer = self.peer.send_request(ClientRequest::ListToolsRequest(request)).await;
            let said = |what: String| wording::cut(&self.secrets.scrub(&what), REASON_BYTES_MAX);
            let list = match answer {
                Ok(ServerResult::ListToolsResult(list)) => list,
                Ok(_) => return Err("it answered the question for its tools with something else".to_owned()),
                Err(error) => return Err(said(format!("it did not list its tools ({error})"))),
            };
            let more = list.next_cursor.is_some();
            // An empty page with a successor could go on for ever.
            if tools.len() + list.tools.len() > limits::MCP_TOOLS_MAX || (more && list.tools.is_empty()) {
                return Err(format!("it lists more than {} tools", limits::MCP_TOOLS_MAX));
            }
            tools.extend(list.tools.iter().map(definition::of));
            if !more {
                return Ok(tools);
            }
            cursor = list.next_cursor;
        }
    }

    /// Looks which of the pinned tools still are what was pinned, and lets calls go on. Answers the verdicts.
    ///
    /// # Errors
    /// As [`Self::tools`].
    pub(super) async fn check(&self, pinned: &BTreeMap<String, McpDefinition>) -> Result<Arc<Verdicts>, String> {
        let live = self.tools().await?;
        let judge = |(name, tool): (&String, &McpDefinition)| {
            let verdict = match live.iter().find(|live| live.name == *name) {
                None => Verdict::Gone,
                Some(live) if live.digest() == tool.digest() => Verdict::AsPinned,
                Some(live) => Verdict::Changed(tool.differences(live)),
            };
            (name.clone(), verdict)
        };
        let verdicts: Arc<Verdicts> = Arc::new(pinned.iter().map(judge).collect());
        self.heard.verdicts.send_replace(Some(Arc::clone(&verdicts)));
        Ok(verdicts)
    }

    /// Returns whether a tool still is what was pinned; waits while the tools are looked at. None if the connection
    /// ends before that is known.
    pub(super) async fn verdict(&self, tool: &str) -> Option<Verdict> {
        let mut verdicts = self.heard.verdicts.subscribe();
        let known = tokio::select! {
            known = verdicts.wait_for(Option::is_some) => known.ok()?.clone(),
            () = self.closed.cancelled() => None,
        };
        Some(known?.get(tool).cloned().unwrap_or(Verdict::Gone))
    }

    /// Counts the pinned tools that are not what was pinned, as they were seen last.
    pub(super) fn quarantined(&self) -> usize {
        let verdicts = self.heard.verdicts.borrow();
        verdicts.as_ref().map_or(0, |verdicts| verdicts.values().filter(|v| **v != Verdict::AsPinned).count())
    }

    /// Hears of a call's progress until it is dropped.
    pub(super) fn progress_of(self: &Arc<Self>, token: ProgressToken) -> Progress {
        let heard = Arc::new(Notify::new());
        let mut waiting = self.heard.progress.lock();
        waiting.insert(token.clone(), Arc::clone(&heard));
        drop(waiting);
        Progress { heard, token, link: Arc::clone(self) }
    }
}

/// Hears of one call's progress.
pub(super) struct Progress {
    heard: Arc<Notify>,
    token: ProgressToken,
    link: Arc<Link>,
}

impl Progress {
    /// Waits for the next notice.
    pub(super) async fn made(&self) {
        self.heard.notified().await;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut waiting = self.link.heard.progress.lock();
        waiting.remove(&self.token);
    }
}
