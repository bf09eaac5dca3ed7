//! Google's `generateContent` API.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{EncodedRequest, LooseText, call, stop, unexpected};
use crate::message::{ChatMessage, ModelAnswer, ModelRequest, StopReason, TokenUsage, object};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<Value>,
    contents: Vec<Content<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_config: Option<Value>,
    generation_config: Value,
}

#[derive(Serialize)]
struct Content<'a> {
    role: &'static str,
    parts: Vec<Part<'a>>,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<FunctionCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_response: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<&'a str>,
}

#[derive(Serialize)]
struct FunctionCall<'a> {
    id: &'a str,
    name: &'a str,
    args: Box<RawValue>,
}

pub(super) fn write(request: &ModelRequest, model: &str) -> Result<EncodedRequest, serde_json::Error> {
    let define = |tool: &crate::ToolDefinition| json!({ "name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters });
    let declared: Vec<_> = request.tools.iter().map(define).collect();
    let mut generation = json!({ "maxOutputTokens": request.tokens_max });
    if let Some(temperature) = request.temperature {
        generation["temperature"] = temperature.into();
    }
    let has_tools = !declared.is_empty();
    let body = Body {
        system_instruction: (!request.system.is_empty()).then(|| json!({ "parts": [{ "text": request.system }] })),
        contents: contents(&request.messages),
        tools: has_tools.then(|| json!([{ "functionDeclarations": declared }])),
        tool_config: (has_tools && request.answer_only).then(|| json!({ "functionCallingConfig": { "mode": "NONE" } })),
        generation_config: generation,
    };
    Ok(EncodedRequest {
        path: format!("/v1beta/models/{model}:generateContent"),
        key: ("x-goog-api-key", ""),
        headers: &[],
        body: serde_json::to_string(&body)?,
    })
}

/// Responses to the calls of one content must be in one content, so consecutive messages of one role are joined.
fn contents(messages: &[ChatMessage]) -> Vec<Content<'_>> {
    let mut contents: Vec<Content<'_>> = Vec::new();
    for message in messages {
        let (role, parts) = match message {
            ChatMessage::User(text) => ("user", vec![Part { text: Some(text), ..Part::default() }]),
            ChatMessage::Result { id, tool, content, is_error } => {
                let response = json!({ if *is_error { "error" } else { "output" }: content });
                let response = json!({ "id": id, "name": tool, "response": response });
                ("user", vec![Part { function_response: Some(response), ..Part::default() }])
            }
            ChatMessage::Model { text, calls } => {
                let words = Some(text.as_str()).filter(|text| !text.trim().is_empty());
                let words = words.map(|text| Part { text: Some(text), ..Part::default() });
                let calls = calls.iter().map(|call| Part {
                    function_call: Some(FunctionCall { id: &call.id, name: &call.tool, args: object(&call.arguments) }),
                    thought_signature: call.signature.as_deref(),
                    ..Part::default()
                });
                ("model", words.into_iter().chain(calls).collect())
            }
        };
        match contents.last_mut().filter(|last| last.role == role) {
            Some(last) => last.parts.extend(parts),
            None => contents.push(Content { role, parts }),
        }
    }
    contents
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    #[serde(default)]
    candidates: Vec<Candidate>,
    prompt_feedback: Option<Value>,
    usage_metadata: Option<Tokens>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate {
    content: Option<ResponseContent>,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
struct ResponseContent {
    parts: Option<Vec<ResponsePart>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResponsePart {
    text: Option<String>,
    thought: Option<bool>,
    function_call: Option<ResponseCall>,
    thought_signature: Option<String>,
}

#[derive(Deserialize)]
struct ResponseCall {
    #[serde(default)]
    name: LooseText,
    #[serde(default)]
    args: LooseText,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Tokens {
    prompt_token_count: u64,
    candidates_token_count: u64,
    thoughts_token_count: u64,
}

pub(super) fn read(request: &ModelRequest, body: &str) -> Result<ModelAnswer, String> {
    let reply: Reply = serde_json::from_str(body).map_err(|e| unexpected(&e))?;
    let used = reply.usage_metadata.unwrap_or_default();
    let output = used.candidates_token_count.saturating_add(used.thoughts_token_count);
    let usage = TokenUsage { input: used.prompt_token_count, output };
    let Some(candidate) = reply.candidates.into_iter().next() else {
        // If the filter blocked the prompt, the reply has feedback instead of a candidate.
        let blocked = reply.prompt_feedback.ok_or("the response has no candidate")?;
        let reason = blocked.get("blockReason").and_then(Value::as_str).ok_or("the response has no candidate")?;
        let text = format!("The request was blocked: {}.", reason.chars().take(64).collect::<String>());
        return Ok(ModelAnswer { text, calls: Vec::new(), stop: StopReason::Refused, usage });
    };
    let mut text = String::new();
    let mut calls = Vec::new();
    let parts = candidate.content.and_then(|content| content.parts).unwrap_or_default();
    let ends_with_call = parts.last().is_some_and(|part| part.function_call.is_some());
    for part in parts {
        if let Some(ResponseCall { name, args }) = part.function_call {
            calls.push(call(request, calls.len(), name, args, part.thought_signature));
        } else if part.thought != Some(true) {
            text.push_str(part.text.as_deref().unwrap_or_default());
        }
    }
    let word = candidate.finish_reason.as_deref();
    // The model failed to write a valid call, so a repeated request can succeed.
    if word == Some("MALFORMED_FUNCTION_CALL") {
        return Err("the model wrote a call that cannot be read".to_owned());
    }
    let is_refused =
        matches!(word, Some("SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY"));
    let stop = stop(word, is_refused, &mut calls, ends_with_call);
    Ok(ModelAnswer { text, calls, stop, usage })
}
