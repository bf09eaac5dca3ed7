//! Metrics of calls that need a durable intent record.

use std::time::Duration;

use prometheus::{Histogram, IntCounterVec};
use tickfleet_model::Durability;

use super::builder::MetricBuilder;
use super::{Metrics, catalogue as c};

#[derive(Debug)]
pub(super) struct DurableMetrics {
    begins: IntCounterVec,
    waits: Histogram,
}

impl DurableMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self { begins: builder.counters(&c::DURABLE_BEGINS)?, waits: builder.histogram(&c::DURABLE_WAIT)? })
    }
}

impl Metrics {
    pub fn begun_durably(&self, durability: Durability, is_confirmed: bool, took: Duration) {
        let outcome = if is_confirmed { "confirmed" } else { "unconfirmed" };
        self.redis.durable.begins.with_label_values(&[durability.as_str(), outcome]).inc();
        self.redis.durable.waits.observe(took.as_secs_f64());
    }
}
