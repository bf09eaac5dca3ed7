use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{HistogramVec, IntCounterVec, IntGauge};

use super::builder::MetricBuilder;
use super::{catalogue as c, labels};

type Probe = Box<dyn Fn() -> usize + Send + Sync>;

pub struct GatewayMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    refused: IntCounterVec,
    waiting: IntGauge,
    waiting_now: Mutex<Option<Probe>>,
    streams: IntGauge,
    mcp_calls: IntCounterVec,
}

impl fmt::Debug for GatewayMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayMetrics").finish_non_exhaustive()
    }
}

/// Dropping this value marks the end of the stream.
#[derive(Debug)]
pub struct OpenStream(IntGauge);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl GatewayMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: builder.counters(&c::GATEWAY_REQUESTS)?,
            seconds: builder.histograms(&c::GATEWAY_DURATION)?,
            refused: builder.counters(&c::GATEWAY_REJECTED)?,
            waiting: builder.gauge(&c::GATEWAY_WAITING)?,
            waiting_now: Mutex::default(),
            streams: builder.gauge(&c::GATEWAY_STREAMS)?,
            mcp_calls: builder.counters(&c::GATEWAY_MCP_CALLS)?,
        })
    }

    pub fn answered(&self, request: &'static str, status: u16, took: Duration) {
        let request = labels::known(&labels::REQUESTS, request);
        let [good, elsewhere, wrong, failed, _] = labels::STATUSES;
        let class = match status {
            ..300 => good,
            300..400 => elsewhere,
            400..500 => wrong,
            _ => failed,
        };
        self.requests.with_label_values(&[request, class]).inc();
        self.seconds.with_label_values(&[request]).observe(took.as_secs_f64());
    }

    /// Ignores a status that is not a rejection.
    pub fn refused(&self, status: u16) {
        let [key, forbidden, too_large, busy, unavailable, ..] = labels::REFUSALS;
        let reason = match status {
            401 => key,
            403 => forbidden,
            413 => too_large,
            429 => busy,
            503 => unavailable,
            _ => return,
        };
        self.refused.with_label_values(&[reason]).inc();
    }

    pub fn over_rate(&self) {
        let [.., rate, _] = labels::REFUSALS;
        self.refused.with_label_values(&[rate]).inc();
    }

    pub fn auth_failure_rate(&self) {
        let [.., auth_failure_rate] = labels::REFUSALS;
        self.refused.with_label_values(&[auth_failure_rate]).inc();
    }

    /// The client disconnected before the response.
    pub fn gone(&self, request: &'static str) {
        let [.., gone] = labels::STATUSES;
        self.requests.with_label_values(&[labels::known(&labels::REQUESTS, request), gone]).inc();
    }

    #[must_use]
    pub fn stream(&self) -> OpenStream {
        self.streams.inc();
        OpenStream(self.streams.clone())
    }

    /// `response` is a value of `labels::MCP_RESPONSES`.
    pub fn mcp_called(&self, response: &'static str) {
        let [.., error] = labels::MCP_RESPONSES;
        let known = labels::MCP_RESPONSES.into_iter().find(|word| *word == response);
        self.mcp_calls.with_label_values(&[known.unwrap_or(error)]).inc();
    }

    /// `waiting` is called at each scrape.
    pub fn watch_waiting(&self, waiting: impl Fn() -> usize + Send + Sync + 'static) {
        *self.waiting_now.lock() = Some(Box::new(waiting));
    }

    pub(super) fn read(&self) {
        let now = self.waiting_now.lock().as_ref().map_or(0, |waiting| waiting());
        self.waiting.set(i64::try_from(now).unwrap_or(i64::MAX));
    }
}
