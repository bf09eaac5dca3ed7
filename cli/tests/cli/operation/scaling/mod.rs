//! Scales a fleet of real processes by its backlog metric. [`Course::speed`] divides the chart's periods.

mod fleet;
mod hpa;
mod load;
pub mod memory;

use std::fmt::Write as _;
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
/// A load is absorbed if at most this number of slices is ready. Two workers can run these slices at the same time.
const ABSORBED: f64 = 2.0 * SLOTS as f64;

pub struct Course {
    /// The run is faster than a cluster by this factor.
    pub speed: u64,
    /// (duration, turns per second)
    pub steps: Vec<(Duration, f64)>,
    /// The last part has only capped work: 30 calls per turn, and ten calls per tick.
    pub capped: (Duration, u64),
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    load: f64,
    ready: f64,
    running: f64,
    workers: u32,
    /// Turns without a reply, including capped turns.
    open: usize,
    p95_ms: u64,
}

pub struct Outcome {
    samples: Vec<Sample>,
    steps: Vec<(Duration, f64)>,
    capped_from: Duration,
    pub submitted: u64,
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
                self.sync(load);
            }
        }
    }

    /// If no scheduler reports the backlog, the number of workers stays unchanged.
    fn sync(&mut self, load: f64) {
        let Some((ready, running)) = self.fleet.backlog() else { return };
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap();
        let current = self.fleet.workers();
        let wanted = self.hpa.decide(&mut self.memory, now_ms, current, ready + running);
        self.fleet.scale(wanted);
        let mut took = std::mem::take(&mut self.producer.took);
        took.sort_unstable();
        let p95 = took.get(took.len() * 95 / 100).copied().unwrap_or_default();
        self.samples.push(Sample {
            at: self.began.elapsed(),
            load,
            ready,
            running,
            workers: wanted,
            open: self.producer.open(),
            p95_ms: u64::try_from(p95.as_millis()).unwrap(),
        });
    }
}

/// Turns that a cap holds can still be open at the end.
pub async fn run(course: &Course) -> Outcome {
    let redis = RedisServer::start_with(RedisOptions::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = Processes::start(&redis.url(), SLOTS, folder.path(), 0);
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
    Outcome {
        samples: run.samples,
        steps: course.steps.clone(),
        capped_from,
        submitted: run.producer.submitted - turns,
        signaled: run.fleet.signaled,
        left: run.fleet.left,
    }
}

impl ScalingRun {
    fn sync_if_due(&mut self) {
        let last = self.samples.last().map_or(Duration::ZERO, |sample| sample.at);
        if self.began.elapsed() >= last + self.sync {
            self.sync(0.0);
        }
    }
}

impl Outcome {
    pub fn turns_of_direction(&self) -> usize {
        let counts: Vec<u32> = self.loaded().map(|sample| sample.workers).collect();
        let signs: Vec<i64> =
            counts.windows(2).map(|w| (i64::from(w[1]) - i64::from(w[0])).signum()).filter(|sign| *sign != 0).collect();
        signs.windows(2).filter(|w| w[0] != w[1]).count()
    }

    fn loaded(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().take_while(|sample| sample.at < self.capped_from)
    }

    pub fn most_workers(&self) -> (u32, u32) {
        let most = |samples: &mut dyn Iterator<Item = &Sample>| samples.map(|sample| sample.workers).max().unwrap_or(0);
        (most(&mut self.loaded()), most(&mut self.samples.iter().filter(|sample| sample.at >= self.capped_from)))
    }

    /// For each step up: the time until the load stayed absorbed for three periods. `None` if it never did.
    pub fn absorbed(&self) -> Vec<Option<Duration>> {
        let mut absorbed = Vec::new();
        let mut begin = Duration::ZERO;
        let mut before = 0.0;
        for (length, load) in &self.steps {
            if *load > before {
                let during: Vec<_> = self.samples.iter().filter(|s| s.at >= begin && s.at < begin + *length).collect();
                let calm = during.windows(3).find(|three| three.iter().all(|sample| sample.ready <= ABSORBED));
                absorbed.push(calm.map(|three| three[0].at - begin));
            }
            (begin, before) = (begin + *length, *load);
        }
        absorbed
    }

    pub fn csv(&self) -> String {
        let mut text = "t_s,load_per_s,ready,running,target,workers,open,p95_ms\n".to_owned();
        for s in &self.samples {
            let target = f64::from(s.workers) * f64::from(SLOTS) * TARGET;
            let line = format!(
                "{:.2},{},{},{},{target:.1},{},{},{}",
                s.at.as_secs_f64(),
                s.load,
                s.ready,
                s.running,
                s.workers,
                s.open,
                s.p95_ms
            );
            writeln!(text, "{line}").unwrap();
        }
        text
    }

    pub fn summary(&self) -> String {
        let (loaded, capped) = self.most_workers();
        format!(
            "{} turns, each answered once, all ok; {} workers told to go, {} went with exit code 0\n\
             at most {loaded} workers under load, {capped} while there was only capped work\n\
             {} turns of direction; steps up absorbed after {:?}",
            self.submitted,
            self.signaled,
            self.left,
            self.turns_of_direction(),
            self.absorbed(),
        )
    }
}
