//! A tool of an MCP server: one call, from its arguments to what the answer means.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, JsonObject, RequestMetaObject, RequestParamsMeta,
};
use rmcp::service::{PeerRequestOptions, RequestHandle, RoleClient};
use serde_json::value::RawValue;
use tickfleet_model::Effect;
use tokio::time::Instant;

use super::link::{Link, Verdict};
use super::outcome::{self, Failed};
use super::server::{NoLink, Server};
use tickfleet_tools::{CallContext, Handler, ToolFailure, ToolOutput, wording};

/// Carries our idempotency key to a server that knows it.
const IDEMPOTENCY_KEY: &str = "tickfleet/idempotencyKey";
/// Bytes of a number that a message quotes.
const NUMBER_BYTES_MAX: usize = 60;

/// Runs calls of one tool.
pub(super) struct McpTool {
    server: Arc<Server>,
    /// The server's own name of the tool.
    own: String,
    /// What a second run would do.
    effect: Effect,
    /// Longest silence of a call: progress starts it anew. The worker's own limit is the cap.
    silence_max: Duration,
}

impl McpTool {
    pub(super) fn new(server: Arc<Server>, own: String, effect: Effect, silence_max: Duration) -> Self {
        Self { server, own, effect, silence_max }
    }

    /// The connection, where the tool on it is what was pinned.
    async fn admitted(&self) -> Result<Arc<Link>, ToolFailure> {
        let link = self.server.link().await.map_err(|why| self.away(why))?;
        let looked = tokio::time::timeout(self.silence_max, link.verdict(&self.own)).await;
        match looked.ok().flatten() {
            Some(Verdict::AsPinned) => Ok(link),
            Some(Verdict::Changed(parts)) => {
                let what = format!("its {} changed on the MCP server", parts.join(", "));
                Err(outcome::quarantined(&self.own, &what, &parts))
            }
            Some(Verdict::Gone) => {
                Err(outcome::quarantined(&self.own, "the MCP server does not offer it any more", &["gone"]))
            }
            None => Err(self.away(NoLink::Away)),
        }
    }

    fn away(&self, why: NoLink) -> ToolFailure {
        let what = match why {
            NoLink::Away => "is not available right now",
            NoLink::Stopped => "was closed, because the worker ends",
        };
        let message = format!("The MCP server '{}' {what}; the call was not sent.", self.server.name());
        ToolFailure::Transient { message, retry_after: None, not_executed: true }
    }

    fn request(&self, context: &CallContext, arguments: JsonObject) -> ClientRequest {
        let mut meta = RequestMetaObject::new();
        meta.0.0.insert(IDEMPOTENCY_KEY.to_owned(), context.idempotency_key.as_str().into());
        if let Some(trace) = context.trace() {
            meta.0.set_traceparent(trace.traceparent);
            trace.tracestate.into_iter().for_each(|state| meta.0.set_tracestate(state));
        }
        let mut params = CallToolRequestParams::new(self.own.clone()).with_arguments(arguments);
        *params.meta_mut() = Some(meta);
        ClientRequest::CallToolRequest(CallToolRequest::new(params))
    }
}

#[async_trait]
impl Handler for McpTool {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        if let Some(number) = inexact_integer(arguments.get()) {
            let number = wording::cut(number, NUMBER_BYTES_MAX);
            return Err(outcome::permanent(&format!(
                "The number {number} cannot be passed on exactly: integers have at most 64 bits here. Nothing was sent."
            )));
        }
        let arguments: JsonObject = serde_json::from_str(arguments.get())
            .map_err(|_| outcome::permanent("The arguments must be a JSON object."))?;
        let link = self.admitted().await?;
        let request = self.request(context, arguments);
        // An error here says that the connection took no more messages.
        let sent = link.peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
        let handle = sent.map_err(|_| self.away(NoLink::Away))?;
        let answer = Sent { link: Arc::clone(&link), handle: Some(handle) }.answer(self.silence_max).await;
        match answer {
            Some(Ok(result)) => outcome::output(result, self.effect, &link.secrets),
            Some(Err(error)) => {
                let Failed { failure, stale } =
                    outcome::failure(self.server.name(), &error, self.effect, &link.secrets);
                if stale {
                    link.mark_stale();
                }
                Err(failure)
            }
            None => {
                link.doubt();
                Err(ToolFailure::Transient {
                    message: format!("The MCP server was silent for {:.1} s.", self.silence_max.as_secs_f64()),
                    retry_after: None,
                    not_executed: false,
                })
            }
        }
    }
}

/// A request that is under way. Dropped before its answer, it tells the server that nobody waits any more.
struct Sent {
    link: Arc<Link>,
    handle: Option<RequestHandle<RoleClient>>,
}

impl Sent {
    /// Waits for the answer; none where the server was silent for too long.
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
                () = progress.made() => silence.as_mut().reset(Instant::now() + silence_max),
                () = silence.as_mut() => return None,
            }
        };
        self.handle = None;
        Some(answer)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        // Without a runtime the process ends, and the connection with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let link = Arc::clone(&self.link);
            runtime.spawn(async move {
                // It fails where the connection has ended, which cancels too.
                drop(handle.cancel(Some("nobody waits for the answer any more".to_owned())).await);
                drop(link);
            });
        }
    }
}

/// An integer in a JSON text that has more than 64 bits. The protocol library would round it.
fn inexact_integer(json: &str) -> Option<&str> {
    let bytes = json.as_bytes();
    let (mut at, mut in_string) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let more = |b: &u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
                let end = bytes[at..].iter().position(|b| !more(b)).map_or(bytes.len(), |length| at + length);
                let number = &json[at..end];
                let whole = !number.contains(['.', 'e', 'E']);
                if whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some(number);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_that_would_be_rounded_are_found_outside_strings_only() {
        let big = "123456789012345678901234567890";
        assert_eq!(inexact_integer(&format!(r#"{{"a":[1,{big}]}}"#)), Some(big));
        assert_eq!(inexact_integer(&format!(r#"{{"a":-{big}}}"#)), Some(format!("-{big}").as_str()));
        for fine in [
            format!(r#"{{"a":"{big}","b":"\"{big}"}}"#),
            r#"{"a":18446744073709551615,"b":-9223372036854775808}"#.to_owned(),
            r#"{"a":1e300,"b":0.12345678901234567890123,"é":1}"#.to_owned(),
        ] {
            assert_eq!(inexact_integer(&fine), None, "{fine}");
        }
    }
}
