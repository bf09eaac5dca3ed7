//! A bank that is far away: remittances whose answers get lost, and what finds out whether one was made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_model::Effect;
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use super::governed::Arguments;
use super::{Output, Running, run_it};
use crate::settings::sealed::{FIND, REMIT, Sealed};
use crate::world::World;

/// What the bank is asked.
#[derive(Debug, Deserialize, JsonSchema)]
struct Question {
    /// The remittance.
    reference: String,
}

/// What it says.
#[derive(Debug, Serialize, JsonSchema)]
struct Answer {
    /// Whether it was made; none where it cannot be told.
    found: Option<bool>,
    /// The run that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<Output>,
}

/// The tools of a worker, in a game that has them.
pub(super) fn all(sealed: &Sealed, world: &World, worker: &str) -> [TypedTool; 2] {
    [remit(sealed, world, worker).reconcile(sealed.reconcile()), find(world, worker)]
}

/// The bank takes a request for a while, and no longer: that is what is said of it to those who ask.
fn remit(sealed: &Sealed, world: &World, worker: &str) -> TypedTool {
    let (world, worker, taken_us) = (world.clone(), worker.to_owned(), sealed.grace_ms * 1_000);
    TypedTool::new(REMIT, "Pays from afar.", Effect::Once, move |context: CallContext, args: Arguments| {
        let turn = format!("{}:{}", context.tenant, context.call.turn);
        let run = world.begin(turn, context.call.position, Effect::Once, &worker);
        world.tell(|| format!("{worker}: {} remits (run {run}, try {}): {args:?}", context.call, context.attempt));
        let mut running = Running::new(&world, run);
        {
            let mut facts = world.facts();
            running.until_us = facts.now_us + taken_us;
            facts.remitted.entry(context.idempotency_key.clone()).or_default().push(run);
        }
        run_it(running, context, super::Arguments { how: args.how, ms: args.ms })
    })
}

/// Of some remittances, the first question is not answered, or not with yes or no.
fn find(world: &World, worker: &str) -> TypedTool {
    let (world, worker) = (world.clone(), worker.to_owned());
    TypedTool::new(FIND, "Finds a remittance.", Effect::Read, move |context: CallContext, asked: Question| {
        let mut facts = world.facts();
        let times = facts.looked_up.entry(asked.reference.clone()).or_default();
        *times += 1;
        let (is_first, odd) = (*times == 1, asked.reference.bytes().map(u32::from).sum::<u32>() % 4);
        let runs = facts.remitted.get(&asked.reference).into_iter().flatten();
        let made = runs.copied().find(|run| facts.runs[*run].effect_us.is_some());
        drop(facts);
        world.tell(|| format!("{worker}: {} is looked up: {made:?}", context.call));
        async move {
            match odd {
                0 if is_first => Err(ToolError::Transient("The bank is closed.".into())),
                1 if is_first => Ok(Answer { found: None, made: None }),
                _ => Ok(Answer { found: Some(made.is_some()), made: made.map(|run| Output { run }) }),
            }
        }
    })
}
