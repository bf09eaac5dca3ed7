//! The definition that a function declares, and the tool made from it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tickfleet_config::default_id;
use tickfleet_model::approval::is_approver_word;
use tickfleet_model::hex;
use tickfleet_model::tool::{
    RECONCILE_GRACE_MS_DEFAULT, RECONCILE_GRACE_MS_MAX, RECONCILE_TRIES_DEFAULT, RECONCILE_TRIES_MAX, ReadCache,
    Reconcile, ReconcileArgument,
};
use tickfleet_model::{ApprovalDemand, Durability, Effect, EffectKey, ToolSpec, limits, version};

/// The longest timeout of one attempt. Longer work should be a task.
const TIMEOUT_MS_MAX: u64 = 3_600_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Definition {
    pub(crate) name: String,
    description: String,
    input_schema: Value,
    output_schema: Option<Value>,
    effect: Effect,
    timeout_ms: Option<u64>,
    category: Option<String>,
    display_name: Option<String>,
    version: Option<String>,
    requires_approval: bool,
    required_capabilities: Vec<String>,
    required_features: Vec<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    approval: Option<ApprovalDemand>,
    #[serde(default)]
    effect_key: Option<EffectKey>,
    #[serde(default)]
    cache: Option<ReadCache>,
    #[serde(default)]
    reconcile: Option<Lookup>,
    #[serde(default)]
    durable: Option<Durability>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Lookup {
    tool: String,
    /// Written as in `tools.yaml`.
    #[serde(default)]
    arguments: BTreeMap<String, Value>,
    happened: String,
    #[serde(default)]
    output: Option<String>,
    #[serde(default = "tries")]
    tries: u32,
    #[serde(default = "grace_ms")]
    grace_ms: i64,
}

const fn tries() -> u32 {
    RECONCILE_TRIES_DEFAULT
}

const fn grace_ms() -> i64 {
    RECONCILE_GRACE_MS_DEFAULT
}

impl Definition {
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    /// Checks only fields that the registry does not check. The Python and TypeScript packages make the same checks.
    pub(crate) fn check(&self) -> Result<(), String> {
        let refuse = |field: &str, found: &dyn fmt::Display, allowed: &str| {
            Err(format!("the tool '{}': {field} is {found}; expected {allowed}", self.name))
        };
        if let Some(ms) = self.timeout_ms.filter(|ms| !(1..=TIMEOUT_MS_MAX).contains(ms)) {
            return refuse("timeout_ms", &ms, "1 to 3600000");
        }
        if let Some(version) = self.version.as_ref().filter(|version| version::parse(version).is_none()) {
            return refuse("version", version, "a semantic version such as 1.0.0");
        }
        if let Some(ApprovalDemand { by, quorum, expires_ms, narrow }) = &self.approval {
            if !(1..=limits::APPROVERS_QUORUM_MAX).contains(quorum) {
                return refuse("approval.quorum", quorum, &format!("1 to {}", limits::APPROVERS_QUORUM_MAX));
            }
            if let Some(role) = by.iter().find(|role| !is_approver_word(role)) {
                return refuse("approval.by", role, "names of roles");
            }
            if let Some(ms) = expires_ms.filter(|ms| !(1_000..=limits::DEADLINE_MS_MAX).contains(ms)) {
                return refuse("approval.expires_ms", &ms, "1 second to 30 days");
            }
            if let Some(pointer) = narrow.iter().find(|pointer| !pointer.starts_with('/')) {
                return refuse("approval.narrow", pointer, "JSON pointers such as /amount");
            }
        }
        let Some(lookup) = &self.reconcile else { return Ok(()) };
        if !(1..=RECONCILE_TRIES_MAX).contains(&lookup.tries) {
            return refuse("reconcile.tries", &lookup.tries, &format!("1 to {RECONCILE_TRIES_MAX}"));
        }
        if !(1_000..=RECONCILE_GRACE_MS_MAX).contains(&lookup.grace_ms) {
            return refuse("reconcile.grace_ms", &lookup.grace_ms, "1 second to 1 hour");
        }
        if let Some(pointer) = [Some(&lookup.happened), lookup.output.as_ref()]
            .into_iter()
            .flatten()
            .find(|pointer| !pointer.starts_with('/'))
        {
            return refuse("reconcile", pointer, "JSON pointers into the lookup's output, such as /found");
        }
        let declared = |value: &Value| ReconcileArgument::declared(value.clone()).is_some();
        match lookup.arguments.values().find(|value| !declared(value)) {
            Some(value) => refuse("reconcile.arguments", value, "$call, $idempotency_key, a JSON pointer, or a value"),
            None => Ok(()),
        }
    }

    pub(crate) fn reconciled_by(&self) -> Option<&str> {
        self.reconcile.as_ref().map(|lookup| lookup.tool.as_str())
    }

    /// `configured` is false if a secret of the tool's processes is missing.
    pub(crate) fn spec(&self, timeout: Duration, configured: bool) -> ToolSpec {
        ToolSpec {
            id: self.id.clone().unwrap_or_else(|| default_id(&self.name)),
            name: self.name.clone(),
            display_name: self.display_name.clone().unwrap_or_else(|| self.name.clone()),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
            output_schema: self.output_schema.clone(),
            category: self.category.clone().unwrap_or_else(|| "general".to_owned()),
            version: self.version.clone().unwrap_or_else(|| "1.0.0".to_owned()),
            effect: self.effect,
            timeout,
            required_capabilities: self.required_capabilities.clone(),
            required_features: self.required_features.clone(),
            requires_approval: self.requires_approval || self.approval.is_some(),
            approval: self.approval.clone(),
            effect_key: self.effect_key.clone(),
            cache: self.cache,
            reconcile: self.reconcile.as_ref().map(Lookup::reconcile),
            durable: self.durable,
            configured,
        }
    }
}

impl Lookup {
    fn reconcile(&self) -> Reconcile {
        let argument = |(name, value): (&String, &Value)| {
            ReconcileArgument::declared(value.clone()).map(|argument| (name.clone(), argument))
        };
        Reconcile {
            tool: self.tool.clone(),
            arguments: self.arguments.iter().filter_map(argument).collect(),
            happened: self.happened.clone(),
            output: self.output.clone(),
            tries: self.tries,
            grace_ms: self.grace_ms,
        }
    }
}

pub(crate) fn digest(tools: &[Definition]) -> String {
    // Maps of strings and numbers can always be serialized.
    let text = serde_json::to_vec(tools).unwrap_or_default();
    hex(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    fn definition(more: &Value) -> Definition {
        let mut definition = json!({
            "name": "pay", "description": "Pays.", "input_schema": {"type": "object"}, "output_schema": null,
            "effect": "once", "timeout_ms": null, "category": null, "display_name": null, "version": null,
            "requires_approval": false, "required_capabilities": [], "required_features": [],
        });
        definition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(definition).unwrap()
    }

    #[test]
    fn optional_fields_of_a_definition_are_validated() {
        assert_eq!(definition(&json!({})).check(), Ok(()));
        let all = definition(&json!({
            "id": "payments.pay", "approval": {"by": ["finance"], "narrow": ["/amount"]}, "durable": "replica",
            "effect_key": {"arguments": ["/to"], "window_ms": 1000},
            "reconcile": {"tool": "find", "happened": "/found", "arguments": {"key": "$idempotency_key", "n": 1}},
        }));
        assert_eq!(all.check(), Ok(()));
        let spec = all.spec(Duration::from_secs(1), true);
        assert_eq!(
            (spec.id.as_str(), spec.requires_approval, spec.durable),
            ("payments.pay", true, Some(Durability::Replica))
        );
        let reconcile = spec.reconcile.unwrap();
        assert_eq!((reconcile.tries, reconcile.arguments.len()), (RECONCILE_TRIES_DEFAULT, 2));
        for (more, expected) in [
            (json!({"timeout_ms": 3_600_001}), "timeout_ms is 3600001"),
            (json!({"version": "one"}), "version is one"),
            (json!({"approval": {"quorum": 17}}), "approval.quorum is 17; expected 1 to 16"),
            (json!({"approval": {"by": ["a b"]}}), "approval.by is a b"),
            (json!({"approval": {"expires_ms": 1}}), "approval.expires_ms is 1"),
            (json!({"approval": {"narrow": ["amount"]}}), "approval.narrow is amount"),
            (json!({"reconcile": {"tool": "find", "happened": "found"}}), "reconcile is found"),
            (json!({"reconcile": {"tool": "find", "happened": "/f", "tries": 21}}), "reconcile.tries is 21"),
            (json!({"reconcile": {"tool": "find", "happened": "/f", "grace_ms": 1}}), "reconcile.grace_ms is 1"),
            (
                json!({"reconcile": {"tool": "f", "happened": "/f", "arguments": {"k": "$id"}}}),
                "reconcile.arguments is",
            ),
        ] {
            let refused = definition(&more).check().unwrap_err();
            assert!(refused.starts_with(&format!("the tool 'pay': {expected}")), "{refused}");
        }
    }
}
