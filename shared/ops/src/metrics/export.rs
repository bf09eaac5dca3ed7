//! What is recorded of the export of the audit log, and of how far it is sealed.

use std::time::Duration;

use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec};

use super::labels::Told;
use super::make::Maker;
use super::{Metrics, catalogue as c, none};

/// The metrics of an exporter.
#[derive(Debug)]
pub(super) struct ExportMetrics {
    exported: IntCounter,
    gone: IntCounter,
    refused: IntCounter,
    failures: IntCounter,
    age: Gauge,
    unsealed: GaugeVec,
    told: IntCounterVec,
}

impl ExportMetrics {
    pub(super) fn made(make: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self {
            exported: make.counter(&c::AUDIT_EXPORTED)?,
            gone: make.counter(&c::AUDIT_GONE_UNEXPORTED)?,
            refused: make.counter(&c::EXPORT_REFUSED)?,
            failures: make.counter(&c::EXPORT_FAILURES)?,
            age: make.float(&c::EXPORT_AGE)?,
            unsealed: make.gauges(&c::UNSEALED_AGE)?,
            told: make.counters(&c::APPROVALS_TOLD)?,
        })
    }
}

/// The export of the audit log.
impl Metrics {
    /// The oldest entry that is not sealed is so old; none where that is not known, or nothing is to be sealed.
    pub(super) fn unsealed_age(&self, age: Option<Duration>) {
        match age {
            Some(age) => self.governance.export.unsealed.with_label_values(none()).set(age.as_secs_f64()),
            None => self.governance.export.unsealed.reset(),
        }
    }

    /// Others were told what has happened to an approval, or not.
    pub fn told(&self, told: Told) {
        self.governance.export.told.with_label_values(&[told.as_str()]).inc();
    }

    /// So many entries of the audit log were exported.
    pub fn exported(&self, entries: u64) {
        self.governance.export.exported.inc_by(entries);
    }

    /// So many entries of the audit log were gone before they were exported.
    pub fn gone_unexported(&self, entries: u64) {
        self.governance.export.gone.inc_by(entries);
    }

    /// The destination has refused so many records for good.
    pub fn export_refused(&self, records: u64) {
        self.governance.export.refused.inc_by(records);
    }

    /// The audit log could not be exported, and will be tried again.
    pub fn export_failed(&self) {
        self.governance.export.failures.inc();
    }

    /// The oldest entry that is not exported is so old.
    pub fn unexported_age(&self, age: Duration) {
        self.governance.export.age.set(age.as_secs_f64());
    }
}
