//! A stub of a provider. It replies from a list, and rejects what the provider would reject.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tickfleet_models::ProviderApi;

/// Does not look like a real provider's key.
pub const KEY: &str = "test-key-of-the-stand-in";

#[derive(Debug, Clone)]
pub enum Reply {
    /// One call has a number that a double cannot hold.
    Calls,
    Words(&'static str),
    /// Status, body, and the `Retry-After` header. An empty header is not sent.
    Status(u16, Value, &'static str),
    Raw(&'static str),
    Endless,
}

struct Script {
    api: ProviderApi,
    replies: Mutex<VecDeque<Reply>>,
    seen: Mutex<Vec<Value>>,
}

pub struct StandIn {
    pub base: String,
    script: Arc<Script>,
}

impl StandIn {
    pub async fn start(api: ProviderApi, replies: Vec<Reply>) -> Self {
        let script = Arc::new(Script { api, replies: Mutex::new(replies.into()), seen: Mutex::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(Arc::clone(&script));
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        Self { base, script }
    }

    pub fn asked(&self) -> usize {
        self.script.seen.lock().unwrap().len()
    }

    pub fn last(&self) -> Value {
        self.script.seen.lock().unwrap().last().unwrap().clone()
    }
}

async fn answer(State(script): State<Arc<Script>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let refuse =
        |why: String| (StatusCode::BAD_REQUEST, json!({ "error": { "message": why } }).to_string()).into_response();
    let Ok(request) = serde_json::from_slice::<Value>(&body) else { return refuse("no JSON".into()) };
    script.seen.lock().unwrap().push(request.clone());
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let (path, key) = match script.api {
        ProviderApi::OpenAi => ("/chat/completions", header("authorization") == format!("Bearer {KEY}")),
        ProviderApi::Responses => ("/responses", header("authorization") == format!("Bearer {KEY}")),
        ProviderApi::Anthropic => {
            ("/v1/messages", header("x-api-key") == KEY && header("anthropic-version") == "2023-06-01")
        }
        ProviderApi::Gemini => ("/v1beta/models/test-model:generateContent", header("x-goog-api-key") == KEY),
    };
    if uri.path() != path || !key || header("content-type") != "application/json" {
        return refuse(format!("path {} or headers", uri.path()));
    }
    let checked = match script.api {
        ProviderApi::OpenAi => openai(&request),
        ProviderApi::Responses => responses(&request),
        ProviderApi::Anthropic => anthropic(&request),
        ProviderApi::Gemini => gemini(&request),
    };
    if let Err(why) = checked {
        return refuse(why);
    }
    let reply = script.replies.lock().unwrap().pop_front().expect("an answer for each request");
    match reply {
        Reply::Raw(text) => text.into_response(),
        Reply::Endless => Body::from(vec![b' '; 5 << 20]).into_response(),
        Reply::Status(status, body, after) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body.to_string()).into_response();
            if !after.is_empty() {
                response.headers_mut().insert("retry-after", after.parse().unwrap());
            }
            response
        }
        Reply::Words(text) => said(script.api, text).into_response(),
        Reply::Calls => calls(script.api).into_response(),
    }
}

fn said(api: ProviderApi, text: &str) -> String {
    let body = match api {
        ProviderApi::OpenAi => json!({ "choices": [{ "message": { "content": text }, "finish_reason": "stop" }] }),
        ProviderApi::Responses => {
            let message =
                json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": text }] });
            json!({ "status": "completed", "output": [{ "type": "reasoning", "summary": [] }, message] })
        }
        ProviderApi::Anthropic => json!({ "content": [{ "type": "text", "text": text }], "stop_reason": "end_turn" }),
        ProviderApi::Gemini => {
            json!({ "candidates": [{ "content": { "parts": [{ "text": text }] }, "finishReason": "STOP" }] })
        }
    };
    body.to_string()
}

/// Returns text, because `json!` cannot hold a number with 23 digits.
fn calls(api: ProviderApi) -> &'static str {
    match api {
        ProviderApi::OpenAi => {
            r#"{"choices":[{"message":{"content":null,"tool_calls":[
            {"id":"functions.post:0","type":"function","function":{"name":"post_to_x","arguments":"{\"n\":12345678901234567890123}"}},
            {"id":"functions.search:1","type":"function","function":{"name":"search_x","arguments":""}}]},
            "finish_reason":"tool_calls"}],"usage":{"prompt_tokens":10,"completion_tokens":5}}"#
        }
        ProviderApi::Responses => {
            r#"{"status":"completed","output":[{"type":"reasoning","id":"rs_1","summary":[]},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I post.","annotations":[]}]},
            {"type":"function_call","call_id":"fc:0","name":"post_to_x","arguments":"{\"n\":12345678901234567890123}"},
            {"type":"function_call","call_id":"fc:1","name":"search_x","arguments":""}],
            "usage":{"input_tokens":10,"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2}}}"#
        }
        ProviderApi::Anthropic => {
            r#"{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"I post."},
            {"type":"tool_use","id":"toolu_1","name":"post_to_x","input":{"n":12345678901234567890123}},
            {"type":"tool_use","id":"toolu_2","name":"search_x","input":{}}],
            "stop_reason":"tool_use","usage":{"input_tokens":7,"cache_read_input_tokens":3,"output_tokens":5}}"#
        }
        ProviderApi::Gemini => {
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hm","thought":true},
            {"functionCall":{"name":"post_to_x","args":{"n":12345678901234567890123}},"thoughtSignature":"c2ln"},
            {"functionCall":{"name":"search_x"}}]},"finishReason":"STOP"}],
            "usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":3,"thoughtsTokenCount":2}}"#
        }
    }
}

type Checked = Result<(), String>;

fn hold(holds: bool, why: &str) -> Checked {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn is_name(value: &Value) -> bool {
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    value.as_str().is_some_and(|name| !name.is_empty() && name.len() <= 64 && plain(name))
}

fn openai(request: &Value) -> Checked {
    hold(request["model"].is_string(), "model")?;
    hold(request.get("tools").is_none_or(|tools| !list(tools).is_empty()), "tools: too short")?;
    hold(request.get("tool_choice").is_none() || request.get("tools").is_some(), "tool_choice without tools")?;
    hold(list(&request["tools"]).iter().all(|t| t["type"] == "function" && is_name(&t["function"]["name"])), "name")?;
    let mut due: Vec<Value> = Vec::new();
    for message in list(&request["messages"]) {
        if message["role"] == "tool" {
            let at = due.iter().position(|id| *id == message["tool_call_id"]);
            due.remove(at.ok_or("a tool message must follow the tool_calls that it answers")?);
            hold(message["content"].is_string(), "tool content")?;
            continue;
        }
        hold(due.is_empty(), "tool_calls must be followed by tool messages")?;
        let calls = message.get("tool_calls");
        hold(calls.is_none_or(|calls| !list(calls).is_empty()), "tool_calls: too short")?;
        hold(message["content"].is_string() || message["role"] == "assistant" && calls.is_some(), "content")?;
        for call in calls.map(list).unwrap_or_default() {
            hold(call["type"] == "function" && is_name(&call["function"]["name"]), "tool_calls")?;
            hold(call["function"]["arguments"].is_string(), "arguments must be a string")?;
            hold(call["id"].as_str().is_some_and(|id| !id.is_empty() && id.len() <= 40), "id: at most 40")?;
            due.push(call["id"].clone());
        }
    }
    hold(due.is_empty(), "tool_calls without their tool messages")
}

fn responses(request: &Value) -> Checked {
    hold(request.get("messages").is_none() && request.get("max_tokens").is_none(), "Unknown parameter")?;
    hold(request["model"].is_string() && request["max_output_tokens"].as_u64() >= Some(16), "max_output_tokens")?;
    hold(list(&request["tools"]).iter().all(|t| t["type"] == "function" && is_name(&t["name"])), "tools: name")?;
    let mut due: Vec<&Value> = Vec::new();
    let mut may_call = true;
    for item in list(&request["input"]) {
        match item["type"].as_str() {
            Some("function_call_output") => {
                let at = due.iter().position(|id| **id == item["call_id"]);
                due.remove(at.ok_or("No tool call found for function call output")?);
                hold(item["output"].is_string(), "output")?;
                may_call = due.is_empty();
            }
            Some("function_call") => {
                hold(may_call && is_name(&item["name"]) && item["arguments"].is_string(), "function_call")?;
                hold(item["call_id"].as_str().is_some_and(|id| !id.is_empty() && id.len() <= 64), "call_id")?;
                due.push(&item["call_id"]);
            }
            None | Some("message") => {
                hold(due.is_empty(), "No tool output found for function call")?;
                hold(matches!(item["role"].as_str(), Some("user" | "assistant")), "role")?;
                hold(item["content"].as_str().is_some_and(|text| !text.trim().is_empty()), "content")?;
            }
            Some(_) => return Err("input: type".into()),
        }
    }
    hold(due.is_empty(), "No tool output found for function call")
}

fn anthropic(request: &Value) -> Checked {
    hold(request["max_tokens"].as_u64().is_some_and(|n| n > 0), "max_tokens")?;
    hold(request.get("temperature").is_none_or(|t| (0.0..=1.0).contains(&t.as_f64().unwrap())), "temperature")?;
    hold(
        list(&request["tools"]).iter().all(|t| is_name(&t["name"]) && t["input_schema"]["type"] == "object"),
        "tools",
    )?;
    let mut due: Vec<&Value> = Vec::new();
    let mut role: &str = "assistant";
    for message in list(&request["messages"]) {
        hold(message["role"] != role, "roles must alternate")?;
        role = message["role"].as_str().ok_or("role")?;
        let blocks = list(&message["content"]);
        hold(!blocks.is_empty(), "content must not be empty")?;
        let results = blocks.iter().take_while(|b| b["type"] == "tool_result");
        let answered: Vec<_> = results.map(|b| &b["tool_use_id"]).collect();
        hold(
            answered.len() == due.len() && due.iter().all(|id| answered.contains(id)),
            "tool_use without tool_result",
        )?;
        hold(blocks[answered.len()..].iter().all(|b| b["type"] != "tool_result"), "tool_result after text")?;
        hold(blocks.iter().all(|b| b["type"] != "text" || !b["text"].as_str().unwrap().trim().is_empty()), "text")?;
        let uses = || blocks.iter().filter(|b| b["type"] == "tool_use");
        hold(uses().all(|b| is_name(&b["id"]) && is_name(&b["name"]) && b["input"].is_object()), "tool_use")?;
        hold(uses().next().is_none() || request.get("tools").is_some(), "tool_use without tools")?;
        due = uses().map(|b| &b["id"]).collect();
    }
    hold(due.is_empty() && role == "user", "the last message must be a user's")
}

fn gemini(request: &Value) -> Checked {
    hold(request.get("system").is_none() && request.get("messages").is_none(), "Unknown name")?;
    let declared = list(&request["tools"][0]["functionDeclarations"]);
    hold(declared.iter().all(|t| is_name(&t["name"]) && t["parametersJsonSchema"].is_object()), "declarations")?;
    let mut due: Vec<&Value> = Vec::new();
    for content in list(&request["contents"]) {
        let parts = list(&content["parts"]);
        hold(!parts.is_empty() && matches!(content["role"].as_str(), Some("user" | "model")), "contents")?;
        let responses: Vec<_> = parts.iter().filter_map(|p| p.get("functionResponse")).collect();
        let names: Vec<_> = responses.iter().map(|r| &r["name"]).collect();
        hold(names == due, "as many function responses as function calls of the turn before")?;
        hold(responses.iter().all(|r| r["response"].is_object()), "response must be a Struct")?;
        let calls = || parts.iter().filter_map(|p| p.get("functionCall"));
        hold(calls().all(|c| is_name(&c["name"]) && c["args"].is_object()), "functionCall")?;
        due = calls().map(|c| &c["name"]).collect();
    }
    hold(due.is_empty(), "function calls without responses")
}
