use tickfleet_core::task::step::part;
use tickfleet_core::turn::{State, Turn};
use tickfleet_core::{Query, Value, keys};
use tickfleet_model::{TaskId, TenantId};

use super::turn_view::read_turn;
use super::{score, text};
use crate::{Store, StoreError, TurnName};

const STEPS_READ: usize = 32;

/// The progress of a task, for callers that poll it.
#[derive(Debug, Clone, Default)]
pub struct TaskSteps {
    /// At most about 32 entries of the task's history, beginning with the requested entry.
    pub steps: Vec<String>,
    /// `None` if the task has ended or is unknown.
    pub live: Option<Turn>,
    /// When the task's timer is due, in shard time.
    pub timer_ms: Option<i64>,
    /// True if the task has ended, and its record is kept.
    pub ended: bool,
}

/// An unfinished turn, and the next evaluation of its throttle queue.
#[derive(Debug, Clone)]
pub struct ThrottledTurn {
    pub turn: Turn,
    /// When the turn's throttle queue is evaluated next, in shard time. `None` if the turn is in no throttle queue.
    pub due_ms: Option<i64>,
}

impl Store {
    /// Returns the IDs of a tenant's tasks, the newest first. Skips the first `skip` IDs, and returns up to `count`
    /// IDs.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tasks(&self, tenant: &TenantId, skip: usize, count: usize) -> Result<Vec<TaskId>, StoreError> {
        let found = self.seam().last(&keys::tasks_of(tenant), skip, count).await?;
        Ok(found.iter().filter_map(|(id, _)| TaskId::new(&**id).ok()).collect())
    }

    /// Returns the number of the tenant's tasks that are newer than `task`. `None` if `task` is not (or no longer)
    /// listed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn newer_tasks(&self, task: &TurnName) -> Result<Option<usize>, StoreError> {
        let set = keys::tasks_of(&task.tenant);
        let older = self.seam().rank(&set, task.turn.as_str()).await?;
        let all = super::size(Some(self.query(Query::Size(set)).await?));
        Ok(older.map(|older| usize::try_from(all.saturating_sub(older + 1)).unwrap_or(usize::MAX)))
    }

    /// Returns the tasks that a task has delegated, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn children(&self, task: &TurnName, count: usize) -> Result<Vec<TaskId>, StoreError> {
        let query = Query::First { set: keys::children(task), upto: None, count };
        let found = super::members(Some(self.query(query).await?));
        Ok(found.iter().filter_map(|(id, _)| TaskId::new(&**id).ok()).collect())
    }

    /// Returns the progress of a task, with its history from entry `from` on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn task_steps(&self, task: &TurnName, from: usize) -> Result<TaskSteps, StoreError> {
        let names = (from..from.saturating_add(STEPS_READ)).map(|number| part(number as u64)).collect();
        let queries = [
            // The record is read first. If the task ends afterwards, its history entries up to the end are still
            // included.
            Query::Record(task.record()),
            Query::Score(keys::timers(), task.timer().into()),
            Query::Record(task.finished()),
            Query::Parts(keys::steps(task), names),
        ];
        let mut found = self.values(&queries).await?;
        let live = read_turn(&task.record(), found.next())?.map(|stored| stored.value);
        let timer_ms = score(found.next());
        let ended = matches!(found.next(), Some(Value::Record(Some(_))));
        let steps = if let Some(Value::Parts(steps)) = found.next() { steps } else { Vec::new() };
        let steps = steps.into_iter().map_while(|step| step.map(|step| text(&step))).collect();
        Ok(TaskSteps { steps, live, timer_ms, ended })
    }

    /// Returns the record of an unfinished turn, and the next evaluation of its throttle queue. `None` if there is no
    /// unfinished turn with this name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn throttled_turn(&self, name: &TurnName) -> Result<Option<ThrottledTurn>, StoreError> {
        let found = self.query(Query::Record(name.record())).await?;
        let Some(stored) = read_turn(&name.record(), Some(found))? else { return Ok(None) };
        let due_ms = match &stored.value.state {
            State::Throttled { counter, .. } => {
                let timer = Query::Score(keys::timers(), keys::throttle_timer(counter).into());
                score(Some(self.query(timer).await?))
            }
            _ => None,
        };
        Ok(Some(ThrottledTurn { turn: stored.value, due_ms }))
    }
}
