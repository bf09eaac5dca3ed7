//! MCP over HTTP. No protocol revision uses a session, so any gateway can serve any request.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header;
use axum::response::Response;
use futures::StreamExt;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tickfleet_model::{AgentId, limits};

use super::{McpServer, Principal, digits};
use crate::caller::Caller;
use crate::problem::Problem;
use crate::turns::path;
use crate::{BODY_SLACK_BYTES, Shared};

pub(crate) type HttpServer = StreamableHttpService<McpServer, NeverSessionManager>;

const BODY_BYTES_MAX: usize = limits::TURN_BYTES_MAX + BODY_SLACK_BYTES;
/// The shortest replaced number is `1e400`. Its quotes and mark add 51 bytes, so a body grows less than tenfold.
const GUARDED_BYTES_MAX: usize = 10 * BODY_BYTES_MAX;
const LOCAL_ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

pub(crate) fn http_server(server: McpServer) -> HttpServer {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        // No browser adds the key automatically, so a check of the host name would protect nothing.
        .disable_allowed_hosts()
        .with_allowed_origins(LOCAL_ORIGINS)
        .with_max_request_body_bytes(GUARDED_BYTES_MAX);
    StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config)
}

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    agent: Result<Path<String>, PathRejection>,
    mut request: Request,
) -> Result<Response, Problem> {
    let agent = AgentId::new(path(agent)?).map_err(|error| Problem::invalid(error.to_string()))?;
    caller.require_agent(&agent)?;
    let tenant = caller.tenant().clone();
    request.extensions_mut().insert(Principal { tenant, agent, caller: Some(caller) });
    let request = with_guarded_digits(request).await?;
    Ok(with_digits(shared.mcp.handle(request).await.map(Body::new)).await)
}

async fn with_guarded_digits(request: Request) -> Result<Request, Problem> {
    let (head, body) = request.into_parts();
    // Every error is reported as a body that is too large. A body can also end early, but then no client waits for
    // the response.
    let bytes = axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| Problem::too_large())?;
    let body = match std::str::from_utf8(&bytes).map(digits::guarded) {
        Ok(Cow::Owned(guarded)) => guarded.into(),
        Ok(Cow::Borrowed(_)) | Err(_) => bytes.into(),
    };
    Ok(Request::from_parts(head, body))
}

async fn with_digits(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    let is_json =
        head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let restored = |bytes: Bytes| match std::str::from_utf8(&bytes).map(digits::restored) {
        Ok(Cow::Owned(restored)) => Bytes::from(restored),
        Ok(Cow::Borrowed(_)) | Err(_) => bytes,
    };
    head.headers.remove(header::CONTENT_LENGTH);
    let body = if is_json {
        // The library has already built the JSON body in memory, so the read needs no size limit.
        axum::body::to_bytes(body, usize::MAX).await.map(restored).unwrap_or_default().into()
    } else {
        // An event is written in one piece, so no number is split.
        Body::from_stream(body.into_data_stream().map(move |piece| piece.map(restored)))
    };
    Response::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_body_of_short_numbers_fits_after_their_replacement() {
        let body = format!("[{}1]", "1e400,".repeat((BODY_BYTES_MAX - 3) / 6));
        assert!(body.len() <= BODY_BYTES_MAX && digits::guarded(&body).len() <= GUARDED_BYTES_MAX);
    }
}
