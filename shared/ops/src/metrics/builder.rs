//! Creates the metrics of the catalogue, and registers the metrics of the process.

use prometheus::core::Collector;
use prometheus::{
    Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use super::catalogue::{ExportedBy, LabelValues, MetricDef, MetricKind, PREFIX};
use super::labels::OTHER;

/// A process exports only the metrics of its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProcessRole {
    Scheduler,
    Worker,
    #[default]
    Both,
    Exporter,
    Gateway,
}

pub(super) struct MetricBuilder {
    pub(super) registry: Registry,
    role: ProcessRole,
}

impl MetricBuilder {
    pub(super) fn new(role: ProcessRole, build: &MetricDef) -> Result<Self, Error> {
        let builder = Self { registry: Registry::new(), role };
        builder.build_info(build).and_then(|()| builder.process())?;
        Ok(builder)
    }

    /// A metric that is not registered can still be recorded.
    fn add<M: Collector + Clone + 'static>(&self, def: &MetricDef, metric: Result<M, Error>) -> Result<M, Error> {
        let metric = metric?;
        if exported(self.role, def.by) {
            self.registry.register(Box::new(metric.clone()))?;
        }
        Ok(metric)
    }

    pub(super) fn counter(&self, def: &MetricDef) -> Result<IntCounter, Error> {
        self.add(def, IntCounter::with_opts(options(def)))
    }

    /// Every known label value gets a series that starts at 0. Otherwise `rate` and `increase` would not count the
    /// first event.
    pub(super) fn counters(&self, def: &MetricDef) -> Result<IntCounterVec, Error> {
        let counters = self.add(def, IntCounterVec::new(options(def), &labels(def)))?;
        for values in known_values(def) {
            counters.with_label_values(&values).inc_by(0);
        }
        Ok(counters)
    }

    pub(super) fn gauge(&self, def: &MetricDef) -> Result<IntGauge, Error> {
        self.add(def, IntGauge::with_opts(options(def)))
    }

    pub(super) fn gauges(&self, def: &MetricDef) -> Result<GaugeVec, Error> {
        self.add(def, GaugeVec::new(options(def), &labels(def)))
    }

    pub(super) fn float(&self, def: &MetricDef) -> Result<Gauge, Error> {
        self.add(def, Gauge::with_opts(options(def)))
    }

    pub(super) fn histogram(&self, def: &MetricDef) -> Result<Histogram, Error> {
        self.add(def, Histogram::with_opts(histogram_options(def)))
    }

    pub(super) fn histograms(&self, def: &MetricDef) -> Result<HistogramVec, Error> {
        self.add(def, HistogramVec::new(histogram_options(def), &labels(def)))
    }

    fn build_info(&self, def: &MetricDef) -> Result<(), Error> {
        self.gauges(def)?.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Ok(())
    }

    fn process(&self) -> Result<(), Error> {
        #[cfg(target_os = "linux")]
        self.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(())
    }
}

pub(super) fn exported(role: ProcessRole, by: ExportedBy) -> bool {
    match by {
        ExportedBy::Everyone => true,
        ExportedBy::Schedulers => matches!(role, ProcessRole::Scheduler | ProcessRole::Both),
        ExportedBy::Workers => matches!(role, ProcessRole::Worker | ProcessRole::Both),
        ExportedBy::Exporters => role == ProcessRole::Exporter,
        ExportedBy::Gateways => role == ProcessRole::Gateway,
    }
}

fn options(def: &MetricDef) -> Opts {
    Opts::new(format!("{PREFIX}{}", def.name), def.help)
}

fn histogram_options(def: &MetricDef) -> HistogramOpts {
    let options = HistogramOpts::new(format!("{PREFIX}{}", def.name), def.help);
    match def.kind {
        MetricKind::Histogram(buckets) => options.buckets(buckets.to_vec()),
        MetricKind::Counter | MetricKind::Gauge => options,
    }
}

fn labels(def: &MetricDef) -> Vec<&'static str> {
    def.labels.iter().map(|(name, _)| *name).collect()
}

/// For a label with values from outside, only `other` is known.
fn known_values(def: &MetricDef) -> Vec<Vec<&'static str>> {
    def.labels.iter().fold(vec![Vec::new()], |combinations, (_, values)| {
        let values = match values {
            LabelValues::Words(words) => words(),
            LabelValues::Bounded(_) => vec![OTHER],
        };
        let with = |known: &Vec<&'static str>, value| known.iter().copied().chain([value]).collect();
        combinations.iter().flat_map(|known| values.iter().map(move |value| with(known, *value))).collect()
    })
}
