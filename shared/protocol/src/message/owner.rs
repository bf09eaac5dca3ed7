//! Adds the owner (tenant and agent) to a message.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use tickfleet_model::{AgentId, TenantId, TurnId};

/// A null member counts as absent, as in all optional fields.
#[must_use]
pub fn with_owner(mut bytes: Vec<u8>, tenant: Option<&TenantId>, agent: Option<&AgentId>) -> Vec<u8> {
    // IDs need no escaping, because their characters are restricted.
    for (name, id) in [("agent", agent.map(AgentId::as_str)), ("tenant", tenant.map(TenantId::as_str))] {
        if let Some(id) = id {
            bytes = with_member(bytes, name, id);
        }
    }
    bytes
}

#[must_use]
pub fn with_turn(bytes: Vec<u8>, turn: &TurnId) -> Vec<u8> {
    with_member(bytes, "turn_id", turn.as_str())
}

fn with_member(bytes: Vec<u8>, name: &str, id: &str) -> Vec<u8> {
    let Some((at, replaced, added)) = addition(&bytes, name, id) else { return bytes };
    match (bytes.get(..at), bytes.get(at.wrapping_add(replaced)..)) {
        (Some(head), Some(tail)) => [head, added.as_bytes(), tail].concat(),
        _ => bytes,
    }
}

/// The edit: the offset, the number of bytes to replace, and the new text. `None` if the message already has the
/// member.
fn addition(bytes: &[u8], name: &str, id: &str) -> Option<(usize, usize, String)> {
    let members = serde_json::from_slice::<BTreeMap<String, &RawValue>>(bytes).ok()?;
    match members.get(name).map(|value| value.get()) {
        None => {
            let open = bytes.iter().position(|b| *b == b'{')?;
            Some((open + 1, 0, format!("\"{name}\":\"{id}\"{}", if members.is_empty() { "" } else { "," })))
        }
        // `null` is a slice of `bytes`, not a copy, so the difference of the two pointers is the offset of `null`.
        Some(null) if null == "null" => {
            Some((null.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr()), null.len(), format!("\"{id}\"")))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn owned(message: &str) -> String {
        let tenant = TenantId::new("demo").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        String::from_utf8(with_owner(message.into(), Some(&tenant), Some(&agent))).unwrap()
    }

    #[test]
    fn an_owner_is_added_only_when_the_message_has_none() {
        assert_eq!(owned("{}"), r#"{"tenant":"demo","agent":"kelly"}"#);
        assert_eq!(owned(r#" {"calls":[]}"#), r#" {"tenant":"demo","agent":"kelly","calls":[]}"#);
        assert_eq!(owned(r#"{"tenant":"acme","agent":"fran"}"#), r#"{"tenant":"acme","agent":"fran"}"#);
        assert_eq!(owned(r#"{"tenant": null,"agent":null}"#), r#"{"tenant": "demo","agent":"kelly"}"#);
        assert_eq!(owned(r#"{"agent":null,"a":null}"#), r#"{"tenant":"demo","agent":"kelly","a":null}"#);
        // A duplicate member is not changed; the message is rejected later.
        assert_eq!(owned(r#"{"tenant":"acme","tenant":null}"#).matches("tenant").count(), 2);
        // Unreadable messages are not changed; the parser reports them later.
        assert_eq!(owned("[1]"), "[1]");
        assert_eq!(owned("{"), "{");
    }
}
