//! A message that is not accepted, with everything that is needed to answer it.

use std::borrow::Cow;

use super::dialects::{RejectedCall, members, rules};
use super::json::{Document, Value, bounded};
use super::message::problem::Problem;
use tickfleet_model::{Dialect, IdError, InboxName, RejectionCode, TaskId, TenantId, TurnId, limits};

/// Why a message is refused, and whatever of its envelope can still be read: enough to send the producer a
/// `rejected` reply with one result for every call that is readable.
#[derive(Debug, Clone)]
pub struct RejectedMessage {
    /// The rule that is broken.
    pub code: RejectionCode,
    /// The problem and what was expected; at most [`limits::ERROR_BYTES_MAX`] bytes.
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
    /// The inbox that a reply goes to.
    pub reply_to: Option<InboxName>,
    /// The dialect of the calls that were found.
    pub dialect: Dialect,
    /// Echoed in the reply.
    pub correlation_id: Option<String>,
    /// Echoed in the reply.
    pub traceparent: Option<String>,
    /// The calls that can be read, in order, however many they are: each of them waits for an answer.
    pub calls: Vec<RejectedCall>,
}

impl RejectedMessage {
    /// The refusal of a message of which nothing can be read, or has to be.
    #[must_use]
    pub fn new(code: RejectionCode, message: String) -> Self {
        Self {
            code,
            message,
            tenant: None,
            turn_id: None,
            digest: None,
            task_id: None,
            agent: None,
            reply_to: None,
            dialect: Dialect::default(),
            correlation_id: None,
            traceparent: None,
            calls: Vec::new(),
        }
    }

    /// The refusal of a message for `problem`, with what can be read of its `document`.
    pub(super) fn of(problem: Problem, document: &Document<'_>) -> Box<Self> {
        let message = bounded(&problem.message, limits::ERROR_BYTES_MAX - '…'.len_utf8()).into_owned();
        let mut refusal = Box::new(Self::new(problem.code, message));
        // Of equal keys the first is read, like everything before a broken place.
        let root = document.root().into_iter().flat_map(|root| root.members());
        let format = document.root().and_then(|root| root.member("format")).and_then(|format| format.as_str());
        let format = format.and_then(|word| Dialect::parse(&word));
        for (key, value) in root {
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
            _ => {
                if let Some((name, own, _)) = members().find(|(name, ..)| *name == key) {
                    self.calls(name, format.filter(|format| rules(*format).takes(name)).unwrap_or(own), value);
                }
            }
        }
    }

    /// The calls that the member `name` holds in `dialect`, unless another member had some.
    fn calls(&mut self, name: &'static str, dialect: Dialect, held: Value<'_, '_>) {
        if self.calls.is_empty() {
            self.calls = rules(dialect).salvage(name, held);
            if !self.calls.is_empty() {
                self.dialect = dialect;
            }
        }
    }
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
