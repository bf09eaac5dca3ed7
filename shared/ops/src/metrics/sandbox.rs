use prometheus::{GaugeVec, IntGauge};

use super::builder::MetricBuilder;
use super::{Metrics, catalogue as c, labels};

#[derive(Debug)]
pub(super) struct SandboxMetrics {
    levels: GaugeVec,
    refused: IntGauge,
}

impl SandboxMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self { levels: builder.gauges(&c::SANDBOX_LEVELS)?, refused: builder.gauge(&c::SANDBOX_REFUSED)? })
    }
}

impl Metrics {
    /// `refused` counts the tools with an unsupported level. If no tool needs a sandbox, `levels` is empty.
    pub fn sandbox_found(&self, levels: impl IntoIterator<Item = (String, bool)>, refused: usize) {
        self.sandbox.levels.reset();
        for (level, held) in levels {
            let level = labels::known(&labels::SANDBOX_LEVELS, &level);
            self.sandbox.levels.with_label_values(&[level]).set(f64::from(u8::from(held)));
        }
        self.sandbox.refused.set(i64::try_from(refused).unwrap_or(i64::MAX));
    }
}
