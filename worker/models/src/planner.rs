//! The form for models without function calling: the prompt describes the tools, and calls and results are text.

use std::fmt::Write as _;

use tickfleet_protocol::text::calls_in;

use crate::message::{CALLS_MAX, ChatMessage, ModelAnswer, ModelRequest, StopReason, ToolCall};

/// The model writes this name if it needs no tool.
const NONE: &str = "none";

/// The result has no tool definitions and no calls, and its roles alternate.
pub(crate) fn as_plain_text(request: &ModelRequest) -> ModelRequest {
    let mut system = request.system.clone();
    if request.answer_only {
        system.push_str("\n\nDo not use any more tools. Answer in plain words, from the results that you have.");
    } else if !request.tools.is_empty() {
        system.push_str(include_str!("planner.txt").trim_end());
        for tool in &request.tools {
            let _ =
                write!(system, "\n\n{}: {}\nArguments (JSON Schema): {}", tool.name, tool.description, tool.parameters);
        }
    }
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        match message {
            ChatMessage::User(text) => push_user(&mut messages, text),
            ChatMessage::Result { tool, content, is_error, .. } => {
                let status = if *is_error { "error" } else { "ok" };
                let block =
                    format!("<tool_result tool_name=\"{tool}\" status=\"{status}\">\n{content}\n</tool_result>");
                push_user(&mut messages, &block);
            }
            ChatMessage::Model { text, calls } => messages.push(model_message(text, calls)),
        }
    }
    ModelRequest { system, messages, tools: Vec::new(), ..request.clone() }
}

/// Roles must alternate, so a text after a user message is joined to that message.
fn push_user(messages: &mut Vec<ChatMessage>, text: &str) {
    if let Some(ChatMessage::User(last)) = messages.last_mut() {
        last.push_str("\n\n");
        last.push_str(text);
    } else {
        messages.push(ChatMessage::User(text.to_owned()));
    }
}

fn model_message(text: &str, calls: &[ToolCall]) -> ChatMessage {
    let mut words = text.to_owned();
    for call in calls {
        let tool = serde_json::Value::from(call.tool.as_str());
        let separator = if words.is_empty() { "" } else { "\n" };
        let _ = write!(words, "{separator}{{\"tool\": {tool}, \"arguments\": {}}}", call.arguments);
    }
    ChatMessage::Model { text: words, calls: Vec::new() }
}

/// The last call of a cut-off answer can be unreadable, and then never runs. A call of the tool `none` means that the
/// answer is its text.
pub(crate) fn parse_calls(request: &ModelRequest, answer: ModelAnswer) -> ModelAnswer {
    if request.answer_only || request.tools.is_empty() || answer.stop == StopReason::Refused {
        return answer;
    }
    let found = calls_in(&answer.text);
    if found.is_empty() {
        return answer;
    }
    let calls = found.iter().filter(|call| call.tool.as_str() != NONE).take(CALLS_MAX + 1);
    let calls: Vec<_> = calls
        .enumerate()
        .map(|(index, call)| ToolCall {
            id: request.call_id(index),
            tool: call.tool.as_str().to_owned(),
            arguments: call.arguments.as_str().to_owned(),
            signature: None,
        })
        .collect();
    if calls.is_empty() {
        return answer;
    }
    // Drop the text, because the history recreates it from the calls.
    ModelAnswer { text: String::new(), calls, stop: StopReason::Calls, ..answer }
}
