//! A web service for tools of the kind `http`, and an MCP server without sessions. Both return the text that they
//! receive.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use axum::extract::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};

/// Versions of MCP, the newest first. A client that requests another version gets the newest one.
const VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
const METHOD_NOT_FOUND: i32 = -32601;

/// Dropping this value stops the services.
pub(crate) struct Services {
    pub(super) address: String,
    serving: tokio::task::JoinHandle<()>,
}

impl Services {
    pub(super) async fn start() -> Result<Self> {
        let listener =
            tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for the services")?;
        let address = listener.local_addr()?.to_string();
        let routes = axum::Router::new().route("/echo", post(echo)).route("/mcp", post(mcp));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!(%error, "benchmark services stopped unexpectedly");
            }
        });
        Ok(Self { address, serving })
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn echo(Json(body): Json<Value>) -> Json<Value> {
    Json(json!({"text": body["text"]}))
}

async fn mcp(Json(message): Json<Value>) -> Response {
    match answer(&message) {
        Some(answer) => Json(answer).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    }
}

fn answer(message: &Value) -> Option<Value> {
    let id = message.get("id")?;
    let params = &message["params"];
    let result = match message["method"].as_str()? {
        "initialize" => {
            let wanted = VERSIONS.into_iter().find(|version| params["protocolVersion"] == *version);
            json!({
                "protocolVersion": wanted.unwrap_or(VERSIONS[0]),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "bench", "version": "1.0.0"},
            })
        }
        "ping" => json!({}),
        "tools/list" => json!({"tools": [tool()]}),
        "tools/call" => {
            let output = json!({"text": params["arguments"]["text"]});
            json!({"content": [{"type": "text", "text": output.to_string()}], "structuredContent": output})
        }
        _ => {
            let error = json!({"code": METHOD_NOT_FOUND, "message": "There is no such method."});
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": error}));
        }
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn tool() -> Value {
    json!({
        "name": "echo",
        "description": "Gives the text back.",
        "inputSchema": {
            "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"],
            "additionalProperties": false,
        },
        "annotations": {"readOnlyHint": true},
    })
}
