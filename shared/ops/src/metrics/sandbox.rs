//! What a worker's machine can hold of sandboxes, in metrics.

use prometheus::{GaugeVec, IntGauge};

use super::make::Maker;
use super::{Metrics, catalogue as c, labels};

/// The metrics of sandboxes.
#[derive(Debug)]
pub(super) struct SandboxMetrics {
    levels: GaugeVec,
    refused: IntGauge,
}

impl SandboxMetrics {
    pub(super) fn made(make: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self { levels: make.gauges(&c::SANDBOX_LEVELS)?, refused: make.gauge(&c::SANDBOX_REFUSED)? })
    }
}

/// Sandboxes.
impl Metrics {
    /// The machine was looked at for tools that want a sandbox: which levels it can hold, and how many tools are refused
    /// for what it cannot. No levels where no tool wants one.
    pub fn sandbox_found(&self, levels: impl IntoIterator<Item = (String, bool)>, refused: usize) {
        self.sandbox.levels.reset();
        for (level, held) in levels {
            let level = labels::known(&labels::SANDBOX_LEVELS, &level);
            self.sandbox.levels.with_label_values(&[level]).set(f64::from(u8::from(held)));
        }
        self.sandbox.refused.set(i64::try_from(refused).unwrap_or(i64::MAX));
    }
}
