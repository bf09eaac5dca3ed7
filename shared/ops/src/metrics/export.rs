//! Metrics of the audit log: its export and its sealing.

use std::time::Duration;

use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec};

use super::builder::MetricBuilder;
use super::labels::NotificationResult;
use super::{Metrics, catalogue as c, none};

#[derive(Debug)]
pub(super) struct ExportMetrics {
    exported: IntCounter,
    gone: IntCounter,
    refused: IntCounter,
    failures: IntCounter,
    age: Gauge,
    unsealed: GaugeVec,
    notifications: IntCounterVec,
}

impl ExportMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self {
            exported: builder.counter(&c::AUDIT_EXPORTED)?,
            gone: builder.counter(&c::AUDIT_TRIMMED_UNEXPORTED)?,
            refused: builder.counter(&c::EXPORT_REJECTED)?,
            failures: builder.counter(&c::EXPORT_FAILURES)?,
            age: builder.float(&c::EXPORT_AGE)?,
            unsealed: builder.gauges(&c::UNSEALED_AGE)?,
            notifications: builder.counters(&c::APPROVAL_NOTIFICATIONS)?,
        })
    }
}

impl Metrics {
    /// `None` if the age is unknown, or if no entry waits for a seal.
    pub(super) fn unsealed_age(&self, age: Option<Duration>) {
        match age {
            Some(age) => self.governance.export.unsealed.with_label_values(none()).set(age.as_secs_f64()),
            None => self.governance.export.unsealed.reset(),
        }
    }

    pub fn notification_sent(&self, result: NotificationResult) {
        self.governance.export.notifications.with_label_values(&[result.as_str()]).inc();
    }

    pub fn exported(&self, entries: u64) {
        self.governance.export.exported.inc_by(entries);
    }

    pub fn trimmed_unexported(&self, entries: u64) {
        self.governance.export.gone.inc_by(entries);
    }

    pub fn export_refused(&self, records: u64) {
        self.governance.export.refused.inc_by(records);
    }

    pub fn export_failed(&self) {
        self.governance.export.failures.inc();
    }

    pub fn unexported_age(&self, age: Duration) {
        self.governance.export.age.set(age.as_secs_f64());
    }
}
