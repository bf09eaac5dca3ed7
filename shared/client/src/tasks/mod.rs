//! Lists tasks, shows their details, watches them, and cancels them.

mod cancel;
mod details;
mod history;
mod list;
mod watch;

pub use cancel::{CanceledTask, CanceledTurn, cancel_task};
pub use details::{Round, TaskCall, TaskDetails, TaskWait, WaitReason, task_details};
pub use history::{HistoryStep, PlanStep, PlannedCall, ResultStep, SummaryStep, step_of};
pub use list::{TaskFilter, TaskState, TaskSummary, task_page, task_page_of, task_summary};
pub use watch::{TaskEvent, TaskProgress, TaskWatcher};

use tickfleet_model::{TaskId, TurnId};
use tickfleet_store::TurnName;

/// Returns `None` if the task's ID is too long for the suffix. In that case, the turns have IDs of another form.
fn turn_of(task: &TurnName, number: usize) -> Option<TurnName> {
    let turn = TurnId::new(format!("{}.step-{number}", task.turn)).ok()?;
    Some(TurnName { tenant: task.tenant.clone(), turn })
}

fn task_id(name: &TurnName) -> Option<TaskId> {
    TaskId::new(name.turn.as_str()).ok()
}
