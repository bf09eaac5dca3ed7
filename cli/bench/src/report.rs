use serde::Serialize;

use super::BenchArgs;
use super::load::{Saturation, Steady};
use super::nodes::Rss;
use super::raw::Raw;
use super::scripts::{Scripts, Slow};
use super::server::Cpu;

/// The baseline and the expiry are measured separately. All other costs are those of the saturation phase.
pub(super) struct Costs {
    pub(super) cpu: Cpu,
    pub(super) scripts: Scripts,
    pub(super) slowest: Option<Slow>,
    pub(super) baseline_us: f64,
    pub(super) expiry_us_per_key: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// At saturation.
    pub(crate) turns_per_s: f64,
    pub(crate) calls_per_s: f64,
    pub(crate) raw_cycle_per_s: f64,
    /// Turns per second divided by entries per second of the raw cycle.
    pub(crate) ratio: f64,
    /// At the steady rate.
    pub(crate) latency_ms: Latency,
    pub(crate) saturated_latency_ms: SaturatedLatency,
    pub(crate) raw_cycle_p99_ms: f64,
    /// At saturation, without the time for expiring keys.
    pub(crate) redis_us_per_turn: f64,
    pub(crate) redis_us_per_raw_cycle: f64,
    /// CPU time per turn divided by CPU time per entry of the raw cycle.
    pub(crate) redis_ratio: f64,
    pub(crate) redis_us_per_call: f64,
    /// CPU time of only storing the data of a turn with one call.
    pub(crate) redis_us_floor: f64,
    pub(crate) script_mean_ms: f64,
    /// At saturation. `None` if no command took 1 ms.
    pub(crate) slowest_command_ms: Option<f64>,
    pub(crate) slowest_command: Option<String>,
    /// Each finished turn is one key, which expires `retain` after the end of the turn.
    pub(crate) expiry_us_per_key: f64,
    /// Each value belongs to the largest process of its kind.
    pub(crate) rss_mb: RssMb,
    /// Excludes the pages of the program.
    pub(crate) own_mb: RssMb,
    pub(crate) load: LoadShape,
    /// Turns with a failed call. If there are any, the figures are not meaningful.
    pub(crate) not_ok: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct SaturatedLatency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct RssMb {
    pub(crate) scheduler: f64,
    pub(crate) worker: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct LoadShape {
    pub(crate) calls_per_turn: usize,
    pub(crate) rate: u64,
    pub(crate) agents: usize,
    pub(crate) schedulers: usize,
    pub(crate) workers: usize,
    pub(crate) slots: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) aof: &'static str,
    pub(crate) runs: usize,
    pub(crate) steady_turns: usize,
    pub(crate) saturation_turns: u64,
}

impl Report {
    pub(super) fn new(args: &BenchArgs, raw: &Raw, steady: &Steady, at: &Saturation, costs: &Costs, rss: Rss) -> Self {
        let turns_per_s = at.turns_per_s();
        let us_per_turn = costs.cpu.seconds * 1e6 / at.all_turns.max(1) as f64;
        let calls = args.calls_per_turn.max(1) as f64;
        let slowest = costs.slowest.as_ref();
        Self {
            turns_per_s,
            calls_per_s: turns_per_s * calls,
            raw_cycle_per_s: raw.per_s,
            ratio: turns_per_s / raw.per_s,
            latency_ms: Latency { p50: steady.p50, p99: steady.p99, p999: steady.p999 },
            saturated_latency_ms: SaturatedLatency { p50: at.p50_ms, p99: at.p99_ms },
            raw_cycle_p99_ms: raw.p99_ms,
            redis_us_per_turn: us_per_turn,
            redis_us_per_raw_cycle: raw.redis_us,
            redis_ratio: us_per_turn / raw.redis_us,
            redis_us_per_call: us_per_turn / calls,
            redis_us_floor: costs.baseline_us,
            script_mean_ms: costs.scripts.mean_ms(),
            slowest_command_ms: slowest.map(|slow| slow.ms),
            slowest_command: slowest.map(|slow| slow.command.clone()),
            expiry_us_per_key: costs.expiry_us_per_key,
            rss_mb: RssMb { scheduler: rss.scheduler.resident, worker: rss.worker.resident },
            own_mb: RssMb { scheduler: rss.scheduler.own, worker: rss.worker.own },
            load: LoadShape {
                calls_per_turn: args.calls_per_turn,
                rate: args.rate,
                agents: args.agents,
                schedulers: args.schedulers,
                workers: args.workers,
                slots: args.slots,
                payload_bytes: args.payload_bytes,
                aof: args.aof.word(),
                runs: 1,
                steady_turns: steady.turns,
                saturation_turns: at.turns,
            },
            not_ok: at.not_ok,
        }
    }

    pub(super) fn median(runs: Vec<Self>) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            super::load::percentile(&mut values, 0.5)
        };
        // The worst of all runs, not their median.
        let slowest = runs.iter().max_by(|a, b| a.slowest_ms().total_cmp(&b.slowest_ms()));
        Self {
            turns_per_s: of(|r| r.turns_per_s),
            calls_per_s: of(|r| r.calls_per_s),
            raw_cycle_per_s: of(|r| r.raw_cycle_per_s),
            ratio: of(|r| r.ratio),
            latency_ms: Latency {
                p50: of(|r| r.latency_ms.p50),
                p99: of(|r| r.latency_ms.p99),
                p999: of(|r| r.latency_ms.p999),
            },
            saturated_latency_ms: SaturatedLatency {
                p50: of(|r| r.saturated_latency_ms.p50),
                p99: of(|r| r.saturated_latency_ms.p99),
            },
            raw_cycle_p99_ms: of(|r| r.raw_cycle_p99_ms),
            redis_us_per_turn: of(|r| r.redis_us_per_turn),
            redis_us_per_raw_cycle: of(|r| r.redis_us_per_raw_cycle),
            redis_ratio: of(|r| r.redis_ratio),
            redis_us_per_call: of(|r| r.redis_us_per_call),
            redis_us_floor: of(|r| r.redis_us_floor),
            script_mean_ms: of(|r| r.script_mean_ms),
            slowest_command_ms: slowest.and_then(|run| run.slowest_command_ms),
            slowest_command: slowest.and_then(|run| run.slowest_command.clone()),
            expiry_us_per_key: of(|r| r.expiry_us_per_key),
            rss_mb: RssMb { scheduler: of(|r| r.rss_mb.scheduler), worker: of(|r| r.rss_mb.worker) },
            own_mb: RssMb { scheduler: of(|r| r.own_mb.scheduler), worker: of(|r| r.own_mb.worker) },
            not_ok: runs.iter().map(|r| r.not_ok).sum(),
            load: LoadShape {
                runs: runs.len(),
                steady_turns: runs.iter().map(|r| r.load.steady_turns).sum(),
                saturation_turns: runs.iter().map(|r| r.load.saturation_turns).sum(),
                ..runs[0].load.clone()
            },
        }
    }

    fn slowest_ms(&self) -> f64 {
        self.slowest_command_ms.unwrap_or(0.0)
    }

    fn shape(&self) -> String {
        let l = &self.load;
        format!(
            "{} scheduler(s), {} worker(s) of {} slots, {} agents, {} call(s) a turn of about {} bytes, caps on, append-only file: {}; {} run(s)",
            l.schedulers, l.workers, l.slots, l.agents, l.calls_per_turn, l.payload_bytes, l.aof, l.runs
        )
    }

    pub(crate) fn text(&self) -> String {
        let l = &self.load;
        let slowest = self.slowest_command_ms.zip(self.slowest_command.as_ref());
        let slowest =
            slowest.map_or_else(String::new, |(ms, command)| format!(", slowest command {ms:.1} ms ({command})"));
        let mut lines = vec![
            self.shape(),
            String::new(),
            format!("end to end             {:>9.0} turns/s  {:>9.0} calls/s", self.turns_per_s, self.calls_per_s),
            format!(
                "raw stream cycle       {:>9.0} entries/s, p99 {:.1} ms",
                self.raw_cycle_per_s, self.raw_cycle_p99_ms
            ),
            format!("ratio                  {:>9.3} (turns over raw cycle)", self.ratio),
            format!(
                "Redis                  {:>9.1} µs/turn  {:>9.1} µs/call  {:>6.1} × the raw cycle's {:.1} µs",
                self.redis_us_per_turn, self.redis_us_per_call, self.redis_ratio, self.redis_us_per_raw_cycle
            ),
            format!(
                "storage-only baseline  {:>9.1} µs/turn: what a turn of one call stores, without scripts or decisions",
                self.redis_us_floor
            ),
            format!("scripts                {:>9.2} ms on average at saturation{slowest}", self.script_mean_ms),
            if self.expiry_us_per_key.is_nan() {
                "key expiry             not measured: Redis did not expire the records within 10 s".to_owned()
            } else {
                format!(
                    "key expiry             {:>9.1} µs/key, paid `retain` after a turn's end, not in the above",
                    self.expiry_us_per_key
                )
            },
            format!(
                "latency at {:>4}/s      p50 {:.2} ms  p99 {:.2} ms  p99.9 {:.2} ms ({} turns)",
                l.rate, self.latency_ms.p50, self.latency_ms.p99, self.latency_ms.p999, l.steady_turns
            ),
            format!(
                "latency saturated      p50 {:.1} ms  p99 {:.1} ms",
                self.saturated_latency_ms.p50, self.saturated_latency_ms.p99
            ),
            format!(
                "memory                 scheduler {:.1} MB, worker {:.1} MB (their own {:.1} and {:.1} MB)",
                self.rss_mb.scheduler, self.rss_mb.worker, self.own_mb.scheduler, self.own_mb.worker
            ),
        ];
        if self.not_ok > 0 {
            lines.push(format!("WARNING                {} turns had calls that did not succeed", self.not_ok));
        }
        lines.join("\n")
    }
}
