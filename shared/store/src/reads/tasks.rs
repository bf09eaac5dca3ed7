use tickfleet_core::task::step::part;
use tickfleet_core::turn::{State, Turn};
use tickfleet_core::{Query, Value, keys};
use tickfleet_model::{TaskId, TenantId};

use super::turn_view::read_turn;
use super::{score, text};
use crate::{Store, StoreError, TurnName};

const STEPS_READ: usize = 32;

#[derive(Debug, Clone, Default)]
pub struct TaskSteps {
    pub steps: Vec<String>,
    pub live: Option<Turn>,
    /// In shard time.
    pub timer_ms: Option<i64>,
    /// True if the task has ended, and its record is kept.
    pub ended: bool,
}

#[derive(Debug, Clone)]
pub struct ThrottledTurn {
    pub turn: Turn,
    /// When the turn's throttle queue is evaluated next, in shard time; `None` if the turn is in no throttle queue.
    pub due_ms: Option<i64>,
}

impl Store {
    /// The newest first.
    pub async fn tasks(&self, tenant: &TenantId, skip: usize, count: usize) -> Result<Vec<TaskId>, StoreError> {
        let found = self.seam().last(&keys::tasks_of(tenant), skip, count).await?;
        Ok(found.iter().filter_map(|(id, _)| TaskId::new(&**id).ok()).collect())
    }

    /// `None` if `task` is not (or no longer) listed.
    pub async fn newer_tasks(&self, task: &TurnName) -> Result<Option<usize>, StoreError> {
        let set = keys::tasks_of(&task.tenant);
        let older = self.seam().rank(&set, task.turn.as_str()).await?;
        let all = super::size(Some(self.query(Query::Size(set)).await?));
        Ok(older.map(|older| usize::try_from(all.saturating_sub(older + 1)).unwrap_or(usize::MAX)))
    }

    pub async fn children(&self, task: &TurnName, count: usize) -> Result<Vec<TaskId>, StoreError> {
        let query = Query::First { set: keys::children(task), upto: None, count };
        let found = super::members(Some(self.query(query).await?));
        Ok(found.iter().filter_map(|(id, _)| TaskId::new(&**id).ok()).collect())
    }

    /// The history begins with entry `from`, and has at most `STEPS_READ` entries.
    pub async fn task_steps(&self, task: &TurnName, from: usize) -> Result<TaskSteps, StoreError> {
        let names = (from..from.saturating_add(STEPS_READ)).map(|number| part(number as u64)).collect();
        let queries = [
            // Read the record first: if the task ends afterwards, its history up to the end is still included.
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
