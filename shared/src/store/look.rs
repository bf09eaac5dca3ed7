//! Looking without touching: records for `explain`, backlog for gauges and `doctor`.

use std::collections::HashMap;

use super::keys::{GROUP, Queue, TurnName};
use super::{SliceMeta, Store, StoreError};
use crate::model::{AgentId, Priority, TaskGrant};

/// A turn that has not ended.
#[derive(Debug, Clone, Default)]
pub struct LiveTurn {
    /// The record's fields as they stand in Redis (ARCHITECTURE.md lists them).
    pub fields: HashMap<String, String>,
    /// When its own timer fires, ms.
    pub timer_ms: Option<i64>,
    /// When its agent's lane is looked at next, ms, while it waits there.
    pub lane_due_ms: Option<i64>,
    /// Who holds its slice.
    pub holder: Option<String>,
}

/// A turn that has ended.
#[derive(Debug, Clone, Default)]
pub struct FinishedTurn {
    /// What the record says beside the reply (`f`, `ts`, `end`, `lg`, `cr`, `rt`, `er`).
    pub trace: HashMap<String, String>,
    /// The reply, JSON.
    pub reply: String,
}

/// What is known of a turn or task.
#[derive(Debug, Clone)]
pub enum TurnView {
    /// It has not ended.
    Live(Box<LiveTurn>),
    /// It has ended, and its record is still kept.
    Finished(FinishedTurn),
    /// Nothing: never admitted, or ended longer ago than records are kept.
    Unknown,
}

/// How much waits where.
#[derive(Debug, Clone, Default)]
pub struct Backlog {
    /// Turns that no scheduler has read.
    pub inbound: u64,
    /// Tasks that no scheduler has read.
    pub tasks: u64,
    /// Slices that no worker has read.
    pub ready: u64,
    /// Slices that workers hold.
    pub running: u64,
    /// Lanes and turns with a timer.
    pub timers: u64,
    /// Dead entries.
    pub dead: u64,
    /// Audit entries.
    pub audit: u64,
    /// Age of the oldest undelivered inbound turn, ms.
    pub oldest_inbound_ms: i64,
    /// Age of the oldest undelivered slice, ms.
    pub oldest_ready_ms: i64,
    /// Age of the oldest slice that is held, ms.
    pub oldest_pending_ms: i64,
    /// Timers that are due, and by how much the oldest, ms.
    pub late_ms: i64,
}

impl Store {
    /// Everything known of a turn or task.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn look(&self, name: &TurnName) -> Result<TurnView, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.keys.turn(name));
        pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("t:{name}"));
        pipe.cmd("GET").arg(self.keys.done(name));
        let (fields, timer, done): (HashMap<String, String>, Option<f64>, Option<String>) =
            self.connection.pipeline("look", &pipe).await?;
        if let Some(done) = done {
            let (trace, reply) = done.split_once('\n').unwrap_or((&done, ""));
            let trace = trace.split(' ').filter_map(|p| p.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
            return Ok(TurnView::Finished(FinishedTurn { trace, reply: reply.to_owned() }));
        }
        if fields.is_empty() {
            return Ok(TurnView::Unknown);
        }
        let mut live = LiveTurn { timer_ms: timer.map(|t| t as i64), fields, ..LiveTurn::default() };
        self.look_closer(name, &mut live).await?;
        Ok(TurnView::Live(Box::new(live)))
    }

    /// Who works on a task, and what it grants; none where no such task is under way.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn task_grant(&self, task: &TurnName) -> Result<Option<(AgentId, TaskGrant)>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.turn(task)).arg("m").to_owned();
        let meta: Option<String> = self.connection.query("look", &command).await?;
        let meta = meta.and_then(|meta| serde_json::from_str::<SliceMeta>(&meta).ok()).filter(|meta| meta.is_task);
        Ok(meta.and_then(|meta| Some((meta.agent, meta.task?.1))))
    }

    /// Where a live turn waits: on its lane, or with a holder.
    async fn look_closer(&self, name: &TurnName, live: &mut LiveTurn) -> Result<(), StoreError> {
        let agent = live.fields.get("ag").cloned().unwrap_or_default();
        let fence = live.fields.get("f").cloned().unwrap_or_default();
        if fence.is_empty() {
            let lane = format!("l:{}:{agent}", name.tenant);
            let command = redis::cmd("ZSCORE").arg(self.keys.key("timers")).arg(lane).to_owned();
            let due: Option<f64> = self.connection.query("look", &command).await?;
            live.lane_due_ms = due.map(|d| d as i64);
        } else if !fence.starts_with("s:") {
            let queue = live.fields.get("q").cloned().unwrap_or_default();
            let mut command = redis::cmd("XPENDING");
            command.arg(self.keys.key(queue)).arg(GROUP).arg(&fence).arg(&fence).arg(1);
            let found: Vec<(String, String, i64, i64)> = self.connection.query("look", &command).await?;
            live.holder = found.into_iter().next().map(|(_, consumer, _, _)| consumer);
        }
        Ok(())
    }

    /// How much waits where, in a few commands that read ends and counters only.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn backlog(&self, now_ms: i64) -> Result<Backlog, StoreError> {
        let mut backlog = Backlog::default();
        for stream in ["turns".to_owned(), "tasks".to_owned()]
            .into_iter()
            .chain(Priority::ALL.map(|p| Queue::Ready(p).to_string()))
        {
            let seen = self.stream(&stream, now_ms).await?;
            match stream.as_str() {
                "turns" => (backlog.inbound, backlog.oldest_inbound_ms) = (seen.waiting, seen.oldest_waiting_ms),
                "tasks" => backlog.tasks = seen.waiting,
                _ => {
                    backlog.ready += seen.waiting;
                    backlog.running += seen.held;
                    backlog.oldest_ready_ms = backlog.oldest_ready_ms.max(seen.oldest_waiting_ms);
                    backlog.oldest_pending_ms = backlog.oldest_pending_ms.max(seen.oldest_held_ms);
                }
            }
        }
        let mut pipe = redis::pipe();
        pipe.cmd("ZCARD").arg(self.keys.key("timers")).cmd("XLEN").arg(self.keys.key("dead"));
        pipe.cmd("XLEN").arg(self.keys.key("audit"));
        pipe.cmd("ZRANGE").arg(self.keys.key("timers")).arg(0).arg(0).arg("WITHSCORES");
        let first: Vec<(String, f64)>;
        (backlog.timers, backlog.dead, backlog.audit, first) = self.connection.pipeline("backlog", &pipe).await?;
        backlog.late_ms = first.first().map_or(0, |(_, due)| (now_ms - *due as i64).max(0));
        Ok(backlog)
    }

    async fn stream(&self, suffix: &str, now_ms: i64) -> Result<StreamSeen, StoreError> {
        let key = self.keys.key(suffix);
        let mut pipe = redis::pipe();
        pipe.cmd("XINFO").arg("GROUPS").arg(&key).cmd("XPENDING").arg(&key).arg(GROUP);
        let (groups, pending): (Vec<HashMap<String, redis::Value>>, redis::Value) =
            self.connection.pipeline("backlog", &pipe).await?;
        let last =
            groups.first().and_then(|g| g.get("last-delivered-id")).and_then(super::words::text_of).unwrap_or_default();
        let lag = groups.first().and_then(|g| g.get("lag")).and_then(super::words::number_of);
        let mut seen = StreamSeen::default();
        if let redis::Value::Array(summary) = pending {
            seen.held = summary.first().and_then(super::words::number_of).unwrap_or(0).unsigned_abs();
            let oldest = summary.get(1).and_then(super::words::text_of);
            seen.oldest_held_ms = oldest.map_or(0, |id| age(&id, now_ms));
        }
        let command = redis::cmd("XRANGE").arg(&key).arg(format!("({last}")).arg("+").arg("COUNT").arg(1).to_owned();
        let next: Vec<(String, redis::Value)> = self.connection.query("backlog", &command).await?;
        seen.oldest_waiting_ms = next.first().map_or(0, |(id, _)| age(id, now_ms));
        // Redis cannot tell the lag after a deletion; that something waits is known all the same.
        seen.waiting = lag.map_or(u64::from(!next.is_empty()), i64::unsigned_abs);
        Ok(seen)
    }
}

#[derive(Default)]
struct StreamSeen {
    waiting: u64,
    held: u64,
    oldest_waiting_ms: i64,
    oldest_held_ms: i64,
}

fn age(id: &str, now_ms: i64) -> i64 {
    let ms: i64 = id.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(now_ms);
    (now_ms - ms).max(0)
}
