//! Requests of MCP clients.

use serde_json::{Value, json};

use super::{Gateway, HttpResponse};

pub const HEAD: &str = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";
pub const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

pub fn request(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

pub fn hello() -> Value {
    json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
}

/// The headers of revision 2026-07-28.
pub fn head(method: &str, params: &Value) -> String {
    let named = params["name"].as_str().or(params["taskId"].as_str()).map(|name| format!("mcp-name: {name}\r\n"));
    format!("{HEAD}mcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\n{}", named.unwrap_or_default())
}

/// Adds the members that revision 2026-07-28 requires, and the support of tasks.
pub fn with_meta(mut params: Value) -> Value {
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "test", "version": "1"});
    meta[CAPABILITIES]["extensions"]["io.modelcontextprotocol/tasks"] = json!({});
    params
}

impl Gateway {
    /// Revision 2025-11-25, which has a handshake.
    pub fn mcp(&self, key: &str, agent: &str, method: &str, params: &Value) -> HttpResponse {
        let head = format!("{HEAD}mcp-protocol-version: 2025-11-25\r\n");
        self.ask_with(key, "POST", &format!("/v1/agents/{agent}/mcp"), &head, &request(method, params))
    }

    /// Revision 2026-07-28.
    pub fn mcp_stateless(&self, key: &str, agent: &str, method: &str, params: Value) -> HttpResponse {
        let head = head(method, &params);
        let request = request(method, &with_meta(params));
        self.ask_with(key, "POST", &format!("/v1/agents/{agent}/mcp"), &head, &request)
    }

    /// The result for the agent kelly, in revision 2026-07-28.
    pub fn mcp_result(&self, key: &str, method: &str, params: Value) -> Value {
        let answer = self.mcp_stateless(key, "kelly", method, params);
        assert_eq!(answer.status, 200, "{method}: {answer:?}");
        let result = answer.json()["result"].clone();
        assert!(result.is_object(), "{method}: {answer:?}");
        result
    }
}
