//! Tasks for observers: list them, show their details, watch them, and cancel them.
//!
//! `watch` is one task as a stream of events; `story` is everything that is known about it at one time; `cancel` ends
//! it with everything that it has begun. `history` is the format of the steps of a task in Redis.

mod cancel;
mod history;
mod list;
mod story;
mod watch;

pub use cancel::{CancelledTask, CancelledTurn, Word, cancel_task};
pub use history::{PlanStep, PlannedCall, ResultStep, Step, SummaryStep, step_of};
pub use list::{TaskFilter, TaskPage, TaskState, TaskSummary, TasksAt, task_page, task_page_of, task_summary};
pub use story::{Round, StoryCall, TaskStory, TaskWait, WaitReason, task_story};
pub use watch::{Progress, TaskEvent, Watch};

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
