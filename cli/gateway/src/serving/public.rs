//! The base URL of a gateway, and its metadata for clients that need a token (RFC 9728).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use reqwest::Url;
use serde_json::{Value, json};
use tickfleet_model::AgentId;

use crate::Shared;
use crate::problem::Problem;

/// The path of the protected resource follows (RFC 9728, section 3).
pub(crate) const METADATA: &str = "/.well-known/oauth-protected-resource";

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl(String);

impl std::str::FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?}: expected https:// (or http://), a host and optionally a port");
        let url = Url::parse(text).map_err(|_| expected())?;
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let is_nobody = url.username().is_empty() && url.password().is_none();
        if !["https", "http"].contains(&url.scheme()) || !url.has_host() || !is_bare || !is_nobody {
            return Err(expected());
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

impl PublicUrl {
    pub(crate) fn approvals(&self) -> String {
        format!("{}/console/#/approvals", self.0)
    }

    /// An identity provider returns the browser to this URL.
    pub(crate) fn console(&self) -> String {
        format!("{}/console/", self.0)
    }

    pub(crate) fn is_origin(&self, origin: &HeaderValue) -> bool {
        origin.as_bytes() == self.0.as_bytes()
    }

    /// An agent's MCP server has its own metadata; all other paths use the gateway's.
    fn metadata(&self, path: &str) -> String {
        let own = if agent_of(path).is_some() { path } else { "" };
        format!("{}{METADATA}{own}", self.0)
    }
}

fn agent_of(path: &str) -> Option<AgentId> {
    AgentId::new(path.strip_prefix("/v1/agents/")?.strip_suffix("/mcp")?).ok()
}

pub(crate) async fn of_gateway(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, Problem> {
    shared.metadata("")
}

pub(crate) async fn of_path(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<String>,
) -> Result<Json<Value>, Problem> {
    let path = format!("/{path}");
    agent_of(&path).ok_or_else(|| Problem::not_found("only an agent's MCP server has its own metadata"))?;
    shared.metadata(&path)
}

impl Shared {
    fn metadata(&self, path: &str) -> Result<Json<Value>, Problem> {
        let (Some(public), Some(tokens)) = (&self.public, &self.credentials.tokens) else {
            return Err(Problem::not_found(
                "no metadata: this gateway does not accept tokens, or --public-url is not set",
            ));
        };
        Ok(Json(json!({
            "resource": format!("{}{path}", public.0),
            "resource_name": "Tickfleet",
            "authorization_servers": [tokens.issuer()],
            "bearer_methods_supported": ["header"],
        })))
    }
}

/// RFC 9728, section 5.1.
pub(crate) async fn challenge(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let public = shared.public.as_ref().filter(|_| shared.credentials.tokens.is_some());
    let metadata = public.map(|public| public.metadata(request.uri().path()));
    let was_sent = request.headers().contains_key(header::AUTHORIZATION);
    let mut response = next.run(request).await;
    if let Some(metadata) = metadata.filter(|_| response.status() == StatusCode::UNAUTHORIZED) {
        let error = if was_sent { "error=\"invalid_token\", " } else { "" };
        // A URL and an agent id contain no quotes, so the header value needs no escapes.
        if let Ok(value) = HeaderValue::try_from(format!("Bearer {error}resource_metadata=\"{metadata}\"")) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_public_url_has_only_a_scheme_host_and_port() {
        for good in
            ["https://fleet.example.com", "https://fleet.example.com/", "http://127.0.0.1:8080", "https://[::1]:8443"]
        {
            let url: PublicUrl = good.parse().unwrap();
            assert_eq!(url.0, good.trim_end_matches('/'));
        }
        for bad in [
            "fleet.example.com",
            "ftp://a",
            "https://a/b",
            "https://a?b",
            "https://a#b",
            "https://u:p@a",
            "https://",
            "",
        ] {
            assert!(bad.parse::<PublicUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_an_agents_mcp_path_has_its_own_metadata() {
        let url: PublicUrl = "https://fleet.example.com".parse().unwrap();
        let at = |path: &str| {
            url.metadata(path).replace("https://fleet.example.com/.well-known/oauth-protected-resource", "M")
        };
        assert_eq!(at("/v1/agents/kelly/mcp"), "M/v1/agents/kelly/mcp");
        for path in
            ["/v1/turns", "/v1/agents/kelly/mcp/", "/v1/agents/a b/mcp", "/v1/agents/a\"b/mcp", "/v1/agents/a/b/mcp"]
        {
            assert_eq!(at(path), "M", "{path}");
        }
    }
}
