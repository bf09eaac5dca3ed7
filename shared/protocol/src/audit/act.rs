//! Audit entries for actions of operators. These entries have no `meta.turn`, so a search for the calls of a turn does
//! not return them.

use crate::write::{Object, time};
use tickfleet_model::{Redactor, TenantId};

#[derive(Debug, Clone, Copy)]
pub struct LimitReset<'a> {
    /// Since the epoch, by the shard's clock.
    pub timestamp_ms: i64,
    /// The operator's name, as the request states it.
    pub by: &'a str,
    pub reason: &'a str,
    pub limit: &'a str,
    pub counter: &'a str,
    /// `None` if the tenant is unknown, or if the counter does not belong to a single tenant.
    pub tenant: Option<&'a TenantId>,
    /// `calls`, `tokens`, `millionths`, or `unknown`.
    pub unit: &'a str,
    pub redactor: &'a Redactor,
}

/// When the reset is committed, the store adds `used_before` and `window_ends_ms` to `meta`.
#[must_use]
pub fn limit_reset_entry(reset: &LimitReset<'_>) -> String {
    let LimitReset { limit, counter, redactor, .. } = *reset;
    let by = redactor.text(reset.by);
    let mut meta = Object::new(256 + reset.reason.len());
    meta.text("limit", limit);
    meta.text("counter", counter);
    meta.text("reason", &redactor.text(reset.reason));
    meta.text("unit", reset.unit);
    let mut entry = Object::new(768 + reset.reason.len());
    entry.text("timestamp", &time(reset.timestamp_ms));
    entry.text("level", "info");
    entry.text("action", "LIMIT_RESET");
    entry.text("entity_type", "limit");
    entry.text("entity_id", &format!("{limit}@{counter}"));
    entry.text("actor_type", "operator");
    entry.text("actor_id", &by);
    match reset.tenant {
        Some(tenant) => entry.text("tenant", tenant.as_str()),
        None => entry.raw("tenant", "null"),
    }
    let which = if counter.is_empty() { String::new() } else { format!("@{counter}") };
    entry.text("message", &format!("{by} reset {limit}{which}"));
    entry.raw("meta", &meta.end());
    entry.end()
}

#[derive(Debug, Clone, Copy)]
pub struct OperatorAct<'a> {
    pub timestamp_ms: i64,
    /// For example `PAUSE`.
    pub action: &'static str,
    /// For example `agent`.
    pub entity_type: &'static str,
    pub entity_id: &'a str,
    /// In the past tense, for example `paused`.
    pub verb: &'static str,
    pub by: &'a str,
    pub reason: &'a str,
    /// `None` if the target does not belong to a single tenant, or if the tenant is unknown.
    pub tenant: Option<&'a TenantId>,
    pub details: &'a [(&'static str, String)],
    pub redactor: &'a Redactor,
}

#[must_use]
pub fn act_entry(act: &OperatorAct<'_>) -> String {
    let by = act.redactor.text(act.by);
    let mut meta = Object::new(64 + act.reason.len());
    meta.text("reason", &act.redactor.text(act.reason));
    for (name, detail) in act.details {
        meta.text(name, &act.redactor.text(detail));
    }
    let mut entry = Object::new(512 + act.reason.len());
    entry.text("timestamp", &time(act.timestamp_ms));
    entry.text("level", "info");
    entry.text("action", act.action);
    entry.text("entity_type", act.entity_type);
    entry.text("entity_id", act.entity_id);
    entry.text("actor_type", "operator");
    entry.text("actor_id", &by);
    match act.tenant {
        Some(tenant) => entry.text("tenant", tenant.as_str()),
        None => entry.raw("tenant", "null"),
    }
    entry.text("message", &format!("{by} {} {}", act.verb, act.entity_id));
    entry.raw("meta", &meta.end());
    entry.end()
}

#[derive(Debug, Clone, Copy)]
pub struct ShardRepair<'a> {
    pub timestamp_ms: i64,
    pub by: &'a str,
    pub shard: u32,
    pub repaired: usize,
    /// Descriptions of some of the repaired faults.
    pub named: &'a [String],
    pub redactor: &'a Redactor,
}

#[must_use]
pub fn repair_entry(repair: &ShardRepair<'_>) -> String {
    let by = repair.redactor.text(repair.by);
    let shard = repair.shard.to_string();
    let mut meta = Object::new(256);
    meta.raw("shard", &shard);
    meta.raw("repaired", &repair.repaired.to_string());
    let named: Vec<_> = repair.named.iter().map(|name| repair.redactor.text(name)).collect();
    meta.texts("named", named.iter().map(AsRef::as_ref));
    let mut entry = Object::new(768);
    entry.text("timestamp", &time(repair.timestamp_ms));
    entry.text("level", "info");
    entry.text("action", "REPAIR");
    entry.text("entity_type", "shard");
    entry.text("entity_id", &shard);
    entry.text("actor_type", "operator");
    entry.text("actor_id", &by);
    entry.raw("tenant", "null");
    entry.text("message", &format!("{by} repaired shard {shard}"));
    entry.raw("meta", &meta.end());
    entry.end()
}

#[derive(Debug, Clone, Copy)]
pub struct ApprovalDecision<'a> {
    pub timestamp_ms: i64,
    pub tenant: &'a TenantId,
    pub by: &'a str,
    pub agrees: bool,
    pub reason: &'a str,
    pub approval: &'a str,
    /// `<turn>/<position>`.
    pub call: &'a str,
    pub agent: &'a str,
    pub tool: &'a str,
    /// The arguments that the person changed: a JSON object from pointer to value. Empty if none were changed.
    pub narrowed: &'a str,
    pub redactor: &'a Redactor,
}

/// When the decision is committed, the store adds `state` and `missing` (the number of approvals still required) to
/// `meta`.
#[must_use]
pub fn approval_entry(decision: &ApprovalDecision<'_>) -> String {
    let by = decision.redactor.text(decision.by);
    let mut meta = Object::new(512 + decision.reason.len() + decision.narrowed.len());
    meta.text("approval", decision.approval);
    meta.text("about", decision.call);
    meta.text("agent", decision.agent);
    meta.text("tool", decision.tool);
    meta.text("verdict", if decision.agrees { "approve" } else { "deny" });
    meta.text("reason", decision.reason);
    if !decision.narrowed.is_empty() {
        meta.text("narrowed", &decision.redactor.json(decision.narrowed));
    }
    let mut entry = Object::new(1_024 + decision.reason.len() + decision.narrowed.len());
    entry.text("timestamp", &time(decision.timestamp_ms));
    entry.text("level", "info");
    entry.text("action", "APPROVAL");
    entry.text("entity_type", "approval");
    entry.text("entity_id", decision.approval);
    entry.text("actor_type", "operator");
    entry.text("actor_id", &by);
    entry.text("tenant", decision.tenant.as_str());
    let did = if decision.agrees { "approved" } else { "denied" };
    entry.text("message", &format!("{by} {did} {} of {}", decision.tool, decision.agent));
    entry.raw("meta", &meta.end());
    entry.end()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_repair_entry_has_the_operator_and_the_repaired_items() {
        let redactor = Redactor::default();
        let named = ["turn_without_timer acme:t".to_owned()];
        let repair =
            ShardRepair { timestamp_ms: 0, by: "anna", shard: 3, repaired: 1, named: &named, redactor: &redactor };
        let said: Value = serde_json::from_str(&repair_entry(&repair)).unwrap();
        assert_eq!((&said["action"], &said["message"]), (&json!("REPAIR"), &json!("anna repaired shard 3")));
        assert_eq!(said["meta"], json!({"shard": 3, "repaired": 1, "named": ["turn_without_timer acme:t"]}));
    }

    #[test]
    fn a_limit_reset_entry_has_the_operator_and_a_redacted_reason() {
        let tenant = TenantId::new("acme").unwrap();
        let reset = LimitReset {
            timestamp_ms: 1_767_225_600_123,
            by: "anna",
            reason: "\"quoted\", token=abc",
            limit: "mails",
            counter: "acme:kelly",
            tenant: Some(&tenant),
            unit: "calls",
            redactor: &Redactor::default(),
        };
        let read = |entry: String| -> Value { serde_json::from_str(&entry).unwrap() };
        let expected = json!({
            "timestamp": "2026-01-01T00:00:00.123Z", "level": "info", "action": "LIMIT_RESET", "entity_type": "limit",
            "entity_id": "mails@acme:kelly", "actor_type": "operator", "actor_id": "anna", "tenant": "acme",
            "message": "anna reset mails@acme:kelly",
            "meta": {
                "limit": "mails", "counter": "acme:kelly", "reason": "\"quoted\", token=[REDACTED]", "unit": "calls",
            },
        });
        assert_eq!(read(limit_reset_entry(&reset)), expected);
        let of_all = read(limit_reset_entry(&LimitReset { tenant: None, counter: "", ..reset }));
        assert_eq!((&of_all["tenant"], &of_all["message"]), (&Value::Null, &json!("anna reset mails")));
    }
}
