//! What circuit breakers of tools do.

use prometheus::{IntCounterVec, IntGauge};
use tickfleet_model::Outcome;

use super::labels::BreakerEvent;
use super::make::Maker;
use super::{Metrics, catalogue as c};

/// The metrics of circuit breakers.
#[derive(Debug)]
pub(super) struct BreakerMetrics {
    events: IntCounterVec,
    resting: IntGauge,
}

impl BreakerMetrics {
    pub(super) fn made(make: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self { events: make.counters(&c::TOOL_BREAKER)?, resting: make.gauge(&c::TOOLS_RESTING)? })
    }
}

impl Metrics {
    /// The breaker of a tool did something.
    pub fn breaker(&self, tool: &str, event: BreakerEvent) {
        let tool = self.tools.label(tool, Outcome::Ok);
        self.governance.breakers.events.with_label_values(&[&*tool, event.as_str()]).inc();
    }

    /// So many tools are not called now.
    pub fn tools_resting(&self, tools: usize) {
        self.governance.breakers.resting.set(i64::try_from(tools).unwrap_or(i64::MAX));
    }
}
