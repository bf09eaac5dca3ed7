//! Parses entries of the audit log. All code that reads entries uses these types.

use std::borrow::Cow;
use std::fmt;

use chrono::DateTime;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_model::{Outcome, TenantId, TurnId};

use super::AuditAction;
use super::head::Level;
use crate::json::with_numbers_as_text;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct AuditEntry<'a> {
    /// RFC 3339, by the shard's clock.
    #[serde(borrow)]
    pub timestamp: Cow<'a, str>,
    #[serde(borrow)]
    pub level: Cow<'a, str>,
    /// `None` for an unknown action.
    #[serde(deserialize_with = "action")]
    pub action: Option<AuditAction>,
    /// The tool's name, if the entry describes a call.
    #[serde(borrow)]
    pub entity_id: Cow<'a, str>,
    #[serde(borrow)]
    pub actor_type: Cow<'a, str>,
    #[serde(borrow)]
    pub actor_id: Cow<'a, str>,
    pub tenant: Option<String>,
    #[serde(borrow)]
    pub message: Cow<'a, str>,
    #[serde(borrow)]
    pub meta: AuditMeta<'a>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct AuditMeta<'a> {
    /// `<turn>/<position>`.
    #[serde(borrow)]
    pub call: Cow<'a, str>,
    #[serde(borrow)]
    pub turn: Cow<'a, str>,
    /// The agent that executed the task, if the entry describes a task.
    pub agent: Option<String>,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
    pub result: Option<String>,
    /// The duration of the last attempt.
    pub duration_ms: u64,
    pub retry_count: u32,
    /// `None` for an unknown outcome, and without a call.
    #[serde(deserialize_with = "outcome")]
    pub outcome: Option<Outcome>,
    #[serde(borrow)]
    pub error: Option<AuditError<'a>>,
    pub shadow: Vec<AuditDenial>,
    /// `<turn>/<position>` of the equal call that gave this call its outcome.
    pub repeats: Option<String>,
    #[serde(borrow)]
    pub policy_inputs: Option<&'a RawValue>,
    pub effect: Option<AuditEffect>,
    #[serde(borrow)]
    pub tool_id: Cow<'a, str>,
    /// Set only if the entry describes an approver's decision.
    #[serde(borrow)]
    pub tool: Cow<'a, str>,
    /// In an entry of a call, an object. In an entry of an approver's decision, the approval's ID.
    #[serde(borrow)]
    pub approval: Option<&'a RawValue>,
    pub policy_version: Option<u64>,
    #[serde(borrow)]
    pub policy_digest: Cow<'a, str>,
    /// When the call's slice returned its permits, by the shard's clock.
    pub ended_ms: Option<i64>,
    #[serde(borrow)]
    pub places: Cow<'a, str>,
    /// Set only if the entry describes the reset of a counter.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// Set only if the entry describes the reset of a counter.
    #[serde(borrow)]
    pub counter: Cow<'a, str>,
    /// Set only if the entry describes the reset of a counter, and the counter was readable.
    pub window_ends_ms: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct AuditError<'a> {
    #[serde(borrow)]
    pub code: Cow<'a, str>,
    #[serde(borrow)]
    pub message: Cow<'a, str>,
    #[serde(borrow)]
    pub details: Option<&'a RawValue>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct AuditDenial {
    pub rule: String,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct AuditEffect {
    /// A hash, equal for two calls with the same effect.
    pub key: String,
    /// For this time after the end of the call, an equal call gets the same result instead of running.
    pub window_ms: i64,
}

impl<'a> AuditEntry<'a> {
    #[must_use]
    pub fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    #[must_use]
    pub fn read_call(text: &'a str) -> Option<Self> {
        // Skip other entries, such as those of operators, without parsing them.
        head_of_call(text).and_then(|_| Self::read(text)).filter(Self::is_call)
    }

    /// Reads the entry of a call that did not succeed.
    #[must_use]
    pub fn read_failed_call(text: &'a str) -> Option<Self> {
        // Most entries are of successful calls, so they are skipped without parsing.
        let is_error = head_of_call(text)?.contains(&member("level", Level::Error.as_str()));
        is_error.then(|| Self::read_call(text)).flatten()
    }

    #[must_use]
    pub fn is_call(&self) -> bool {
        self.action == Some(AuditAction::ToolCall)
    }

    /// By the shard's clock.
    #[must_use]
    pub fn timestamp_ms(&self) -> Option<i64> {
        timestamp_ms(&self.timestamp)
    }

    #[must_use]
    pub fn agent(&self) -> &str {
        self.meta.agent.as_deref().unwrap_or(&self.actor_id)
    }

    #[must_use]
    pub fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or_default()
    }
}

fn action<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AuditAction>, D::Error> {
    Ok(AuditAction::parse(&Cow::<str>::deserialize(deserializer)?))
}

fn outcome<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Outcome>, D::Error> {
    Ok(Outcome::parse(&Cow::<str>::deserialize(deserializer)?))
}

/// The writer puts no blanks between members, and names and IDs need no escaping.
fn member(name: &str, value: &str) -> String {
    format!("\"{name}\":\"{value}\"")
}

fn head_of_call(text: &str) -> Option<&str> {
    text.split_once(&member("action", AuditAction::ToolCall.as_str())).map(|(head, _)| head)
}

/// Finds entries of one turn, or of one of its calls, without parsing them.
#[derive(Debug, Clone)]
pub struct TurnEntries([String; 2]);

impl TurnEntries {
    #[must_use]
    pub fn new(tenant: &TenantId, turn: &TurnId, position: Option<usize>) -> Self {
        let of = match position {
            Some(position) => member("call", &format!("{turn}/{position}")),
            None => member("turn", turn.as_str()),
        };
        Self([member("tenant", tenant.as_str()), of])
    }

    #[must_use]
    pub fn contain(&self, text: &str) -> bool {
        self.0.iter().all(|member| text.contains(member.as_str()))
    }
}

impl<'a> AuditMeta<'a> {
    #[must_use]
    pub fn position(&self) -> &str {
        self.call.rsplit('/').next().unwrap_or_default()
    }

    #[must_use]
    pub fn approved_arguments(&self) -> Option<&'a RawValue> {
        #[derive(Deserialize)]
        struct Approval<'a> {
            #[serde(borrow, default)]
            arguments: Option<&'a RawValue>,
        }
        serde_json::from_str::<Approval<'a>>(self.approval?.get()).ok()?.arguments
    }
}

impl fmt::Display for AuditError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        self.details.map_or(Ok(()), |details| write!(f, " {}", details.get()))
    }
}

impl AuditError<'_> {
    /// Numbers beyond the range of doubles become strings.
    #[must_use]
    pub fn details(&self) -> Option<Value> {
        serde_json::from_str(&with_numbers_as_text(self.details?.get())).ok()
    }

    #[must_use]
    pub fn detail(&self, name: &str) -> Option<String> {
        self.details()?.get(name)?.as_str().map(str::to_owned)
    }
}

/// `None` if the text is not a time as in entries.
#[must_use]
pub fn timestamp_ms(text: &str) -> Option<i64> {
    DateTime::parse_from_rfc3339(text).ok().map(|at| at.timestamp_millis())
}

/// Empty if the text is not an entry, or has no tenant.
#[must_use]
pub fn tenant_of(text: &str) -> String {
    #[derive(Deserialize)]
    struct Tenant {
        #[serde(default)]
        tenant: Option<String>,
    }
    serde_json::from_str::<Tenant>(text).ok().and_then(|entry| entry.tenant).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_damaged_or_foreign_text_does_not_parse_as_an_entry() {
        for text in ["", "{", "7", r#"{"action":7}"#, r#"{"meta":{"duration_ms":"soon"}}"#] {
            assert!(AuditEntry::read(text).is_none(), "{text}");
            assert_eq!(tenant_of(text), "");
        }
        assert!(AuditEntry::read_call(r#"{"action":"PAUSE","message":"\"action\":\"TOOL_CALL\""}"#).is_none());
    }

    #[test]
    fn an_oversized_number_in_error_details_keeps_its_digits() {
        let text = r#"{"action":"TOOL_CALL","meta":{"error":{"code":"x","details":{"n":1e999,"rule":"r"}}}}"#;
        let error = AuditEntry::read_call(text).unwrap().meta.error.unwrap();
        assert_eq!((error.detail("rule").as_deref(), error.detail("n").as_deref()), (Some("r"), Some("1e999")));
    }
}
