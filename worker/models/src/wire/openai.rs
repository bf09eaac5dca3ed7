//! OpenAI's Chat Completions API.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{EncodedRequest, LooseText, call, stop, unexpected};
use crate::message::{ChatMessage, ModelAnswer, ModelRequest, TokenUsage, ToolCall};

pub(super) const BASE_URL: &str = "https://api.openai.com/v1";

pub(super) fn write(request: &ModelRequest, model: &str, base_url: &str) -> Result<EncodedRequest, serde_json::Error> {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        messages.push(json!({ "role": "system", "content": request.system }));
    }
    messages.extend(request.messages.iter().map(message));
    let mut body = json!({ "model": model, "messages": messages });
    // OpenAI's newer models reject `max_tokens`. Most compatible servers support only `max_tokens`.
    let tokens_max = if base_url.starts_with(BASE_URL) { "max_completion_tokens" } else { "max_tokens" };
    body[tokens_max] = request.tokens_max.into();
    if let Some(temperature) = request.temperature {
        body["temperature"] = temperature.into();
    }
    if !request.tools.is_empty() {
        let define = |tool: &crate::ToolDefinition| {
            let function = json!({ "name": tool.name, "description": tool.description, "parameters": tool.parameters });
            json!({ "type": "function", "function": function })
        };
        body["tools"] = request.tools.iter().map(define).collect();
        body["tool_choice"] = if request.answer_only { "none" } else { "auto" }.into();
    }
    let path = "/chat/completions".to_owned();
    Ok(EncodedRequest { path, key: ("authorization", "Bearer "), headers: &[], body: serde_json::to_string(&body)? })
}

fn message(message: &ChatMessage) -> Value {
    match message {
        ChatMessage::User(text) => json!({ "role": "user", "content": text }),
        ChatMessage::Model { text, calls } if calls.is_empty() => json!({ "role": "assistant", "content": text }),
        ChatMessage::Model { text, calls } => {
            let call = |call: &ToolCall| {
                let function = json!({ "name": call.tool, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            };
            let content = Some(text).filter(|text| !text.is_empty());
            json!({ "role": "assistant", "content": content, "tool_calls": calls.iter().map(call).collect::<Vec<_>>() })
        }
        ChatMessage::Result { id, content, .. } => json!({ "role": "tool", "tool_call_id": id, "content": content }),
    }
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Choice {
    message: ResponseMessage,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ResponseMessage {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Option<ResponseCall>>>,
}

#[derive(Deserialize)]
struct ResponseCall {
    function: Option<Function>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Function {
    name: LooseText,
    arguments: LooseText,
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

pub(super) fn read(request: &ModelRequest, body: &str) -> Result<ModelAnswer, String> {
    let read: Completion = serde_json::from_str(body).map_err(|e| unexpected(&e))?;
    let choice = read.choices.into_iter().next().ok_or("the response has no choice")?;
    let message = choice.message;
    let refused = message.refusal.filter(|refusal| !refusal.is_empty());
    let calls = message.tool_calls.unwrap_or_default().into_iter().flatten().enumerate().map(|(index, called)| {
        let Function { name, arguments } = called.function.unwrap_or_default();
        call(request, index, name, arguments, None)
    });
    let mut calls: Vec<_> = calls.collect();
    let word = choice.finish_reason.as_deref();
    let is_refused = refused.is_some() || word == Some("content_filter");
    let stop = stop(word, is_refused, &mut calls, true);
    let usage = read.usage.map(|u| TokenUsage { input: u.prompt_tokens, output: u.completion_tokens });
    let text = refused.or(message.content).unwrap_or_default();
    Ok(ModelAnswer { text, calls, stop, usage: usage.unwrap_or_default() })
}
