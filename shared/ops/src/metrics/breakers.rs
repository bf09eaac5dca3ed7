use prometheus::{IntCounterVec, IntGauge};
use tickfleet_model::Outcome;

use super::builder::MetricBuilder;
use super::labels::BreakerEvent;
use super::{Metrics, catalogue as c};

#[derive(Debug)]
pub(super) struct BreakerMetrics {
    events: IntCounterVec,
    open: IntGauge,
}

impl BreakerMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self { events: builder.counters(&c::TOOL_BREAKER)?, open: builder.gauge(&c::TOOL_BREAKERS_OPEN)? })
    }
}

impl Metrics {
    pub fn breaker(&self, tool: &str, event: BreakerEvent) {
        let tool = self.tools.label(tool, Outcome::Ok);
        self.governance.breakers.events.with_label_values(&[&*tool, event.as_str()]).inc();
    }

    pub fn tool_breakers_open(&self, tools: usize) {
        self.governance.breakers.open.set(i64::try_from(tools).unwrap_or(i64::MAX));
    }
}
