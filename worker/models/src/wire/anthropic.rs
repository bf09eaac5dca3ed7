//! Anthropic's Messages API.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{EncodedRequest, LooseText, call, stop, unexpected};
use crate::message::{ChatMessage, ModelAnswer, ModelRequest, TokenUsage, object};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    system: &'a str,
    messages: Vec<RequestMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
}

#[derive(Serialize)]
struct RequestMessage<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text { text: &'a str },
    ToolUse { id: &'a str, name: &'a str, input: Box<RawValue> },
    ToolResult { tool_use_id: &'a str, content: &'a str, is_error: bool },
}

pub(super) fn write(request: &ModelRequest, model: &str) -> Result<EncodedRequest, serde_json::Error> {
    let define = |tool: &crate::ToolDefinition| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters });
    let body = Body {
        model,
        max_tokens: request.tokens_max,
        system: &request.system,
        messages: messages(&request.messages),
        // Anthropic's maximum temperature is 1; the other providers' maximum is 2.
        temperature: request.temperature.map(|t| t.clamp(0.0, 1.0)),
        tools: request.tools.iter().map(define).collect(),
        tool_choice: (request.answer_only && !request.tools.is_empty()).then(|| json!({ "type": "none" })),
    };
    Ok(EncodedRequest {
        path: "/v1/messages".to_owned(),
        key: ("x-api-key", ""),
        headers: &[("anthropic-version", "2023-06-01")],
        body: serde_json::to_string(&body)?,
    })
}

/// Roles must alternate, so consecutive messages of one role are joined.
fn messages(messages: &[ChatMessage]) -> Vec<RequestMessage<'_>> {
    let mut joined: Vec<RequestMessage<'_>> = Vec::new();
    for message in messages {
        let (role, blocks) = match message {
            ChatMessage::User(text) => ("user", vec![Block::Text { text }]),
            ChatMessage::Result { id, content, is_error, .. } => {
                ("user", vec![Block::ToolResult { tool_use_id: id, content, is_error: *is_error }])
            }
            ChatMessage::Model { text, calls } => {
                let words = Some(text).filter(|text| !text.trim().is_empty()).map(|text| Block::Text { text });
                let calls = calls.iter().map(|call| Block::ToolUse {
                    id: &call.id,
                    name: &call.tool,
                    input: object(&call.arguments),
                });
                ("assistant", words.into_iter().chain(calls).collect())
            }
        };
        match joined.last_mut().filter(|last| last.role == role) {
            Some(last) => last.content.extend(blocks),
            None => joined.push(RequestMessage { role, content: blocks }),
        }
    }
    joined
}

#[derive(Deserialize)]
struct Reply {
    content: Vec<Part>,
    stop_reason: Option<String>,
    usage: Option<Tokens>,
}

/// One struct, because serde would read an enum through a buffer, which loses digits of numbers.
#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    r#type: LooseText,
    #[serde(default)]
    text: LooseText,
    #[serde(default)]
    name: LooseText,
    #[serde(default)]
    input: LooseText,
}

#[derive(Deserialize, Default)]
struct Tokens {
    #[serde(default)]
    input_tokens: u64,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    #[serde(default)]
    output_tokens: u64,
}

pub(super) fn read(request: &ModelRequest, body: &str) -> Result<ModelAnswer, String> {
    let reply: Reply = serde_json::from_str(body).map_err(|e| unexpected(&e))?;
    let mut text = String::new();
    let mut calls = Vec::new();
    let ends_with_call = reply.content.last().is_some_and(|part| part.r#type.0 == "tool_use");
    for part in reply.content {
        match part.r#type.0.as_str() {
            "text" => text.push_str(&part.text.0),
            "tool_use" => calls.push(call(request, calls.len(), part.name, part.input, None)),
            // Skips thoughts, and tools that Anthropic runs itself.
            _ => {}
        }
    }
    let word = reply.stop_reason.as_deref();
    let stop = stop(word, word == Some("refusal"), &mut calls, ends_with_call);
    let used = reply.usage.unwrap_or_default();
    let cached = [used.cache_creation_input_tokens, used.cache_read_input_tokens].into_iter().flatten();
    let input = cached.fold(used.input_tokens, u64::saturating_add);
    Ok(ModelAnswer { text, calls, stop, usage: TokenUsage { input, output: used.output_tokens } })
}
