//! Gauges that are read at each scrape, as sums over the workers or schedulers of the process.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

type Probe = Box<dyn Fn() -> Option<(usize, usize)> + Send + Sync>;
type McpProbe = Box<dyn Fn() -> Vec<McpServer> + Send + Sync>;

const MCP_SERVERS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct McpServer {
    /// As in `mcp.yaml`.
    pub name: String,
    pub up: bool,
    /// Tools that may not be called, because their definitions differ from the pinned definitions.
    pub quarantined: usize,
}

#[derive(Default)]
pub(super) struct McpServers {
    probe: Mutex<Option<McpProbe>>,
}

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServers").finish_non_exhaustive()
    }
}

impl McpServers {
    pub(super) fn watch(&self, probe: impl Fn() -> Vec<McpServer> + Send + Sync + 'static) {
        *self.probe.lock() = Some(Box::new(probe));
    }

    pub(super) fn now(&self) -> Vec<McpServer> {
        let probe = self.probe.lock();
        let mut servers = probe.as_ref().map(|probe| probe()).unwrap_or_default();
        servers.sort();
        servers.truncate(MCP_SERVERS_MAX);
        servers
    }
}

#[derive(Default)]
pub(super) struct SlotProbes {
    probes: Mutex<Vec<Probe>>,
}

impl fmt::Debug for SlotProbes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotProbes").finish_non_exhaustive()
    }
}

impl SlotProbes {
    pub(super) fn watch(&self, probe: impl Fn() -> Option<(usize, usize)> + Send + Sync + 'static) {
        self.probes.lock().push(Box::new(probe));
    }

    pub(super) fn sum(&self) -> (i64, i64) {
        let mut busy = 0;
        let mut all = 0;
        let mut add = |(b, a): (usize, usize)| {
            busy += i64::try_from(b).unwrap_or(i64::MAX);
            all += i64::try_from(a).unwrap_or(i64::MAX);
        };
        let mut probes = self.probes.lock();
        probes.retain(|probe| probe().map(&mut add).is_some());
        (busy, all)
    }
}

/// Longer than the usual interval between scrapes, so that a scrape also finds a short lag.
pub(super) const LAG_MEMORY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct WorstLag {
    by_shard: Mutex<BTreeMap<u32, (Duration, Instant)>>,
}

impl WorstLag {
    pub(super) fn record(&self, shard: u32, lag: Duration, now: Instant) {
        let mut by_shard = self.by_shard.lock();
        let known =
            by_shard.get(&shard).filter(|(known, since)| *known > lag && now.duration_since(*since) < LAG_MEMORY);
        if known.is_none() {
            by_shard.insert(shard, (lag, now));
        }
    }

    pub(super) fn worst(&self) -> Duration {
        let by_shard = self.by_shard.lock();
        by_shard.values().map(|(lag, _)| *lag).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_lag_expires_after_a_while() {
        let lags = WorstLag::default();
        let ms = Duration::from_millis;
        let began = Instant::now();
        lags.record(0, ms(500), began);
        lags.record(1, ms(300), began);
        lags.record(0, ms(1), began);
        assert_eq!(lags.worst(), ms(500));
        let later = began + LAG_MEMORY;
        lags.record(0, ms(1), later);
        assert_eq!(lags.worst(), ms(300));
        lags.record(1, Duration::ZERO, later);
        assert_eq!(lags.worst(), ms(1));
    }
}
