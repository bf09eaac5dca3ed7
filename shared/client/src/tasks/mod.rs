//! Tasks for observers: list them, show their details, watch them, and cancel them.
//!
//! `watch` returns the events of one task as a stream. `details` returns everything that is currently known about a
//! task. `cancel` ends a task and everything that the task began. `history` is the format of a task's steps in Redis.

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

/// Returns the name of the turn with the calls of a plan. `number` is the plan's number, from 1. Returns `None` if the
/// task's ID is too long for the suffix. In that case, the turns have IDs of another form.
fn turn_of(task: &TurnName, number: usize) -> Option<TurnName> {
    let turn = TurnId::new(format!("{}.step-{number}", task.turn)).ok()?;
    Some(TurnName { tenant: task.tenant.clone(), turn })
}

fn task_id(name: &TurnName) -> Option<TaskId> {
    TaskId::new(name.turn.as_str()).ok()
}
