//! Metrics of limits, rules, approvals, circuit breakers, cached reads, streaks of equal calls, and seals.

use std::time::Duration;

use prometheus::{IntCounter, IntCounterVec};
use tickfleet_model::Outcome;

use crate::gen_ai::ToolSeconds;

use super::breakers::BreakerMetrics;
use super::builder::MetricBuilder;
use super::export::ExportMetrics;
use super::labels::{ApprovalEvent, CachedRead, LimitAction, LoopAction, RuleAction};
use super::tool_labels::RuleLabels;
use super::{Metrics, catalogue as c};

/// The metrics of limits, rules and circuit breakers.
#[derive(Debug)]
pub(super) struct GovernanceMetrics {
    limits_reached: IntCounterVec,
    rules: RuleLabels,
    rules_unmet: IntCounterVec,
    approvals: IntCounterVec,
    reads_cached: IntCounterVec,
    loops: IntCounterVec,
    tool_seconds: ToolSeconds,
    fact_waits: IntCounter,
    reconciled: IntCounterVec,
    sealed: IntCounter,
    unsealed: IntCounter,
    seal_failures: IntCounter,
    anchor_failures: IntCounter,
    pub(super) export: ExportMetrics,
    pub(super) breakers: BreakerMetrics,
}

impl GovernanceMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self {
            limits_reached: builder.counters(&c::LIMITS_REACHED)?,
            rules: RuleLabels::default(),
            rules_unmet: builder.counters(&c::RULES_UNMET)?,
            approvals: builder.counters(&c::APPROVALS)?,
            reads_cached: builder.counters(&c::READS_CACHED)?,
            loops: builder.counters(&c::LOOPS)?,
            tool_seconds: ToolSeconds::register(&builder.registry)?,
            fact_waits: builder.counter(&c::FACT_WAITS)?,
            reconciled: builder.counters(&c::RECONCILED)?,
            sealed: builder.counter(&c::AUDIT_SEALED)?,
            unsealed: builder.counter(&c::AUDIT_UNSEALED)?,
            seal_failures: builder.counter(&c::SEAL_FAILURES)?,
            anchor_failures: builder.counter(&c::ANCHOR_FAILURES)?,
            export: ExportMetrics::register(builder)?,
            breakers: BreakerMetrics::register(builder)?,
        })
    }
}

/// Limits, rules and seals.
impl Metrics {
    /// This many entries of the audit log were sealed.
    pub fn sealed(&self, entries: u64) {
        self.governance.sealed.inc_by(entries);
    }

    /// This many entries of the audit log were lost before they were sealed.
    pub fn gone_unsealed(&self, entries: u64) {
        self.governance.unsealed.inc_by(entries);
    }

    /// The audit log could not be sealed.
    pub fn seal_failed(&self) {
        self.governance.seal_failures.inc();
    }

    /// Anchors could not be stored outside of Redis.
    pub fn anchor_failed(&self) {
        self.governance.anchor_failures.inc();
    }

    /// A configured limit had no room for this many turns or calls.
    pub fn limit_reached(&self, limit: &str, action: LimitAction, count: u64) {
        self.governance.limits_reached.with_label_values(&[limit, action.as_str()]).inc_by(count);
    }

    /// Calls [`Self::limit_reached`] once for each name, with a count of 1.
    pub fn limits_reached(&self, limits: &[String], action: LimitAction) {
        limits.iter().for_each(|limit| self.limit_reached(limit, action, 1));
    }

    /// A call of a tool with a cache was a hit or a miss.
    pub fn read_cached(&self, read: CachedRead) {
        self.governance.reads_cached.with_label_values(&[read.as_str()]).inc();
    }

    /// A streak of equal calls was too long.
    pub fn loop_broken(&self, action: LoopAction) {
        self.governance.loops.with_label_values(&[action.as_str()]).inc();
    }

    /// A call waits for another call of its session, because the other call's end can change facts that it depends on.
    pub fn waited_for_facts(&self) {
        self.governance.fact_waits.inc();
    }

    /// Reconciliation checked whether a call took effect. `None` if this is still unknown.
    pub fn reconciled(&self, happened: Option<bool>) {
        let verdict = match happened {
            Some(true) => "happened",
            Some(false) => "not_happened",
            None => "unknown",
        };
        self.governance.reconciled.with_label_values(&[verdict]).inc();
    }

    /// A call did not pass this rule.
    pub fn rule_unmet(&self, rule: &str, action: RuleAction) {
        let rule = self.governance.rules.label(rule);
        self.governance.rules_unmet.with_label_values(&[&*rule, action.as_str()]).inc();
    }
    /// An event of a call that needs an approval.
    pub fn approval(&self, event: ApprovalEvent) {
        self.governance.approvals.with_label_values(&[event.as_str()]).inc();
    }

    /// An attempt of a call of `tool` took this long. The tool must exist. `failed` is the error type, if the attempt
    /// failed. Recorded under the OpenTelemetry name, if enabled.
    pub fn tool_tried(&self, tool: &str, took: Duration, failed: Option<&str>) {
        self.governance.tool_seconds.observe(&self.tools.label(tool, Outcome::Ok), took, failed);
    }
}
