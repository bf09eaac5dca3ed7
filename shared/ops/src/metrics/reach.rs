//! Whether Redis is reached, in metrics; and where sentinels name the primary, whether there is one, and how often it
//! became another.

use parking_lot::Mutex;
use prometheus::{GaugeVec, IntCounter, IntGauge};
use tokio::time::Instant;

use super::durable::DurableMetrics;
use super::make::Maker;
use super::{Metrics, catalogue as c, none};

/// The metrics of who is reached.
#[derive(Debug)]
pub(super) struct ReachMetrics {
    up: IntGauge,
    moves: IntCounter,
    missing: GaugeVec,
    pub(super) durable: DurableMetrics,
    state: Mutex<State>,
}

/// What the process' connections found last.
#[derive(Debug, Default)]
struct State {
    /// Where the primary was, host and port. It outlives a while without one: only another primary is a move.
    last: Option<String>,
    /// Since when none is found.
    missing_since: Option<Instant>,
    /// True once anybody looked: where no sentinels are configured, nobody does.
    sought: bool,
}

impl ReachMetrics {
    pub(super) fn made(make: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self {
            up: make.gauge(&c::REDIS_UP)?,
            moves: make.counter(&c::REDIS_PRIMARY_MOVES)?,
            missing: make.gauges(&c::REDIS_PRIMARY_MISSING)?,
            durable: DurableMetrics::made(make)?,
            state: Mutex::default(),
        })
    }

    /// Sets what grows while nothing happens.
    pub(super) fn read(&self) {
        let state = self.state.lock();
        if state.sought {
            let missing = state.missing_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
            self.missing.with_label_values(none()).set(missing);
        }
    }
}

/// Redis, as it is reached.
impl Metrics {
    /// Sets whether Redis answered during the scrape.
    pub fn redis_up(&self, up: bool) {
        self.reach.up.set(i64::from(up));
    }

    /// A connection was led to the primary at `found`, or found that there is none. The connections of a process learn
    /// of a failover one by one: it counts once.
    pub fn primary_sought(&self, found: Option<&str>) {
        let mut state = self.reach.state.lock();
        state.sought = true;
        let Some(found) = found else {
            state.missing_since.get_or_insert_with(Instant::now);
            return;
        };
        state.missing_since = None;
        if state.last.as_deref() != Some(found) && state.last.replace(found.to_owned()).is_some() {
            self.reach.moves.inc();
        }
    }
}
