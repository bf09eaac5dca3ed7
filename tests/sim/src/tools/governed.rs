//! The tools of games in which calls are governed.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickfleet_model::Effect;
use tickfleet_model::tool::CachePer;
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use super::{How, Running, run_it};
use crate::settings::governed::{Governed, KEPT, TOOLS};
use crate::world::World;

/// Arguments of every such tool.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Arguments {
    /// How it behaves.
    pub(crate) how: How,
    /// Time that it takes, ms.
    pub(crate) ms: u64,
    /// What it is about. In the log, a `key` would be taken for a secret.
    #[serde(rename = "lot")]
    pub(crate) key: u32,
}

/// The tools of a worker, in a game that has them.
pub(super) fn all(governed: Option<&Governed>, world: &World, worker: &str) -> Vec<TypedTool> {
    let Some(governed) = governed else { return Vec::new() };
    TOOLS.iter().map(|(name, effect)| tool(name, *effect, governed.kept, world, worker)).collect()
}

fn tool(name: &'static str, effect: Effect, kept: Duration, world: &World, worker: &str) -> TypedTool {
    let (world, worker) = (world.clone(), worker.to_owned());
    let tool = TypedTool::new(name, "Does its work.", effect, move |context: CallContext, args: Arguments| {
        let turn = format!("{}:{}", context.tenant, context.call.turn);
        let run = world.begin(turn, context.call.position, effect, &worker);
        world.tell(|| format!("{worker}: {} runs {name} (run {run}, try {}): {args:?}", context.call, context.attempt));
        let running = Running::new(&world, run);
        let args = super::Arguments { how: args.how, ms: args.ms };
        async move {
            let output = run_it(running, context, args).await?;
            Ok::<_, ToolError>(if name == "poll" { json!("nothing new") } else { json!(output) })
        }
    });
    match name {
        "fetch" => tool.cache(kept, CachePer::Tenant),
        "transfer" => tool.effect_key(&["/lot"], KEPT),
        _ => tool,
    }
}
