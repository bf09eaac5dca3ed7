//! What an operator did, as the audit log has it. Such entries look like those of calls, but for `action`, and have no
//! `meta.turn`: who asks for the calls of a turn never meets them.

use crate::write::{Object, time};
use tickfleet_model::{Redactor, TenantId};

/// A counter of a limit that somebody set to zero.
#[derive(Debug, Clone, Copy)]
pub struct LimitReset<'a> {
    /// When, ms since the epoch of the shard's clock.
    pub timestamp_ms: i64,
    /// Who, as that one says.
    pub by: &'a str,
    /// Why.
    pub reason: &'a str,
    /// The limit's name.
    pub limit: &'a str,
    /// The counter among those of the limit.
    pub counter: &'a str,
    /// Whose counter it is; none where it is not one tenant's, or nobody knows.
    pub tenant: Option<&'a TenantId>,
    /// What the counter counts: `calls`, `tokens`, `millionths`, or `unknown`.
    pub unit: &'a str,
    /// Takes out the secrets that somebody may have written into the reason.
    pub redactor: &'a Redactor,
}

/// The audit entry of a reset, JSON. The commit of the reset adds `used_before` and `window_ends_ms` to `meta`.
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

/// Something that an operator did to a tenant, an agent, or turns.
#[derive(Debug, Clone, Copy)]
pub struct OperatorAct<'a> {
    /// When, ms since the epoch of the shard's clock.
    pub timestamp_ms: i64,
    /// What, as `PAUSE`.
    pub action: &'static str,
    /// What it was done to, as `agent`.
    pub entity_type: &'static str,
    /// Which one.
    pub entity_id: &'a str,
    /// What was done, within a sentence, as `paused`.
    pub verb: &'static str,
    /// Who, as that one says.
    pub by: &'a str,
    /// Why.
    pub reason: &'a str,
    /// Whose it is; none where that is not one tenant's, or nobody knows.
    pub tenant: Option<&'a TenantId>,
    /// What else there is to say, by the names that `meta` gives it.
    pub details: &'a [(&'static str, String)],
    /// Takes out secrets.
    pub redactor: &'a Redactor,
}

/// The entry of such an act as JSON.
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

/// Repairs of a shard that an operator requested.
#[derive(Debug, Clone, Copy)]
pub struct ShardRepair<'a> {
    /// When, ms since the epoch of the shard's clock.
    pub timestamp_ms: i64,
    /// Who, as that one says.
    pub by: &'a str,
    /// The shard's number.
    pub shard: u32,
    /// Number of repaired faults.
    pub mended: usize,
    /// Some of them, each with its subject.
    pub named: &'a [String],
    /// Takes out secrets.
    pub redactor: &'a Redactor,
}

/// The audit entry of repairs as JSON.
#[must_use]
pub fn repair_entry(repair: &ShardRepair<'_>) -> String {
    let by = repair.redactor.text(repair.by);
    let shard = repair.shard.to_string();
    let mut meta = Object::new(256);
    meta.raw("shard", &shard);
    meta.raw("mended", &repair.mended.to_string());
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

/// What a person said about a call that needs people's consent.
#[derive(Debug, Clone, Copy)]
pub struct ApprovalSaid<'a> {
    /// When, ms since the epoch of the shard's clock.
    pub timestamp_ms: i64,
    /// Whose call it is.
    pub tenant: &'a TenantId,
    /// Who, as that one says.
    pub by: &'a str,
    /// True where that one agreed.
    pub agrees: bool,
    /// Why.
    pub reason: &'a str,
    /// The approval.
    pub approval: &'a str,
    /// The call, `<turn>/<position>`.
    pub call: &'a str,
    /// The agent that makes it.
    pub agent: &'a str,
    /// The tool.
    pub tool: &'a str,
    /// What that one changed of the arguments, JSON: pointer to value; empty where nothing.
    pub narrowed: &'a str,
    /// Takes out secrets.
    pub redactor: &'a Redactor,
}

/// The audit entry of a person's decision, JSON. Its commit adds to `meta` the `state` of the approval, and `missing`, the
/// number of people who still have to agree.
#[must_use]
pub fn approval_entry(said: &ApprovalSaid<'_>) -> String {
    let by = said.redactor.text(said.by);
    let mut meta = Object::new(512 + said.reason.len() + said.narrowed.len());
    meta.text("approval", said.approval);
    meta.text("about", said.call);
    meta.text("agent", said.agent);
    meta.text("tool", said.tool);
    meta.text("verdict", if said.agrees { "approve" } else { "deny" });
    meta.text("reason", said.reason);
    if !said.narrowed.is_empty() {
        meta.text("narrowed", &said.redactor.json(said.narrowed));
    }
    let mut entry = Object::new(1_024 + said.reason.len() + said.narrowed.len());
    entry.text("timestamp", &time(said.timestamp_ms));
    entry.text("level", "info");
    entry.text("action", "APPROVAL");
    entry.text("entity_type", "approval");
    entry.text("entity_id", said.approval);
    entry.text("actor_type", "operator");
    entry.text("actor_id", &by);
    entry.text("tenant", said.tenant.as_str());
    let did = if said.agrees { "approved" } else { "denied" };
    entry.text("message", &format!("{by} {did} {} of {}", said.tool, said.agent));
    entry.raw("meta", &meta.end());
    entry.end()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_repair_says_who_asked_for_it_and_what_it_mended() {
        let redactor = Redactor::default();
        let named = ["turn_without_timer acme:t".to_owned()];
        let repair =
            ShardRepair { timestamp_ms: 0, by: "anna", shard: 3, mended: 1, named: &named, redactor: &redactor };
        let said: Value = serde_json::from_str(&repair_entry(&repair)).unwrap();
        assert_eq!((&said["action"], &said["message"]), (&json!("REPAIR"), &json!("anna repaired shard 3")));
        assert_eq!(said["meta"], json!({"shard": 3, "mended": 1, "named": ["turn_without_timer acme:t"]}));
    }

    #[test]
    fn a_reset_says_who_did_it_and_why_and_keeps_no_secret() {
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
