//! An open connection to a server. It receives notifications, and compares the server's tools with their pins.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientRequest, CustomResult, Implementation, ListToolsRequest,
    PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ProtocolVersion, ServerResult,
};
use rmcp::service::{
    ClientInitializeError, NotificationContext, Peer, RoleClient, RunningService, ServiceError, serve_client_with_ct,
};
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{DynamicTransportError, StreamableHttpClientTransport};
use tickfleet_config::McpDefinition;
use tickfleet_config::mcp::{McpConnection, McpTransport};
use tickfleet_model::limits;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::child::{self, ServerProcess};
use super::http::StreamableClient;
use super::lines::StdioTransport;
use super::listing::{Listing, Malformed};
use super::printable::{REASON_BYTES_MAX, printable};
use super::wire;
use tickfleet_outbound::client_for;
use tickfleet_tools::Environment;
use tickfleet_tools::Secrets;
use tickfleet_tools::standard_error::StderrTail;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of pending requests. A worker has fewer slots than this.
const REQUESTS_MAX: usize = 256;
const RESUMPTIONS_MAX: usize = 3;
const RESUMED_AFTER: Duration = Duration::from_millis(250);

const VERSION_BYTES_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PinStatus {
    AsPinned,
    /// The parts that differ from the pinned definition.
    Changed(Vec<&'static str>),
    /// The reason why the definition cannot be read.
    Malformed(String),
    Gone,
}

pub(super) struct ToolsCheck {
    pub(super) verdicts: Arc<PinStatuses>,
    pub(super) malformed: Vec<Malformed>,
}

/// The results of a check, by the tools' names on the server.
pub(super) type PinStatuses = BTreeMap<String, PinStatus>;

#[derive(Debug)]
struct NotificationState {
    /// Signals the progress of calls that wait for a response.
    progress: Mutex<HashMap<ProgressToken, Arc<Notify>>>,
    /// `None` while the tools are being checked.
    verdicts: watch::Sender<Option<Arc<PinStatuses>>>,
    changed: Notify,
    /// True if the server announces changes so often that calls no longer wait for each check.
    is_noisy: AtomicBool,
}

/// Offers the server no capabilities.
#[derive(Debug, Clone)]
struct NotificationHandler(Arc<NotificationState>);

impl rmcp::ClientHandler for NotificationHandler {
    fn get_info(&self) -> ClientConfig {
        let ours = Implementation::new("tickfleet", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), ours)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let waiting = self.0.progress.lock();
        if let Some(call) = waiting.get(&params.progress_token) {
            call.notify_one();
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        // Calls now wait until the tools have been checked again, except for a noisy server.
        if !self.0.is_noisy.load(Ordering::Acquire) {
            self.0.verdicts.send_replace(None);
        }
        self.0.changed.notify_one();
    }
}

/// Dropping this value closes the connection and ends the server's child process, if any.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Peer<RoleClient>,
    pub(super) secrets: Arc<Secrets>,
    notifications: Arc<NotificationState>,
    /// Canceled when no more messages can arrive.
    closed: CancellationToken,
    /// Canceled when a call has found that the session has ended, or may have ended.
    stale: CancellationToken,
    gone: CancellationToken,
    stop: CancellationToken,
    _stops: DropGuard,
}

/// An error is worded for an operator, without secrets.
pub(super) async fn connect(name: &str, connection: &McpConnection, environment: &Environment) -> Result<Link, String> {
    connect_with_tail(name, connection, environment, &Arc::default()).await
}

/// Like [`connect`], but `tail` receives the last lines that a child process writes to standard error.
pub(super) async fn connect_with_tail(
    name: &str,
    connection: &McpConnection,
    environment: &Environment,
    tail: &Arc<StderrTail>,
) -> Result<Link, String> {
    let secrets = Secrets::resolve(&connection.secrets, environment, None).await;
    let secrets = Arc::new(secrets.map_err(|name| format!("the secret '{name}' is missing"))?);
    let notifications = NotificationState {
        progress: Mutex::default(),
        verdicts: watch::Sender::new(None),
        changed: Notify::new(),
        is_noisy: AtomicBool::new(false),
    };
    let notifications = Arc::new(notifications);
    let stop = CancellationToken::new();
    let listener = NotificationHandler(Arc::clone(&notifications));
    let in_words = |error: ClientInitializeError| printable(&handshake_failure(&error), &secrets, REASON_BYTES_MAX);
    let (service, process) = match &connection.transport {
        stdio @ McpTransport::Stdio { .. } => {
            let (process, output, input) = child::start(name, stdio, &secrets, environment, tail)?;
            let messages = StdioTransport::new(name, Arc::clone(&secrets), output, input);
            match serve_client_with_ct(listener, messages, stop.clone()).await {
                Ok(service) => (service, Some(process)),
                Err(error) => {
                    let ended = process.end().await.map(|status| format!("; it ended with {status}"));
                    return Err(format!("{}{}{}", in_words(error), ended.unwrap_or_default(), tail.failure_suffix()));
                }
            }
        }
        McpTransport::Http { url, headers, allow_private } => {
            let client = client_for(url, allow_private, CONNECT_TIMEOUT)?;
            let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                .custom_headers(filled(headers, &secrets)?)
                .max_concurrent_requests(REQUESTS_MAX)
                .max_sse_event_size(limits::MCP_MESSAGE_BYTES_MAX)
                // A new session may belong to a new server, so the tools must be checked before the next call.
                .reinit_on_expired_session(false);
            config.channel_buffer_capacity = REQUESTS_MAX;
            config.retry_config = Arc::new(resumptions());
            let messages = StreamableHttpClientTransport::with_client(
                StreamableClient::new(client, name, Arc::clone(&secrets)),
                config,
            );
            (serve_client_with_ct(listener, messages, stop.clone()).await.map_err(in_words)?, None)
        }
    };
    Ok(Link::new(service, process, notifications, secrets, stop))
}

fn handshake_failure(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::JsonRpcError(error) if wire::is_unreadable(error) || wire::is_too_large(error) => {
            format!("the handshake failed: {}", error.message)
        }
        ClientInitializeError::JsonRpcError(error) => {
            format!("it rejected the handshake with the error {}: {}", error.code.0, error.message)
        }
        ClientInitializeError::ConnectionClosed(_) => "it ended before its response to `initialize`".to_owned(),
        ClientInitializeError::ExpectedInitResponse(None) => "it ended before its response to `initialize`".to_owned(),
        ClientInitializeError::TransportError { error, .. } => format!("the handshake failed: {}", causes(error)),
        ClientInitializeError::Cancelled => "the handshake was canceled".to_owned(),
        // The error's own message contains the unexpected response, so that message is not used.
        _ => "its response to `initialize` is invalid".to_owned(),
    }
}

fn causes(error: &DynamicTransportError) -> String {
    let mut message = error.error.to_string();
    let mut source = error.error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        // Some errors already quote their cause.
        if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
        source = error.source();
    }
    message
}

/// With few resumptions, the end of a server is detected soon.
fn resumptions() -> ExponentialBackoff {
    let mut policy = ExponentialBackoff::default();
    policy.max_times = Some(RESUMPTIONS_MAX);
    policy.base_duration = RESUMED_AFTER;
    policy
}

fn filled(headers: &BTreeMap<String, String>, secrets: &Secrets) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let fill = |(name, template): (&String, &String)| {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("'{name}' is not a header name"))?;
        let value = HeaderValue::from_str(&secrets.fill(template));
        let mut value = value.map_err(|_| format!("the header '{name}' would not be valid"))?;
        value.set_sensitive(true);
        Ok((header, value))
    };
    headers.iter().map(fill).collect()
}

impl Link {
    fn new(
        service: RunningService<RoleClient, NotificationHandler>,
        process: Option<ServerProcess>,
        notifications: Arc<NotificationState>,
        secrets: Arc<Secrets>,
        stop: CancellationToken,
    ) -> Self {
        let closed = CancellationToken::new();
        let gone = CancellationToken::new();
        let peer = service.peer().clone();
        let is_closed = closed.clone();
        let is_gone = gone.clone();
        tokio::spawn(async move {
            // An error means that the reading task was canceled or panicked. The connection has ended in any case.
            drop(service.waiting().await);
            is_closed.cancel();
            if let Some(process) = process {
                process.end().await;
            }
            is_gone.cancel();
        });
        let stale = CancellationToken::new();
        Self { peer, secrets, notifications, closed, stale, gone, _stops: stop.clone().drop_guard(), stop }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.closed.is_cancelled() && !self.stale.is_cancelled()
    }

    /// Makes the next call use a new connection. Call this also if the session may have ended.
    pub(super) fn mark_stale(&self) {
        self.stale.cancel();
    }

    pub(super) async fn found_stale(&self) {
        self.stale.cancelled().await;
    }

    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.gone.cancelled().await;
    }

    /// Used after a call without a response: the check shows whether the server still responds.
    pub(super) fn request_check(&self) {
        self.notifications.changed.notify_one();
    }

    pub(super) async fn changed(&self) {
        self.notifications.changed.notified().await;
    }

    pub(super) fn version(&self) -> Option<String> {
        let info = self.peer.peer_info()?;
        let version =
            info.server_info.as_ref().map(|server| printable(&server.version, &self.secrets, VERSION_BYTES_MAX));
        version.filter(|version| !version.is_empty())
    }

    /// Fails also if the server lists more tools than allowed.
    pub(super) async fn tools(&self) -> Result<Listing, String> {
        let reason = |what: String| printable(&what, &self.secrets, REASON_BYTES_MAX);
        let mut listing = Listing::default();
        let mut cursor = None;
        loop {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let request =
                ListToolsRequest { method: Default::default(), params: Some(page), extensions: Default::default() };
            let page = match self.peer.send_request(ClientRequest::ListToolsRequest(request)).await {
                Ok(ServerResult::CustomResult(CustomResult(serde_json::Value::String(page)))) => page,
                Ok(_) => return Err("its response to `tools/list` is not a list".to_owned()),
                Err(ServiceError::McpError(error)) if wire::is_unreadable(&error) || wire::is_too_large(&error) => {
                    return Err(reason(format!("its list of tools could not be read: {}", error.message)));
                }
                Err(ServiceError::McpError(error)) => {
                    return Err(reason(format!(
                        "it rejected `tools/list` with the error {}: {}",
                        error.code.0, error.message
                    )));
                }
                Err(ServiceError::TransportClosed) => return Err("it ended before it listed its tools".to_owned()),
                Err(ServiceError::TransportSend(error)) => {
                    return Err(reason(format!("it did not list its tools: {}", causes(&error))));
                }
                Err(error) => return Err(reason(format!("it did not list its tools: {error}"))),
            };
            cursor = listing.take(&page).map_err(reason)?;
            if cursor.is_none() {
                listing.scrub(&self.secrets);
                return Ok(listing);
            }
        }
    }

    pub(super) async fn check(&self, pinned: &BTreeMap<String, McpDefinition>) -> Result<ToolsCheck, String> {
        let Listing { tools: live, malformed, .. } = self.tools().await?;
        let judge = |(name, tool): (&String, &McpDefinition)| {
            let verdict = match live.iter().find(|live| live.name == *name) {
                None => match malformed.iter().find(|malformed| malformed.name == *name) {
                    Some(malformed) => PinStatus::Malformed(malformed.why.clone()),
                    None => PinStatus::Gone,
                },
                Some(live) if live.digest() == tool.digest() => PinStatus::AsPinned,
                Some(live) => PinStatus::Changed(tool.differences(live)),
            };
            (name.clone(), verdict)
        };
        let verdicts: Arc<PinStatuses> = Arc::new(pinned.iter().map(judge).collect());
        self.notifications.verdicts.send_replace(Some(Arc::clone(&verdicts)));
        Ok(ToolsCheck { verdicts, malformed })
    }

    pub(super) fn set_noisy(&self, is_noisy: bool) {
        self.notifications.is_noisy.store(is_noisy, Ordering::Release);
    }

    /// The result of the last check. Waits for a check that is in progress. `None` if the connection ends first.
    pub(super) async fn verdict(&self, tool: &str) -> Option<PinStatus> {
        let mut verdicts = self.notifications.verdicts.subscribe();
        let known = tokio::select! {
            known = verdicts.wait_for(Option::is_some) => known.ok()?.clone(),
            () = self.closed.cancelled() => None,
        };
        Some(known?.get(tool).cloned().unwrap_or(PinStatus::Gone))
    }

    pub(super) fn quarantined(&self) -> usize {
        let verdicts = self.notifications.verdicts.borrow();
        verdicts.as_ref().map_or(0, |verdicts| verdicts.values().filter(|v| **v != PinStatus::AsPinned).count())
    }

    pub(super) fn progress_of(self: &Arc<Self>, token: ProgressToken) -> ProgressSubscription {
        let progress = Arc::new(Notify::new());
        let mut waiting = self.notifications.progress.lock();
        waiting.insert(token.clone(), Arc::clone(&progress));
        drop(waiting);
        ProgressSubscription { progress, token, link: Arc::clone(self) }
    }
}

pub(super) struct ProgressSubscription {
    progress: Arc<Notify>,
    token: ProgressToken,
    link: Arc<Link>,
}

impl ProgressSubscription {
    pub(super) async fn notified(&self) {
        self.progress.notified().await;
    }
}

impl Drop for ProgressSubscription {
    fn drop(&mut self) {
        let mut waiting = self.link.notifications.progress.lock();
        waiting.remove(&self.token);
    }
}
