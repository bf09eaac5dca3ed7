//! A scripted model: an HTTP server that responds and rejects requests like OpenAI's Chat Completions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tickfleet_config::{ModelApi, ModelDef, Prices, ProviderDef};

#[derive(Debug, Clone)]
pub enum ModelReply {
    Words(String),
    Calls(Vec<(String, Value)>),
    /// The status, and the seconds in `Retry-After`. 0 leaves the header out.
    Status(u16, u64),
    Slow(Duration, String),
}

impl ModelReply {
    pub fn call(tool: &str, arguments: Value) -> Self {
        Self::Calls(vec![(tool.to_owned(), arguments)])
    }

    pub fn words(words: &str) -> Self {
        Self::Words(words.to_owned())
    }
}

type Script = dyn Fn(&ModelRequest) -> ModelReply + Send + Sync;

#[derive(Debug, Clone)]
pub struct ModelRequest {
    pub system: String,
    /// Without the system message.
    pub messages: Vec<Value>,
    pub tools: BTreeSet<String>,
    /// True if the model must not call a tool in this response.
    pub last: bool,
}

impl ModelRequest {
    pub fn answers(&self) -> usize {
        self.messages.iter().filter(|message| message["role"] == "assistant").count()
    }

    pub fn results(&self) -> Vec<&str> {
        let of = |message: &'_ Value| message["role"] == "tool";
        let behind = self.messages.iter().rev().take_while(|message| of(message)).collect::<Vec<_>>();
        behind.into_iter().rev().map(|message| message["content"].as_str().unwrap()).collect()
    }
}

struct Server {
    script: Box<Script>,
    asked: AtomicUsize,
    seen: Mutex<Vec<ModelRequest>>,
}

pub struct ScriptedModel {
    pub base: String,
    server: Arc<Server>,
}

impl ScriptedModel {
    pub async fn start(script: impl Fn(&ModelRequest) -> ModelReply + Send + Sync + 'static) -> Self {
        let server = Arc::new(Server { script: Box::new(script), asked: AtomicUsize::new(0), seen: Mutex::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/v1", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(Arc::clone(&server));
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        Self { base, server }
    }

    pub fn asked(&self) -> usize {
        self.server.asked.load(Ordering::SeqCst)
    }

    /// Returns the requests so far, without rejected requests.
    pub fn seen(&self) -> Vec<ModelRequest> {
        self.server.seen.lock().unwrap().clone()
    }

    /// A million input tokens cost 1. A million output tokens cost 2.
    pub fn models(&self) -> BTreeMap<String, ModelDef> {
        let provider = ProviderDef {
            api: ModelApi::OpenAi,
            model: "scripted".into(),
            base_url: Some(self.base.clone()),
            key: None,
            function_calling: true,
            timeout: Duration::from_secs(20),
            allow_private: ["127.0.0.1".to_owned()].into(),
        };
        let prices = Prices { input: 1_000_000, output: 2_000_000 };
        [("default".to_owned(), ModelDef { provider: Some(provider), prices })].into()
    }
}

async fn answer(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    server.asked.fetch_add(1, Ordering::SeqCst);
    let request: Value = serde_json::from_slice(&body).unwrap();
    if let Err(why) = checked(&request) {
        return (StatusCode::BAD_REQUEST, json!({"error": {"message": why}}).to_string()).into_response();
    }
    let messages = request["messages"].as_array().unwrap();
    let system = messages.first().filter(|message| message["role"] == "system");
    let names = request["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]["name"]);
    let asked = ModelRequest {
        system: system.map_or("", |message| message["content"].as_str().unwrap()).to_owned(),
        messages: messages.iter().filter(|message| message["role"] != "system").cloned().collect(),
        tools: names.map(|name| name.as_str().unwrap().to_owned()).collect(),
        last: request["tool_choice"] == "none",
    };
    server.seen.lock().unwrap().push(asked.clone());
    match (server.script)(&asked) {
        ModelReply::Words(words) => said(&words),
        ModelReply::Slow(wait, words) => {
            // The delay that the script requests.
            tokio::time::sleep(wait).await;
            said(&words)
        }
        ModelReply::Calls(calls) => {
            // IDs repeat on purpose, because some providers repeat IDs.
            let call = |(index, (name, arguments)): (usize, &(String, Value))| {
                let arguments = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
                json!({"id": format!("call-{index}"), "type": "function",
                    "function": {"name": name, "arguments": arguments}})
            };
            let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
            let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
            respond(&message, "tool_calls")
        }
        ModelReply::Status(status, after) => {
            let body = json!({"error": {"message": "not now"}}).to_string();
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if after > 0 {
                response.headers_mut().insert("retry-after", after.into());
            }
            response
        }
    }
}

fn said(words: &str) -> Response {
    respond(&json!({"role": "assistant", "content": words}), "stop")
}

fn respond(message: &Value, finish: &str) -> Response {
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10});
    json!({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}).to_string().into_response()
}

/// Rejects what Chat Completions rejects: a result without its call, a call without its result, or an invalid name.
fn checked(request: &Value) -> Result<(), String> {
    let mut due: BTreeSet<String> = BTreeSet::new();
    for message in request["messages"].as_array().ok_or("messages: expected a list")? {
        let role = message["role"].as_str().ok_or("role: expected a text")?;
        if role == "tool" {
            let id = message["tool_call_id"].as_str().ok_or("tool_call_id is missing")?;
            if !due.remove(id) {
                return Err(format!("the tool message {id} has no preceding tool call"));
            }
            continue;
        }
        if !due.is_empty() {
            return Err(format!("tool calls without tool messages: {due:?}"));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().ok_or("id is missing")?;
            if !due.insert(id.to_owned()) {
                return Err(format!("the id {id} comes twice"));
            }
        }
    }
    if !due.is_empty() {
        return Err(format!("tool calls without tool messages: {due:?}"));
    }
    for tool in request["tools"].as_array().into_iter().flatten() {
        let name = tool["function"]["name"].as_str().ok_or("a tool without a name")?;
        let plain = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        if !plain || name.is_empty() {
            return Err(format!("the name {name:?}"));
        }
    }
    Ok(())
}
