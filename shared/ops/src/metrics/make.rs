//! Creates the metrics of the catalogue, and registers the ones that the process exports.

use prometheus::core::Collector;
use prometheus::{
    Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use super::catalogue::{By, Def, Kind, PREFIX, Values};
use super::labels::OTHER;

/// The role of a process. A process exports only the metrics of its role, so that an absent metric means an absent
/// role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// Schedulers only.
    Scheduler,
    /// Workers only.
    Worker,
    /// Both in one process.
    #[default]
    Both,
    /// Neither: it exports the audit log, or sends notifications.
    Exporter,
    /// Neither: it is a gateway.
    Gateway,
}

pub(super) struct Maker {
    pub(super) registry: Registry,
    part: Part,
}

impl Maker {
    /// A maker for a process with this role, with the metrics that every process has.
    pub(super) fn new(part: Part, build: &Def) -> Result<Self, Error> {
        let make = Self { registry: Registry::new(), part };
        make.build_info(build).and_then(|()| make.process())?;
        Ok(make)
    }

    /// Registers the metric if the process exports it. Other metrics can still be recorded.
    fn add<M: Collector + Clone + 'static>(&self, def: &Def, metric: Result<M, Error>) -> Result<M, Error> {
        let metric = metric?;
        if exported(self.part, def.by) {
            self.registry.register(Box::new(metric.clone()))?;
        }
        Ok(metric)
    }

    pub(super) fn counter(&self, def: &Def) -> Result<IntCounter, Error> {
        self.add(def, IntCounter::with_opts(options(def)))
    }

    /// Counters with every known label value. A counter that starts with its first event hides that event from `rate`
    /// and `increase`.
    pub(super) fn counters(&self, def: &Def) -> Result<IntCounterVec, Error> {
        let counters = self.add(def, IntCounterVec::new(options(def), &labels(def)))?;
        for values in known_values(def) {
            counters.with_label_values(&values).inc_by(0);
        }
        Ok(counters)
    }

    pub(super) fn gauge(&self, def: &Def) -> Result<IntGauge, Error> {
        self.add(def, IntGauge::with_opts(options(def)))
    }

    pub(super) fn gauges(&self, def: &Def) -> Result<GaugeVec, Error> {
        self.add(def, GaugeVec::new(options(def), &labels(def)))
    }

    pub(super) fn float(&self, def: &Def) -> Result<Gauge, Error> {
        self.add(def, Gauge::with_opts(options(def)))
    }

    pub(super) fn histogram(&self, def: &Def) -> Result<Histogram, Error> {
        self.add(def, Histogram::with_opts(histogram_options(def)))
    }

    pub(super) fn histograms(&self, def: &Def) -> Result<HistogramVec, Error> {
        self.add(def, HistogramVec::new(histogram_options(def), &labels(def)))
    }

    /// The gauge that names the version; it is always 1.
    fn build_info(&self, def: &Def) -> Result<(), Error> {
        self.gauges(def)?.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Ok(())
    }

    /// Registers the operating system's metrics of the process.
    fn process(&self) -> Result<(), Error> {
        #[cfg(target_os = "linux")]
        self.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(())
    }
}

/// Returns true if a process with this role exports metrics of `by`.
pub(super) fn exported(part: Part, by: By) -> bool {
    match by {
        By::Everyone => true,
        By::Schedulers => matches!(part, Part::Scheduler | Part::Both),
        By::Workers => matches!(part, Part::Worker | Part::Both),
        By::Exporters => part == Part::Exporter,
        By::Gateways => part == Part::Gateway,
    }
}

fn options(def: &Def) -> Opts {
    Opts::new(format!("{PREFIX}{}", def.name), def.help)
}

fn histogram_options(def: &Def) -> HistogramOpts {
    let options = HistogramOpts::new(format!("{PREFIX}{}", def.name), def.help);
    match def.kind {
        Kind::Histogram(buckets) => options.buckets(buckets.to_vec()),
        Kind::Counter | Kind::Gauge => options,
    }
}

fn labels(def: &Def) -> Vec<&'static str> {
    def.labels.iter().map(|(name, _)| *name).collect()
}

/// Every combination of the labels' known values. For a label with outside values, only `other` is known.
fn known_values(def: &Def) -> Vec<Vec<&'static str>> {
    def.labels.iter().fold(vec![Vec::new()], |combinations, (_, values)| {
        let values = match values {
            Values::Words(words) => words(),
            Values::Bounded(_) => vec![OTHER],
        };
        let with = |known: &Vec<&'static str>, value| known.iter().copied().chain([value]).collect();
        combinations.iter().flat_map(|known| values.iter().map(move |value| with(known, *value))).collect()
    })
}
