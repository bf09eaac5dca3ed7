//! Every metric, in one place, each with a help text that says what it is for.
//!
//! No label names a tenant, an agent, a turn or a task: their number has no bound, and ids belong into logs,
//! traces and `explain`. The one label from outside, `tool`, is bounded in `tool_labels.rs`.

use std::time::Duration;

use prometheus::{
    Encoder, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};

use super::tool_labels::ToolLabels;
use crate::model::Outcome;

/// Prefix of every metric but the `process_*` ones.
const NAMESPACE: &str = "tickfleet";

/// Buckets of a call's duration, seconds: from a look-up in memory to far beyond the default timeout of 30 s.
const CALL_SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// What admission decided about a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// At least its first slice went out at once.
    Dispatched,
    /// It waits on its agent's lane.
    Laned,
    /// The day's budget was used up.
    Capped,
    /// It was admitted before.
    Duplicate,
    /// Its id was used for another content.
    Conflict,
    /// It was malformed, or its tenant or agent is unknown.
    Rejected,
}

impl Decision {
    /// All decisions.
    pub const ALL: [Self; 6] =
        [Self::Dispatched, Self::Laned, Self::Capped, Self::Duplicate, Self::Conflict, Self::Rejected];

    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dispatched => "dispatched",
            Self::Laned => "laned",
            Self::Capped => "capped",
            Self::Duplicate => "duplicate",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
        }
    }
}

/// Where work waits or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// On the inbound streams, not yet admitted.
    Inbound,
    /// On the ready streams, for a worker to take.
    Ready,
    /// On a lane, for a later tick or day.
    Parked,
    /// In the retry set, for its time to come.
    Delayed,
    /// Leased by a worker.
    Running,
    /// On the dead stream.
    Dead,
}

impl Place {
    /// All places.
    pub const ALL: [Self; 6] = [Self::Inbound, Self::Ready, Self::Parked, Self::Delayed, Self::Running, Self::Dead];

    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Ready => "ready",
            Self::Parked => "parked",
            Self::Delayed => "delayed",
            Self::Running => "running",
            Self::Dead => "dead",
        }
    }
}

/// How much is in one [`Place`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Backlog {
    /// Entries, turns or slices: whatever the place holds.
    pub count: u64,
    /// Age of the oldest one; none where the place is empty.
    pub oldest: Option<Duration>,
}

/// A whole backlog. A place that is left out is absent from the scrape.
pub type Backlogs = Vec<(Place, Backlog)>;

/// The metrics of one process. Share it in an `Arc`; every method takes `&self` and is cheap.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    tools: ToolLabels,
    turns_admitted: IntCounterVec,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    retries: IntCounterVec,
    reaped: IntCounter,
    quarantined: IntCounter,
    fenced: IntCounterVec,
    dead: IntCounterVec,
    slots_busy: IntGauge,
    slots: IntGauge,
    backlog: GaugeVec,
    oldest_age: GaugeVec,
    tick_lag: Gauge,
    redis_errors: IntCounterVec,
    policy_stale: IntCounter,
    clock_steps: IntCounter,
    epoch_changes: IntCounter,
    state_lost: IntCounter,
    loop_progress: GaugeVec,
}

impl Metrics {
    /// All metrics at zero, with their own registry, so that a process or a test may have several.
    ///
    /// # Errors
    /// Two metrics share a name, or a name has a character that Prometheus refuses: a mistake in this file.
    pub fn new() -> Result<Self, prometheus::Error> {
        let make = Maker::new();
        let metrics = Self {
            tools: ToolLabels::default(),
            turns_admitted: make.counters("turns_admitted_total", "Turns by what admission decided", &["decision"])?,
            calls: make.counters("calls_total", "Calls that ended, by tool and outcome", &["tool", "outcome"])?,
            call_seconds: make.histograms("call_duration_seconds", "Time executing a call, all tries", &["tool"])?,
            retries: make.counters("retries_total", "Tries that failed and will be repeated", &["reason"])?,
            reaped: make.counter("reaped_total", "Slices taken back from workers whose heartbeat was gone")?,
            quarantined: make.counter("quarantined_total", "Slices ended because they lost a worker too often")?,
            fenced: make.counters("fenced_total", "Acts refused because the slice was no longer ours", &["verb"])?,
            dead: make.counters("dead_total", "Entries moved to the dead stream", &["reason"])?,
            slots_busy: make.gauge("slots_busy", "Slots that carry out a slice now")?,
            slots: make.gauge("slots", "Slots of this worker")?,
            backlog: make.gauges("backlog", "How much waits or runs, asked of Redis at each scrape", &["state"])?,
            oldest_age: make.gauges("oldest_age_seconds", "Age of the oldest that waits or runs", &["state"])?,
            tick_lag: make.float("tick_lag_seconds", "How late the last tick released its lanes")?,
            redis_errors: make.counters("redis_errors_total", "Redis calls that failed", &["verb"])?,
            policy_stale: make.counter("policy_stale_total", "Scripts refused: this process' policy is outdated")?,
            clock_steps: make.counter("clock_steps_total", "Times that the clock of Redis stepped back")?,
            epoch_changes: make.counter("epoch_changes_total", "Times that another Redis answered")?,
            state_lost: make.counter("state_lost_total", "Times that Redis had lost its streams or groups")?,
            loop_progress: make.gauges(
                "loop_progress_timestamp_seconds",
                "When a loop last advanced, seconds since the epoch",
                &["loop"],
            )?,
            registry: make.registry,
        };
        // A counter that begins with its first event hides that event from `rate` and `increase`.
        for decision in Decision::ALL {
            metrics.admitted(decision, 0);
        }
        metrics.describe_build()?;
        Ok(metrics)
    }

    fn describe_build(&self) -> Result<(), prometheus::Error> {
        let info = Opts::new("build_info", "Always 1; the label is the version of the program")
            .namespace(NAMESPACE)
            .const_label("version", env!("CARGO_PKG_VERSION"));
        let info = IntGauge::with_opts(info)?;
        info.set(1);
        self.registry.register(Box::new(info))?;
        #[cfg(target_os = "linux")]
        self.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(())
    }

    /// Admission decided about `turns` turns.
    pub fn admitted(&self, decision: Decision, turns: u64) {
        self.turns_admitted.with_label_values(&[decision.as_str()]).inc_by(turns);
    }

    /// A call of `tool` ended. `executed` is the time its handler ran, over all tries; none where it never ran.
    pub fn call_ended(&self, tool: &str, outcome: Outcome, executed: Option<Duration>) {
        let tool = self.tools.label(tool, outcome);
        self.calls.with_label_values(&[&*tool, outcome.as_str()]).inc();
        if let Some(executed) = executed {
            self.call_seconds.with_label_values(&[&*tool]).observe(executed.as_secs_f64());
        }
    }

    /// A try failed and will be repeated. `reason` is a word from the code, never from outside.
    pub fn retried(&self, reason: &'static str) {
        self.retries.with_label_values(&[reason]).inc();
    }

    /// `slices` slices were taken back from dead workers.
    pub fn reaped(&self, slices: u64) {
        self.reaped.inc_by(slices);
    }

    /// `slices` slices were quarantined.
    pub fn quarantined(&self, slices: u64) {
        self.quarantined.inc_by(slices);
    }

    /// The verb was refused by the fence (`STALE`).
    pub fn fenced(&self, verb: &'static str) {
        self.fenced.with_label_values(&[verb]).inc();
    }

    /// An entry went to the dead stream.
    pub fn dead(&self, reason: &'static str) {
        self.dead.with_label_values(&[reason]).inc();
    }

    /// How many slots this worker has, and how many of them are busy.
    pub fn slots(&self, busy: usize, all: usize) {
        self.slots_busy.set(i64::try_from(busy).unwrap_or(i64::MAX));
        self.slots.set(i64::try_from(all).unwrap_or(i64::MAX));
    }

    /// What is in each place, as Redis said at this scrape. Every scheduler sees the whole fleet: a query takes
    /// the maximum over them, not the sum.
    pub fn backlog(&self, places: &[(Place, Backlog)]) {
        for gone in Place::ALL.iter().filter(|place| !places.iter().any(|(known, _)| known == *place)) {
            // Fails where the place was not shown before either.
            let _ = self.backlog.remove_label_values(&[gone.as_str()]);
            let _ = self.oldest_age.remove_label_values(&[gone.as_str()]);
        }
        for (place, backlog) in places {
            #[allow(clippy::cast_precision_loss, reason = "a backlog beyond 2^53 fits no Redis")]
            self.backlog.with_label_values(&[place.as_str()]).set(backlog.count as f64);
            let age = backlog.oldest.unwrap_or_default().as_secs_f64();
            self.oldest_age.with_label_values(&[place.as_str()]).set(age);
        }
    }

    /// Redis could not be asked: the backlog disappears from the scrape, because a gauge that keeps its last
    /// value through an outage hides it, and one that reads 0 denies it.
    pub fn backlog_unknown(&self) {
        self.backlog.reset();
        self.oldest_age.reset();
    }

    /// How late the last tick released its lanes.
    pub fn tick_lag(&self, lag: Duration) {
        self.tick_lag.set(lag.as_secs_f64());
    }

    /// A Redis call failed.
    pub fn redis_error(&self, verb: &'static str) {
        self.redis_errors.with_label_values(&[verb]).inc();
    }

    /// A script answered that this process' policy is outdated.
    pub fn policy_stale(&self) {
        self.policy_stale.inc();
    }

    /// The clock of Redis stepped back.
    pub fn clock_stepped(&self) {
        self.clock_steps.inc();
    }

    /// Another Redis answers than before.
    pub fn epoch_changed(&self) {
        self.epoch_changes.inc();
    }

    /// Redis has lost its streams or groups.
    pub fn state_lost(&self) {
        self.state_lost.inc();
    }

    /// When a loop last advanced, seconds since the epoch. The health server sets it at each scrape.
    pub fn loop_progress(&self, name: &'static str, timestamp_seconds: f64) {
        self.loop_progress.with_label_values(&[name]).set(timestamp_seconds);
    }

    /// All metrics in Prometheus' text format. A metric that cannot be written is left out and logged.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "a metric cannot be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Makes metrics and registers them.
struct Maker {
    registry: Registry,
}

impl Maker {
    fn new() -> Self {
        Self { registry: Registry::new() }
    }

    fn add<M: prometheus::core::Collector + Clone + 'static>(
        &self,
        metric: Result<M, prometheus::Error>,
    ) -> Result<M, prometheus::Error> {
        let metric = metric?;
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::with_opts(Opts::new(name, help).namespace(NAMESPACE)))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help).namespace(NAMESPACE), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::with_opts(Opts::new(name, help).namespace(NAMESPACE)))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, prometheus::Error> {
        self.add(GaugeVec::new(Opts::new(name, help).namespace(NAMESPACE), labels))
    }

    fn float(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.add(Gauge::with_opts(Opts::new(name, help).namespace(NAMESPACE)))
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::new(name, help).namespace(NAMESPACE).buckets(CALL_SECONDS.to_vec());
        self.add(HistogramVec::new(options, labels))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_scrape_shows_what_happened() {
        let metrics = Metrics::new().unwrap();
        metrics.admitted(Decision::Laned, 3);
        metrics.call_ended("search", Outcome::Ok, Some(Duration::from_millis(20)));
        metrics.call_ended("search", Outcome::Denied, None);
        metrics.fenced("settle");
        metrics.slots(2, 8);
        let text = metrics.render();
        for line in [
            "tickfleet_turns_admitted_total{decision=\"laned\"} 3",
            "tickfleet_calls_total{outcome=\"ok\",tool=\"search\"} 1",
            "tickfleet_calls_total{outcome=\"denied\",tool=\"search\"} 1",
            "tickfleet_call_duration_seconds_count{tool=\"search\"} 1",
            "tickfleet_fenced_total{verb=\"settle\"} 1",
            "tickfleet_slots_busy 2",
            "tickfleet_slots 8",
            "tickfleet_state_lost_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line:?} in:\n{text}");
        }
        assert!(text.contains("tickfleet_build_info{version=\""));
        assert!(text.contains("process_cpu_seconds_total"));
    }

    #[test]
    fn an_unknown_backlog_is_absent_not_zero() {
        let metrics = Metrics::new().unwrap();
        let waiting = Backlog { count: 7, oldest: Some(Duration::from_secs(5)) };
        metrics.backlog(&[(Place::Ready, waiting), (Place::Dead, Backlog::default())]);
        assert!(metrics.render().contains("tickfleet_backlog{state=\"ready\"} 7"));
        assert!(metrics.render().contains("tickfleet_oldest_age_seconds{state=\"ready\"} 5"));

        metrics.backlog(&[(Place::Dead, Backlog::default())]);
        assert!(!metrics.render().contains("tickfleet_backlog{state=\"ready\"}"));
        assert!(metrics.render().contains("tickfleet_backlog{state=\"dead\"} 0"));

        metrics.backlog_unknown();
        assert!(!metrics.render().contains("tickfleet_backlog"));
        assert!(!metrics.render().contains("tickfleet_oldest_age_seconds"));
    }

    #[test]
    fn every_own_metric_has_the_prefix() {
        let metrics = Metrics::new().unwrap();
        for family in metrics.registry.gather() {
            let name = family.name();
            assert!(name.starts_with("tickfleet_") || name.starts_with("process_"), "{name}");
        }
    }
}
