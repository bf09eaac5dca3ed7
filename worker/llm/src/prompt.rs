//! Builds model requests from the agent's role, the task and the size-limited history.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::value::RawValue;
use tickfleet_config::LlmDef;
use tickfleet_model::{Dialect, ToolSpec};
use tickfleet_models::{ChatMessage, ModelRequest, ToolCall, ToolDefinition};
use tickfleet_protocol::define;
use tickfleet_tools::CallContext;

use crate::history::{History, HistoryEntry};
use crate::{answer, compact};

const NO_ANSWER: &str = "(I gave no answer to this.)";
/// Limits an old result when the space for results is used up.
const OLD_RESULT_BYTES: usize = 200;

#[derive(Debug, Deserialize)]
pub(crate) struct TaskArguments {
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) input: Option<Box<RawValue>>,
    #[serde(default)]
    pub(crate) priority: Option<String>,
    #[serde(default)]
    pub(crate) deadline: Option<String>,
    #[serde(default)]
    pub(crate) delegator: Option<String>,
}

pub(crate) fn request(
    def: &LlmDef,
    context: &CallContext,
    task: &TaskArguments,
    history: &History,
    last: bool,
) -> ModelRequest {
    ModelRequest {
        system: system(def),
        messages: messages(def, context, task, history),
        tools: tools(context),
        answer_only: last,
        temperature: def.temperature,
        tokens_max: def.tokens_max,
    }
}

fn system(def: &LlmDef) -> String {
    let system = def.system.trim();
    match &def.answer_schema {
        Some(schema) => format!(
            "{system}\n\nWhen you give your answer, give one JSON object that fits this JSON Schema, and nothing around \
             it:\n{}",
            answer::schema_for_model(schema)
        ),
        None => system.to_owned(),
    }
}

/// Returns the agent's tools, under names that all providers accept.
fn tools(context: &CallContext) -> Vec<ToolDefinition> {
    let tools = context.tools.may_call(&context.tenant, &context.agent);
    let specs: Vec<&ToolSpec> = tools.iter().map(|tool| &tool.spec).filter(|spec| spec.configured).collect();
    let defined = define(Dialect::OpenaiChat, &specs);
    let of = |tool: &serde_json::Value| {
        let function = tool.get("function")?;
        let text = |member: &str| function.get(member)?.as_str().map(str::to_owned);
        let parameters = function.get("parameters").cloned().unwrap_or_else(|| serde_json::json!({"type": "object"}));
        Some(ToolDefinition { name: text("name")?, description: text("description").unwrap_or_default(), parameters })
    };
    defined.as_array().into_iter().flatten().filter_map(of).collect()
}

pub(crate) fn task_message(context: &CallContext, task: &TaskArguments) -> String {
    let mut text = task.description.trim().to_owned();
    if let Some(input) = &task.input {
        let _ = write!(text, "\n\nInput: {}", input.get());
    }
    if let Some(delegator) = &task.delegator {
        let _ = write!(text, "\n\nThis task was given to you by the agent {delegator}.");
    }
    if let Some(deadline) = &task.deadline {
        let _ = write!(text, "\n\nIt must be done by {deadline}.");
    }
    if let Some(user) = &context.context.user_context {
        let _ = write!(text, "\n\nThe user that you act for: {}", user.get());
    }
    if let Some(session) = &context.context.session_data {
        let _ = write!(text, "\n\nThe session: {}", session.get());
    }
    text
}

fn messages(def: &LlmDef, context: &CallContext, task: &TaskArguments, history: &History) -> Vec<ChatMessage> {
    let whole = whole_results(history, def.context_bytes_max);
    let mut messages = Vec::new();
    for entry in &history.entries {
        if let HistoryEntry::Earlier { user, agent } = entry {
            let text = agent.clone().unwrap_or_else(|| NO_ANSWER.to_owned());
            messages.extend([ChatMessage::User(user.clone()), ChatMessage::Model { text, calls: Vec::new() }]);
        }
    }
    messages.push(ChatMessage::User(task_message(context, task)));
    messages.extend(history.summary().map(compact::summary_message));
    let from = history.summary().map_or(0, |summary| summary.upto);
    let mut ids: std::collections::VecDeque<(String, String)> = std::collections::VecDeque::new();
    for (at, entry) in history.entries.iter().enumerate().skip(from) {
        match entry {
            HistoryEntry::Plan(plan) => {
                ids = plan.calls.iter().map(|call| (call.id.clone(), call.tool.clone())).collect();
                let calls = plan.calls.iter().map(|call| ToolCall {
                    id: call.id.clone(),
                    tool: call.tool.clone(),
                    arguments: call.arguments.clone(),
                    signature: call.signature.clone(),
                });
                messages.push(ChatMessage::Model { text: plan.text.clone(), calls: calls.collect() });
            }
            HistoryEntry::Result(result) => {
                let Some((id, tool)) = ids.pop_front() else { continue };
                let content = if whole[at] { result.content.clone() } else { shortened(&result.content) };
                messages.push(ChatMessage::Result { id, tool, content, is_error: !result.ok });
            }
            HistoryEntry::Note { text } | HistoryEntry::Unfit { text } => {
                messages.push(ChatMessage::User(text.clone()))
            }
            HistoryEntry::AgentMessage { from, text, .. } => {
                messages.push(ChatMessage::User(format!("A message from the agent {from}:\n{text}")));
            }
            HistoryEntry::Earlier { .. } | HistoryEntry::Summary(_) => {}
        }
    }
    messages
}

/// True for the newest results, which are sent in full until the space is used up. Older results are shortened.
fn whole_results(history: &History, bytes_max: usize) -> Vec<bool> {
    let mut whole = vec![true; history.entries.len()];
    let mut bytes = 0;
    for (at, entry) in history.entries.iter().enumerate().rev() {
        if let HistoryEntry::Result(result) = entry {
            bytes += result.content.len();
            whole[at] = bytes <= bytes_max;
        }
    }
    whole
}

fn shortened(content: &str) -> String {
    if content.len() <= OLD_RESULT_BYTES {
        return content.to_owned();
    }
    let mut end = OLD_RESULT_BYTES;
    while !content.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} … [an old result, shortened from {} bytes]", &content[..end], content.len())
}
