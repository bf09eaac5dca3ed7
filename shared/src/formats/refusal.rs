//! A message that is not accepted, with everything that is needed to answer it.

use std::borrow::Cow;

use super::json::{Document, Value, bounded};
use super::text;
use crate::model::{
    Call, CallError, CallId, CallResult, Dialect, IdError, InboxName, Outcome, TaskId, TenantId, TurnId, limits,
};

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
    /// The calls that can be read, in order, at most [`limits::CALLS_PER_TURN_MAX`].
    pub calls: Vec<RefusedCall>,
}

/// A call of a refused turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    /// The provider's id of the call, unchanged.
    pub provider_id: Option<String>,
    /// The tool as the model named it; empty where that is what cannot be read.
    pub tool: String,
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
                self.traceparent = short(value, 55).filter(|text| super::fields::is_traceparent(text));
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
        let found = list.elements().filter_map(|element| refused_call(dialect, element));
        self.calls = found.take(limits::CALLS_PER_TURN_MAX).collect();
        if !self.calls.is_empty() {
            self.dialect = dialect;
        }
    }

    /// The calls in a plain answer.
    fn answer(&mut self, answer: Value<'_, '_>) {
        let found = answer.as_str().map(|answer| text::calls_in(&answer)).unwrap_or_default();
        if !found.is_empty() {
            self.dialect = Dialect::Text;
        }
        let refused = |call: Call| RefusedCall {
            provider_id: call.provider_id.filter(|id| id.len() <= limits::PROVIDER_ID_BYTES_MAX),
            tool: bounded(&call.tool, limits::TOOL_NAME_BYTES_MAX).into_owned(),
        };
        self.calls = found.into_iter().take(limits::CALLS_PER_TURN_MAX).map(refused).collect();
    }

    /// One `rejected` result for every readable call, under the id that the turn goes by in the reply.
    #[must_use]
    pub fn results(&self, turn: &TurnId) -> Vec<CallResult> {
        let error = CallError { code: self.code.to_owned(), message: self.message.clone(), details: None };
        let refuse = |(position, call): (usize, &RefusedCall)| {
            let id = CallId { turn: turn.clone(), position };
            CallResult::refused(&id, call.provider_id.clone(), &call.tool, Outcome::Rejected, error.clone())
        };
        self.calls.iter().enumerate().map(refuse).collect()
    }
}

/// The id and tool of one call, where at least one of them can be read.
fn refused_call(dialect: Dialect, element: Value<'_, '_>) -> Option<RefusedCall> {
    let kind = match dialect {
        Dialect::Anthropic => Some("tool_use"),
        Dialect::OpenaiResponses => Some("function_call"),
        _ => None,
    };
    if let Some(wanted) = kind {
        element.member("type").and_then(|kind| kind.as_str()).filter(|kind| kind == wanted)?;
    }
    let id = if dialect == Dialect::OpenaiResponses { "call_id" } else { "id" };
    let name = if dialect == Dialect::Text { "tool" } else { "name" };
    let named = if dialect == Dialect::OpenaiChat { element.member("function") } else { Some(element) };
    let tool = named.and_then(|value| value.member(name)).and_then(|name| name.as_str());
    let provider_id = element.member(id).and_then(|value| short(value, limits::PROVIDER_ID_BYTES_MAX));
    if tool.is_none() && provider_id.is_none() {
        return None;
    }
    let tool = bounded(tool.as_deref().unwrap_or_default(), limits::TOOL_NAME_BYTES_MAX).into_owned();
    Some(RefusedCall { provider_id, tool })
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
