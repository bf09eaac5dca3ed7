//! Reads replies in order, and reports gaps. A lost reply can be read from the record of its turn.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use tickfleet_model::{CallError, CallResult, Dialect, InboxName, TenantId, TurnId};
use tickfleet_store::{InboxEntry, InboxReader, Store, StoreError, TurnName, TurnView};

/// Interval at which the turn's record is read while the awaited reply is not in the inbox.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Status in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyStatus {
    /// Every call has a result.
    Done,
    /// The turn or task was rejected. The reason is in [`Reply::error`].
    Rejected,
    /// The ID belongs to another turn. [`Reply::results`] is empty.
    Conflict,
    /// A call waits for an approval ([`Reply::approval`]). Another reply follows.
    PendingApproval,
}

/// An approval for which a call waits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PendingApproval {
    /// The approval's ID.
    pub id: String,
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// Time of the request (ms of shard time).
    pub requested_ms: i64,
    /// Deadline for the decision (ms of shard time).
    pub until_ms: i64,
}

/// The reply to a turn or task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// `None` in a reply about a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// `None` in a reply about a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TurnId>,
    /// The tenant.
    pub tenant: String,
    /// The agent that made the calls; empty if the message could not be read.
    #[serde(default)]
    pub agent: String,
    /// `None` if no agent delegated the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegator: Option<String>,
    /// The call that delegated the task, `<turn id>/<position>`. The reply to that call's turn can arrive after this
    /// reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated_by: Option<String>,
    /// The status.
    pub status: ReplyStatus,
    /// The dialect of [`Self::messages`].
    pub dialect: Dialect,
    /// The correlation ID that the producer set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The producer's trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The reason of a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// The approval for which a call waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<PendingApproval>,
    /// One result per call, in call order.
    pub results: Vec<CallResult>,
    /// The messages for the model, in the dialect of the turn; `None` for raw turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Box<RawValue>>,
    /// The audit entries of the calls. `None` if the turn did not request them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_audits: Option<Vec<Box<RawValue>>>,
    /// The reply's number in the inbox; `None` if the reply was read from the turn's record.
    #[serde(skip)]
    pub seq: Option<u64>,
    /// Number of missing replies before this one. The replies were trimmed because of their age, or read by another
    /// reader.
    #[serde(skip)]
    pub missed: u64,
}

impl Reply {
    /// The ID of the turn or task.
    #[must_use]
    pub fn id(&self) -> Option<&TurnId> {
        self.turn_id.as_ref().or(self.task_id.as_ref())
    }

    /// False if a call waits for an approval.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.status != ReplyStatus::PendingApproval
    }

    /// True if every call succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == ReplyStatus::Done && self.results.iter().all(|result| result.success)
    }

    fn read(json: &str, entry: &str) -> Result<Self, StoreError> {
        serde_json::from_str(json)
            .map_err(|error| StoreError::Reply { verb: "replies", found: format!("{entry}: {error}") })
    }
}

/// The reply in the record of a turn or task.
#[derive(Debug, Clone)]
pub enum RecordedReply {
    /// The turn has ended.
    Ended(Box<Reply>),
    /// The turn ended while Redis memory was nearly full. Its reply is only in the inbox.
    InInbox,
    /// The turn has not ended.
    UnderWay,
    /// The turn was not admitted, was rejected, or has an expired record.
    Unknown,
}

pub(super) async fn recorded(store: &Store, name: &TurnName) -> Result<RecordedReply, StoreError> {
    Ok(match store.record(name).await? {
        TurnView::Finished(finished) if finished.reply.is_empty() => RecordedReply::InInbox,
        TurnView::Finished(finished) => {
            RecordedReply::Ended(Box::new(Reply::read(&finished.reply, name.turn.as_str())?))
        }
        TurnView::Live(_) => RecordedReply::UnderWay,
        TurnView::Unknown => RecordedReply::Unknown,
    })
}

/// A reader of one inbox. An inbox must have only one reader: each read removes the replies that were returned before.
#[derive(Debug)]
pub struct Replies {
    store: Store,
    tenant: TenantId,
    inbox: InboxName,
    reader: InboxReader,
    unread: VecDeque<InboxEntry>,
    /// Replies, with their entries, that arrived while the caller waited for another reply.
    buffered_replies: VecDeque<(String, Reply)>,
    seq: u64,
    /// Entries of returned replies. The next read removes them from the inbox.
    returned_entries: Vec<String>,
}

impl Replies {
    pub(super) fn new(store: Store, tenant: TenantId, inbox: InboxName) -> Self {
        let reader = store.inbox(&tenant, &inbox);
        let unread = VecDeque::new();
        let buffered_replies = VecDeque::new();
        let returned_entries = Vec::new();
        Self { store, tenant, inbox, reader, unread, buffered_replies, seq: 0, returned_entries }
    }

    /// Waits for the next reply. Returns `None` after `timeout`. If a process crashes while it handles a reply, the
    /// next reader receives the reply again.
    ///
    /// # Errors
    /// [`StoreError`] if Redis fails: call again, no reply is lost. [`StoreError::Reply`] if a reply cannot be parsed:
    /// the next call skips this reply.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Reply>, StoreError> {
        let found = match self.buffered_replies.pop_front() {
            Some(found) => Some(found),
            None => self.read(Instant::now() + timeout).await?,
        };
        Ok(found.map(|found| self.record_returned(found)))
    }

    /// Waits for the final reply to this turn or task. Keeps other replies for [`Self::next`]. Returns `None` after
    /// `timeout`.
    ///
    /// A reply that is missing from the inbox is read from the turn's record. A reply is missing if it was trimmed, if
    /// another reader read it, or if the turn is a duplicate.
    pub async fn await_reply(&mut self, id: &TurnId, timeout: Duration) -> Result<Option<Reply>, StoreError> {
        let at = self.buffered_replies.iter().position(|(_, reply)| reply.id() == Some(id) && reply.is_final());
        if let Some(found) = at.and_then(|at| self.buffered_replies.remove(at)) {
            return Ok(Some(self.record_returned(found)));
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
                return Ok(Some(self.record_returned((entry, reply))));
            }
            self.buffered_replies.push_back((entry, reply));
        }
    }

    /// Removes the returned replies from the inbox.
    ///
    /// # Errors
    /// [`StoreError`]; the next reader receives the returned replies again.
    pub async fn finish(mut self) -> Result<(), StoreError> {
        self.trim().await
    }

    /// Deletes the inbox with its replies. Use it for private inboxes.
    ///
    /// # Errors
    /// [`StoreError`]; the inbox then exists until it expires.
    pub async fn forget(self) -> Result<(), StoreError> {
        self.store.forget_inbox(&self.tenant, &self.inbox).await
    }

    fn record_returned(&mut self, (entry, reply): (String, Reply)) -> Reply {
        self.returned_entries.push(entry);
        reply
    }

    async fn read(&mut self, deadline: Instant) -> Result<Option<(String, Reply)>, StoreError> {
        loop {
            if let Some(entry) = self.unread.pop_front() {
                let missed = missed(self.seq, entry.seq);
                self.seq = entry.seq;
                let reply = match Reply::read(&entry.reply, &entry.id) {
                    Ok(reply) => reply,
                    Err(error) => {
                        self.returned_entries.push(entry.id);
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

    async fn trim(&mut self) -> Result<(), StoreError> {
        self.reader.remove(&self.returned_entries).await?;
        self.returned_entries.clear();
        Ok(())
    }

    async fn recorded(&self, id: &TurnId) -> Result<Option<Reply>, StoreError> {
        let name = TurnName { tenant: self.tenant.clone(), turn: id.clone() };
        match recorded(&self.store, &name).await? {
            RecordedReply::Ended(reply) => Ok(Some(*reply)),
            RecordedReply::InInbox | RecordedReply::UnderWay | RecordedReply::Unknown => Ok(None),
        }
    }
}

/// Returns 0 for the first reply, and for a recreated inbox, in which the numbers restart at 1.
fn missed(before: u64, now: u64) -> u64 {
    if before == 0 { 0 } else { now.saturating_sub(before.saturating_add(1)) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_gap_counts_the_missing_replies() {
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
