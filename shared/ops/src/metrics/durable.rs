//! Metrics of calls whose begin must be durable before they run.

use std::time::Duration;

use prometheus::{Histogram, IntCounterVec};
use tickfleet_model::Durability;

use super::make::Maker;
use super::{Metrics, catalogue as c};

/// The metrics of durable begins.
#[derive(Debug)]
pub(super) struct DurableMetrics {
    begins: IntCounterVec,
    waits: Histogram,
}

impl DurableMetrics {
    pub(super) fn made(make: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self { begins: make.counters(&c::DURABLE_BEGINS)?, waits: make.histogram(&c::DURABLE_WAIT)? })
    }
}

impl Metrics {
    /// A call with a durable begin was confirmed or not, after `took`.
    pub fn begun_durably(&self, durability: Durability, is_confirmed: bool, took: Duration) {
        let outcome = if is_confirmed { "confirmed" } else { "unconfirmed" };
        self.reach.durable.begins.with_label_values(&[durability.as_str(), outcome]).inc();
        self.reach.durable.waits.observe(took.as_secs_f64());
    }
}
