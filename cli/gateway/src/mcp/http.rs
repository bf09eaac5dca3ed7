//! MCP over HTTP: one path for each agent. No session is kept, whatever the revision, so that any gateway answers any
//! request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tickfleet_model::{AgentId, limits};

use super::{McpServer, Principal};
use crate::caller::Caller;
use crate::problem::Problem;
use crate::turns::path;
use crate::{BODY_SLACK_BYTES, Shared};

/// What takes requests apart and writes answers.
pub(crate) type HttpServer = StreamableHttpService<McpServer, NeverSessionManager>;

/// Pages of the machine itself, whatever their port.
const LOCAL_ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

pub(crate) fn http_server(server: McpServer) -> HttpServer {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        // Keys are sent by whoever knows one, never by a browser by itself: the name of the host protects nothing here. A
        // page from elsewhere than the machine in front of its user is refused all the same, as the specification asks.
        .disable_allowed_hosts()
        .with_allowed_origins(LOCAL_ORIGINS)
        .with_max_request_body_bytes(limits::TURN_BYTES_MAX + BODY_SLACK_BYTES);
    StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config)
}

/// Answers a request for an agent's MCP server.
pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    agent: Result<Path<String>, PathRejection>,
    mut request: Request,
) -> Result<Response, Problem> {
    let agent = AgentId::new(path(agent)?).map_err(|error| Problem::invalid(error.to_string()))?;
    caller.speaks_for(&agent)?;
    let tenant = caller.tenant().clone();
    request.extensions_mut().insert(Principal { tenant, agent, caller: Some(caller) });
    Ok(shared.mcp.handle(request).await.map(Body::new))
}
