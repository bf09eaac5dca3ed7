//! Entries of the audit log: [`audit_entry`] writes the entry of a call, regardless of its outcome. [`operator_entry`]
//! writes the entry of an operator's action. [`AuditEntry`] reads both. Texts are redacted first, then cut.

mod action;
mod entry;
mod head;
mod operator;

pub use action::AuditAction;
pub use entry::{AuditDenial, AuditEffect, AuditEntry, AuditError, AuditMeta, TurnEntries, tenant_of, timestamp_ms};
pub use head::with_meta;
pub use operator::{AuditValue, Operator, OperatorAct, operator_entry};

use std::borrow::Cow;

use super::content::{content_blocks, content_text};
use super::cut::{cut_chars, cut_output};
use super::json::{Bounds, check};
use super::result::cached_json;
use super::write::Object;
use head::{Head, Level};
use serde_json::Value;
use tickfleet_model::outcome::CallApproval;
use tickfleet_model::policy::ShadowDenial;
use tickfleet_model::{AgentId, CallError, CallResult, EffectNote, Redactor, TenantId, limits};

const TOOL_CALL_ID_CHARS_MAX: usize = 256;

/// The fields are borrowed to avoid copies, because an entry is written for every call.
#[derive(Debug, Clone, Copy)]
pub struct AuditInput<'a> {
    /// Since the epoch, by the shard's clock.
    pub timestamp_ms: i64,
    pub tenant: &'a TenantId,
    /// For a task, the agent that executed the task.
    pub agent: &'a AgentId,
    /// `None` for a call of a tool. `Some(None)` for a task that a producer enqueued.
    pub delegated: Option<Option<&'a AgentId>>,
    pub turn: &'a str,
    /// `None` if no tool was looked up, or if no tool has the name that the model wrote.
    pub tool_name: Option<&'a str>,
    /// The ID of the tool version that ran.
    pub tool_id: Option<&'a str>,
    /// As the model wrote them.
    pub arguments: &'a str,
    pub result: &'a CallResult,
    pub shadow: &'a [ShadowDenial],
    /// JSON. Empty if the configuration excludes these inputs from the audit log.
    pub policy_inputs: &'a str,
    /// Set if the effect may have happened, or if the result is copied from an equal call.
    pub effect: Option<&'a EffectNote>,
    /// `None` if no policy decided the call.
    pub policy_version: Option<u64>,
    /// The first characters of the digest; empty if unknown.
    pub policy_digest: &'a str,
    pub redactor: &'a Redactor,
    pub result_chars_max: usize,
}

/// `meta.arguments` is the redacted JSON, or a string if the arguments are not JSON. `meta.result` and `meta.error` are
/// always present, and one of the two is null.
#[must_use]
pub fn audit_entry(input: &AuditInput<'_>) -> String {
    let AuditInput { result, redactor, .. } = *input;
    // Workers and the scheduler must write the same name: the tool's own name. The name that the model wrote may
    // contain secrets.
    let tool = redactor.text(&result.tool);
    let (actor_type, actor_id) = match input.delegated {
        None => ("agent", input.agent.as_str()),
        Some(Some(delegator)) => ("agent", delegator.as_str()),
        Some(None) => ("service", "producer"),
    };
    let head = Head {
        timestamp_ms: input.timestamp_ms,
        level: if result.success { Level::Info } else { Level::Error },
        action: AuditAction::ToolCall,
        entity_type: "tool",
        entity_id: input.tool_name.unwrap_or(&tool),
        actor_type,
        actor_id,
        tenant: Some(input.tenant),
        message: &message(input, &tool),
    };
    head.entry(meta(input))
}

fn message(input: &AuditInput<'_>, tool: &str) -> String {
    let agent = input.agent;
    let result = input.result;
    let what = match input.delegated {
        None => format!("{agent} called {tool}"),
        Some(Some(delegator)) => format!("{delegator} delegated a task to {agent}"),
        Some(None) => format!("a task was enqueued for {agent}"),
    };
    if result.success {
        return format!("{what}: ok in {} ms", result.duration_ms);
    }
    format!("{what}: {}", result.outcome.as_str())
}

fn meta(input: &AuditInput<'_>) -> Object {
    let AuditInput { result, redactor, .. } = *input;
    let mut meta = Object::new(512 + input.arguments.len().min(limits::AUDIT_ARGUMENTS_BYTES_MAX));
    meta.text("call", &result.call);
    meta.text("turn", input.turn);
    if let Some(id) = input.tool_id {
        meta.text("tool_id", id);
    }
    if input.delegated.is_some() {
        meta.text("agent", input.agent.as_str());
    }
    match &result.tool_call_id {
        // Some providers put kilobytes of opaque data into an ID.
        Some(id) => meta.text("tool_call_id", &cut_chars(&redactor.text(id), TOOL_CALL_ID_CHARS_MAX)),
        None => meta.raw("tool_call_id", "null"),
    }
    arguments(&mut meta, input.arguments, redactor);
    match &result.output {
        Some(output) => {
            let text = content_blocks(result).map(|blocks| Value::from(content_text(&blocks)).to_string());
            let json = text.as_deref().unwrap_or_else(|| output.get());
            meta.text("result", &shown(json, input.result_chars_max, redactor));
        }
        None => meta.raw("result", "null"),
    }
    meta.raw("duration_ms", &result.duration_ms.to_string());
    meta.raw("success", if result.success { "true" } else { "false" });
    match &result.error {
        Some(failed) => meta.raw("error", &error(failed, redactor)),
        None => meta.raw("error", "null"),
    }
    meta.raw("retry_count", &result.attempts.saturating_sub(1).to_string());
    meta.text("outcome", result.outcome.as_str());
    if !input.shadow.is_empty() {
        let denials: Vec<String> = input.shadow.iter().map(|denial| shadow(denial, redactor)).collect();
        meta.raw("shadow", &format!("[{}]", denials.join(",")));
    }
    if let Some(call) = &result.repeats {
        meta.text("repeats", call);
    }
    if !input.policy_inputs.is_empty() {
        meta.raw("policy_inputs", input.policy_inputs);
    }
    if let Some(EffectNote { key, window_ms }) = input.effect {
        // The key is a hash, so there is nothing to redact.
        meta.raw("effect", &format!(r#"{{"key":"{key}","window_ms":{window_ms}}}"#));
    }
    if let Some(approval) = &result.approval {
        meta.raw("approval", &approved(approval, redactor));
    }
    if let Some(cached) = &result.cached {
        meta.raw("cached", &cached_json(cached));
    }
    if let Some(note) = &result.note {
        meta.text("note", &redactor.text(note));
    }
    if result.reconciled {
        meta.raw("reconciled", "true");
    }
    if result.local {
        meta.raw("local", "true");
    }
    if let Some(version) = input.policy_version {
        meta.raw("policy_version", &version.to_string());
    }
    if !input.policy_digest.is_empty() {
        meta.text("policy_digest", input.policy_digest);
    }
    meta
}

fn error(error: &CallError, redactor: &Redactor) -> String {
    let mut object = Object::new(error.message.len() + 48);
    object.text("code", &error.code);
    object.text("message", &redactor.text(&error.message));
    if let Some(details) = &error.details {
        let details = details.to_string();
        object.raw("details", &cut_output(&redactor.json(&details), limits::ERROR_BYTES_MAX));
    }
    object.end()
}

fn approved(approval: &CallApproval, redactor: &Redactor) -> String {
    let mut object = Object::new(128);
    object.text("id", &approval.id);
    object.raw("by", &serde_json::to_string(&approval.by).unwrap_or_else(|_| "[]".into()));
    if let Some(given) = &approval.arguments {
        arguments(&mut object, given.get(), redactor);
    }
    object.end()
}

/// The members have the same names as in `error.details` of a denied call.
fn shadow(denial: &ShadowDenial, redactor: &Redactor) -> String {
    let mut object = Object::new(denial.message.len() + 96);
    object.text("rule", &denial.rule);
    object.text("reason", &denial.reason);
    object.text("message", &redactor.text(&denial.message));
    object.end()
}

fn arguments(meta: &mut Object, arguments: &str, redactor: &Redactor) {
    const BOUNDS: Bounds = Bounds { bytes_max: limits::TURN_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX };
    let clean = redactor.json(arguments);
    if check(clean.as_bytes(), BOUNDS).is_ok() {
        meta.raw("arguments", &cut_output(&clean, limits::AUDIT_ARGUMENTS_BYTES_MAX));
    } else {
        meta.text("arguments", &cut_chars(&clean, limits::AUDIT_ARGUMENTS_BYTES_MAX / 4));
    }
}

/// A huge output is not redacted completely, because only a few characters are kept. A secret that starts in the kept
/// characters ends inside the redacted window.
fn shown(json: &str, chars_max: usize, redactor: &Redactor) -> String {
    // More bytes than the longest token that is detected by its shape.
    const MARGIN: usize = 1_024;
    let window = super::json::prefix(json, chars_max.saturating_mul(4).saturating_add(2 * MARGIN));
    let mut clean = redactor.json(window);
    // If redaction shortened the window, the kept characters may reach the window's end, where a secret can be cut in
    // two.
    if window.len() < json.len() && clean.len() < chars_max.saturating_mul(4).saturating_add(MARGIN) {
        clean = redactor.json(json);
    }
    match cut_chars(&clean, chars_max) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;
    use tickfleet_model::{CallId, Outcome, TurnId};

    fn done(output: &str) -> CallResult {
        CallResult {
            tool_call_id: Some("c1".into()),
            call: "t/0".into(),
            tool: "send".into(),
            success: true,
            outcome: Outcome::Ok,
            output: Some(RawValue::from_string(output.into()).unwrap()),
            error: None,
            content_type: "application/json".into(),
            duration_ms: 12,
            attempts: 2,
            repeats: None,
            approval: None,
            cached: None,
            note: None,
            reconciled: false,
            local: false,
            facts_evaluated_ms: None,
        }
    }

    fn entry(result: &CallResult, arguments: &str) -> Value {
        entry_of(result, arguments, Some(("send", "tool_send")))
    }

    fn entry_of(result: &CallResult, arguments: &str, tool: Option<(&str, &str)>) -> Value {
        let tenant = TenantId::new("acme").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        let text = audit_entry(&AuditInput {
            timestamp_ms: 1_767_225_600_123,
            tenant: &tenant,
            agent: &agent,
            delegated: None,
            turn: "t",
            tool_name: tool.map(|(name, _)| name),
            tool_id: tool.map(|(_, id)| id),
            arguments,
            result,
            shadow: &[],
            policy_inputs: "",
            effect: None,
            policy_version: Some(3),
            policy_digest: "3f2a9c0d1e4b",
            redactor: &Redactor::default(),
            result_chars_max: limits::AUDIT_RESULT_CHARS,
        });
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn an_entry_records_the_actor_the_call_and_its_result() {
        let entry = entry(&done(r#"{"id":7,"api_key":"k"}"#), r#"{"to":"x","password":"p"}"#);
        let expected = json!({
            "timestamp": "2026-01-01T00:00:00.123Z", "level": "info", "action": "TOOL_CALL", "entity_type": "tool",
            "entity_id": "send", "actor_type": "agent", "actor_id": "kelly", "tenant": "acme",
            "message": "kelly called send: ok in 12 ms",
            "meta": {
                "call": "t/0", "turn": "t", "tool_id": "tool_send", "tool_call_id": "c1",
                "arguments": {"to": "x", "password": "[REDACTED]"},
                "result": r#"{"id":7,"api_key":"[REDACTED]"}"#,
                "duration_ms": 12, "success": true, "error": null, "retry_count": 1, "outcome": "ok", "policy_version": 3,
                "policy_digest": "3f2a9c0d1e4b",
            },
        });
        assert_eq!(entry, expected);
    }

    #[test]
    fn a_tool_has_the_same_entity_id_in_every_entry() {
        let ran = entry(&done("{}"), "{}");
        let ended = entry_of(&done("{}"), "{}", None);
        assert_eq!((&ran["entity_id"], &ended["entity_id"]), (&json!("send"), &json!("send")));
        let shown = CallResult { tool: "se_nd".into(), ..done("{}") };
        assert_eq!(entry(&shown, "{}")["entity_id"], "send");
    }

    #[test]
    fn a_failed_call_is_logged_at_error_level_with_its_reason() {
        let call = CallId { turn: TurnId::new("t").unwrap(), position: 0 };
        let error =
            CallError { code: "denied".into(), message: "no: token=abc".into(), details: Some(json!({"secret": "x"})) };
        let refused = CallResult::refused(&call, None, "send", Outcome::Denied, error);
        let entry = entry(&refused, "{not json password=x");
        assert_eq!((&entry["level"], &entry["meta"]["success"]), (&json!("error"), &json!(false)));
        let error = json!({"code": "denied", "message": "no: token=[REDACTED]", "details": {"secret": "[REDACTED]"}});
        assert_eq!(entry["meta"]["error"], error);
        assert_eq!(entry["meta"].get("result"), Some(&Value::Null));
        assert_eq!(entry["meta"]["arguments"], "{not json password=[REDACTED]");
        assert_eq!(entry["meta"]["retry_count"], 0);
    }

    #[test]
    fn huge_arguments_and_results_stay_bounded() {
        let huge = serde_json::to_string(&"é\u{1}".repeat(100_000)).unwrap();
        let entry = entry(&done(&huge), &huge);
        assert!(entry.to_string().len() < 24_000);
        assert_eq!(entry["meta"]["result"].as_str().unwrap().chars().count(), limits::AUDIT_RESULT_CHARS);
    }

    proptest! {
        #[test]
        fn truncation_never_exposes_a_secret(before in 0usize..9_000, hidden in 0usize..9_000, after in 0usize..9_000) {
            let secret = format!("ghp_{}", "s3cr3t".repeat(6));
            let output = json!([
                "a".repeat(before), {"password": "b".repeat(hidden)}, "c".repeat(after),
                format!("\u{1}\n{secret}\n{}\"", "\n".repeat(after)), format!("d {secret} e"), "f".repeat(after),
            ]);
            let entry = entry(&done(&output.to_string()), "{}");
            prop_assert!(!entry.to_string().contains("s3cr3t"));
        }
    }
}
