//! The answers of web services and MCP servers, and the requests that result from a model's arguments.

use std::cell::OnceCell;
use std::fs;

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, Response};
use serde_json::{Value, json};
use tickfleet_config::mcp::McpServerDef;
use tickfleet_config::tools::HttpDef;
use tickfleet_config::{McpPinned, McpPins, Sources, load_mcp};
use tickfleet_model::{AgentId, CallId, Effect, TenantId, TurnId, limits};
use tickfleet_protocol::json::with_numbers_as_text;
use tickfleet_tools::{ArgumentCheck, CallContext, Environment, Secrets, ToolFailure};
use tickfleet_tools_http::tool::fuzzing as http;
use tickfleet_tools_http::{HttpClients, HttpTool};
use tickfleet_tools_mcp::fuzzing::{ServerMessage, read_message};
use tokio::runtime::{Builder, Runtime};

use super::files::Folder;
use crate::bounds::{SECRET, assert_message, assert_outcome, head_and_rest, text};

struct Tools {
    runtime: Runtime,
    declared: Vec<HttpTool>,
    secrets: Secrets,
    context: CallContext,
    arguments: ArgumentCheck,
    server: McpServerDef,
    folder: Folder,
}

thread_local! {
    static TOOLS: OnceCell<Tools> = const { OnceCell::new() };
}

fn with_tools(play: impl FnOnce(&Tools)) {
    TOOLS.with(|tools| play(tools.get_or_init(Tools::new)));
}

impl Tools {
    fn new() -> Self {
        tickfleet_outbound::install_crypto_provider();
        let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
        let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
        let folder = Folder::new();
        fs::write(folder.path().join("mcp.yaml"), SERVER).unwrap();
        let sources = Sources { dir: Some(folder.path().to_owned()), ..Sources::default() };
        let (file, _) = load_mcp(&sources).expect("the server's declaration");
        Self {
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            declared: declared(),
            secrets: Secrets::of([("KEY", SECRET)]),
            context,
            arguments: ArgumentCheck::compile(&json!({"type": "object", "required": ["id"]})).expect("a schema"),
            server: file.servers["files"].clone(),
            folder,
        }
    }

    fn chosen(&self, by: u8) -> &HttpTool {
        &self.declared[usize::from(by) % self.declared.len()]
    }
}

const SERVER: &str = "servers:\n  files:\n    url: https://mcp.example.com/mcp\n    prefix: fs_\n";

fn declared() -> Vec<HttpTool> {
    let base = json!({"method": "POST", "base_url": "https://api.example.com/v1", "path": "/items/{{id}}",
        "secrets": {"KEY": {"env": "KEY"}}, "query": {"q": "{{q}}", "key": "${KEY}"},
        "headers": {"x-tag": "{{tag}}", "x-key": "Key ${KEY}"},
        "body": {"note": "said: {{note}}", "whole": "{{whole}}", "list": ["{{q}}", 1]}});
    let with = |members: Value| {
        let mut def = base.clone();
        def.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        def
    };
    let rules = json!([{"status": [409], "outcome": "ok"},
        {"at": "/error", "equals": ["ratelimited", "busy"], "outcome": "not_executed", "retry_after": "/wait"},
        {"status": [200], "at": "/ok", "equals": false, "outcome": "permanent", "message": "/why"},
        {"at": "/errors", "outcome": "transient", "message": "/errors"}]);
    let clients = HttpClients::default();
    [
        (with(json!({})), Effect::Once),
        (with(json!({"result": "/data/0", "not_executed": [409, 503]})), Effect::Read),
        (with(json!({"outcomes": rules, "result": "/result"})), Effect::Idempotent),
        (with(json!({"response_bytes_max": 64, "path": "/a/{{id}}/b.{{id}}"})), Effect::Once),
        (with(json!({"response_bytes_max": 64, "outcomes": rules})), Effect::Read),
    ]
    .into_iter()
    .map(|(def, effect)| {
        let def: HttpDef = serde_json::from_value(def).expect("a declaration");
        HttpTool::new(&def, effect, &Environment::of([]), &clients).expect("a tool")
    })
    .collect()
}

/// The first byte selects the tool. Then come the status, the headers, an empty line and the body.
fn answer(bytes: &[u8]) -> Option<(u8, reqwest::Response)> {
    let (first, mut rest) = head_and_rest(bytes);
    let (by, status) = first.split_first()?;
    let status: u16 = std::str::from_utf8(status).ok()?.trim().parse().ok()?;
    let mut answer = Response::builder().status(status);
    loop {
        let (line, more) = head_and_rest(rest);
        rest = more;
        let Some(at) = line.iter().position(|byte| *byte == b':') else { break };
        let name = HeaderName::from_bytes(&line[..at]).ok()?;
        answer = answer.header(name, HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?);
    }
    Some((*by, answer.body(Bytes::copy_from_slice(rest)).ok()?.into()))
}

pub(super) fn http_answer(bytes: &[u8]) {
    with_tools(|tools| {
        let Some((by, answer)) = answer(bytes) else { return };
        let outcome = tools.runtime.block_on(http::interpret(tools.chosen(by), answer, &tools.secrets));
        assert_outcome(&outcome);
    });
}

pub(super) fn token(bytes: &[u8]) {
    with_tools(|tools| {
        let Some((_, answer)) = answer(bytes) else { return };
        match tools.runtime.block_on(http::parse_grant(answer)) {
            Ok((token, life)) => {
                assert!(!token.is_empty() && HeaderValue::try_from(format!("Bearer {token}")).is_ok());
                assert!(life.as_secs() <= 366 * 86_400, "a token of {life:?}");
            }
            Err(ToolFailure::Ended { message, .. } | ToolFailure::Transient { message, .. }) => {
                assert_message(&message);
            }
            Err(other) => panic!("{other:?}"),
        }
    });
}

pub(super) fn http_request(bytes: &[u8]) {
    let Some((by, arguments)) = bytes.split_first() else { return };
    with_tools(|tools| {
        let Ok(arguments) = tools.arguments.check(&text(arguments)) else { return };
        let made = http::request(tools.chosen(*by), &tools.context, arguments.get(), &tools.secrets);
        let sent = match made {
            Ok(sent) => sent,
            Err(message) => {
                assert!(!message.contains(SECRET), "{message}");
                return;
            }
        };
        assert!(sent.url.starts_with("https://api.example.com/v1/"), "{}", sent.url);
        assert!(!sent.url.contains('#') && !sent.url.contains("/../") && !sent.url.contains("/./"), "{}", sent.url);
        let path = sent.url.split('?').next().unwrap_or_default();
        assert!(path.matches('/').count() <= 7, "{path}");
        for value in sent.headers.values() {
            assert!(!value.as_bytes().contains(&b'\n') && !value.as_bytes().contains(&b'\r'));
        }
        let body = sent.body.unwrap_or_default();
        let body: Value = serde_json::from_str(&with_numbers_as_text(&body)).expect("a body is JSON");
        assert!(body.is_object() && body["list"].is_array(), "{body}");
    });
}

pub(super) fn mcp(bytes: &[u8]) {
    with_tools(|tools| match read_message(&tools.server, bytes, &tools.secrets) {
        Some(ServerMessage::Outcome(outcome)) => assert_outcome(&outcome),
        Some(ServerMessage::ServerTools(offer)) => {
            for tool in &offer.tools {
                let name = tools.server.tool_name(&tool.name);
                let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
                assert!(name.len() <= limits::NAME_BYTES_MAX && name.chars().all(legal), "{name:?}");
                ArgumentCheck::compile(&tool.input_schema).unwrap_or_else(|error| panic!("its schema {error}"));
            }
            if !offer.tools.is_empty() {
                let pinned = McpPinned { version: offer.version, tools: offer.tools };
                let pins = McpPins { servers: [("files".to_owned(), pinned)].into() };
                tools.folder.assert_pins_come_back(&pins);
            }
        }
        Some(ServerMessage::Other) | None => {}
    });
}
