//! Reading replies: in order, with gaps made visible, and with the turn's record as the second source.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use tickfleet_model::{CallError, CallResult, Dialect, InboxName, TenantId, TurnId};
use tickfleet_store::{InboxEntry, InboxReader, Store, StoreError, TurnName, TurnView};

/// The time for which a reply is awaited in the inbox before the turn's record is looked at.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// The way in which a turn or task ended as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyStatus {
    /// Every call has its result.
    Done,
    /// It was not accepted; [`Reply::error`] says why.
    Rejected,
    /// Its id belongs to another turn; [`Reply::results`] is empty, for they are not this producer's.
    Conflict,
    /// One of its calls waits for people's consent ([`Reply::approval`]). This is not its end: another reply comes.
    PendingApproval,
}

/// What people are asked about a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PendingApproval {
    /// The approval.
    pub id: String,
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// When it was asked for, ms of shard time.
    pub asked_ms: i64,
    /// Until when it may be decided, ms of shard time.
    pub until_ms: i64,
}

/// The reply to a turn or task: every result, in call order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// The turn; none where the reply is about a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The task; none where the reply is about a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TurnId>,
    /// Whose.
    pub tenant: String,
    /// The agent that made the calls, as the message named it; empty where nobody could read that.
    #[serde(default)]
    pub agent: String,
    /// The agent that asked for a task, where an agent did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegator: Option<String>,
    /// The call that asked for a task, `<turn id>/<position>`, where an agent's call did. The turn's own reply may come
    /// after the task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated_by: Option<String>,
    /// The way in which it ended.
    pub status: ReplyStatus,
    /// The dialect of [`Self::messages`].
    pub dialect: Dialect,
    /// The producer's own id, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The producer's trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Why it was not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// What people are asked about, while a call waits for that: its id, call, tool, and times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<PendingApproval>,
    /// One result per call, in call order.
    pub results: Vec<CallResult>,
    /// The messages for the model, in the dialect that the turn came in; none for raw turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Box<RawValue>>,
    /// The audit entries of the calls, where the turn asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_audits: Option<Vec<Box<RawValue>>>,
    /// Its number within the inbox; none where it was read from the turn's record.
    #[serde(skip)]
    pub seq: Option<u64>,
    /// Replies that are missing between this one and the one read before it: trimmed by age, or taken by another
    /// reader. What they said is in the records of their turns.
    #[serde(skip)]
    pub missed: u64,
}

impl Reply {
    /// The id of the turn or task.
    #[must_use]
    pub fn id(&self) -> Option<&TurnId> {
        self.turn_id.as_ref().or(self.task_id.as_ref())
    }

    /// Returns true if the turn or task has ended: not where it only waits for people.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.status != ReplyStatus::PendingApproval
    }

    /// Returns true if it was accepted and every call succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == ReplyStatus::Done && self.results.iter().all(|result| result.success)
    }

    fn read(json: &str, entry: &str) -> Result<Self, StoreError> {
        serde_json::from_str(json)
            .map_err(|error| StoreError::Reply { verb: "replies", found: format!("{entry}: {error}") })
    }
}

/// The state of a turn's or task's reply by its record.
#[derive(Debug, Clone)]
pub enum Recorded {
    /// It has ended, with this reply.
    Ended(Box<Reply>),
    /// It has ended while memory was short, so its inbox alone has the reply.
    InInbox,
    /// It has not ended.
    UnderWay,
    /// Nothing is known: it was not admitted, was rejected, or ended longer ago than records are kept.
    Unknown,
}

/// Looks at the record of a turn or task.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn recorded(store: &Store, name: &TurnName) -> Result<Recorded, StoreError> {
    Ok(match store.record(name).await? {
        TurnView::Finished(finished) if finished.reply.is_empty() => Recorded::InInbox,
        TurnView::Finished(finished) => Recorded::Ended(Box::new(Reply::read(&finished.reply, name.turn.as_str())?)),
        TurnView::Live(_) => Recorded::UnderWay,
        TurnView::Unknown => Recorded::Unknown,
    })
}

/// A reader of one inbox. An inbox has one reader: what it has handed out, it removes with its next read.
#[derive(Debug)]
pub struct Replies {
    store: Store,
    tenant: TenantId,
    inbox: InboxName,
    reader: InboxReader,
    /// Read from Redis and not looked at.
    unread: VecDeque<InboxEntry>,
    /// Looked at while another reply was awaited, each with its entry.
    set_aside: VecDeque<(String, Reply)>,
    seq: u64,
    /// Entries that were handed out and are still in the inbox.
    handed_out: Vec<String>,
}

impl Replies {
    pub(super) fn new(store: Store, tenant: TenantId, inbox: InboxName) -> Self {
        let reader = store.inbox(&tenant, &inbox);
        let (unread, set_aside, handed_out) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Self { store, tenant, inbox, reader, unread, set_aside, seq: 0, handed_out }
    }

    /// The next reply, waited for at most as long as `timeout`; none came: `None`.
    ///
    /// The reply that was handed out before is removed from the inbox now: whoever crashes while it works on a
    /// reply finds it again.
    ///
    /// # Errors
    /// [`StoreError`]; ask again, nothing is lost. [`StoreError::Reply`] for a reply that cannot be read, which is
    /// skipped.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Reply>, StoreError> {
        let found = match self.set_aside.pop_front() {
            Some(found) => Some(found),
            None => self.read(Instant::now() + timeout).await?,
        };
        Ok(found.map(|found| self.hand_out(found)))
    }

    /// The reply about this turn or task, waited for at most as long as `timeout`. Others that come meanwhile are
    /// kept for [`Self::next`]. Where the inbox does not bring it (it was trimmed, another reader took it, or the
    /// turn was a duplicate), the turn's record does, as long as records are kept.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn await_reply(&mut self, id: &TurnId, timeout: Duration) -> Result<Option<Reply>, StoreError> {
        let at = self.set_aside.iter().position(|(_, reply)| reply.id() == Some(id) && reply.is_final());
        if let Some(found) = at.and_then(|at| self.set_aside.remove(at)) {
            return Ok(Some(self.hand_out(found)));
        }
        let deadline = Instant::now() + timeout;
        loop {
            let until = deadline.min(Instant::now() + RECORD_EVERY);
            let Some((entry, reply)) = self.read(until).await? else {
                if let Some(reply) = self.recorded(id).await? {
                    return Ok(Some(reply));
                }
                if Instant::now() >= deadline {
                    return Ok(None);
                }
                continue;
            };
            if reply.id() == Some(id) && reply.is_final() {
                return Ok(Some(self.hand_out((entry, reply))));
            }
            self.set_aside.push_back((entry, reply));
        }
    }

    /// Ends the reading: removes from the inbox what was handed out, and leaves the rest for another reader.
    ///
    /// # Errors
    /// [`StoreError`]; the next reader gets the last replies once more.
    pub async fn finish(mut self) -> Result<(), StoreError> {
        self.trim().await
    }

    /// Ends the reading and removes the inbox with all that is in it: for a private one.
    ///
    /// # Errors
    /// [`StoreError`]; the inbox ages away.
    pub async fn forget(self) -> Result<(), StoreError> {
        self.store.forget_inbox(&self.tenant, &self.inbox).await
    }

    fn hand_out(&mut self, (entry, reply): (String, Reply)) -> Reply {
        self.handed_out.push(entry);
        reply
    }

    /// The next entry, read and numbered.
    async fn read(&mut self, deadline: Instant) -> Result<Option<(String, Reply)>, StoreError> {
        loop {
            if let Some(entry) = self.unread.pop_front() {
                let missed = missed(self.seq, entry.seq);
                self.seq = entry.seq;
                let reply = match Reply::read(&entry.reply, &entry.id) {
                    Ok(reply) => reply,
                    Err(error) => {
                        self.handed_out.push(entry.id);
                        return Err(error);
                    }
                };
                return Ok(Some((entry.id, Reply { seq: Some(entry.seq), missed, ..reply })));
            }
            self.trim().await?;
            let left = deadline.saturating_duration_since(Instant::now());
            self.unread.extend(self.reader.wait(left).await?);
            if self.unread.is_empty() && Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Removes what was handed out.
    async fn trim(&mut self) -> Result<(), StoreError> {
        self.reader.remove(&self.handed_out).await?;
        self.handed_out.clear();
        Ok(())
    }

    async fn recorded(&self, id: &TurnId) -> Result<Option<Reply>, StoreError> {
        let name = TurnName { tenant: self.tenant.clone(), turn: id.clone() };
        match recorded(&self.store, &name).await? {
            Recorded::Ended(reply) => Ok(Some(*reply)),
            Recorded::InInbox | Recorded::UnderWay | Recorded::Unknown => Ok(None),
        }
    }
}

/// Counts the replies that are missing between two numbers. The first that is read shows no gap, and neither does an
/// inbox that was made anew and counts from 1 again.
fn missed(before: u64, now: u64) -> u64 {
    if before == 0 { 0 } else { now.saturating_sub(before.saturating_add(1)) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_gap_counts_the_replies_that_are_missing() {
        assert_eq!([missed(0, 7), missed(7, 8), missed(7, 10), missed(7, 1)], [0, 0, 2, 0]);
    }

    #[test]
    fn a_reply_is_read_with_its_results() {
        let json = r#"{"turn_id":"t1-0","tenant":"demo","agent":"kelly","status":"done","dialect":"raw","results":[
            {"tool_call_id":null,"call":"t1-0/0","tool":"echo","success":true,"outcome":"ok","output":{"n":1},
             "content_type":"application/json","duration_ms":2,"attempts":1}]}"#;
        let reply = Reply::read(json, "1-0").unwrap();
        assert!(reply.is_success());
        assert_eq!(reply.id().map(TurnId::as_str), Some("t1-0"));
        assert_eq!(reply.results[0].output.as_ref().unwrap().get(), r#"{"n":1}"#);
        let rejected = json.replace("\"done\"", "\"rejected\"");
        assert!(!Reply::read(&rejected, "1-0").unwrap().is_success());
        assert!(Reply::read("{}", "1-0").unwrap_err().to_string().contains("1-0"));
    }
}
