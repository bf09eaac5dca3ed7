//! Audit entries for actions of operators. These entries have no `meta.turn`, so a search for the calls of a turn does
//! not return them.

use super::AuditAction;
use super::head::{Head, Level};
use crate::write::Object;
use tickfleet_model::policy::Pause;
use tickfleet_model::{Redactor, TenantId};

/// The operator and the reason of an action. Both are recorded in the audit log.
#[derive(Debug, Clone, Copy)]
pub struct Operator<'a> {
    /// The operator's name, as the caller states it.
    pub by: &'a str,
    /// The reason.
    pub reason: &'a str,
    /// Removes secrets from `by` and `reason`.
    pub redactor: &'a Redactor,
}

impl Operator<'_> {
    /// Returns the note of a pause or drain, without secrets.
    #[must_use]
    pub fn note(&self, since_ms: i64) -> Pause {
        let text = |text: &str| self.redactor.text(text).into_owned();
        Pause { by: text(self.by), reason: text(self.reason), since_ms }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum AuditValue<'a> {
    /// Secrets are removed.
    Text(&'a str),
    /// Has no secrets.
    Name(&'a str),
    Number(i64),
    /// Secrets are removed.
    Texts(&'a [String]),
}

#[derive(Debug, Clone, Copy)]
pub struct OperatorAct<'a> {
    pub action: AuditAction,
    /// For example `agent`.
    pub entity_type: &'static str,
    pub entity_id: &'a str,
    /// The message after the operator's name, for example `paused acme`.
    pub did: &'a str,
    /// `None` if the target does not belong to a single tenant, or if the tenant is unknown.
    pub tenant: Option<&'a TenantId>,
    /// Members of `meta` in addition to the reason.
    pub details: &'a [(&'static str, AuditValue<'a>)],
}

/// `timestamp_ms` is the time since the epoch, by the shard's clock.
#[must_use]
pub fn operator_entry(act: &OperatorAct<'_>, operator: Operator<'_>, timestamp_ms: i64) -> String {
    let redactor = operator.redactor;
    let by = redactor.text(operator.by);
    let mut meta = Object::new(256 + operator.reason.len());
    meta.text("reason", &redactor.text(operator.reason));
    for (name, value) in act.details {
        match value {
            AuditValue::Text(text) => meta.text(name, &redactor.text(text)),
            AuditValue::Name(word) => meta.text(name, word),
            AuditValue::Number(number) => meta.raw(name, &number.to_string()),
            AuditValue::Texts(texts) => {
                let clean: Vec<_> = texts.iter().map(|text| redactor.text(text)).collect();
                meta.texts(name, clean.iter().map(AsRef::as_ref));
            }
        }
    }
    let head = Head {
        timestamp_ms,
        level: Level::Info,
        action: act.action,
        entity_type: act.entity_type,
        entity_id: act.entity_id,
        actor_type: "operator",
        actor_id: &by,
        tenant: act.tenant,
        message: &format!("{by} {}", act.did),
    };
    head.entry(meta)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_entry_of_an_operator_has_the_action_and_redacted_texts() {
        let tenant = TenantId::new("acme").unwrap();
        let redactor = Redactor::default();
        let named = ["turn acme:t".to_owned(), "token=abc".to_owned()];
        let act = OperatorAct {
            action: AuditAction::LimitReset,
            entity_type: "limit",
            entity_id: "mails@acme:kelly",
            did: "reset mails@acme:kelly",
            tenant: Some(&tenant),
            details: &[
                ("limit", AuditValue::Name("mails")),
                ("note", AuditValue::Text("token=abc")),
                ("repaired", AuditValue::Number(2)),
                ("named", AuditValue::Texts(&named)),
            ],
        };
        let operator = Operator { by: "anna", reason: "\"quoted\", token=abc", redactor: &redactor };
        let read = |act: &OperatorAct<'_>| -> Value {
            serde_json::from_str(&operator_entry(act, operator, 1_767_225_600_123)).unwrap()
        };
        let expected = json!({
            "timestamp": "2026-01-01T00:00:00.123Z", "level": "info", "action": "LIMIT_RESET", "entity_type": "limit",
            "entity_id": "mails@acme:kelly", "actor_type": "operator", "actor_id": "anna", "tenant": "acme",
            "message": "anna reset mails@acme:kelly",
            "meta": {
                "reason": "\"quoted\", token=[REDACTED]", "limit": "mails", "note": "token=[REDACTED]",
                "repaired": 2,
                "named": ["turn acme:t", "token=[REDACTED]"],
            },
        });
        assert_eq!(read(&act), expected);
        assert_eq!(read(&OperatorAct { tenant: None, ..act })["tenant"], Value::Null);
    }
}
