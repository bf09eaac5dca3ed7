//! A tool of an MCP server: runs one call, from the arguments to the interpretation of the response.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, RequestMetaObject, RequestParamsMeta};
use rmcp::service::{PeerRequestOptions, RequestHandle, RoleClient};
use serde_json::value::RawValue;
use tickfleet_config::McpDefinition;
use tickfleet_model::Effect;
use tokio::time::Instant;

use super::link::{Link, PinStatus};
use super::outcome::{self, CallFailure};
use super::server::{LinkUnavailable, Server};
use super::wire::RawArguments;
use tickfleet_tools::{CallContext, Handler, ToolFailure, ToolOutput};

/// The metadata key of the call's idempotency key. Some servers support it.
const IDEMPOTENCY_KEY: &str = "tickfleet/idempotencyKey";

pub(super) struct McpTool {
    server: Arc<Server>,
    own: String,
    effect: Effect,
    is_structured: bool,
    /// Each progress notification restarts this limit. The worker's own timeout limits the whole call.
    silence_max: Duration,
}

impl McpTool {
    pub(super) fn new(server: Arc<Server>, tool: &McpDefinition, effect: Effect, silence_max: Duration) -> Self {
        Self { server, own: tool.name.clone(), effect, is_structured: tool.output_schema.is_some(), silence_max }
    }

    /// Fails if the tool's current definition differs from the pinned definition.
    async fn admitted(&self) -> Result<Arc<Link>, ToolFailure> {
        let link = self.server.link().await.map_err(|why| self.away(why))?;
        let looked = tokio::time::timeout(self.silence_max, link.verdict(&self.own)).await;
        match looked.ok().flatten() {
            Some(PinStatus::AsPinned) => Ok(link),
            Some(PinStatus::Changed(parts)) => {
                let what = format!("its {} changed on the MCP server", parts.join(", "));
                Err(outcome::quarantined(&self.own, &what, &parts))
            }
            Some(PinStatus::Malformed(why)) => {
                let what = format!("the MCP server's definition of it cannot be read ({why})");
                Err(outcome::quarantined(&self.own, &what, &["malformed"]))
            }
            Some(PinStatus::Gone) => {
                Err(outcome::quarantined(&self.own, "the MCP server no longer offers it", &["gone"]))
            }
            None => Err(self.away(LinkUnavailable::Away)),
        }
    }

    fn away(&self, why: LinkUnavailable) -> ToolFailure {
        let what = match why {
            LinkUnavailable::Away => "is not available right now",
            LinkUnavailable::Stopped => "was closed, because the worker is stopping",
        };
        let message = format!("The MCP server '{}' {what}; the call was not sent.", self.server.name());
        ToolFailure::Transient { message, retry_after: None, not_executed: true }
    }

    fn request(&self, context: &CallContext, arguments: &RawValue) -> ClientRequest {
        let mut meta = RequestMetaObject::new();
        meta.0.0.insert(IDEMPOTENCY_KEY.to_owned(), context.idempotency_key.as_str().into());
        if let Some(trace) = context.trace() {
            meta.0.set_traceparent(trace.traceparent);
            trace.tracestate.into_iter().for_each(|state| meta.0.set_tracestate(state));
        }
        let mut params = CallToolRequestParams::new(self.own.clone());
        *params.meta_mut() = Some(meta);
        let mut request = CallToolRequest::new(params);
        request.extensions.insert(RawArguments(arguments.get().into()));
        ClientRequest::CallToolRequest(request)
    }
}

#[async_trait]
impl Handler for McpTool {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        if !arguments.get().starts_with('{') {
            return Err(outcome::permanent("The arguments must be a JSON object."));
        }
        let link = self.admitted().await?;
        let request = self.request(context, arguments);
        // Sending fails only if the connection accepts no more messages, so nothing was sent.
        let sent = link.peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
        let handle = sent.map_err(|_| self.away(LinkUnavailable::Away))?;
        let answer = PendingRequest { link: Arc::clone(&link), handle: Some(handle) }.answer(self.silence_max).await;
        match answer {
            Some(Ok(result)) => outcome::output(result, self.effect, self.is_structured, &link.secrets),
            Some(Err(error)) => {
                let CallFailure { failure, stale } =
                    outcome::failure(self.server.name(), &error, self.effect, &link.secrets);
                if stale {
                    link.mark_stale();
                }
                Err(failure)
            }
            None => {
                link.request_check();
                Err(ToolFailure::Transient {
                    message: format!("The MCP server was silent for {:.1} s.", self.silence_max.as_secs_f64()),
                    retry_after: None,
                    not_executed: false,
                })
            }
        }
    }
}

/// Dropping this value before the response asks the server to cancel the request.
struct PendingRequest {
    link: Arc<Link>,
    handle: Option<RequestHandle<RoleClient>>,
}

impl PendingRequest {
    /// `None` if the server was silent for too long.
    async fn answer(
        mut self,
        silence_max: Duration,
    ) -> Option<Result<rmcp::model::ServerResult, rmcp::service::ServiceError>> {
        let handle = self.handle.as_mut()?;
        let progress = self.link.progress_of(handle.progress_token.clone());
        let mut silence = Box::pin(tokio::time::sleep(silence_max));
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut handle.rx => break answer.unwrap_or(Err(rmcp::service::ServiceError::TransportClosed)),
                () = progress.notified() => silence.as_mut().reset(Instant::now() + silence_max),
                () = silence.as_mut() => return None,
            }
        };
        self.handle = None;
        Some(answer)
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        // Without a runtime, the process is exiting, which also closes the connection.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let link = Arc::clone(&self.link);
            runtime.spawn(async move {
                // If the connection has ended, the cancellation fails, but the request is canceled anyway.
                drop(handle.cancel(Some("the caller no longer waits for the answer".to_owned())).await);
                drop(link);
            });
        }
    }
}
