//! Calls that have ended, read from the audit log.

use tickfleet_model::Outcome;
use tickfleet_protocol::AuditEntry;

use crate::entry_ms;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedCall {
    /// Since 1970.
    pub at_ms: i64,
    pub tool: String,
    pub outcome: Outcome,
    pub duration_ms: u64,
}

/// `None` for an entry that is not about a call. The name of an unknown tool is omitted, because it is arbitrary text
/// from the model.
pub(super) fn ended_call(id: &str, audit: &[u8]) -> Option<EndedCall> {
    let entry = AuditEntry::read_call(std::str::from_utf8(audit).ok()?)?;
    let outcome = entry.meta.outcome?;
    Some(EndedCall {
        at_ms: entry_ms(id)?,
        tool: if outcome != Outcome::UnknownTool { entry.entity_id.into_owned() } else { "(unknown)".to_owned() },
        outcome,
        duration_ms: entry.meta.duration_ms,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_call_is_read_from_its_audit_entry_without_an_unknown_tools_name() {
        let audit = |outcome: &str| {
            let message = format!("kelly called echo: {outcome} in 7 ms");
            format!(
                r#"{{"action":"TOOL_CALL","entity_id":"echo","message":"{message}","meta":{{"duration_ms":7,"outcome":"{outcome}","x":[1]}}}}"#
            )
        };
        let call = ended_call("1700000000000-3", audit("ok").as_bytes()).unwrap();
        assert_eq!((call.at_ms, call.tool.as_str(), call.duration_ms), (1_700_000_000_000, "echo", 7));
        assert_eq!(ended_call("1-0", audit("unknown_tool").as_bytes()).unwrap().tool, "(unknown)");
        assert_eq!(ended_call("1-0", b"{"), None);
        assert_eq!(ended_call("1-0", audit("ok").replace("TOOL_CALL", "PAUSE").as_bytes()), None);
    }
}
