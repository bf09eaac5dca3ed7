//! The benchmark of a fleet. Each run also measures the raw stream cycle: a ratio to that cycle is comparable between
//! machines.

mod baseline;
mod load;
mod nodes;
mod raw;
mod report;
mod scripts;
mod server;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use load::Load;
use nodes::Fleet;
use report::{Costs, Report};
use server::Server;

/// Measure a fleet on this machine.
#[derive(Debug, Clone, Parser)]
#[command(name = "tickfleet-bench", version, after_help = HELP)]
pub(crate) struct BenchArgs {
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Program whose processes make the fleet. If missing, the `tickfleet` beside this program.
    #[arg(long, value_name = "PROGRAM")]
    tickfleet: Option<PathBuf>,
    /// Seconds of the saturation phase.
    #[arg(long, default_value_t = 8)]
    pub(crate) seconds: u64,
    /// Seconds of the steady phase, which measures latency.
    #[arg(long, default_value_t = 10)]
    pub(crate) steady_seconds: u64,
    /// Turns per second in the steady phase.
    #[arg(long, default_value_t = 200)]
    pub(crate) rate: u64,
    /// Calls per turn.
    #[arg(long, default_value_t = 1)]
    pub(crate) calls_per_turn: usize,
    /// Agents that make the turns. By default, they never reach the caps (10 calls per 5 s each), even at 60,000 calls
    /// per second.
    #[arg(long, default_value_t = 30_000)]
    pub(crate) agents: usize,
    /// Scheduler processes.
    #[arg(long, default_value_t = 1)]
    pub(crate) schedulers: usize,
    /// Worker processes.
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Slots of each worker.
    #[arg(long, default_value_t = 256)]
    pub(crate) slots: usize,
    /// Approximate bytes of a turn's message.
    #[arg(long, default_value_t = 300)]
    pub(crate) payload_bytes: usize,
    /// Turns in flight at saturation.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) window: u64,
    /// Complete runs. Results are medians.
    #[arg(long, default_value_t = 1)]
    pub(crate) runs: usize,
    /// Append-only file of the private Redis.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) aof: Aof,
}

/// Persistence of a private Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Aof {
    /// No append-only file.
    #[default]
    No,
    /// Append-only file, synced every second.
    Everysec,
    /// Append-only file, synced before every response.
    Always,
}

impl Aof {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Everysec => "everysec",
            Self::Always => "always",
        }
    }
}

impl BenchArgs {
    fn program(&self) -> Result<PathBuf> {
        let program = match &self.tickfleet {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("finding this program")?.with_file_name("tickfleet"),
        };
        ensure!(
            program.exists(),
            "{} does not exist: build it with `cargo build --release -p tickfleet`, or name it with --tickfleet",
            program.display()
        );
        Ok(program)
    }
}

const HELP: &str = "\
Examples:
  tickfleet-bench                        one run on a private Redis without persistence
  tickfleet-bench --runs 5 --json        medians of five runs, for programs
  tickfleet-bench --aof everysec         with an append-only file
  tickfleet-bench --calls-per-turn 5

Every result is also a ratio to the raw stream cycle of the same run. Use a machine without other load.";

fn main() -> ExitCode {
    let args = BenchArgs::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime");
    match runtime.and_then(|runtime| runtime.block_on(measure(&args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "tickfleet-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: &BenchArgs) -> Result<()> {
    args.program()?;
    let spinner = ProgressBar::new_spinner().with_message("starting");
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    let say = |what: &str| spinner.set_message(what.to_owned());
    let report = run(args, say).await;
    spinner.finish_and_clear();
    let report = report?;
    let text = if args.json { serde_json::to_string_pretty(&report)? } else { report.text() };
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("writing the results")
}

async fn run(args: &BenchArgs, mut say: impl FnMut(&str)) -> Result<Report> {
    let mut reports = Vec::with_capacity(args.runs);
    for run in 1..=args.runs.max(1) {
        say(&format!("run {run} of {}: starting Redis and the fleet", args.runs.max(1)));
        reports.push(one_run(args, &mut say).await?);
    }
    Ok(Report::median(reports))
}

async fn one_run(args: &BenchArgs, say: &mut impl FnMut(&str)) -> Result<Report> {
    let server = Server::start(args.aof).await?;
    say("measuring the raw stream cycle");
    let raw =
        raw::measure(&server, args.payload_bytes, Duration::from_secs(3)).await.context("the raw stream cycle")?;

    let fleet = Fleet::start(&server, args).await.context("starting the fleet")?;
    let load = Load::connect(&server, args).await?;
    load.warm_up().await.context("warming up")?;

    say("measuring latency at a steady rate");
    let steady = load.steady(args.rate, Duration::from_secs(args.steady_seconds)).await.context("the steady phase")?;

    say("measuring throughput at saturation");
    server.note_slow_commands().await?;
    let before = server.cpu().await?;
    let scripts_before = server.scripts().await?;
    let duration = Duration::from_secs(args.seconds);
    let saturation = load.saturate(duration, args.window).await.context("the saturation phase")?;
    let cpu = server.cpu().await? - before;
    let scripts = server.scripts().await? - scripts_before;
    let slowest = server.slowest_command().await?;
    let rss_mb = fleet.rss_mb();

    say("measuring key expiry");
    let expiry_us_per_key = server.expiry_us_per_key().await?;
    fleet.stop().await;
    say("measuring the storage-only baseline");
    let baseline_us = baseline::measure(&server, args.payload_bytes).await.context("the storage-only baseline")?;
    let costs = Costs { cpu, scripts, slowest, baseline_us, expiry_us_per_key };
    Ok(Report::new(args, &raw, &steady, &saturation, &costs, rss_mb))
}
