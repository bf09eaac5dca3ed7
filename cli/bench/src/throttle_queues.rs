//! The schedulers' metrics about throttle queues.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::nodes::Fleet;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    /// Turns that were admitted, at once or after a wait.
    turns: f64,
    queued: f64,
    /// The worst delay of a release in the last half minute.
    lag_s: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ThrottleQueueStats {
    pub(crate) waited_share: f64,
    /// The worst delay from the start of a window to the release of a turn that waited for it.
    pub(crate) worst_late_ms: f64,
}

impl Counted {
    fn of(page: &str) -> Self {
        let value = |series: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
        };
        let decided = |word: &str| value(&format!("tickfleet_turns_admitted_total{{decision=\"{word}\"}}"));
        let queued = decided("queued");
        Self { turns: decided("dispatched") + queued, queued, lag_s: value("tickfleet_tick_lag_seconds") }
    }

    fn and(self, other: Self) -> Self {
        Self { turns: self.turns + other.turns, queued: self.queued + other.queued, lag_s: self.lag_s.max(other.lag_s) }
    }

    pub(super) fn since(self, before: Self) -> ThrottleQueueStats {
        let waited_share = (self.queued - before.queued) / (self.turns - before.turns).max(1.0);
        ThrottleQueueStats { waited_share, worst_late_ms: self.lag_s * 1_000.0 }
    }
}

impl Fleet {
    pub(super) async fn counted(&self) -> Result<Counted> {
        let mut all = Counted::default();
        for address in self.schedulers_at() {
            all = all.and(Counted::of(&scrape(*address).await.context("asking a scheduler for its metrics")?));
        }
        Ok(all)
    }
}

async fn scrape(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_queue_figures_cover_only_the_measured_phase() {
        let page = |dispatched: u32, queued: u32| {
            format!(
                "HTTP/1.0 200 OK\r\n\r\ntickfleet_turns_admitted_total{{decision=\"dispatched\"}} {dispatched}\n\
                 tickfleet_turns_admitted_total{{decision=\"queued\"}} {queued}\ntickfleet_tick_lag_seconds 0.02\n"
            )
        };
        let both = Counted::of(&page(100, 0)).and(Counted::of(&page(100, 100)));
        let throttle_queues = both.since(Counted::of(&page(100, 0)));
        assert_eq!((throttle_queues.waited_share, throttle_queues.worst_late_ms), (0.5, 20.0));
    }
}
