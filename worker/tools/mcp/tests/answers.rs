//! Tests bad and oversized responses of a real child process. The calls must end at once with an accurate failure.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_config::mcp::McpFile;
use tickfleet_config::{Sources, load_mcp};
use tickfleet_model::{AgentId, CallId, TenantId, TurnId, limits};
use tickfleet_tools::{CallContext, Environment, RegisteredTool, ToolFailure, ToolOutput};
use tickfleet_tools_mcp::{Servers, list_tools};

/// The name of the call's argument selects the response. In a `line`, the request's id replaces `ID`.
const SERVER: &str = r#"
import json
import sys

TOOLS = [
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "send", "inputSchema": {"type": "object"}},
    {"name": "odd", "inputSchema": 7},
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
    arguments = params["arguments"]
    if "line" in arguments:
        return arguments["line"].replace("ID", str(request["id"])).encode("latin-1") + b"\n"
    if "numbers" in arguments:
        return line(request, {"content": [], "structuredContent": {"n": [0] * arguments["numbers"]}}).replace(" ", "")
    text = lambda length: line(request, {"content": [{"type": "text", "text": "x" * length}], "id": 1})
    return text(arguments["bytes"] - len(text(0)))


for request in sys.stdin:
    request = json.loads(request)
    if "id" in request:
        said = answer(request)
        sys.stdout.buffer.write(said if isinstance(said, bytes) else said.encode())
        sys.stdout.flush()
"#;
/// The calls in these tests end much earlier.
const TIMEOUT: Duration = Duration::from_secs(300);

#[allow(clippy::disallowed_methods, reason = "the machine's PATH, as a worker's own environment has it")]
fn environment() -> Environment {
    Environment::of([("PATH", std::env::var("PATH").unwrap_or_default().as_str())])
}

async fn started(folder: &Path) -> (Servers, BTreeMap<String, RegisteredTool>) {
    std::fs::write(folder.join("server.py"), SERVER).unwrap();
    let script = folder.join("server.py");
    let file = json!({"servers": {"s": {"command": "python3", "args": [script]}}});
    std::fs::write(folder.join("mcp.yaml"), file.to_string()).unwrap();
    let (mut file, _) = load_mcp(&Sources { dir: Some(folder.to_owned()), ..Sources::default() }).unwrap();
    let mut def = file.servers.remove("s").unwrap();
    let offer = list_tools("s", &def, &environment(), TIMEOUT).await.unwrap();
    assert_eq!(offer.refused, [("odd".to_owned(), "its inputSchema is not an object".to_owned())], "named, and alone");
    def.tools = offer.tools;
    def.prefix = String::new();
    let servers = Servers::new(environment());
    let tools = servers.tools(&McpFile { servers: [("s".to_owned(), def)].into() }, TIMEOUT).unwrap();
    (servers, tools.into_iter().map(|tool| (tool.spec.name.clone(), tool)).collect())
}

async fn call(tool: &RegisteredTool, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    call_with(tool, &arguments.to_string()).await
}

async fn call_with(tool: &RegisteredTool, arguments: &str) -> Result<ToolOutput, ToolFailure> {
    let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
    let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
    let arguments = RawValue::from_string(arguments.to_owned()).unwrap();
    let answer = tool.handler.call(&context, &arguments);
    // The call must end within a fifth of the time that it would wait for the server.
    tokio::time::timeout(TIMEOUT / 5, answer).await.unwrap()
}

/// True if the call may have taken effect.
fn failure(answer: Result<ToolOutput, ToolFailure>) -> (String, bool) {
    match answer {
        Err(ToolFailure::Transient { message, not_executed: false, .. }) => (message, true),
        Err(ToolFailure::Ended { message, .. }) => (message, false),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_oversized_response_fails_only_its_own_call() {
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
        let large = json!({"bytes": 10_000_000});
        let small = json!({"bytes": 1_000});
        let (large, small) = tokio::join!(call(tool, large), call(tool, small));
        assert!(large.is_err() && small.is_ok(), "{small:?}");
    }
    servers.stop().await;
}

#[tokio::test]
async fn an_unreadable_response_fails_its_call_and_the_session_continues() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, tools) = started(folder.path()).await;
    let of = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":ID,"result":{result}}}"#);
    let deep = of(&format!(r#"{{"content":[],"structuredContent":{}{}}}"#, "[".repeat(200), "]".repeat(200)));
    let text = |text: &str| of(&format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#));
    let spread = "{\n  \"jsonrpc\": \"2.0\",\n  \"id\": ID,\n  \"result\": {\n    \"content\": []\n  }\n}".to_owned();
    for line in
        [of(r#"{"content":[],"structuredContent":{"n":NaN}}"#), text("caf\u{e9}"), text("\\ud83d"), deep, spread]
    {
        for (name, may_have_run) in [("look", false), ("send", true)] {
            let (message, unknown) = failure(call(&tools[name], json!({"line": line})).await);
            assert!(message.contains("response of the MCP server 's' could not be read"), "{message}");
            assert_eq!(unknown, may_have_run, "{name}: {message}");
            assert!(call(&tools[name], json!({"bytes": 1_000})).await.is_ok(), "the session lives on");
        }
    }
    let noisy = format!("starting up\n{{\"level\":\"info\"}}\n{}", text("fine"));
    assert_eq!(call(&tools["send"], json!({"line": noisy})).await.unwrap().json.get(), "\"fine\"");
    servers.stop().await;
}

/// The highest memory use of this process so far, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn a_large_result_with_many_values_uses_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, tools) = started(folder.path()).await;
    assert!(call(&tools["look"], json!({"numbers": 10})).await.is_ok());
    let before = peak();
    let output = call(&tools["look"], json!({"numbers": 2_090_000})).await.unwrap();
    assert!(output.json.get().len() > 4_000_000, "{}", output.json.get().len());
    let taken = peak() - before;
    assert!(taken < 64 << 20, "{} MiB for one result", taken >> 20);
    servers.stop().await;
}

/// Like `SERVER`, but over HTTP. The arguments choose a body or a stream, and its content.
const HTTP_SERVER: &str = r#"
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS = [{"name": "send", "inputSchema": {"type": "object"}}]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, kind, body, headers={}):
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(405, "text/plain", b"")

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            return self.answer(202, "text/plain", b"")
        result = {"tools": TOOLS}
        if request["method"] == "initialize":
            server = {"name": "s", "version": "1.0.0"}
            asked = request["params"]["protocolVersion"]
            version = asked if self.path == "/mcp" else self.path.strip("/")
            result = {"protocolVersion": version, "capabilities": {}, "serverInfo": server}
        arguments = request.get("params", {}).get("arguments", {})
        if "echo" in arguments:
            result = {"content": [], "structuredContent": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        if "raw" in arguments:
            body = arguments["raw"].replace("ID", str(request["id"])).encode("latin-1")
        if arguments.get("bytes"):
            body = body + b" " * arguments["bytes"]
        if arguments.get("stream"):
            noise = b": hi\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n"
            body = noise + b"data: " + body + b"\n\n"
        self.answer(200, "text/event-stream" if arguments.get("stream") else "application/json", body)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"#;

#[tokio::test]
async fn an_unreadable_http_response_fails_its_call_and_digits_are_kept() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    tickfleet_outbound::install_crypto_provider();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("server.py");
    std::fs::write(&script, HTTP_SERVER).unwrap();
    let mut process = tokio::process::Command::new("python3");
    let process = process.arg(&script).stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut process = process.spawn().unwrap();
    let mut port = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).await.unwrap();
    let def = |path: &str| {
        let url = format!("http://127.0.0.1:{}/{path}", port.trim());
        let file = json!({"servers": {"s": {"url": url, "allow_private": ["127.0.0.1"]}}});
        std::fs::write(folder.path().join("mcp.yaml"), file.to_string()).unwrap();
        let sources = Sources { dir: Some(folder.path().to_owned()), ..Sources::default() };
        load_mcp(&sources).unwrap().0.servers.remove("s").unwrap()
    };
    let refused = list_tools("s", &def("2099-01-01"), &environment(), TIMEOUT).await.unwrap_err();
    assert!(refused.contains("the revision \"2099-01-01\" of MCP; expected one of 2024-11-05"), "{refused}");
    let mut def = def("mcp");
    def.tools = list_tools("s", &def, &environment(), TIMEOUT).await.unwrap().tools;
    def.prefix = String::new();
    let servers = Servers::new(environment());
    let tools = servers.tools(&McpFile { servers: [("s".to_owned(), def)].into() }, TIMEOUT).unwrap();
    for stream in [false, true] {
        let arguments = format!(r#"{{"echo":123456789012345678901234567890,"stream":{stream}}}"#);
        assert_eq!(call_with(&tools[0], &arguments).await.unwrap().json.get(), arguments);
        for raw in [
            r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"n":NaN}}}"#,
            "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":\"caf\u{e9}\"}",
            "no JSON",
        ] {
            let (message, unknown) = failure(call(&tools[0], json!({"raw": raw, "stream": stream})).await);
            assert!(message.contains("could not be read") && unknown, "{message}");
        }
        let large = json!({"echo": 1, "bytes": limits::MCP_MESSAGE_BYTES_MAX, "stream": stream});
        let (message, unknown) = failure(call(&tools[0], large).await);
        assert!(message.contains("more than 4194304 bytes") && unknown, "{message}");
        assert!(call(&tools[0], json!({"echo": 1, "stream": stream})).await.is_ok(), "the session lives on");
    }
    servers.stop().await;
}

/// This server puts its own token, another secret and hidden characters into its texts.
const INDISCREET: &str = r#"
import json
import os
import sys

token = os.environ["TOKEN"]
trick = "\u202e\u001b[8m\n# forged"
tool = {
    "name": "look",
    "title": "Look " + token,
    "description": "Signs in as " + token + ".",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "description": "as " + token}}},
    "annotations": {"title": token},
}
for request in sys.stdin:
    request = json.loads(request)
    if "id" not in request:
        continue
    result = {"content": [{"type": "text", "text": "hi"}]}
    if request["method"] == "tools/list":
        result = {"tools": [tool, {"name": "odd " + token + trick + "x" * 10000, "inputSchema": 7}]}
    if request["method"] == "initialize":
        version = "1.0 " + token + trick + " ghp_" + "a1B2" * 9 + "x" * 10000
        server = {"name": "s", "version": version}
        revision = request["params"]["protocolVersion"]
        result = {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": server, "instructions": token}
    print(json.dumps({"jsonrpc": "2.0", "result": result, "id": request["id"]}), flush=True)
"#;

#[tokio::test]
async fn server_texts_are_redacted_escaped_and_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("server.py");
    std::fs::write(&script, INDISCREET).unwrap();
    let token = "correct-horse-battery";
    let server = json!({"command": "python3", "args": [script], "env": {"TOKEN": "${TOKEN}"},
        "secrets": {"TOKEN": {"env": "SERVER_TOKEN"}}});
    std::fs::write(folder.path().join("mcp.yaml"), json!({"servers": {"s": server}}).to_string()).unwrap();
    let (mut file, _) = load_mcp(&Sources { dir: Some(folder.path().to_owned()), ..Sources::default() }).unwrap();
    let def = file.servers.remove("s").unwrap();
    #[allow(clippy::disallowed_methods, reason = "the machine's PATH, as a worker's own environment has it")]
    let path = std::env::var("PATH").unwrap_or_default();
    let environment = Environment::of([("PATH", path.as_str()), ("SERVER_TOKEN", token)]);
    let offer = list_tools("s", &def, &environment, TIMEOUT).await.unwrap();
    let version = offer.version.clone().unwrap();
    assert!(version.starts_with("1.0 [REDACTED]\\u202e\\u001b[8m\\n# forged"), "{version}");
    assert!(version.len() <= 300 && !version.contains("ghp_"), "{version}");
    let tool = &offer.tools[0];
    assert_eq!(tool.description.as_deref(), Some("Signs in as [REDACTED]."));
    assert_eq!(tool.input_schema["properties"]["a"]["description"], "as [REDACTED]");
    let (name, why) = &offer.refused[0];
    assert!(name.starts_with("odd [REDACTED]\\u202e") && name.len() <= 300, "{name}: {why}");
    assert!(!format!("{offer:?}").contains(token), "{offer:?}");
    // A worker removes secrets in the same way before it compares the server's tools with the pinned definition.
    let mut pinned = def;
    pinned.tools = offer.tools;
    pinned.prefix = String::new();
    let servers = Servers::new(environment);
    let tools = servers.tools(&McpFile { servers: [("s".to_owned(), pinned)].into() }, TIMEOUT).unwrap();
    let tools: BTreeMap<String, RegisteredTool> =
        tools.into_iter().map(|tool| (tool.spec.name.clone(), tool)).collect();
    let called = call(&tools["look"], json!({})).await;
    assert!(called.is_ok(), "it is not quarantined: {called:?}");
    servers.stop().await;
}
