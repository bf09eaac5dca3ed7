//! Scales a fleet of real processes by its backlog metric, as the chart's autoscaler does.

mod fleet;
mod hpa;
mod load;

use std::path::Path;
use std::time::Duration;

use fleet::Processes;
use hpa::{Hpa, Memory};
use load::Producer;
use tickfleet_testkit::{RedisOptions, RedisServer};

const SLOTS: u32 = 4;
/// The target utilization of the slots, as in the chart's `targetSlotsPercent`.
const TARGET: f64 = 0.8;
const PERIOD_MS: u64 = 15_000;
const STEP: Duration = Duration::from_millis(50);

fn autoscaler() -> Hpa {
    Hpa {
        replicas_min: 1,
        replicas_max: 12,
        per_pod: f64::from(SLOTS) * TARGET,
        tolerance: 0.1,
        up_percent: 100,
        up_pods: 4,
        up_period_ms: PERIOD_MS,
        down_window_ms: 300_000,
        down_percent: 25,
        down_period_ms: 60_000,
    }
}

struct ScalingRun {
    fleet: Processes,
    producer: Producer,
    memory: Memory,
    hpa: Hpa,
    periods: u64,
}

impl ScalingRun {
    /// Starts one worker. Returns when a scheduler reports the backlog.
    async fn start(redis: &RedisServer, folder: &Path) -> Self {
        let mut fleet = Processes::start(&redis.url(), SLOTS, folder, 0);
        fleet.scale(1);
        while fleet.backlog().is_none() {
            // Started processes cause no event, so the backlog is polled.
            tokio::time::sleep(STEP).await;
        }
        Self {
            fleet,
            producer: Producer::new(redis.connection().await),
            memory: Memory::default(),
            hpa: autoscaler(),
            periods: 0,
        }
    }

    /// For the autoscaler, each call is one period later, however long the machine needs. If no scheduler reports the
    /// backlog, the number of workers stays unchanged.
    async fn next_period(&mut self) {
        // The processes need some time to work.
        tokio::time::sleep(STEP).await;
        self.producer.listen().await;
        self.fleet.collect();
        self.periods += 1;
        if let Some(backlog) = self.fleet.backlog() {
            let workers = self.hpa.decide(&mut self.memory, self.periods * PERIOD_MS, self.fleet.workers(), backlog);
            self.fleet.scale(workers);
        }
    }
}

/// The number of workers follows the load, but not turns that wait for a cap.
pub async fn out_and_in() {
    let redis = RedisServer::start_with(RedisOptions::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let mut run = ScalingRun::start(&redis, folder.path()).await;
    while run.fleet.workers() < 3 {
        run.producer.submit(20.0, Duration::from_secs(1)).await;
        run.next_period().await;
    }
    while run.producer.open() > 0 || run.fleet.workers() > 1 || !run.fleet.all_gone() {
        run.next_period().await;
    }
    assert!(run.fleet.signaled >= 2 && run.fleet.left == run.fleet.signaled);
    run.producer.submit_capped(40, 30).await;
    while run.fleet.parked() == 0.0 {
        run.next_period().await;
    }
    for _ in 0..20 {
        run.next_period().await;
        assert_eq!(run.fleet.workers(), 1, "most turns wait for the cap");
    }
    assert!(run.producer.open() > 0, "the capped agent's turns ended too early to show anything");
    assert_eq!(run.fleet.counter("tickfleet_reaped_total"), 0.0, "a stopped worker left something behind");
}
