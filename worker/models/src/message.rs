//! The neutral form of what is said to a model, and of what it says.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

/// The bytes of one request's body that are sent at most.
pub(crate) const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The messages of one request at most.
const MESSAGES_MAX: usize = 4_096;
/// The calls of one message at most.
pub(crate) const CALLS_MAX: usize = 128;
/// The bytes of a tool's name that every provider takes.
const NAME_BYTES_MAX: usize = 64;

/// A tool that the model may call.
#[derive(Debug, Clone)]
pub struct ToolDefinition {
    /// 1 to 64 letters, digits, `_` and `-`: what all providers take.
    pub name: String,
    /// The words that tell the model what it does.
    pub description: String,
    /// The JSON Schema of its arguments, an object.
    pub parameters: serde_json::Value,
}

/// A call that a model asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Unique in the conversation. It is made here from the place of the call, not by the provider: every provider
    /// takes it, so that a conversation can go on with another one.
    pub id: String,
    /// The name of the tool.
    pub tool: String,
    /// The arguments as the model wrote them: JSON text that may be no object, or no JSON at all.
    pub arguments: String,
    /// What the provider wants back with the call, opaque (Gemini's `thoughtSignature`).
    pub signature: Option<String>,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// What the model is told.
    User(String),
    /// What the model said: words, calls, or both.
    Model {
        /// Its words; may be empty where there are calls.
        text: String,
        /// Its calls, in its order.
        calls: Vec<ToolCall>,
    },
    /// The result of one call. The results of a message follow it at once, in the order of its calls.
    Result {
        /// The call that it answers.
        id: String,
        /// The tool of that call.
        tool: String,
        /// The result in words or JSON.
        content: String,
        /// True if the call did not succeed.
        is_error: bool,
    },
}

/// One request to a model.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// What the model is; may be empty.
    pub system: String,
    /// The conversation. It begins with a user's message.
    pub messages: Vec<Message>,
    /// The tools that the conversation knows.
    pub tools: Vec<ToolDefinition>,
    /// True if the model must answer without a call. The tools stay: a provider refuses calls of unknown ones.
    pub answer_only: bool,
    /// The sampling temperature; the provider's default where none.
    pub temperature: Option<f64>,
    /// The tokens of the answer at most.
    pub tokens_max: u32,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It has answered.
    Answer,
    /// It waits for the results of its calls.
    Calls,
    /// It was cut off, usually by the limit of tokens. A call at its end is marked as cut off, and never carried out.
    Length,
    /// The model or its provider declined.
    Refused,
}

/// The tokens that an answer cost, as the provider counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the request, cached ones too.
    pub input: u64,
    /// Tokens of the answer, hidden thoughts too.
    pub output: u64,
}

/// What a model said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its words; may be empty.
    pub text: String,
    /// Its calls, in its order, at most 128.
    pub calls: Vec<ToolCall>,
    /// Why it stopped.
    pub stop: Stop,
    /// What it cost; zeros where the provider does not say.
    pub usage: Usage,
}

/// Why a request is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// No message, or a first one that no user says.
    #[error("the conversation does not start with a user message")]
    Beginning,
    /// Something has too many elements or bytes.
    #[error("{0}")]
    TooMuch(String),
    /// A name that a provider would refuse.
    #[error("the tool name {0:?} is not 1 to 64 letters, digits, '_' and '-'")]
    Name(String),
    /// A name twice.
    #[error("the tool {0:?} is defined twice")]
    Twice(String),
    /// A call without its result in place, or the reverse.
    #[error("message {at}: the result of call {expected:?} was expected")]
    Pairing {
        /// The index of the message.
        at: usize,
        /// The call whose result is due; `none` where none is.
        expected: String,
    },
    /// A message that says nothing.
    #[error("message {0} is empty")]
    Empty(usize),
}

impl Request {
    /// Checks what every provider refuses, before anything is sent.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.messages.len() > MESSAGES_MAX {
            return Err(Invalid::TooMuch(format!("{} messages: at most {MESSAGES_MAX}", self.messages.len())));
        }
        let mut names = BTreeSet::new();
        for tool in &self.tools {
            let plain = tool.name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
            if !plain || tool.name.is_empty() || tool.name.len() > NAME_BYTES_MAX {
                return Err(Invalid::Name(tool.name.clone()));
            }
            if !names.insert(&tool.name) {
                return Err(Invalid::Twice(tool.name.clone()));
            }
        }
        if !matches!(self.messages.first(), Some(Message::User(_))) {
            return Err(Invalid::Beginning);
        }
        self.check_pairing()
    }

    /// Each result answers the call that is due, and nothing else stands between.
    fn check_pairing(&self) -> Result<(), Invalid> {
        let mut due: Vec<&str> = Vec::new();
        for (at, message) in self.messages.iter().enumerate() {
            if let Message::Result { id, .. } = message {
                if due.last() != Some(&id.as_str()) {
                    let expected = due.last().copied().unwrap_or("none").to_owned();
                    return Err(Invalid::Pairing { at, expected });
                }
                due.pop();
                continue;
            }
            if let Some(expected) = due.last() {
                return Err(Invalid::Pairing { at, expected: (*expected).to_owned() });
            }
            match message {
                Message::User(text) if text.trim().is_empty() => return Err(Invalid::Empty(at)),
                Message::Model { text, calls } if text.trim().is_empty() && calls.is_empty() => {
                    return Err(Invalid::Empty(at));
                }
                Message::Model { calls, .. } if calls.len() > CALLS_MAX => {
                    return Err(Invalid::TooMuch(format!("message {at}: {} calls: at most {CALLS_MAX}", calls.len())));
                }
                Message::Model { calls, .. } => due = calls.iter().rev().map(|call| call.id.as_str()).collect(),
                _ => {}
            }
        }
        match due.last() {
            Some(expected) => Err(Invalid::Pairing { at: self.messages.len(), expected: (*expected).to_owned() }),
            None => Ok(()),
        }
    }

    /// The id of the `index`th call of the answer to this request: the same for every provider and every repetition.
    pub(crate) fn call_id(&self, index: usize) -> String {
        format!("call_{}_{index}", self.messages.len())
    }
}

/// Arguments as a JSON object, digit for digit. What is no object is wrapped into one, so that history stays readable
/// for a provider that insists on objects; the model then sees what it had written.
pub(crate) fn object(arguments: &str) -> Box<RawValue> {
    let raw = serde_json::from_str::<Box<RawValue>>(arguments).ok().filter(|raw| raw.get().starts_with('{'));
    raw.unwrap_or_else(|| {
        let wrapped = serde_json::json!({ "unreadable": arguments });
        serde_json::value::to_raw_value(&wrapped).unwrap_or_else(|_| RawValue::NULL.to_owned())
    })
}
