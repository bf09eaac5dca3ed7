//! The tools of the simulated world: their effects are entered in the world's ledger, and the call itself says how they
//! behave.

pub(crate) mod governed;
mod sealed;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_model::Effect;
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use crate::parts::tasks::CLERK;
use crate::settings::{Settings, TOOLS};
use crate::world::{End, World};

/// How a call behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// It does its work and answers.
    Works,
    /// It never answers.
    Hangs,
    /// Its first try fails, and whether it took effect is not known.
    FailsOnce,
    /// No try succeeds.
    Fails,
    /// Its first try fails, and it says that it took no effect.
    RefusesOnce,
    /// It refuses for good.
    Refuses,
    /// It panics before its effect.
    Panics,
    /// It panics after its effect.
    PanicsLate,
}

/// Arguments of every tool.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Arguments {
    /// How it behaves.
    pub(crate) how: How,
    /// Time that it takes, ms: half of it before its effect.
    pub(crate) ms: u64,
}

/// What every tool returns.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Output {
    /// The run in the world's ledger.
    run: usize,
}

/// The tools of a worker.
pub(crate) fn all(settings: &Settings, world: &World, worker: &str) -> Vec<TypedTool> {
    let effects = [Effect::Read, Effect::Idempotent, Effect::Once, Effect::Once];
    let usual = TOOLS.iter().zip(effects).map(|(name, effect)| tool(name, effect, world, worker));
    let governed = governed::all(settings.governed.as_ref(), world, worker);
    let sealed = settings.sealed.iter().flat_map(|sealed| sealed::all(sealed, world, worker));
    usual.chain(governed).chain(sealed).collect()
}

fn tool(name: &str, effect: Effect, world: &World, worker: &str) -> TypedTool {
    let (world, worker) = (world.clone(), worker.to_owned());
    TypedTool::new(name, "Does its work.", effect, move |context: CallContext, args: Arguments| {
        let name = format!("{}:{}", context.tenant, context.call.turn);
        let run = world.begin(name, context.call.position, effect, &worker);
        world.tell(|| format!("{worker}: {} runs (run {run}, try {}, {:?})", context.call, context.attempt, args.how));
        // Whatever ends this future ends the run.
        let running = Running::new(&world, run);
        run_it(running, context, args)
    })
}

/// A task as its handler gets it: its words say how it behaves.
#[derive(Debug, Deserialize, JsonSchema)]
struct Work {
    description: String,
}

/// What carries out the clerk's tasks.
pub(crate) fn clerk(world: &World, worker: &str) -> TypedTool {
    let (world, worker) = (world.clone(), worker.to_owned());
    TypedTool::new(CLERK, "Does a task.", Effect::Once, move |context: CallContext, work: Work| {
        let name = format!("{}:{}", context.tenant, context.call.turn);
        let run = world.begin(name, context.call.position, Effect::Once, &worker);
        world.tell(|| format!("{worker}: task {} runs (run {run}, try {})", context.call, context.attempt));
        let running = Running::new(&world, run);
        let args = serde_json::from_str(&work.description).unwrap_or(Arguments { how: How::Works, ms: 0 });
        run_it(running, context, args)
    })
}

async fn run_it(mut running: Running, context: CallContext, args: Arguments) -> Result<Output, ToolError> {
    let half = Duration::from_micros(args.ms * 500);
    tokio::time::sleep(half).await;
    let first = context.attempt == 1;
    match args.how {
        How::RefusesOnce if first => {
            return running.fails(ToolError::NotExecuted { message: "Not now.".into(), retry_after: None });
        }
        How::Refuses => return running.fails(ToolError::Permanent("No.".into())),
        #[allow(clippy::panic, reason = "a tool that has a bug")]
        How::Panics => panic!("a simulated bug"),
        _ => {}
    }
    if !running.takes_effect() {
        let message = "The bank takes it no more.".to_owned();
        return running.fails(ToolError::NotExecuted { message, retry_after: None });
    }
    tokio::time::sleep(half).await;
    match args.how {
        How::Hangs => {
            std::future::pending::<()>().await;
            running.fails(ToolError::Transient("Never.".into()))
        }
        How::FailsOnce if first => running.fails(ToolError::Transient("Try again.".into())),
        How::Fails => running.fails(ToolError::Transient("Try again.".into())),
        #[allow(clippy::panic, reason = "a tool that has a bug")]
        How::PanicsLate => panic!("a simulated bug"),
        _ => {
            running.end = End::Returned;
            Ok(Output { run: running.run })
        }
    }
}

/// A run under way.
struct Running {
    world: World,
    run: usize,
    end: End,
    /// Whoever carries it out does not do so later, µs.
    until_us: i64,
}

impl Running {
    /// A run that has begun.
    fn new(world: &World, run: usize) -> Self {
        Self { world: world.clone(), run, end: End::BrokenOff, until_us: i64::MAX }
    }

    /// What it does is done, if it is not too late.
    fn takes_effect(&self) -> bool {
        let mut facts = self.world.facts();
        let now_us = facts.now_us;
        if now_us >= self.until_us {
            return false;
        }
        facts.runs[self.run].effect_us = Some(now_us);
        true
    }

    fn fails(&mut self, error: ToolError) -> Result<Output, ToolError> {
        self.end = End::Failed;
        Err(error)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (run, end) = (self.run, self.end);
        self.world.facts().runs[run].end = end;
        self.world.tell(|| format!("run {run} ends: {end:?}"));
    }
}
