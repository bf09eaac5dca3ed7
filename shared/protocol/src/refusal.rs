//! A message that is not accepted, with everything that is needed to answer it.

use std::borrow::Cow;

use super::json::{Document, Value, bounded};
use super::text;
use tickfleet_model::{Call, Dialect, IdError, InboxName, TaskId, TenantId, TurnId, limits};

/// One rule that a message breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Why a message is refused, and whatever of its envelope can still be read: enough to send the producer a
/// `rejected` reply with one result for every call that is readable.
#[derive(Debug, Clone, Default)]
pub struct Refusal {
    /// A stable word: `malformed_json`, `too_large`, `too_deep`, `duplicate_key`, `missing_field`,
    /// `invalid_field`, `unknown_field`, `no_calls`, `too_many_calls`.
    pub code: &'static str,
    /// What is wrong and what was expected; at most [`limits::ERROR_BYTES_MAX`] bytes.
    pub message: String,
    /// Whose message, if readable and well formed (so with all ids).
    pub tenant: Option<TenantId>,
    /// The turn's id.
    pub turn_id: Option<TurnId>,
    /// The digest of the turn's content, where that could be read.
    pub digest: Option<String>,
    /// The task's id, in a message about a task or in a turn made for one.
    pub task_id: Option<TaskId>,
    /// The agent as it was named, well formed or not; at most [`limits::NAME_BYTES_MAX`] bytes and `…`.
    pub agent: Option<String>,
    /// Where a reply goes.
    pub reply_to: Option<InboxName>,
    /// The dialect of the calls that were found.
    pub dialect: Dialect,
    /// Echoed in the reply.
    pub correlation_id: Option<String>,
    /// Echoed in the reply.
    pub traceparent: Option<String>,
    /// The calls that can be read, in order, however many they are: each of them waits for an answer.
    pub calls: Vec<RefusedCall>,
}

/// A call of a refused turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    /// The provider's id of the call, unchanged.
    pub provider_id: Option<String>,
    /// The tool as the model named it, at most [`limits::TOOL_NAME_BYTES_MAX`] bytes and `…`; empty where that is what
    /// cannot be read.
    pub tool: String,
    /// Whether it is the call of a custom tool (OpenAI Responses), which only an item of its own type answers.
    pub custom: bool,
}

impl Refusal {
    /// The refusal of a message for `problem`, with what can be read of its `document`.
    pub(super) fn of(problem: Problem, document: &Document<'_>) -> Box<Self> {
        let message = bounded(&problem.message, limits::ERROR_BYTES_MAX - '…'.len_utf8()).into_owned();
        let mut refusal = Box::new(Self { code: problem.code, message, ..Self::default() });
        // Of equal keys the first is read, like everything before a broken place.
        let members = document.root().into_iter().flat_map(|root| root.members());
        let format = document.root().and_then(|root| root.member("format")).and_then(|format| format.as_str());
        let format = format.and_then(|word| Dialect::parse(&word));
        for (key, value) in members {
            refusal.read(&key, value, format);
        }
        refusal
    }

    fn read(&mut self, key: &str, value: Value<'_, '_>, format: Option<Dialect>) {
        match key {
            "tenant" => id(&mut self.tenant, value, TenantId::new),
            "turn_id" => id(&mut self.turn_id, value, TurnId::new),
            "task_id" => id(&mut self.task_id, value, TaskId::new),
            "reply_to" => id(&mut self.reply_to, value, InboxName::new),
            "agent" | "target_agent" if self.agent.is_none() => {
                self.agent = value.as_str().map(|name| bounded(&name, limits::NAME_BYTES_MAX).into_owned());
            }
            "correlation_id" if self.correlation_id.is_none() => {
                self.correlation_id = short(value, limits::CORRELATION_ID_BYTES_MAX);
            }
            "traceparent" if self.traceparent.is_none() => {
                self.traceparent = short(value, 55).filter(|text| super::traceparent::is_traceparent(text));
            }
            "calls" => self.calls(format.unwrap_or_default(), value),
            "tool_calls" => self.calls(Dialect::OpenaiChat, value),
            "content" => self.calls(Dialect::Anthropic, value),
            "answer" if self.calls.is_empty() => self.answer(value),
            _ => {}
        }
    }

    fn calls(&mut self, dialect: Dialect, list: Value<'_, '_>) {
        if !self.calls.is_empty() {
            return;
        }
        self.calls = list.elements().filter_map(|element| refused_call(dialect, element)).collect();
        if !self.calls.is_empty() {
            self.dialect = dialect;
        }
    }

    /// The calls in a plain answer.
    fn answer(&mut self, answer: Value<'_, '_>) {
        let found = answer.as_str().map(|answer| text::calls_up_to(&answer, usize::MAX)).unwrap_or_default();
        if !found.is_empty() {
            self.dialect = Dialect::Text;
        }
        self.calls = found.into_iter().map(RefusedCall::of).collect();
    }
}

impl RefusedCall {
    /// A call that was read whole, in a turn that is refused for something else.
    #[must_use]
    pub fn of(call: Call) -> Self {
        let tool = bounded(&call.tool, limits::TOOL_NAME_BYTES_MAX).into_owned();
        Self { provider_id: call.provider_id, tool, custom: false }
    }
}

/// The id and tool of one call, where at least one of them can be read. The id is echoed as it was, however long: it
/// is a part of the message, which is bounded, and the conversation goes on only under this id.
fn refused_call(dialect: Dialect, element: Value<'_, '_>) -> Option<RefusedCall> {
    let text = |value: Value<'_, '_>, name: &str| value.member(name)?.as_str().map(Cow::into_owned);
    let kind = text(element, "type").unwrap_or_default();
    let custom = dialect == Dialect::OpenaiResponses && kind == "custom_tool_call";
    let is_call = match dialect {
        Dialect::Anthropic => kind == "tool_use",
        Dialect::OpenaiResponses => custom || kind == "function_call",
        _ => true,
    };
    if !is_call {
        return None;
    }
    let id = if dialect == Dialect::OpenaiResponses { "call_id" } else { "id" };
    let name = if dialect == Dialect::Text { "tool" } else { "name" };
    let named = match dialect {
        Dialect::OpenaiChat => element.member("function").or_else(|| element.member("custom")),
        _ => Some(element),
    };
    let tool = named.and_then(|value| text(value, name));
    let provider_id = text(element, id);
    if tool.is_none() && provider_id.is_none() {
        return None;
    }
    let tool = bounded(&tool.unwrap_or_default(), limits::TOOL_NAME_BYTES_MAX).into_owned();
    Some(RefusedCall { provider_id, tool, custom })
}

fn id<'a, T>(slot: &mut Option<T>, value: Value<'a, '_>, new: impl FnOnce(Cow<'a, str>) -> Result<T, IdError>) {
    if slot.is_none() {
        *slot = value.as_str().and_then(|text| new(text).ok());
    }
}

/// A string that is short enough to be echoed.
fn short(value: Value<'_, '_>, bytes_max: usize) -> Option<String> {
    value.as_str().filter(|text| text.len() <= bytes_max).map(Cow::into_owned)
}
