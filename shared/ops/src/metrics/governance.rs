//! What is recorded of limits, and of rules on arguments and context.

use prometheus::IntCounterVec;

use super::labels::{ApprovalEvent, LimitAction, RuleAction};
use super::make::Maker;
use super::tool_labels::RuleLabels;
use super::{Metrics, catalogue as c};

/// The metrics of limits and rules.
#[derive(Debug)]
pub(super) struct GovernanceMetrics {
    limits_reached: IntCounterVec,
    rules: RuleLabels,
    rules_unmet: IntCounterVec,
    approvals: IntCounterVec,
}

impl GovernanceMetrics {
    pub(super) fn made(make: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self {
            limits_reached: make.counters(&c::LIMITS_REACHED)?,
            rules: RuleLabels::default(),
            rules_unmet: make.counters(&c::RULES_UNMET)?,
            approvals: make.counters(&c::APPROVALS)?,
        })
    }
}

/// Limits and rules.
impl Metrics {
    /// A limit of the configuration had no room for so many turns or calls.
    pub fn limit_reached(&self, limit: &str, action: LimitAction, count: u64) {
        self.governance.limits_reached.with_label_values(&[limit, action.as_str()]).inc_by(count);
    }

    /// As [`Self::limit_reached`], once for each name.
    pub fn limits_reached(&self, limits: &[String], action: LimitAction) {
        limits.iter().for_each(|limit| self.limit_reached(limit, action, 1));
    }

    /// A call did not meet this rule.
    pub fn rule_unmet(&self, rule: &str, action: RuleAction) {
        let rule = self.governance.rules.label(rule);
        self.governance.rules_unmet.with_label_values(&[&*rule, action.as_str()]).inc();
    }
    /// Something became of a call that needs people's consent.
    pub fn approval(&self, event: ApprovalEvent) {
        self.governance.approvals.with_label_values(&[event.as_str()]).inc();
    }
}
