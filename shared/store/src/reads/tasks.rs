//! Looking at tasks without touching them: which there are, and how far one has come.

use std::collections::HashMap;

use redis::Value;

use crate::connection::question::Question;
use crate::connection::reader::entry;
use crate::keys::TurnName;
use crate::reads::diagnosis::{DeadLetter, dead_letter};
use crate::records::budgets::AgentBudget;
use crate::records::schema::turn;
use crate::records::turn::TurnRecord;
use crate::{Store, StoreError};
use tickfleet_model::{TaskId, TenantId};

/// Entries of a history that one look reads.
const STEPS_READ: usize = 32;

/// The fields of a record that tell where it stands: neither its content nor its results, for they are read often.
pub(super) const STANDS: [&str; 16] = [
    turn::AGENT,
    turn::QUEUE,
    turn::APPROVAL,
    turn::CALLS,
    turn::ADMITTED,
    turn::PAID,
    turn::DONE,
    turn::ADMITTED_MS,
    turn::DEADLINE_MS,
    turn::FENCE,
    turn::LANE,
    turn::AWAITS,
    turn::ATTEMPTS,
    turn::KIND,
    turn::CANCELLED,
    turn::END_REASON,
];

/// How far a task has come, for those who watch it again and again.
#[derive(Debug, Clone, Default)]
pub struct Pulse {
    /// Its history from the entry on that was asked for, some 32 at most.
    pub steps: Vec<String>,
    /// Its record without content and results; none where it has ended, or nothing is known of it.
    pub live: Option<TurnRecord>,
    /// When its timer fires, ms of shard time.
    pub timer_ms: Option<i64>,
    /// True if it has ended, and its record is still kept.
    pub ended: bool,
}

/// Why a turn that is under way does not go on by itself.
#[derive(Debug, Clone, Default)]
pub struct LaneWait {
    /// Its record without content and results.
    pub record: TurnRecord,
    /// When its lane is looked at next, ms of shard time; none where it is on none.
    pub due_ms: Option<i64>,
    /// The counters of its agent.
    pub budget: AgentBudget,
}

impl Store {
    /// The ids of a tenant's tasks, the newest first: `count` of them behind the first `skip`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tasks(&self, tenant: &TenantId, skip: usize, count: usize) -> Result<Vec<TaskId>, StoreError> {
        let mut command = redis::cmd("ZREVRANGE");
        command.arg(self.keys.tasks(tenant)).arg(skip).arg(skip.saturating_add(count).saturating_sub(1));
        self.ids(&command).await
    }

    /// How many of a tenant's tasks are newer than this one; none where it is not among them (any more).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn newer_tasks(&self, task: &TurnName) -> Result<Option<usize>, StoreError> {
        let key = self.keys.tasks(&task.tenant);
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANK").arg(&key).arg(task.turn.as_str());
        pipe.cmd("ZCARD").arg(&key);
        let (older, all): (Option<usize>, usize) = self.connection.pipeline(Question::Look, &pipe).await?;
        Ok(older.map(|older| all.saturating_sub(older + 1)))
    }

    /// The tasks that were delegated from a task, the oldest first, `count` of them at most.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn children(&self, task: &TurnName, count: usize) -> Result<Vec<TaskId>, StoreError> {
        let mut command = redis::cmd("ZRANGE");
        command.arg(self.keys.children(task)).arg(0).arg(count.saturating_sub(1));
        self.ids(&command).await
    }

    async fn ids(&self, command: &redis::Cmd) -> Result<Vec<TaskId>, StoreError> {
        let found: Vec<String> = self.connection.query(Question::Look, command).await?;
        Ok(found.into_iter().filter_map(|id| TaskId::new(id).ok()).collect())
    }

    /// How far a task has come, with its history from entry `from` on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pulse(&self, task: &TurnName, from: usize) -> Result<Pulse, StoreError> {
        let mut pipe = redis::pipe();
        // First: what it has written before its record goes must not be missed.
        pipe.cmd("HMGET").arg(self.keys.turn(task)).arg(&STANDS);
        pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("t:{task}"));
        pipe.cmd("EXISTS").arg(self.keys.done(task));
        pipe.cmd("LRANGE").arg(self.keys.steps(task)).arg(from).arg(from.saturating_add(STEPS_READ) - 1);
        let (fields, timer, ended, steps): (Vec<Option<String>>, Option<f64>, bool, Vec<String>) =
            self.connection.pipeline(Question::Look, &pipe).await?;
        Ok(Pulse { steps, live: record(fields), timer_ms: timer.map(|ms| ms as i64), ended })
    }

    /// Where a turn waits that is under way; none where it is not.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lane_wait(&self, turn: &TurnName) -> Result<Option<LaneWait>, StoreError> {
        let fields = redis::cmd("HMGET").arg(self.keys.turn(turn)).arg(&STANDS).to_owned();
        let Some(record) = record(self.connection.query(Question::Look, &fields).await?) else { return Ok(None) };
        let agent = format!("{}:{}", turn.tenant, record.agent.as_deref().unwrap_or_default());
        let lane = record.lane.as_ref().map_or_else(|| agent.clone(), ToString::to_string);
        let mut pipe = redis::pipe();
        pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("l:{lane}"));
        pipe.cmd("HGET").arg(self.keys.key("budgets")).arg(agent);
        let (due, budget): (Option<f64>, Option<Vec<u8>>) = self.connection.pipeline(Question::Look, &pipe).await?;
        let budget = AgentBudget::unpack(&budget.unwrap_or_default());
        Ok(Some(LaneWait { record, due_ms: due.map(|ms| ms as i64), budget }))
    }

    /// The newest `count` entries of the dead stream, newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn dead_letters(&self, count: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.keys.key("dead")).arg("+").arg("-").arg("COUNT").arg(count);
        let found: Vec<Value> = self.connection.query(Question::Look, &command).await?;
        Ok(found.into_iter().filter_map(entry).map(|e| dead_letter(&e)).collect())
    }
}

/// A record of the fields that [`STANDS`] names; none where there is none.
pub(super) fn record(values: Vec<Option<String>>) -> Option<TurnRecord> {
    let fields = STANDS.into_iter().zip(values).filter_map(|(field, value)| Some((field.to_owned(), value?)));
    let fields: HashMap<String, String> = fields.collect();
    fields.contains_key(turn::AGENT).then(|| TurnRecord::read(fields))
}
