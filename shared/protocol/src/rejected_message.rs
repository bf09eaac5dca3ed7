//! A rejected message, with all data that the reply needs.

use std::borrow::Cow;

use super::dialects::{RejectedCall, members, rules};
use super::json::{Document, Value, bounded};
use super::message::problem::MessageProblem;
use tickfleet_model::{Dialect, IdError, InboxName, RejectionCode, TaskId, TenantId, TurnId, limits};

#[derive(Debug, Clone)]
pub struct RejectedMessage {
    pub code: RejectionCode,
    /// At most [`limits::ERROR_BYTES_MAX`] bytes.
    pub message: String,
    /// `None` if the ID is unreadable or not well-formed. The same applies to all typed IDs here.
    pub tenant: Option<TenantId>,
    pub turn_id: Option<TurnId>,
    pub digest: Option<String>,
    pub task_id: Option<TaskId>,
    /// Set even if the name is not well-formed. At most [`limits::NAME_BYTES_MAX`] bytes and `…`.
    pub agent: Option<String>,
    pub reply_to: Option<InboxName>,
    pub dialect: Dialect,
    pub correlation_id: Option<String>,
    pub traceparent: Option<String>,
    /// The number of calls has no limit, because each call needs an answer.
    pub calls: Vec<RejectedCall>,
}

impl RejectedMessage {
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

    pub(super) fn of(problem: MessageProblem, document: &Document<'_>) -> Box<Self> {
        let message = bounded(&problem.message, limits::ERROR_BYTES_MAX - '…'.len_utf8()).into_owned();
        let mut refusal = Box::new(Self::new(problem.code, message));
        // If a key occurs twice, use the first value, because the second value may be in a broken part.
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

fn short(value: Value<'_, '_>, bytes_max: usize) -> Option<String> {
    value.as_str().filter(|text| text.len() <= bytes_max).map(Cow::into_owned)
}
