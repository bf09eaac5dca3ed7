//! OpenAI's Responses API. Each request contains the whole conversation, so that the provider stores nothing.

use serde::Deserialize;
use serde_json::{Value, json};

use tickfleet_protocol::{cut_off, is_unfinished};

use super::{EncodedRequest, LooseText, call, stop, unexpected};
use crate::message::{ChatMessage, ModelAnswer, ModelRequest, TokenUsage, ToolCall};

/// The provider rejects a lower limit.
const TOKENS_MIN: u32 = 16;

pub(super) fn write(request: &ModelRequest, model: &str) -> Result<EncodedRequest, serde_json::Error> {
    let input: Vec<Value> = request.messages.iter().flat_map(items).collect();
    let tokens_max = request.tokens_max.max(TOKENS_MIN);
    let mut body = json!({ "model": model, "input": input, "max_output_tokens": tokens_max, "store": false });
    if !request.system.is_empty() {
        body["instructions"] = request.system.as_str().into();
    }
    if let Some(temperature) = request.temperature {
        body["temperature"] = temperature.into();
    }
    if !request.tools.is_empty() {
        let define = |tool: &crate::ToolDefinition| {
            json!({ "type": "function", "name": tool.name, "description": tool.description,
                "parameters": tool.parameters, "strict": false })
        };
        body["tools"] = request.tools.iter().map(define).collect();
        body["tool_choice"] = if request.answer_only { "none" } else { "auto" }.into();
    }
    let path = "/responses".to_owned();
    Ok(EncodedRequest { path, key: ("authorization", "Bearer "), headers: &[], body: serde_json::to_string(&body)? })
}

/// The model's text and each of its calls are separate items.
fn items(message: &ChatMessage) -> Vec<Value> {
    match message {
        ChatMessage::User(text) => vec![json!({ "role": "user", "content": text })],
        ChatMessage::Model { text, calls } => {
            let words = Some(text).filter(|text| !text.trim().is_empty());
            let words = words.map(|text| json!({ "role": "assistant", "content": text }));
            let call = |call: &ToolCall| json!({ "type": "function_call", "call_id": call.id, "name": call.tool, "arguments": call.arguments });
            words.into_iter().chain(calls.iter().map(call)).collect()
        }
        ChatMessage::Result { id, content, .. } => {
            vec![json!({ "type": "function_call_output", "call_id": id, "output": content })]
        }
    }
}

#[derive(Deserialize)]
struct Response {
    status: Option<String>,
    incomplete_details: Option<Incomplete>,
    output: Vec<Item>,
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

/// Skips the content of unknown items, such as thoughts.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Item {
    r#type: LooseText,
    status: LooseText,
    name: LooseText,
    arguments: LooseText,
    content: LooseText,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    OutputText {
        text: String,
    },
    Refusal {
        refusal: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
}

pub(super) fn read(request: &ModelRequest, body: &str) -> Result<ModelAnswer, String> {
    let read: Response = serde_json::from_str(body).map_err(|e| unexpected(&e))?;
    let mut text = String::new();
    let mut refused = None;
    let mut calls = Vec::new();
    let ends_with_call = read.output.last().is_some_and(|item| item.r#type.0 == "function_call");
    for item in read.output {
        match item.r#type.0.as_str() {
            "message" => {
                let content = Some(item.content.0.as_str()).filter(|content| !content.is_empty()).unwrap_or("[]");
                let parts: Vec<Part> = serde_json::from_str(content).map_err(|e| unexpected(&e))?;
                parts.into_iter().for_each(|part| match part {
                    Part::OutputText { text: more } => text += &more,
                    Part::Refusal { refusal } => refused = Some(refusal),
                    Part::Other => {}
                });
            }
            "function_call" => {
                let mut called = call(request, calls.len(), item.name, item.arguments, None);
                if is_unfinished(&item.status.0) {
                    cut_off(&mut called.arguments);
                }
                calls.push(called);
            }
            _ => {}
        }
    }
    let reason = read.incomplete_details.and_then(|details| details.reason);
    let word = read.status.as_deref();
    if matches!(word, Some("failed" | "cancelled")) {
        return Err("the provider says that the response failed".to_owned());
    }
    let is_refused = refused.is_some() || reason.as_deref() == Some("content_filter");
    let word = reason.as_deref().or(word);
    let stop = stop(word, is_refused, &mut calls, ends_with_call);
    let usage = read.usage.map(|u| TokenUsage { input: u.input_tokens, output: u.output_tokens });
    Ok(ModelAnswer { text: refused.unwrap_or(text), calls, stop, usage: usage.unwrap_or_default() })
}
