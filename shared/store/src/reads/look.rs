//! Looking without touching: the records of turns, for `explain`.

use std::collections::HashMap;

use crate::connection::question::Question;
use crate::keys::{GROUP, Queue, TurnName};
use crate::{SliceMeta, Store, StoreError};
use tickfleet_model::{AgentId, TaskGrant};

/// Bytes of a finished record that hold the beginning of its log.
const TRACE_BYTES_MAX: usize = 255;

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
    /// What the record says beside the reply (`f`, `ts`, `end`, `lg`, `cr`, `rt`, `er`, `cx`).
    pub trace: HashMap<String, String>,
    /// The reply, JSON; empty where memory was short when the turn ended: then its inbox alone has it.
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
            self.connection.pipeline(Question::Look, &pipe).await?;
        if let Some(done) = done {
            let (trace, reply) = done.split_once('\n').unwrap_or((&done, ""));
            let fields = trace.split(' ').filter_map(|p| p.split_once('='));
            let trace =
                fields.map(|(k, v)| (k.to_owned(), if k == "cx" { decoded(v) } else { v.to_owned() })).collect();
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
        let meta: Option<String> = self.connection.query(Question::Look, &command).await?;
        let meta = meta.and_then(|meta| serde_json::from_str::<SliceMeta>(&meta).ok()).filter(|meta| meta.is_task);
        Ok(meta.and_then(|meta| Some((meta.agent, meta.task?.1))))
    }

    /// Why a turn or task that is under way was cancelled; none where it was not.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn cancelled_because(&self, name: &TurnName) -> Result<Option<String>, StoreError> {
        self.connection.query(Question::Look, redis::cmd("HGET").arg(self.keys.turn(name)).arg("cx")).await
    }

    /// How many calls of these turns were let through at their first admission, in all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn admitted_first(&self, names: &[TurnName]) -> Result<u64, StoreError> {
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("HGET").arg(self.keys.turn(name)).arg("lg");
            // Of a turn that has ended meanwhile: the log stands in the first line.
            pipe.cmd("GETRANGE").arg(self.keys.done(name)).arg(0).arg(TRACE_BYTES_MAX);
        }
        let found: Vec<Option<String>> = self.connection.pipeline(Question::Look, &pipe).await?;
        let first = |log: &str| log.split([',', ';']).nth(1).and_then(|calls| calls.parse::<u64>().ok());
        let of_one = |found: &[Option<String>]| {
            let ended = found.get(1).cloned().flatten().unwrap_or_default();
            let log = ended.split_once(" lg=").map(|(_, log)| log.to_owned());
            found.first().cloned().flatten().or(log).and_then(|log| first(&log)).unwrap_or(0)
        };
        Ok(found.chunks(2).map(of_one).sum())
    }

    /// Where a live turn waits: on its lane, or with a holder.
    async fn look_closer(&self, name: &TurnName, live: &mut LiveTurn) -> Result<(), StoreError> {
        let agent = live.fields.get("ag").cloned().unwrap_or_default();
        let fence = live.fields.get("f").cloned().unwrap_or_default();
        if fence.is_empty() {
            let lane = format!("l:{}:{agent}", name.tenant);
            let command = redis::cmd("ZSCORE").arg(self.keys.key("timers")).arg(lane).to_owned();
            let due: Option<f64> = self.connection.query(Question::Look, &command).await?;
            live.lane_due_ms = due.map(|d| d as i64);
        } else if !fence.starts_with("s:") {
            let queue = Queue::parse(live.fields.get("q").map_or("", String::as_str));
            // A slice whose holder has died is on the queue of suspects.
            let suspect = match &queue {
                Some(Queue::Ready(priority)) if live.fields.contains_key("cr") => Some(Queue::Suspect(*priority)),
                _ => None,
            };
            for queue in queue.into_iter().chain(suspect) {
                let mut command = redis::cmd("XPENDING");
                command.arg(self.keys.key(queue)).arg(GROUP).arg(&fence).arg(&fence).arg(1);
                let found: Vec<(String, String, i64, i64)> = self.connection.query(Question::Look, &command).await?;
                live.holder = live.holder.take().or(found.into_iter().next().map(|(_, consumer, _, _)| consumer));
            }
        }
        Ok(())
    }
}

/// A text as `settle.lua` writes it into a record's first line: some bytes as `%` and two hexadecimal digits.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
            }
            None => bytes.extend_from_slice(part.as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn what_would_break_a_records_first_line_is_read_as_it_was() {
        assert_eq!(decoded("the%20price%0Ais%20100%25%20zu%20groß"), "the price\nis 100% zu groß");
        assert_eq!(decoded("50%x%"), "50x");
    }
}
