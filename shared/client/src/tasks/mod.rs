//! Tasks for observers: list them, show their details, watch them, and cancel them.
//!
//! `watch` is one task as a stream of events; `details` is everything that is known about it at one time; `cancel` ends
//! it with everything that it has begun. `history` is the format of the steps of a task in Redis.

mod cancel;
mod details;
mod history;
mod list;
mod watch;

pub use cancel::{CancelStatus, CancelledTask, CancelledTurn, cancel_task};
pub use details::{Round, TaskCall, TaskDetails, TaskWait, WaitReason, task_details};
pub use history::{HistoryStep, PlanStep, PlannedCall, ResultStep, SummaryStep, step_of};
pub use list::{TaskCursor, TaskFilter, TaskPage, TaskState, TaskSummary, task_page, task_page_of, task_summary};
pub use watch::{TaskEvent, TaskProgress, TaskWatcher};

use tickfleet_model::{TaskId, TurnId};
use tickfleet_store::TurnName;

/// The turn with the calls of a task's `number`th plan, from 1. `None` if the task ID is too long for the suffix; its
/// turns then have other names.
fn turn_of(task: &TurnName, number: usize) -> Option<TurnName> {
    let turn = TurnId::new(format!("{}.step-{number}", task.turn)).ok()?;
    Some(TurnName { tenant: task.tenant.clone(), turn })
}

/// The ID of a turn or task, as a task ID.
fn task_id(name: &TurnName) -> Option<TaskId> {
    TaskId::new(name.turn.as_str()).ok()
}
