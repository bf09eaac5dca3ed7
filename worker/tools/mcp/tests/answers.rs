//! Answers of a real child process that are no results, or too large ones: calls end at once, and honestly.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tickfleet_config::mcp::McpFile;
use tickfleet_config::{Sources, load_mcp};
use tickfleet_model::{AgentId, CallId, TenantId, TurnId, limits};
use tickfleet_tools::{CallContext, Environment, RegisteredTool, ToolFailure, ToolOutput};
use tickfleet_tools_mcp::{Servers, look};

/// A server that answers with what it is told: a `result`, or a line of so many `bytes`.
const SERVER: &str = r#"
import json
import sys

TOOLS = [
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "send", "inputSchema": {"type": "object"}},
]


def line(request, result):
    return json.dumps({"jsonrpc": "2.0", "result": result, "id": request["id"]}) + "\n"


def answer(request):
    params = request.get("params", {})
    if request["method"] == "initialize":
        server = {"name": "s", "version": "1.0.0"}
        version = params["protocolVersion"]
        return line(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server})
    if request["method"] == "tools/list":
        return line(request, {"tools": TOOLS})
    told = params["arguments"]
    if "result" in told:
        return line(request, told["result"])
    text = lambda length: line(request, {"content": [{"type": "text", "text": "x" * length}], "id": 1})
    return text(told["bytes"] - len(text(0)))


for request in sys.stdin:
    request = json.loads(request)
    if "id" in request:
        sys.stdout.write(answer(request))
        sys.stdout.flush()
"#;
/// Silence that no call of these waits for.
const TIMEOUT: Duration = Duration::from_secs(300);

#[allow(clippy::disallowed_methods, reason = "the machine's PATH, as a worker's own environment has it")]
fn environment() -> Environment {
    Environment::of([("PATH", std::env::var("PATH").unwrap_or_default().as_str())])
}

/// The server in `folder`, and its tools by its own names for them.
async fn started(folder: &Path) -> (Servers, BTreeMap<String, RegisteredTool>) {
    std::fs::write(folder.join("server.py"), SERVER).unwrap();
    let script = folder.join("server.py");
    let file = json!({"servers": {"s": {"command": "python3", "args": [script]}}});
    std::fs::write(folder.join("mcp.yaml"), file.to_string()).unwrap();
    let (mut file, _) = load_mcp(&Sources { dir: Some(folder.to_owned()), ..Sources::default() }).unwrap();
    let mut def = file.servers.remove("s").unwrap();
    def.tools = look("s", &def, &environment(), TIMEOUT).await.unwrap().tools;
    def.prefix = String::new();
    let servers = Servers::new(environment());
    let tools = servers.tools(&McpFile { servers: [("s".to_owned(), def)].into() }, TIMEOUT).unwrap();
    (servers, tools.into_iter().map(|tool| (tool.spec.name.clone(), tool)).collect())
}

async fn call(tool: &RegisteredTool, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
    let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
    let arguments = to_raw_value(&arguments).unwrap();
    let answer = tool.handler.call(&context, &arguments);
    // A fifth of the time that the call itself would wait.
    tokio::time::timeout(TIMEOUT / 5, answer).await.unwrap()
}

/// The words of a failure, and whether the call may have been carried out.
fn failure(answer: Result<ToolOutput, ToolFailure>) -> (String, bool) {
    match answer {
        Err(ToolFailure::Transient { message, not_executed: false, .. }) => (message, true),
        Err(ToolFailure::Permanent { message, .. }) => (message, false),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_ends_its_call_at_once_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, tools) = started(folder.path()).await;
    let most = limits::MCP_MESSAGE_BYTES_MAX;
    for (name, may_have_run) in [("look", false), ("send", true)] {
        let tool = &tools[name];
        assert!(call(tool, json!({"bytes": most})).await.is_ok(), "exactly the bound");
        for bytes in [most + 1, 10_000_000] {
            let (message, unknown) = failure(call(tool, json!({"bytes": bytes})).await);
            assert!(message.contains("'s' answered with more than 4194304 bytes"), "{message}");
            assert_eq!(unknown, may_have_run, "{name}");
        }
        let (large, small) = (json!({"bytes": 10_000_000}), json!({"bytes": 1_000}));
        let (large, small) = tokio::join!(call(tool, large), call(tool, small));
        assert!(large.is_err() && small.is_ok(), "{small:?}");
    }
    servers.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_no_result_is_told_as_what_came() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, tools) = started(folder.path()).await;
    for (result, said) in [(json!({}), "an empty result"), (json!(null), "null in place of"), (json!([1]), "no result")]
    {
        for (name, may_have_run) in [("look", false), ("send", true)] {
            let (message, unknown) = failure(call(&tools[name], json!({"result": result})).await);
            assert!(message.contains(said), "{message}");
            assert_eq!(unknown, may_have_run, "{name}: {message}");
        }
    }
    servers.stop().await;
}
