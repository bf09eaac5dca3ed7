//! The digest of a policy. Two processes with equal digests make equal decisions.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tickfleet_model::hex;

use crate::document::canonical::{write_canonical, write_name};
use tickfleet_model::policy::Policy;

/// Returns a SHA-256 digest in hex. `declared` is the part of the tools and agents that affects decisions, in
/// canonical JSON.
///
/// Hashes the text member by member: with many agents, the complete text would take more memory than the policy.
pub(super) fn digest(policy: &Policy, declared: &str) -> String {
    let caps = &policy.defaults;
    let permissions = &policy.permissions;
    let mut members = BTreeMap::from([
        ("agents", members_of(&policy.agents)),
        ("tenants", members_of(&policy.tenants)),
        ("matrix", members_of(&permissions.matrix)),
        ("disabled_tools", one(&permissions.disabled_tools)),
        ("strict_capabilities", one(permissions.strict_capabilities)),
        ("tick_ms", one(caps.tick_ms)),
        ("calls_per_tick", one(caps.calls_per_tick)),
        ("max_actions_per_day", one(caps.max_actions_per_day)),
        ("time_zone", one(&caps.time_zone)),
        ("on_day_cap", one(caps.on_day_cap)),
        ("declared", declared.to_owned()),
    ]);
    // Hash these members only if they are present, so that a policy without them keeps the digest of earlier versions.
    if !policy.limits.is_empty() {
        members.insert("limits", one(&*policy.limits));
    }
    if !permissions.approvers.is_empty() {
        members.insert("approvers", one(&permissions.approvers));
    }
    let mut hash = Sha256::new();
    hash.update("{");
    for (name, text) in members {
        let mut start = String::new();
        write_name(name, &mut start);
        hash.update(start);
        hash.update(text);
        hash.update(",");
    }
    hash.update("}");
    hex(&hash.finalize())
}

fn one(value: impl Serialize) -> String {
    let mut text = String::new();
    write_canonical(&serde_json::to_value(value).unwrap_or_default(), &mut text);
    text
}

fn members_of<K: Display, V: Serialize>(map: &BTreeMap<K, V>) -> String {
    let mut text = String::from("{");
    for (name, value) in map {
        write_name(&name.to_string(), &mut text);
        write_canonical(&serde_json::to_value(value).unwrap_or_default(), &mut text);
        text.push(',');
    }
    text.push('}');
    text
}
