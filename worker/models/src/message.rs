//! Requests to a model and answers of a model, in a form that does not depend on the provider.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

/// Maximum size of a request's body, in bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
const MESSAGES_MAX: usize = 4_096;
pub(crate) const CALLS_MAX: usize = 128;
/// The longest tool name that every provider accepts, in bytes.
const NAME_BYTES_MAX: usize = 64;

#[derive(Debug, Clone)]
pub struct ToolDefinition {
    /// 1 to 64 letters, digits, `_` and `-`. All providers accept such names.
    pub name: String,
    pub description: String,
    /// The JSON Schema of the arguments: an object.
    pub parameters: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// An ID that is unique in the conversation. It is derived from the call's position, not taken from the provider.
    /// Every provider accepts this ID, so a conversation can continue with another provider.
    pub id: String,
    pub tool: String,
    /// The arguments as the model wrote them. The text may not be a JSON object, or may not be JSON at all.
    pub arguments: String,
    /// Opaque data that the provider requires back with the call (Gemini's `thoughtSignature`).
    pub signature: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatMessage {
    User(String),
    Model {
        /// The text may be empty if there are calls.
        text: String,
        /// The calls in the model's order.
        calls: Vec<ToolCall>,
    },
    /// The result of one call. Results directly follow the message with their calls, in the same order.
    Result {
        id: String,
        tool: String,
        /// Text or JSON.
        content: String,
        is_error: bool,
    },
}

#[derive(Debug, Clone, Default)]
pub struct ModelRequest {
    /// Can be empty.
    pub system: String,
    /// The conversation. It starts with a user message.
    pub messages: Vec<ChatMessage>,
    /// The tools that the model may call, or that earlier calls of the conversation use.
    pub tools: Vec<ToolDefinition>,
    /// True if the model must answer without a call. The tools are still sent, because a provider rejects a
    /// conversation with calls of tools that the request does not define.
    pub answer_only: bool,
    /// `None`: the provider's default.
    pub temperature: Option<f64>,
    /// Maximum number of tokens in the answer.
    pub tokens_max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    Answer,
    Calls,
    /// The answer was cut off, usually by the token limit. If the answer ends with a call, that call is marked as cut
    /// off and never carried out.
    Length,
    /// The model or its provider declined to answer.
    Refused,
}

/// The tokens of a request and its answer, as the provider counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenUsage {
    /// Tokens of the request, including cached ones.
    pub input: u64,
    /// Tokens of the answer, including hidden thoughts.
    pub output: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAnswer {
    /// Can be empty.
    pub text: String,
    /// The calls in the model's order, at most 128.
    pub calls: Vec<ToolCall>,
    pub stop: StopReason,
    /// Zeros if the provider does not report the usage.
    pub usage: TokenUsage,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("the conversation does not start with a user message")]
    Beginning,
    /// A part of the request has too many elements or bytes.
    #[error("{0}")]
    TooMuch(String),
    #[error("the tool name {0:?} is not 1 to 64 letters, digits, '_' and '-'")]
    Name(String),
    #[error("the tool {0:?} is defined twice")]
    Twice(String),
    /// A call is not followed by its result, or a result does not follow its call.
    #[error("message {at}: the result of call {expected:?} was expected")]
    Pairing {
        at: usize,
        /// The ID of the call that needs its result next; `none` if no result is due.
        expected: String,
    },
    #[error("message {0} is empty")]
    Empty(usize),
}

impl ModelRequest {
    /// Checks the number of messages and calls, the tool names, and the order of messages. Providers reject such
    /// errors. Call this function before sending.
    ///
    /// # Errors
    /// The first problem.
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

    /// Checks that after each message with calls, their results follow in order, without other messages in between.
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

    /// Returns the ID of the call at `index` in the answer to this request. The ID does not depend on the provider, and
    /// stays the same if the request is repeated.
    pub(crate) fn call_id(&self, index: usize) -> String {
        format!("call_{}_{index}", self.messages.len())
    }
}

/// Returns the arguments as a JSON object that keeps all digits of numbers. Other text is wrapped in an object, because
/// some providers require objects in the history. The model still sees its own text.
pub(crate) fn object(arguments: &str) -> Box<RawValue> {
    let raw = serde_json::from_str::<Box<RawValue>>(arguments).ok().filter(|raw| raw.get().starts_with('{'));
    raw.unwrap_or_else(|| {
        let wrapped = serde_json::json!({ "unreadable": arguments });
        serde_json::value::to_raw_value(&wrapped).unwrap_or_else(|_| RawValue::NULL.to_owned())
    })
}
