//! Tasks for those who look on: listing, telling their story, watching them, ending them.
//!
//! `watch` is one task as a stream of events; `story` is all that is known of it at once; `cancel` ends it with all
//! that it has begun. `history` is how the steps of a task are written in Redis.

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

/// The turn that carries out the calls of a task's `number`th plan, from 1. None where the task's id is as long as ids may
/// be: its turns have names of their own then.
fn turn_of(task: &TurnName, number: usize) -> Option<TurnName> {
    let turn = TurnId::new(format!("{}.step-{number}", task.turn)).ok()?;
    Some(TurnName { tenant: task.tenant.clone(), turn })
}

/// The id of a turn or task as a task's.
fn task_id(name: &TurnName) -> Option<TaskId> {
    TaskId::new(name.turn.as_str()).ok()
}
