//! Metrics of Redis. A failover is counted when Sentinels or cluster nodes name a different primary.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge};
use tickfleet_store::Refusal;
use tokio::time::Instant;

use super::builder::MetricBuilder;
use super::durable::DurableMetrics;
use super::{Metrics, RedisScrape, catalogue as c, none, seconds_since_epoch, wide};

/// Absent while Redis does not respond.
#[derive(Debug)]
pub(super) struct RedisServerMetrics {
    memory: GaugeVec,
    memory_max: GaugeVec,
    pressure: GaugeVec,
    clock_ahead: GaugeVec,
}

impl RedisServerMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self {
            memory: builder.gauges(&c::REDIS_MEMORY_USED)?,
            memory_max: builder.gauges(&c::REDIS_MEMORY_MAX)?,
            pressure: builder.gauges(&c::REDIS_PRESSURE)?,
            clock_ahead: builder.gauges(&c::CLOCK_AHEAD)?,
        })
    }

    pub(super) fn scraped(&self, scraped: Option<&RedisScrape>) {
        let Some(scraped) = scraped else {
            for gauge in [&self.memory, &self.memory_max, &self.pressure, &self.clock_ahead] {
                gauge.reset();
            }
            return;
        };
        let ours = seconds_since_epoch();
        self.memory.with_label_values(none()).set(wide(scraped.memory_used));
        self.memory_max.with_label_values(none()).set(wide(scraped.memory_max));
        self.pressure.with_label_values(none()).set(f64::from(u8::from(scraped.pressure)));
        let times = scraped.shard_times_ms.iter().map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let ahead = times.map(|time| time.as_secs_f64() - ours);
        if let Some(furthest) = ahead.max_by(|a, b| a.abs().total_cmp(&b.abs())) {
            self.clock_ahead.with_label_values(none()).set(furthest);
        }
    }
}

#[derive(Debug)]
pub(super) struct RedisConnectionMetrics {
    up: IntGauge,
    refuses: GaugeVec,
    moves: IntCounter,
    missing: GaugeVec,
    pub(super) durable: DurableMetrics,
    redirected: IntCounterVec,
    /// By lookup name. In a cluster, each slot of a shard has its own name.
    state: Mutex<HashMap<String, PrimaryState>>,
}

#[derive(Debug, Default)]
struct PrimaryState {
    /// Host and port. Kept while no primary is found, so that only a different primary counts as a failover.
    last: Option<String>,
    missing_since: Option<Instant>,
}

impl RedisConnectionMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self {
            up: builder.gauge(&c::REDIS_UP)?,
            refuses: builder.gauges(&c::REDIS_REJECTING)?,
            moves: builder.counter(&c::REDIS_PRIMARY_MOVES)?,
            missing: builder.gauges(&c::REDIS_PRIMARY_MISSING)?,
            durable: DurableMetrics::register(builder)?,
            redirected: builder.counters(&c::REDIS_REDIRECTS)?,
            state: Mutex::default(),
        })
    }

    pub(super) fn read(&self) {
        let missing = |state: &PrimaryState| state.missing_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        // Without Sentinels or a cluster, the process looks up no primary, so the gauge is absent.
        if let Some(longest) = self.state.lock().values().map(missing).max_by(f64::total_cmp) {
            self.missing.with_label_values(none()).set(longest);
        }
    }
}

impl Metrics {
    /// `up` means that Redis responded and accepted writes.
    pub fn redis_up(&self, up: bool) {
        self.redis.up.set(i64::from(up));
    }

    /// `None` if Redis did not reject the request of the scrape.
    pub fn redis_rejecting(&self, refusal: Option<Refusal>) {
        for reason in Refusal::ALL {
            let value = f64::from(u8::from(refusal == Some(reason)));
            self.redis.refuses.with_label_values(&[reason.as_str()]).set(value);
        }
    }

    /// `what` is the lookup name. The connections of a process notice a failover one by one, but the failover is
    /// counted only once.
    pub fn primary_searched(&self, what: &str, found: Option<&str>) {
        let mut states = self.redis.state.lock();
        let state = states.entry(what.to_owned()).or_default();
        let Some(found) = found else {
            state.missing_since.get_or_insert_with(Instant::now);
            return;
        };
        state.missing_since = None;
        if state.last.as_deref() != Some(found) && state.last.replace(found.to_owned()).is_some() {
            self.redis.moves.inc();
        }
    }

    /// `answer` refers to another server, or reports that the server is not ready.
    pub fn redis_redirected(&self, answer: &str) {
        self.redis.redirected.with_label_values(&[answer]).inc();
    }
}
