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

#[derive(Debug)]
pub(super) struct GovernanceMetrics {
    limits_reached: IntCounterVec,
    rules: RuleLabels,
    rule_denials: IntCounterVec,
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
            rule_denials: builder.counters(&c::RULE_DENIALS)?,
            approvals: builder.counters(&c::APPROVALS)?,
            reads_cached: builder.counters(&c::READS_CACHED)?,
            loops: builder.counters(&c::REPEATED_CALLS)?,
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

impl Metrics {
    pub fn sealed(&self, entries: u64) {
        self.governance.sealed.inc_by(entries);
    }

    pub fn trimmed_unsealed(&self, entries: u64) {
        self.governance.unsealed.inc_by(entries);
    }

    pub fn seal_failed(&self) {
        self.governance.seal_failures.inc();
    }

    pub fn anchor_failed(&self) {
        self.governance.anchor_failures.inc();
    }

    pub fn limit_reached(&self, limit: &str, action: LimitAction, count: u64) {
        self.governance.limits_reached.with_label_values(&[limit, action.as_str()]).inc_by(count);
    }

    pub fn limits_reached(&self, limits: &[String], action: LimitAction) {
        limits.iter().for_each(|limit| self.limit_reached(limit, action, 1));
    }

    pub fn read_cached(&self, read: CachedRead) {
        self.governance.reads_cached.with_label_values(&[read.as_str()]).inc();
    }

    pub fn loop_broken(&self, action: LoopAction) {
        self.governance.loops.with_label_values(&[action.as_str()]).inc();
    }

    /// The waiting call depends on facts that another call of the session may change.
    pub fn waited_for_facts(&self) {
        self.governance.fact_waits.inc();
    }

    /// `None` if it remains unknown whether the call took effect.
    pub fn reconciled(&self, happened: Option<bool>) {
        let verdict = match happened {
            Some(true) => "happened",
            Some(false) => "not_happened",
            None => "unknown",
        };
        self.governance.reconciled.with_label_values(&[verdict]).inc();
    }

    pub fn rule_denied(&self, rule: &str, action: RuleAction) {
        let rule = self.governance.rules.label(rule);
        self.governance.rule_denials.with_label_values(&[&*rule, action.as_str()]).inc();
    }
    pub fn approval(&self, event: ApprovalEvent) {
        self.governance.approvals.with_label_values(&[event.as_str()]).inc();
    }

    /// Has an effect only if the OpenTelemetry names are enabled. `tool` must exist. `failed` is the error type of a
    /// failed attempt.
    pub fn tool_tried(&self, tool: &str, took: Duration, failed: Option<&str>) {
        self.governance.tool_seconds.observe(&self.tools.label(tool, Outcome::Ok), took, failed);
    }
}
