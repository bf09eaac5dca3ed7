//! Kills or stops primaries one after another, and measures how long the throughput needs to recover.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::parts::ToolServer;
use super::{ChaosFleet, PATIENCE};

/// Producers submit every three seconds, so this time contains two rounds of submits.
const SPAN: Duration = Duration::from_secs(6);
/// The throughput has recovered if it reaches this percentage of the usual throughput.
const AGAIN: usize = 95;

#[derive(Debug, Clone, Copy)]
pub struct Recovery {
    pub fault: &'static str,
    /// From the fault to the start of the first [`SPAN`] with recovered throughput.
    pub ms: u128,
}

fn runs_from(times: &[Instant], from: Instant) -> usize {
    times.iter().filter(|at| **at >= from && **at < from + SPAN).count()
}

fn works_again(times: &[Instant], from: Instant, usual: usize) -> Option<Instant> {
    let enough = |at: Instant| runs_from(times, at) * 100 >= usual * AGAIN;
    if enough(from) {
        return Some(from);
    }
    times.iter().copied().filter(|at| *at >= from).find(|at| enough(*at))
}

impl ChaosFleet {
    pub async fn lose_primaries(&mut self, count: u64, ledger: &ToolServer) -> Vec<Recovery> {
        // The load needs this time to reach its pace.
        sleep(SPAN).await;
        let began = Instant::now();
        // The usual throughput is measured during this time.
        sleep(SPAN * 2).await;
        let usual = ledger.times().iter().filter(|at| **at >= began).count() / 2;
        assert!(usual > 20, "there is hardly any load: {usual} runs in {SPAN:?}");
        let mut found = Vec::new();
        for number in 0..count {
            self.aim();
            let (fault, lag) = match self.dice.below(3) {
                0 => ("kill Redis", None),
                1 => ("kill a primary whose replica lags", Some(200 + self.dice.below(1_300) as u64)),
                _ => ("stop a primary until it is replaced", None),
            };
            let began = Instant::now() + Duration::from_millis(lag.unwrap_or(0));
            if fault.starts_with("kill") {
                self.target.kill(lag.map(Duration::from_millis)).await;
            } else {
                self.target.stop_until_replaced().await;
            }
            self.probe(fault).await;
            let again = loop {
                if let Some(again) = works_again(&ledger.times(), began, usual) {
                    break again;
                }
                assert!(began.elapsed() < PATIENCE, "after loss {number} ({fault}) less is done than before");
                // The assertion above bounds the loop.
                sleep(Duration::from_millis(200)).await;
            };
            found.push(Recovery { fault, ms: (again - began).as_millis() });
        }
        eprintln!("{usual} runs in {SPAN:?} before");
        found
    }
}

pub fn report(recoveries: &[Recovery]) {
    let faults: BTreeSet<&str> = recoveries.iter().map(|recovery| recovery.fault).collect();
    eprintln!("| loss | times | {AGAIN} % of the work again, p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|");
    for fault in faults {
        let mut times: Vec<u128> = recoveries.iter().filter(|r| r.fault == fault).map(|r| r.ms).collect();
        times.sort_unstable();
        let at = |percent: usize| times[((times.len() - 1) * percent).div_ceil(100)];
        eprintln!("| {fault} | {} | {} | {} | {} |", times.len(), at(50), at(99), at(100));
    }
}
