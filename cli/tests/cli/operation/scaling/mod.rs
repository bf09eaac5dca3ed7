//! Scales a fleet of real processes by its backlog metric. [`Course::speed`] divides the chart's periods.

mod fleet;
mod hpa;
mod load;

use std::time::Duration;

use tokio::time::Instant;

use fleet::Processes;
use hpa::{Hpa, Memory};
use load::Producer;
use tickfleet_testkit::{RedisOptions, RedisServer};

const SLOTS: u32 = 4;
/// The target utilization of the slots, as in the chart's `targetSlotsPercent`.
const TARGET: f64 = 0.8;
const STEP: Duration = Duration::from_millis(50);

pub struct Course {
    /// The run is faster than a cluster by this factor.
    pub speed: u64,
    /// (duration, turns per second)
    pub steps: Vec<(Duration, f64)>,
    /// The last part has only capped work: 30 calls per turn, and ten calls per tick.
    pub capped: (Duration, u64),
}

#[derive(Debug)]
struct Sample {
    at: Duration,
    workers: u32,
}

#[derive(Debug)]
pub struct Outcome {
    samples: Vec<Sample>,
    capped_from: Duration,
    pub signaled: u32,
    pub left: u32,
}

fn autoscaler(speed: u64) -> Hpa {
    Hpa {
        replicas_min: 1,
        replicas_max: 12,
        per_pod: f64::from(SLOTS) * TARGET,
        tolerance: 0.1,
        up_percent: 100,
        up_pods: 4,
        up_period_ms: 15_000 / speed,
        down_window_ms: 300_000 / speed,
        down_percent: 25,
        down_period_ms: 60_000 / speed,
    }
}

struct ScalingRun {
    fleet: Processes,
    producer: Producer,
    memory: Memory,
    hpa: Hpa,
    sync: Duration,
    began: Instant,
    samples: Vec<Sample>,
}

impl ScalingRun {
    async fn live(&mut self, length: Duration, load: f64) {
        let began = Instant::now();
        let mut last = began;
        let mut synced = began;
        while began.elapsed() < length {
            // This pause keeps the pace of the load constant.
            tokio::time::sleep(STEP).await;
            self.producer.submit(load, last.elapsed()).await;
            last = Instant::now();
            self.producer.listen().await;
            self.fleet.collect();
            if synced.elapsed() >= self.sync {
                synced = Instant::now();
                self.sync();
            }
        }
    }

    /// If no scheduler reports the backlog, the number of workers stays unchanged.
    fn sync(&mut self) {
        let Some(backlog) = self.fleet.backlog() else { return };
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap();
        let current = self.fleet.workers();
        let wanted = self.hpa.decide(&mut self.memory, now_ms, current, backlog);
        self.fleet.scale(wanted);
        self.samples.push(Sample { at: self.began.elapsed(), workers: wanted });
    }
}

/// Turns that a cap holds can still be open at the end.
pub async fn run(course: &Course) -> Outcome {
    let redis = RedisServer::start_with(RedisOptions::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = Processes::start(&redis.url(), SLOTS, folder.path());
    fleet.scale(1);
    let mut run = ScalingRun {
        fleet,
        producer: Producer::new(redis.connection().await),
        memory: Memory::default(),
        hpa: autoscaler(course.speed),
        sync: Duration::from_secs(15) / u32::try_from(course.speed).unwrap(),
        began: Instant::now(),
        samples: Vec::new(),
    };
    while run.fleet.backlog().is_none() {
        assert!(run.began.elapsed() < Duration::from_secs(30), "no scheduler tells the backlog within 30 s");
        // Started processes cause no event, so the backlog is polled. The assertion above bounds the loop.
        tokio::time::sleep(STEP).await;
    }
    run.began = Instant::now();
    for (length, load) in &course.steps {
        run.live(*length, *load).await;
    }
    let quiet = Instant::now();
    while run.producer.open() > 0 || run.fleet.workers() > 1 || !run.fleet.all_gone() {
        assert!(
            quiet.elapsed() < Duration::from_secs(120),
            "{} turns without a reply, {} workers",
            run.producer.open(),
            run.fleet.workers()
        );
        run.live(STEP, 0.0).await;
        run.sync_if_due();
    }
    let capped_from = run.began.elapsed();
    let (length, turns) = course.capped;
    run.producer.submit_capped(turns, 30).await;
    run.live(length, 0.0).await;
    assert!(run.producer.open() > 0, "the capped agent's turns ended too early to show anything");
    assert_eq!(run.fleet.counter("tickfleet_reaped_total"), 0.0, "a worker that was told to go left something behind");
    Outcome { samples: run.samples, capped_from, signaled: run.fleet.signaled, left: run.fleet.left }
}

impl ScalingRun {
    fn sync_if_due(&mut self) {
        let last = self.samples.last().map_or(Duration::ZERO, |sample| sample.at);
        if self.began.elapsed() >= last + self.sync {
            self.sync();
        }
    }
}

impl Outcome {
    /// (under load, with only capped work)
    pub fn most_workers(&self) -> (u32, u32) {
        let most = |is_capped: bool| {
            let samples = self.samples.iter().filter(|sample| (sample.at >= self.capped_from) == is_capped);
            samples.map(|sample| sample.workers).max().unwrap_or(0)
        };
        (most(false), most(true))
    }
}
