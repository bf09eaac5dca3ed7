//! `cancel_task`: an agent ends a task that it has delegated to another agent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_client::tasks::{CanceledTask, cancel_task as cancel};
use tickfleet_model::{Effect, TaskId};
use tickfleet_store::{CancelResult, Store, TurnName};

use crate::fleet_tools::{TurnLookup, is_delegator, look_up, reply, unknown_id};
use crate::tools::{CallContext, ToolError, TypedTool};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CancelTask {
    /// The job ID that delegate_task returned.
    task_id: String,
    /// The reason. It is recorded and passed on to the other agent.
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Ending {
    /// The task's ID.
    task_id: String,
    /// `ending`, or `ended` if the task had already ended.
    status: &'static str,
    /// The number of tasks that end with it.
    tasks: usize,
    /// What happened, as text.
    message: String,
}

/// A repeated cancellation is harmless.
#[must_use]
pub fn cancel_task(store: Store) -> TypedTool {
    TypedTool::new(
        "cancel_task",
        "Ends a task that you delegated and everything that was started for it. Completed work is not undone.",
        Effect::Idempotent,
        move |context: CallContext, args: CancelTask| {
            let store = store.clone();
            async move { end(&store, &context, &args).await }
        },
    )
    .category("delegation")
}

async fn end(store: &Store, context: &CallContext, args: &CancelTask) -> Result<Ending, ToolError> {
    let task = TaskId::new(&args.task_id).map_err(|_| unknown_id("task", &args.task_id))?;
    let name = TurnName::task(&context.tenant, &task);
    let store_error = |error: tickfleet_store::StoreError| ToolError::Transient(error.to_string());
    let is_live = match look_up(store, &name).await? {
        TurnLookup::Live(live) if is_delegator(&live.value, &context.agent) => true,
        TurnLookup::Finished(finished) => {
            if reply(&finished)?.delegator.as_deref() != Some(context.agent.as_str()) {
                return Err(unknown_id("task", &args.task_id));
            }
            false
        }
        TurnLookup::Live(_) | TurnLookup::Unknown => return Err(unknown_id("task", &args.task_id)),
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
    let given_reason = args.reason.as_deref().unwrap_or("no reason given");
    let reason = format!("the agent {} canceled it: {given_reason}", context.agent);
    let cancelled = cancel(store, &name, &reason).await.map_err(store_error)?;
    if cancelled.result == CancelResult::Ended {
        return Ok(ended());
    }
    let tasks = counted(&cancelled);
    let message = match tasks {
        1 => "The task ends. Its answer will say that it was canceled.".to_owned(),
        _ => format!("The task ends, and so do {} delegated from it. Its answer will say so.", tasks - 1),
    };
    Ok(Ending { status: "ending", tasks, message, ..ended() })
}

fn counted(cancelled: &CanceledTask) -> usize {
    1 + cancelled.children.iter().map(counted).sum::<usize>()
}
