//! The digest of a policy: equal where two processes decide alike.

use std::fmt::Write;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::document::canonical::write_canonical;
use crate::files::Trees;
use tickfleet_model::policy::Policy;

/// SHA-256, hex, of everything that decides about a call.
pub(super) fn digest(policy: &Policy, trees: &Trees) -> String {
    let caps = &policy.defaults;
    let whole = json!({
        "agents": policy.agents,
        "tenants": policy.tenants,
        "matrix": policy.permissions.matrix,
        "disabled_tools": policy.permissions.disabled_tools,
        "strict_capabilities": policy.permissions.strict_capabilities,
        "tick_ms": caps.tick_ms,
        "calls_per_tick": caps.calls_per_tick,
        "max_actions_per_day": caps.max_actions_per_day,
        "time_zone": caps.time_zone,
        "on_day_cap": caps.on_day_cap,
        "declared": trees.declared,
    });
    let mut text = String::new();
    write_canonical(&whole, &mut text);
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
