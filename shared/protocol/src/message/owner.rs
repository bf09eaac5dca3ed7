//! The owner of a message that leaves it out: who hands it on knows it.

use std::collections::BTreeMap;

use tickfleet_model::{AgentId, TenantId};

/// Adds tenant and agent to a message that leaves them out, as a provider's response does.
#[must_use]
pub fn with_owner(bytes: Vec<u8>, tenant: Option<&TenantId>, agent: Option<&AgentId>) -> Vec<u8> {
    let Ok(members) = serde_json::from_slice::<BTreeMap<String, serde::de::IgnoredAny>>(&bytes) else { return bytes };
    let Some(open) = bytes.iter().position(|b| *b == b'{') else { return bytes };
    // Ids need no escaping: their characters are bounded.
    let mut added = String::new();
    for (name, id) in [("tenant", tenant.map(TenantId::as_str)), ("agent", agent.map(AgentId::as_str))] {
        if let Some(id) = id.filter(|_| !members.contains_key(name)) {
            added.push_str(&format!("\"{name}\":\"{id}\","));
        }
    }
    if members.is_empty() {
        added.pop();
    }
    let (head, tail) = bytes.split_at(open + 1);
    [head, added.as_bytes(), tail].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn owned(message: &str) -> String {
        let (tenant, agent) = (TenantId::new("demo").unwrap(), AgentId::new("kelly").unwrap());
        String::from_utf8(with_owner(message.into(), Some(&tenant), Some(&agent))).unwrap()
    }

    #[test]
    fn an_owner_is_added_where_the_message_has_none_and_never_replaced() {
        assert_eq!(owned("{}"), r#"{"tenant":"demo","agent":"kelly"}"#);
        assert_eq!(owned(r#" {"calls":[]}"#), r#" {"tenant":"demo","agent":"kelly","calls":[]}"#);
        assert_eq!(owned(r#"{"tenant":"acme","agent":"fran"}"#), r#"{"tenant":"acme","agent":"fran"}"#);
        // What cannot be read is told by whoever parses it.
        assert_eq!(owned("[1]"), "[1]");
        assert_eq!(owned("{"), "{");
    }
}
