//! `delegate_task`: an agent delegates work to another agent. The answer arrives as the reply to the task.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_core::task::delegate::{DelegateResult, Source};
use tickfleet_core::turn::Turn;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::delegation;
use tickfleet_model::{AgentId, Effect, Priority, Task, TaskGrant, TaskId, limits};
use tickfleet_store::{Store, TurnName};

use crate::fleet_tools::{TurnLookup, look_up, reply};
use crate::tools::{CallContext, ToolError, TypedTool};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Delegate {
    /// Name of the agent that should do the work.
    target_agent: String,
    /// The complete description of the work. The other agent sees nothing else.
    task_description: String,
    /// Priority: low, normal, high or urgent. Default: normal.
    #[serde(default)]
    priority: Option<Urgency>,
    /// Deadline of the work, RFC 3339 (`2026-03-01T12:00:00Z`). Default: in 24 hours.
    #[serde(default)]
    deadline: Option<chrono::DateTime<chrono::Utc>>,
    /// True to wait for the answer. The result of this call is then the result of the task, and no later call of this
    /// turn runs before the task has ended. Default: false, and the call returns at once.
    #[serde(default)]
    wait: bool,
}

#[derive(Deserialize, JsonSchema, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Urgency {
    Low,
    Normal,
    High,
    Urgent,
}

#[derive(Serialize, JsonSchema)]
struct Confirmation {
    /// The task's ID.
    job_id: String,
    /// `queued`, or `ended` if the call has waited for the answer.
    status: &'static str,
    /// The agent that will do it.
    target_agent: String,
    /// When the task expires unless it is finished.
    deadline: String,
    /// What happened, as text.
    message: String,
    /// How the task ended (`ok`, `permanent`, `expired` …), if the call has waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    /// The task's output, if it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    output: Option<Box<RawValue>>,
    /// The error, if the task did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A waiting call checks again after this time, in case its wake-up is lost.
const RECHECK_AFTER: Duration = Duration::from_secs(15);

/// The task's ID is derived from the call's idempotency key, so a repeated call creates only one task.
#[must_use]
pub fn delegate_task(store: Store, active: Arc<PolicyHandle>) -> TypedTool {
    TypedTool::new(
        tickfleet_engine::delegation::TASK_TOOL,
        "Gives a task to another agent and returns a job id at once. The other agent's answer arrives later as a message of its own. With wait: true, the result is the other agent's answer.",
        Effect::Idempotent,
        move |context: CallContext, args: Delegate| {
            let store = store.clone();
            let active = active.clone();
            async move { delegate(&store, &active, context, args).await }
        },
    )
    .category("delegation")
}

async fn delegate(
    store: &Store,
    active: &PolicyHandle,
    context: CallContext,
    args: Delegate,
) -> Result<Confirmation, ToolError> {
    let refused = |message: String| ToolError::Permanent(message);
    let now_ms = store.now_ms().await.map_err(|e| ToolError::Transient(e.to_string()))?;
    let id = TaskId::new(format!("d-{}", &context.idempotency_key[..32.min(context.idempotency_key.len())]));
    let id = id.map_err(ToolError::internal)?;
    let wait = args.wait;
    let mut task = task(&context, args).map_err(refused)?;
    // The store may have forgotten the task of an earlier attempt, and would then create a second task. So the call
    // fails.
    let is_given = wait && context.waited;
    if context.may_be_forgotten && !is_given {
        let message = "The task may already be delegated: an earlier try may have delegated it, but its record has \
                       expired. Check before you repeat it.";
        return Err(refused(message.into()));
    }
    if let Some(ends_ms) = ends_ms(store, &context, &task, wait).await? {
        delegation::end_with(&mut task, ends_ms, now_ms);
    }
    let planned = delegation::plan(&active.load(), &task, now_ms).map_err(|(_, message)| refused(message))?;
    let deadline = tickfleet_engine::time::rfc3339(planned.deadline_ms());
    let written = if is_given {
        DelegateResult::Duplicate
    } else {
        let bounds = store.bounds();
        let delegate = planned.by_call(&context.call, wait).decision(Source::Call, id.clone(), true, &bounds);
        store.decide(delegate).await.map_err(|error| ToolError::Transient(error.to_string()))?.result
    };
    match written {
        DelegateResult::Offered | DelegateResult::Ends | DelegateResult::Duplicate => {
            let given = Confirmation {
                message: format!(
                    "The task was given to {}. Its answer will arrive as a message of its own.",
                    task.target
                ),
                job_id: id.to_string(),
                status: "queued",
                target_agent: task.target.to_string(),
                deadline,
                outcome: None,
                output: None,
                error: None,
            };
            if wait { ended(store, &context, &id, given).await } else { Ok(given) }
        }
        DelegateResult::Pressure => Err(ToolError::Transient("Redis is nearly full and takes no new task.".into())),
        DelegateResult::Refused(refusal) => Err(refused(delegation::refused(refusal).1.into())),
        DelegateResult::Conflict => Err(ToolError::internal("a derived task id belongs to another task")),
    }
}

/// Unix milliseconds: the deadline of the call's turn if `wait` is true, otherwise the deadline of the parent task.
/// `None` without a parent task, or if the parent task has ended.
async fn ends_ms(store: &Store, context: &CallContext, task: &Task, wait: bool) -> Result<Option<i64>, ToolError> {
    if wait {
        return Ok(Some(context.deadline_ms));
    }
    let Some(parent) = &task.parent else { return Ok(None) };
    let found = store.record_of::<Turn>(&TurnName::task(&context.tenant, parent).record()).await;
    let found = found.map_err(|error| ToolError::Transient(error.to_string()))?;
    // If the parent has ended, the store rejects the subtask later.
    Ok(found.map(|parent| parent.value.head.deadline_ms))
}

/// If the task has not ended, the call waits without a slot, and is repeated when the task ends.
async fn ended(
    store: &Store,
    context: &CallContext,
    id: &TaskId,
    given: Confirmation,
) -> Result<Confirmation, ToolError> {
    let name = TurnName::task(&context.tenant, id);
    match look_up(store, &name).await? {
        TurnLookup::Live(_) => Err(ToolError::Waits { awaits: Some(id.clone().into()), at_most: RECHECK_AFTER }),
        TurnLookup::Unknown => Ok(Confirmation {
            message: format!(
                "The task was given to {}. It has ended, and its answer is no longer kept.",
                given.target_agent
            ),
            ..given
        }),
        TurnLookup::Finished(finished) => {
            let result = reply(&finished)?.results.into_iter().next();
            let result = result.ok_or_else(|| ToolError::internal("a task without a result"))?;
            Ok(Confirmation {
                message: format!("{} has ended the task: {}.", given.target_agent, result.outcome.as_str()),
                status: "ended",
                outcome: Some(result.outcome.as_str().to_owned()),
                output: result.output,
                error: result.error.map(|error| error.message),
                ..given
            })
        }
    }
}

/// The task's grant never exceeds the caller's own grant.
fn task(context: &CallContext, args: Delegate) -> Result<Task, String> {
    if args.task_description.trim().is_empty() {
        return Err("The task description is empty: describe the task.".into());
    }
    if args.task_description.len() > limits::TASK_DESCRIPTION_BYTES_MAX {
        return Err(format!("The task description is longer than {} bytes.", limits::TASK_DESCRIPTION_BYTES_MAX));
    }
    let target = AgentId::new(&args.target_agent).map_err(|e| format!("target_agent: {e}"))?;
    let (parent, above) = match &context.task {
        Some((task, grant)) => (Some(task.clone()), grant.clone()),
        None => (None, TaskGrant { budget: limits::TASK_BUDGET_DEFAULT, ..TaskGrant::default() }),
    };
    // A subtask gets half of its parent's budget, so that the parent keeps some.
    let budget = if parent.is_some() { (above.budget / 2).max(1) } else { above.budget };
    Ok(Task {
        id: None,
        tenant: context.tenant.clone(),
        target,
        delegator: Some(context.agent.clone()),
        description: args.task_description,
        input: None,
        priority: match args.priority {
            Some(Urgency::Low) => Priority::Low,
            Some(Urgency::High) => Priority::High,
            Some(Urgency::Urgent) => Priority::Urgent,
            Some(Urgency::Normal) | None => Priority::Normal,
        },
        deadline_ms: args.deadline.map(|d| d.timestamp_millis()),
        reply_to: context.reply_to.clone(),
        parent,
        // If the turn may use only some tools, the task may use only the same tools.
        grant: TaskGrant { budget, tools: context.tools.narrowed().cloned().or(above.tools), ..above },
        context: context.for_child_work(),
    })
}
