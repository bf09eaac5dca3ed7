//! Looking without touching: the records of turns, for `explain`.

use std::collections::HashMap;

use crate::connection::question::Question;
use crate::keys::{GROUP, Queue, TurnName};
use crate::records::finished::FinishedTurn;
use crate::records::notes::AdmissionNote;
use crate::records::schema::turn;
use crate::records::turn::TurnRecord;
use crate::{SliceMeta, Store, StoreError};
use tickfleet_model::{AgentId, TaskGrant, TenantId};

/// Bytes of a finished record that hold the beginning of its log.
const TRACE_BYTES_MAX: usize = 255;

/// Keys that one step of a search for turns looks at, about: most of a busy shard's keys are records of turns that have ended.
const KEYS_PER_STEP: usize = 128;

/// A turn that has not ended.
#[derive(Debug, Clone, Default)]
pub struct LiveTurn {
    /// The content of its record.
    pub record: TurnRecord,
    /// When its own timer fires, ms.
    pub timer_ms: Option<i64>,
    /// When its agent's lane is looked at next, ms, while it waits there.
    pub lane_due_ms: Option<i64>,
    /// The holder of its slice.
    pub holder: Option<String>,
    /// For how long it has held it, ms.
    pub held_ms: Option<i64>,
}

/// The facts that are known of a turn or task.
#[derive(Debug, Clone)]
pub enum TurnView {
    /// It has not ended.
    Live(Box<LiveTurn>),
    /// It has ended, and its record is still kept.
    Finished(FinishedTurn),
    /// Nothing: never admitted, or ended longer ago than records are kept.
    Unknown,
}

impl Store {
    /// Everything known of a turn or task.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn look(&self, name: &TurnName) -> Result<TurnView, StoreError> {
        let mut view = self.record(name).await?;
        if let TurnView::Live(live) = &mut view {
            self.look_closer(name, live).await?;
        }
        Ok(view)
    }

    /// The record of a turn or task, in one round trip: as [`Self::look`], without its holder and its lane.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn record(&self, name: &TurnName) -> Result<TurnView, StoreError> {
        let mut pipe = redis::pipe();
        // In the order in which a turn goes: one that ends between two of these is found where it has gone.
        pipe.cmd("HGETALL").arg(self.keys.turn(name));
        pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("t:{name}"));
        pipe.cmd("GET").arg(self.keys.done(name));
        let (fields, timer, done): (HashMap<String, String>, Option<f64>, Option<String>) =
            self.connection.pipeline(Question::Look, &pipe).await?;
        if let Some(done) = done {
            return Ok(TurnView::Finished(FinishedTurn::read(&done)));
        }
        if fields.is_empty() {
            return Ok(TurnView::Unknown);
        }
        let record = TurnRecord::read(fields);
        let live = LiveTurn { record, timer_ms: timer.map(|t| t as i64), ..LiveTurn::default() };
        Ok(TurnView::Live(Box::new(live)))
    }

    /// Reads who works on a task, what it grants, and when it expires, ms of shard time; none if no such task is under way.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn task_grant(&self, task: &TurnName) -> Result<Option<(AgentId, TaskGrant, i64)>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.turn(task)).arg(turn::META).to_owned();
        let meta: Option<String> = self.connection.query(Question::Look, &command).await?;
        let meta = meta.and_then(|meta| serde_json::from_str::<SliceMeta>(&meta).ok()).filter(|meta| meta.is_task);
        Ok(meta.and_then(|meta| Some((meta.agent, meta.task?.1, meta.deadline_ms))))
    }

    /// Why a turn or task that is under way was cancelled; none where it was not.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn cancelled_because(&self, name: &TurnName) -> Result<Option<String>, StoreError> {
        self.connection.query(Question::Look, redis::cmd("HGET").arg(self.keys.turn(name)).arg(turn::CANCELLED)).await
    }

    /// Counts the calls of these turns that were let through at their first admission, in all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn admitted_first(&self, names: &[TurnName]) -> Result<u64, StoreError> {
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("HGET").arg(self.keys.turn(name)).arg(turn::LOG);
            // Of a turn that has ended meanwhile: the log stands in the first line.
            pipe.cmd("GETRANGE").arg(self.keys.done(name)).arg(0).arg(TRACE_BYTES_MAX);
        }
        // Bytes: a range may end within a character of the reply that follows the log.
        let found: Vec<Option<Vec<u8>>> = self.connection.pipeline(Question::Look, &pipe).await?;
        let text = |bytes: Option<&Vec<u8>>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let first = |log: Vec<AdmissionNote>| log.first().map(|admission| u64::from(admission.calls));
        let of_one = |found: &[Option<Vec<u8>>]| {
            let [live, ended] = found else { return 0 };
            let ended = || FinishedTurn::read(&text(ended.as_ref()).unwrap_or_default()).admissions;
            first(text(live.as_ref()).as_deref().map_or_else(ended, AdmissionNote::read_all)).unwrap_or(0)
        };
        Ok(found.chunks(2).map(of_one).sum())
    }

    /// Finds out where a live turn waits: on its lane, or with a holder.
    async fn look_closer(&self, name: &TurnName, live: &mut LiveTurn) -> Result<(), StoreError> {
        let record = &live.record;
        let agent = record.agent.as_deref().unwrap_or_default();
        let fence = record.fence.as_deref().unwrap_or_default();
        if fence.is_empty() {
            let lane = match &record.lane {
                Some(lane) => format!("l:{lane}"),
                None => format!("l:{}:{agent}", name.tenant),
            };
            let command = redis::cmd("ZSCORE").arg(self.keys.key("timers")).arg(lane).to_owned();
            let due: Option<f64> = self.connection.query(Question::Look, &command).await?;
            live.lane_due_ms = due.map(|d| d as i64);
        } else if !record.is_ending() {
            let queue = Queue::parse(record.queue.as_deref().unwrap_or_default());
            // A slice whose holder has died is on the queue of suspects.
            let suspect = match &queue {
                Some(Queue::Ready(priority)) if record.crashes.is_some() => Some(Queue::Suspect(*priority)),
                _ => None,
            };
            for queue in queue.into_iter().chain(suspect) {
                let mut command = redis::cmd("XPENDING");
                command.arg(self.keys.key(queue)).arg(GROUP).arg(fence).arg(fence).arg(1);
                let found: Vec<(String, String, i64, i64)> = self.connection.query(Question::Look, &command).await?;
                if let Some((_, consumer, held_ms, _)) = found.into_iter().next().filter(|_| live.holder.is_none()) {
                    (live.holder, live.held_ms) = (Some(consumer), Some(held_ms));
                }
            }
        }
        Ok(())
    }
}

impl Store {
    /// One step of a search for the records of turns and tasks under way: where it goes on (0: at its end), and those that
    /// were found. Ids have no characters that mean something in a pattern.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn scan_turns(&self, tenant: Option<&TenantId>, cursor: u64) -> Result<(u64, Vec<TurnName>), StoreError> {
        let records = self.keys.key("turn:");
        let pattern = match tenant {
            Some(tenant) => format!("{records}{tenant}:*"),
            None => format!("{records}*"),
        };
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_PER_STEP);
        let (next, keys): (u64, Vec<String>) = self.connection.query(Question::Look, &command).await?;
        let named = |key: &String| TurnName::parse(key.strip_prefix(&*records)?);
        Ok((next, keys.iter().filter_map(named).collect()))
    }
}
