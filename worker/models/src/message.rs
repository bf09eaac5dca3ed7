//! Requests to models and answers of models, in a form that does not depend on the provider.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

pub(crate) const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
const MESSAGES_MAX: usize = 4_096;
pub(crate) const CALLS_MAX: usize = 128;
/// Every provider accepts names of this length.
const NAME_BYTES_MAX: usize = 64;

#[derive(Debug, Clone)]
pub struct ToolDefinition {
    /// 1 to 64 letters, digits, `_` and `-`, which all providers accept.
    pub name: String,
    pub description: String,
    pub parameters: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Unique in the conversation. Derived from the call's position, so that another provider can continue.
    pub id: String,
    pub tool: String,
    /// As the model wrote them, perhaps not JSON.
    pub arguments: String,
    /// Opaque data that the provider requires back with the call (Gemini's `thoughtSignature`).
    pub signature: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatMessage {
    User(String),
    Model {
        /// May be empty if there are calls.
        text: String,
        calls: Vec<ToolCall>,
    },
    /// Results directly follow the message with their calls, in the same order.
    Result {
        id: String,
        tool: String,
        content: String,
        is_error: bool,
    },
}

#[derive(Debug, Clone, Default)]
pub struct ModelRequest {
    pub system: String,
    /// Starts with a user message.
    pub messages: Vec<ChatMessage>,
    /// Includes tools that only earlier calls of the conversation use.
    pub tools: Vec<ToolDefinition>,
    /// True if the model must not call tools. Tools are still sent, because a provider rejects a conversation with
    /// calls of undefined tools.
    pub answer_only: bool,
    /// `None` is the provider's default.
    pub temperature: Option<f64>,
    pub tokens_max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    Answer,
    Calls,
    /// Usually because of the token limit. A call at the end of the answer is marked, and never carried out.
    Length,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenUsage {
    /// Includes cached tokens.
    pub input: u64,
    /// Includes hidden thoughts.
    pub output: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAnswer {
    pub text: String,
    /// At most 128, in the model's order.
    pub calls: Vec<ToolCall>,
    pub stop: StopReason,
    /// Zeros if the provider does not report the usage.
    pub usage: TokenUsage,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("the conversation does not start with a user message")]
    Beginning,
    #[error("{0}")]
    TooMuch(String),
    #[error("the tool name {0:?} is not 1 to 64 letters, digits, '_' and '-'")]
    Name(String),
    #[error("the tool {0:?} is defined twice")]
    Twice(String),
    #[error("message {at}: the result of call {expected:?} was expected")]
    Pairing {
        at: usize,
        /// `none` if no result is due.
        expected: String,
    },
    #[error("message {0} is empty")]
    Empty(usize),
}

impl ModelRequest {
    /// Call this before sending, because providers reject invalid requests.
    pub fn check(&self) -> Result<(), InvalidRequest> {
        if self.messages.len() > MESSAGES_MAX {
            return Err(InvalidRequest::TooMuch(format!("{} messages: at most {MESSAGES_MAX}", self.messages.len())));
        }
        let mut names = BTreeSet::new();
        for tool in &self.tools {
            let plain = tool.name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
            if !plain || tool.name.is_empty() || tool.name.len() > NAME_BYTES_MAX {
                return Err(InvalidRequest::Name(tool.name.clone()));
            }
            if !names.insert(&tool.name) {
                return Err(InvalidRequest::Twice(tool.name.clone()));
            }
        }
        if !matches!(self.messages.first(), Some(ChatMessage::User(_))) {
            return Err(InvalidRequest::Beginning);
        }
        self.check_pairing()
    }

    /// Results must follow their calls in the same order, without other messages in between.
    fn check_pairing(&self) -> Result<(), InvalidRequest> {
        let mut due: Vec<&str> = Vec::new();
        for (at, message) in self.messages.iter().enumerate() {
            if let ChatMessage::Result { id, .. } = message {
                if due.last() != Some(&id.as_str()) {
                    let expected = due.last().copied().unwrap_or("none").to_owned();
                    return Err(InvalidRequest::Pairing { at, expected });
                }
                due.pop();
                continue;
            }
            if let Some(expected) = due.last() {
                return Err(InvalidRequest::Pairing { at, expected: (*expected).to_owned() });
            }
            match message {
                ChatMessage::User(text) if text.trim().is_empty() => return Err(InvalidRequest::Empty(at)),
                ChatMessage::Model { text, calls } if text.trim().is_empty() && calls.is_empty() => {
                    return Err(InvalidRequest::Empty(at));
                }
                ChatMessage::Model { calls, .. } if calls.len() > CALLS_MAX => {
                    return Err(InvalidRequest::TooMuch(format!(
                        "message {at}: {} calls: at most {CALLS_MAX}",
                        calls.len()
                    )));
                }
                ChatMessage::Model { calls, .. } => due = calls.iter().rev().map(|call| call.id.as_str()).collect(),
                _ => {}
            }
        }
        match due.last() {
            Some(expected) => {
                Err(InvalidRequest::Pairing { at: self.messages.len(), expected: (*expected).to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Stays the same if the request is repeated or goes to another provider.
    pub(crate) fn call_id(&self, index: usize) -> String {
        format!("call_{}_{index}", self.messages.len())
    }
}

/// Keeps all digits of numbers. Wraps other text in an object, because some providers require objects in the history.
pub(crate) fn object(arguments: &str) -> Box<RawValue> {
    let raw = serde_json::from_str::<Box<RawValue>>(arguments).ok().filter(|raw| raw.get().starts_with('{'));
    raw.unwrap_or_else(|| {
        let wrapped = serde_json::json!({ "unreadable": arguments });
        serde_json::value::to_raw_value(&wrapped).unwrap_or_else(|_| RawValue::NULL.to_owned())
    })
}
