//! Measures how a fleet releases waiting turns when the windows of many agents with exhausted budgets end at once.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::BenchArgs;
use super::load::{Load, now};
use super::nodes::{Fleet, Shape};
use super::pin::Cores;
use super::scripts::Slow;
use super::server::{PREFIX, Server};

/// In turns per second.
const SLOWEST_INTAKE: u64 = 2_000;
const BATCH: usize = 100;
const DAY_MS: u64 = 3_600_000;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Boundary {
    agents: usize,
    drained_seconds: f64,
    turns_per_s: f64,
    /// Commands that took 1 ms or more, the slowest first.
    slow: Vec<Slow>,
    script_mean_ms: f64,
}

impl Boundary {
    pub(crate) fn text(&self) -> String {
        let each = self.slow.iter().map(|slow| format!("{} {:.1} ms", slow.command, slow.ms));
        let slow = Some(each.collect::<Vec<_>>().join(", ")).filter(|all| !all.is_empty());
        format!(
            "{} capped agents at one boundary, one turn each\n\n\
             drained      {:.1} s, {:.0} turns/s\n\
             scripts      {:.2} ms on average\n\
             slowest      {}\n\
             over 5 ms    {} command(s)\n",
            self.agents,
            self.drained_seconds,
            self.turns_per_s,
            self.script_mean_ms,
            slow.as_deref().unwrap_or("none took a millisecond"),
            self.slow.iter().map(|slow| slow.long).sum::<usize>(),
        )
    }
}

pub(super) async fn run(
    args: &BenchArgs,
    agents: usize,
    cores: Option<&Cores>,
    mut say: impl FnMut(&str),
) -> Result<Boundary> {
    let server = Server::start(None, args.aof, cores).await?;
    let shape = Shape::of(args, agents)?;
    say("starting the fleet");
    let fleet = Fleet::start(&server, &shape).await.context("starting the fleet")?;
    let load = Load::connect(&server, &BenchArgs { agents: Some(agents), capped: false, ..args.clone() }).await?;
    let wait = Duration::from_secs(10 + agents as u64 / SLOWEST_INTAKE);
    let began = now();
    let boundary_ms = use_up(&server, agents, wait).await.context("using up the budgets")?;
    say("submitting a turn of each agent");
    for from in (0..agents).step_by(BATCH) {
        load.submit(BATCH.min(agents - from)).await?;
    }
    while throttled_turns(&server).await? < agents {
        ensure!(began.elapsed() < wait, "the turns came in too slowly; try fewer agents");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    server.note_slow_commands().await?;
    let before = server.scripts().await?;
    say("waiting for the boundary");
    while server.clock_ms().await? < boundary_ms {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let at = now();
    load.read_all(agents).await.context("draining")?;
    let drained_seconds = at.elapsed().as_secs_f64();
    let script_mean_ms = (server.scripts().await? - before).mean_ms();
    let slow = server.slow_commands().await?.unwrap_or_default();
    fleet.stop().await;
    Ok(Boundary { agents, drained_seconds, turns_per_s: agents as f64 / drained_seconds, slow, script_mean_ms })
}

/// Returns the time (ms) at which the exhausted ticks end.
async fn use_up(server: &Server, agents: usize, wait: Duration) -> Result<u64> {
    let now_ms = server.clock_ms().await?;
    let until_ms = now_ms + u64::try_from(wait.as_millis())?;
    // A counter in Redis has four numbers: used amount, end (ms), start (ms) and flags.
    let counter = |ends_ms: u64| -> Vec<u8> {
        [10, ends_ms, now_ms, 0].into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect()
    };
    let tick = counter(until_ms);
    let day = counter(now_ms + DAY_MS);
    let mut connection = server.connection().await?;
    for from in (0..agents).step_by(500) {
        let mut set = redis::cmd("HSET");
        set.arg(format!("{PREFIX}counters:_"));
        for agent in from..agents.min(from + 500) {
            set.arg(format!("_tick:bench:a{agent}")).arg(&tick).arg(format!("_day:bench:a{agent}")).arg(&day);
        }
        set.query_async::<()>(&mut connection).await?;
    }
    Ok(until_ms)
}

/// Each queue has one turn. The turn and the queue have one timer each, so there are twice as many timers as turns.
async fn throttled_turns(server: &Server) -> Result<usize> {
    let timers: usize =
        redis::cmd("ZCARD").arg(format!("{PREFIX}timers")).query_async(&mut server.connection().await?).await?;
    Ok(timers / 2)
}
