//! `cancel_task`: an agent ends a task that it has given to another one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_client::tasks::{CancelStatus, CancelledTask, cancel_task as cancel};
use tickfleet_model::{Effect, TaskId};
use tickfleet_store::{Store, TurnName};

use crate::fleet_tools::{KnownTurn, is_delegator, look_up, not_yours, reply};
use crate::tools::{CallContext, ToolError, TypedTool};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CancelTask {
    /// The job id that delegate_task answered.
    task_id: String,
    /// Why, for the record and for the other agent.
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Ending {
    /// The task's id.
    task_id: String,
    /// `ending`, or `ended` where it had ended already.
    status: &'static str,
    /// The tasks that end with it.
    tasks: usize,
    /// What happened, in words.
    message: String,
}

/// The tool over this shard. To cancel twice does no harm.
#[must_use]
pub fn cancel_task(store: Store) -> TypedTool {
    TypedTool::new(
        "cancel_task",
        "Ends a task that you delegated, with everything that was begun for it. What has happened until then stays.",
        Effect::Idempotent,
        move |context: CallContext, args: CancelTask| {
            let store = store.clone();
            async move { end(&store, &context, &args).await }
        },
    )
    .category("delegation")
}

async fn end(store: &Store, context: &CallContext, args: &CancelTask) -> Result<Ending, ToolError> {
    let task = TaskId::new(&args.task_id).map_err(|_| not_yours("task", &args.task_id))?;
    let name = TurnName::task(&context.tenant, &task);
    let away = |error: tickfleet_store::StoreError| ToolError::Transient(error.to_string());
    let is_live = match look_up(store, &name).await? {
        KnownTurn::Live(live) if is_delegator(&live.value, &context.agent) => true,
        KnownTurn::Finished(finished) => {
            if reply(&finished)?.delegator.as_deref() != Some(context.agent.as_str()) {
                return Err(not_yours("task", &args.task_id));
            }
            false
        }
        KnownTurn::Live(_) | KnownTurn::Unknown => return Err(not_yours("task", &args.task_id)),
    };
    let ended = || Ending {
        task_id: args.task_id.clone(),
        status: "ended",
        tasks: 0,
        message: "The task had ended already.".into(),
    };
    if !is_live {
        return Ok(ended());
    }
    let said = args.reason.as_deref().unwrap_or("no reason given");
    let reason = format!("the agent {} cancelled it: {said}", context.agent);
    let cancelled = cancel(store, &name, &reason).await.map_err(away)?;
    if cancelled.answer == CancelStatus::Ended {
        return Ok(ended());
    }
    let tasks = counted(&cancelled);
    let message = match tasks {
        1 => "The task ends. Its answer will say that it was cancelled.".to_owned(),
        _ => format!("The task ends, and {} that were delegated from it. Its answer will say so.", tasks - 1),
    };
    Ok(Ending { status: "ending", tasks, message, ..ended() })
}

fn counted(cancelled: &CancelledTask) -> usize {
    1 + cancelled.children.iter().map(counted).sum::<usize>()
}
