//! An approval is bound to this data. If any part of the data changes, the approval does not apply to the call.

use serde_json::value::RawValue;

use super::ApprovalReason;
use crate::digest::hash_of;
use crate::tool::effect_key::write_canonical;
use crate::{AgentId, TenantId, ToolSpec, TurnId};

/// Enough for unique IDs within a tenant.
const ID_CHARS: usize = 16;

#[derive(Debug, Clone, Copy)]
pub struct ApprovalBinding<'a> {
    pub tenant: &'a TenantId,
    pub agent: &'a AgentId,
    pub turn: &'a TurnId,
    pub position: usize,
    pub digest: &'a str,
    /// The submission time and the deadline distinguish turns with the same ID and content.
    pub times_ms: (i64, i64),
    /// In the version that the agent gets.
    pub tool: &'a ToolSpec,
    /// For example an address or a command, which the tool's specification lacks. May be empty.
    pub runs: &'a str,
    pub arguments: &'a RawValue,
    pub approvals: &'a [ApprovalReason],
}

impl ApprovalBinding<'_> {
    /// Returns 64 hexadecimal characters. Equal arguments have the same hash even if they are written differently.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut arguments = String::new();
        if write_canonical(self.arguments, &mut arguments).is_none() {
            self.arguments.get().clone_into(&mut arguments);
        }
        // A specification is plain data, so its serialization does not fail.
        let definition = serde_json::to_string(self.tool).unwrap_or_default();
        let position = self.position.to_string();
        let times = format!("{} {}", self.times_ms.0, self.times_ms.1);
        let fixed = [
            self.tenant.as_str(),
            self.agent.as_str(),
            self.turn.as_str(),
            &position,
            self.digest,
            &times,
            &definition,
            self.runs,
            &arguments,
        ];
        let approvals = self.approvals.iter().flat_map(|reason| [reason.place.as_str(), reason.terms.as_str()]);
        hash_of(fixed.into_iter().chain(approvals))
    }

    #[must_use]
    pub fn id(hash: &str) -> String {
        format!("apr-{}", hash.get(..ID_CHARS).unwrap_or(hash))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use super::*;
    use crate::Effect;
    use crate::approval::ApprovalDemand;

    fn spec(version: &str) -> ToolSpec {
        ToolSpec {
            id: "tool_pay".into(),
            name: "pay".into(),
            display_name: "Pay".into(),
            description: "Pays.".into(),
            input_schema: serde_json::json!({"type": "object"}),
            output_schema: None,
            category: "money".into(),
            version: version.into(),
            effect: Effect::Once,
            effect_key: None,
            cache: None,
            reconcile: None,
            durable: None,
            timeout: Duration::from_secs(1),
            required_capabilities: Vec::new(),
            required_features: Vec::new(),
            requires_approval: true,
            approval: None,
            configured: true,
        }
    }

    fn hash(change: impl FnOnce(&mut BindingFixture)) -> String {
        let mut fixture = BindingFixture::default();
        change(&mut fixture);
        let arguments: Box<RawValue> = serde_json::from_str(&fixture.arguments).unwrap();
        let demand = ApprovalDemand { quorum: fixture.quorum, ..ApprovalDemand::default() };
        let terms = format!("{} {demand:?}", fixture.rule);
        let approvals = [ApprovalReason { place: "tools.pay".into(), why: String::new(), terms, demand }];
        ApprovalBinding {
            tenant: &TenantId::new(&fixture.tenant).unwrap(),
            agent: &AgentId::new(&fixture.agent).unwrap(),
            turn: &TurnId::new(&fixture.turn).unwrap(),
            position: fixture.position,
            digest: &fixture.digest,
            times_ms: fixture.times_ms,
            tool: &spec(&fixture.version),
            runs: &fixture.runs,
            arguments: &arguments,
            approvals: &approvals,
        }
        .hash()
    }

    struct BindingFixture {
        tenant: String,
        agent: String,
        turn: String,
        position: usize,
        digest: String,
        times_ms: (i64, i64),
        version: String,
        runs: String,
        arguments: String,
        rule: String,
        quorum: u32,
    }

    impl Default for BindingFixture {
        fn default() -> Self {
            Self {
                tenant: "acme".into(),
                agent: "kelly".into(),
                turn: "t1".into(),
                position: 0,
                digest: "d".into(),
                times_ms: (1, 2),
                version: "1.0.0".into(),
                runs: "POST /pay".into(),
                arguments: r#"{"amount": 700, "to": "kim"}"#.into(),
                rule: "args.amount <= 500".into(),
                quorum: 1,
            }
        }
    }

    #[test]
    fn any_change_to_a_call_changes_its_approval_hash() {
        let base = hash(|_| {});
        let changes: [fn(&mut BindingFixture); 12] = [
            |fixture| fixture.tenant = "bolt".into(),
            |fixture| fixture.agent = "fran".into(),
            |fixture| fixture.turn = "t2".into(),
            |fixture| fixture.position = 1,
            |fixture| fixture.digest = "e".into(),
            |fixture| fixture.times_ms = (2, 2),
            |fixture| fixture.times_ms = (1, 3),
            |fixture| fixture.version = "1.0.1".into(),
            |fixture| fixture.runs = "POST /charge".into(),
            |fixture| fixture.arguments = r#"{"amount": 701, "to": "kim"}"#.into(),
            |fixture| fixture.rule = "args.amount <= 600".into(),
            |fixture| fixture.quorum = 2,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert_ne!(hash(change), base, "change {at}");
        }
        assert_eq!(hash(|fixture| fixture.arguments = r#"{"to":"kim","amount":7e2}"#.into()), base);
    }

    #[test]
    fn an_approval_id_contains_the_start_of_its_hash() {
        let hash = hash(|_| {});
        assert_eq!(ApprovalBinding::id(&hash), format!("apr-{}", &hash[..16]));
    }
}
