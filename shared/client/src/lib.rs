//! The client for producers in Rust: submits turns, delegates tasks, reads replies.
//!
//! ```no_run
//! use std::time::Duration;
//! use tickfleet_client::{Client, StoreOptions, parse_turn, private_inbox};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("redis://127.0.0.1/", StoreOptions::default()).await?;
//! let message = br#"{"tenant":"demo","agent":"kelly","calls":[{"name":"echo","arguments":{"text":"hi"}}]}"#;
//! let mut turn = parse_turn(message).map_err(|refusal| refusal.message)?;
//! let inbox = private_inbox("example");
//! turn.reply_to = Some(inbox.clone());
//!
//! let mut replies = client.replies(&turn.tenant, &inbox);
//! let submitted = client.submit(turn).await?;
//! if let Some(reply) = replies.await_reply(&submitted.turn_id, Duration::from_secs(30)).await? {
//!     for result in &reply.results {
//!         println!("{}: {}", result.tool, result.outcome.as_str());
//!     }
//! }
//! replies.forget().await?; // the inbox was only for this reply
//! # Ok(())
//! # }
//! ```
//!
//! If a producer chooses a turn's ID ([`Turn::id`]), it can submit the turn again after any error, and the turn runs
//! only once. Without an ID, a second submit may run the turn twice.

#![warn(missing_docs)]

pub mod approvals;
pub mod audit;
pub mod dead;
mod end_many;
pub mod held_slices;
pub mod history;
pub mod inner;
mod model_use;
pub mod operate;
mod page;
mod replies;
pub mod rules;
pub mod session;
pub mod stats;
pub mod tasks;
pub mod turn_status;
mod undecided;
pub mod usage;
pub mod verbs;
pub mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;

pub use approvals::{Approval, ApprovalError, ApprovalVerdict, VerdictResult};
pub use page::{Cursor, Page};
pub use replies::{PendingApproval, RecordedReply, Replies, Reply, ReplyStatus};
pub use session::{Exchange, InvalidSessionId, Session, SessionError, SessionId};
pub use tasks::{TaskEvent, TaskProgress, TaskWatcher};
pub use tickfleet_model as model;
pub use tickfleet_protocol::{RejectedMessage, parse_turn};
pub use tickfleet_store::{StoreError, StoreOptions};
pub use undecided::UndecidedTurn;
pub use verbs::VerbError;

use tickfleet_model::ids::shard_of;
use tickfleet_model::{InboxName, Task, TaskId, TenantId, Turn, TurnId, content_digest, limits, task_digest};
use tickfleet_protocol::{dialect_info, write_task, write_turn};
use tickfleet_store::{CancelResult, Observer, Store, Submission, Submitted as SubmitStatus, TurnName};

/// An accepted turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The turn's ID: chosen by the producer, or generated.
    pub turn_id: TurnId,
    /// True if this turn was already accepted before. [`Replies::await_reply`] reads the result from the turn's record.
    pub duplicate: bool,
}

/// Why a turn or task was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SubmitError {
    /// The turn or task exceeds a limit, so a retry would fail too.
    #[error("invalid turn: {0}")]
    Invalid(String),
    /// The ID was already used for a turn with different content.
    #[error("the id {0} was used for a turn with other content")]
    Conflict(TurnId),
    /// Too many turns wait for admission; retry later.
    #[error("the queue is full (queue_full); retry later")]
    QueueFull,
    /// The inbox has too many unread replies; read them first.
    #[error("the inbox has too many unread replies (inbox_full); read them first")]
    InboxFull,
    /// The tenant has reached its maximum number of inboxes; use an existing one.
    #[error("the tenant has too many inboxes (too_many_inboxes); use one that it has, or raise queues.inboxes_max")]
    TooManyInboxes,
    /// Redis memory is nearly full; retry later.
    #[error("Redis memory is nearly full; new work is rejected (pressure); retry later")]
    Pressure,
    /// The request to Redis failed. A turn without an ID may still have been accepted.
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl From<StoreError> for SubmitError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Verb { source, .. } if source.code() == Some("OOM") => Self::Pressure,
            _ => Self::Store(Arc::new(error)),
        }
    }
}

/// A producer's connection to a fleet. Cheap to clone; all clones share one connection per shard.
#[derive(Debug, Clone)]
pub struct Client {
    shards: Arc<[Store]>,
}

impl Client {
    /// Connects to the fleet at `url`. `options` must have the fleet's namespace, limits and number of shards. With a
    /// wrong number, turns would go to shards that no scheduler reads.
    pub async fn connect(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        let client = Self::open(url, options)?;
        client.check().await?;
        Ok(client)
    }

    /// Creates a client without connecting. Before you submit anything, call [`Self::check`] until it succeeds.
    pub fn open(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        Ok(Self { shards: Store::open_all(url, &Arc::new(options))?.into() })
    }

    /// Checks that the fleet has as many shards as this client.
    pub async fn check(&self) -> Result<(), StoreError> {
        let ours = u32::try_from(self.shards.len()).unwrap_or(u32::MAX);
        for store in self.shards.iter() {
            if let Some(stored) = store.shard_count().await?.filter(|stored| *stored != ours) {
                return Err(StoreError::Shards { ours, stored: stored.to_string() });
            }
        }
        Ok(())
    }

    /// Returns a client that notifies the observer of every request to Redis.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        let observed = self.shards.iter().map(|store| store.clone().observed_by(Arc::clone(&observer)));
        Self { shards: observed.collect() }
    }

    /// Creates a client from stores that are already open. `shards` must have all shards, in order. For simulations.
    #[must_use]
    pub fn over(shards: Vec<Store>) -> Self {
        Self { shards: shards.into() }
    }

    /// Returns the store of the tenant's shard, for operations that this client does not offer.
    #[must_use]
    pub fn store(&self, tenant: &TenantId) -> &Store {
        let shard = shard_of(tenant, u32::try_from(self.shards.len()).unwrap_or(1));
        &self.shards[shard as usize]
    }

    /// Returns the stores of all shards, in order.
    #[must_use]
    pub fn stores(&self) -> &[Store] {
        &self.shards
    }

    /// Returns the time of the first shard (ms since the epoch), or 0 if the client has no shard.
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        match self.shards.first() {
            Some(store) => store.now_ms().await,
            None => Ok(0),
        }
    }

    /// Submits one turn.
    pub async fn submit(&self, turn: Turn) -> Result<Submitted, SubmitError> {
        let missing = || SubmitError::Invalid("it has no answer".into());
        self.submit_many(vec![turn]).await.pop().unwrap_or_else(|| Err(missing()))
    }

    /// Submits many turns. The results have the order of `turns`. Turns of one shard keep their order.
    pub async fn submit_many(&self, turns: Vec<Turn>) -> Vec<Result<Submitted, SubmitError>> {
        let mut answers: Vec<Option<Result<Submitted, SubmitError>>> = turns.iter().map(|_| None).collect();
        let mut by_shard: BTreeMap<usize, Vec<(usize, Submission)>> = BTreeMap::new();
        for (index, turn) in turns.into_iter().enumerate() {
            match submission(&turn) {
                Ok(submission) => {
                    let shard = shard_of(&turn.tenant, u32::try_from(self.shards.len()).unwrap_or(1));
                    by_shard.entry(shard as usize).or_default().push((index, submission));
                }
                Err(error) => answers[index] = Some(Err(error)),
            }
        }
        let shards = by_shard.into_iter().map(|(shard, turns)| submit_to(&self.shards[shard], turns));
        for (index, answer) in join_all(shards).await.into_iter().flatten() {
            answers[index] = Some(answer);
        }
        let unanswered = || Err(SubmitError::Invalid("it has no answer".into()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Enqueues a task for an agent, and returns the task's ID. A scheduler validates the task later. If the scheduler
    /// rejects the task, the reply has the status `rejected`.
    pub async fn delegate(&self, task: Task) -> Result<TaskId, SubmitError> {
        let message = write_task(&task);
        if message.len() > limits::TURN_BYTES_MAX {
            let found = message.len();
            let max = limits::TURN_BYTES_MAX;
            return Err(SubmitError::Invalid(format!("the task has {found} bytes; at most {max} are allowed")));
        }
        let submission = Submission {
            tenant: task.tenant.clone(),
            turn: task.id.clone().filter(|_| has_own_content(&task)).map(TurnId::from),
            digest: task_digest(&task),
            reply_to: task.reply_to.clone(),
            payload: message.into(),
        };
        let entry = match self.store(&task.tenant).enqueue_task(&submission).await? {
            SubmitStatus::Accepted { entry } => entry,
            // The ID may belong to another task. In that case, the scheduler's reply reports the conflict.
            SubmitStatus::Duplicate | SubmitStatus::Conflict => String::new(),
            SubmitStatus::QueueFull => return Err(SubmitError::QueueFull),
            SubmitStatus::InboxFull => return Err(SubmitError::InboxFull),
            SubmitStatus::TooManyInboxes => return Err(SubmitError::TooManyInboxes),
            SubmitStatus::Pressure => return Err(SubmitError::Pressure),
        };
        match task.id {
            Some(id) => Ok(id),
            None => TaskId::new(format!("k{entry}")).map_err(|error| SubmitError::Invalid(error.to_string())),
        }
    }

    /// Returns true if the ID that the producer chose for this task belongs to another task or to a turn. Returns false
    /// while the task waits for admission, and if the content of the task depends on its parent.
    pub async fn has_id_conflict(&self, task: &Task) -> Result<bool, StoreError> {
        let Some(id) = &task.id else { return Ok(false) };
        if !has_own_content(task) {
            return Ok(false);
        }
        let found = self.store(&task.tenant).content_of(&TurnName::task(&task.tenant, id)).await?;
        Ok(found.is_some_and(|found| found != task_digest(task)))
    }

    /// Cancels a turn or task. Running calls are stopped.
    pub async fn cancel(&self, name: &TurnName, reason: &str) -> Result<CancelResult, StoreError> {
        self.store(&name.tenant).cancel(name, reason).await
    }

    /// Reads the reply to a turn or task from its record, for example if the reply was lost.
    pub async fn reply(&self, name: &TurnName) -> Result<RecordedReply, StoreError> {
        replies::recorded(self.store(&name.tenant), name).await
    }

    /// Returns the submitted turn or task if it still waits for admission. Call this function before you read the
    /// record. In the other order, you could find neither, if the turn is admitted between the two calls.
    pub async fn undecided(&self, name: &TurnName) -> Result<Option<UndecidedTurn>, StoreError> {
        undecided::undecided(self.store(&name.tenant), name).await
    }

    /// Watches a task. Returns its events as a stream, from the beginning to the end of the task.
    #[must_use]
    pub fn watch(&self, task: &TurnName) -> TaskWatcher {
        TaskWatcher::new(self.store(&task.tenant).clone(), task.clone())
    }

    /// Watches a task from a [position](TaskProgress::position).
    #[must_use]
    pub fn watch_from(&self, task: &TurnName, position: usize) -> TaskWatcher {
        TaskWatcher::from(self.store(&task.tenant).clone(), task.clone(), position)
    }

    /// Lists one [page](tasks::task_page) of a tenant's tasks, newest first.
    pub async fn tasks(
        &self,
        tenant: &TenantId,
        filter: &tasks::TaskFilter,
    ) -> Result<Vec<tasks::TaskSummary>, VerbError> {
        Ok(tasks::task_page(self, &BTreeSet::from([tenant.clone()]), filter, None).await?.items)
    }

    /// Returns the details of a task and of its subtasks. Returns `None` if the task is unknown.
    pub async fn task(&self, task: &TurnName) -> Result<Option<tasks::TaskDetails>, StoreError> {
        tasks::task_details(self.store(&task.tenant), task).await
    }

    /// Cancels a task, the turn for which it waits, and its subtasks.
    /// After an error, the call can be repeated.
    pub async fn cancel_task(&self, task: &TurnName, reason: &str) -> Result<tasks::CanceledTask, StoreError> {
        tasks::cancel_task(self.store(&task.tenant), task, reason).await
    }

    /// Lists the waiting approvals of a tenant, at most `count`, the earliest deadline first.
    pub async fn approvals(&self, tenant: &TenantId, count: usize) -> Result<Vec<Approval>, StoreError> {
        approvals::list(self.store(tenant), tenant, count).await
    }

    /// Returns one approval. `None` if the approval never existed or is no longer stored.
    pub async fn approval(&self, tenant: &TenantId, id: &str) -> Result<Option<Approval>, StoreError> {
        approvals::find(self.store(tenant), tenant, id).await
    }

    /// Finds the approval with this ID among the approvals of `tenants`.
    pub async fn approval_of_any(&self, tenants: &[TenantId], id: &str) -> Result<Option<Approval>, StoreError> {
        let mut shards: Vec<Vec<&TenantId>> = vec![Vec::new(); self.shards.len()];
        for tenant in tenants {
            let shard = shard_of(tenant, u32::try_from(self.shards.len()).unwrap_or(1));
            shards[shard as usize].push(tenant);
        }
        let asked = self.shards.iter().zip(&shards).map(|(store, tenants)| approvals::find_any(store, tenants, id));
        let found = futures::future::try_join_all(asked).await?;
        Ok(found.into_iter().flatten().next())
    }

    /// Records a person's verdict about a waiting call. The caller must authenticate the person.
    pub async fn decide_approval(
        &self,
        tenant: &TenantId,
        id: &str,
        verdict: &ApprovalVerdict<'_>,
    ) -> Result<VerdictResult, ApprovalError> {
        approvals::decide(self.store(tenant), tenant, id, verdict).await
    }

    /// Reads the replies of an inbox, starting with the oldest.
    #[must_use]
    pub fn replies(&self, tenant: &TenantId, inbox: &InboxName) -> Replies {
        Replies::new(self.store(tenant).clone(), tenant.clone(), inbox.clone())
    }
}

/// The digest of a task includes the delegator. A task without its own delegator gets the delegator of its parent, so
/// its digest depends on the parent.
const fn has_own_content(task: &Task) -> bool {
    task.parent.is_none() || task.delegator.is_some()
}

/// Creates a unique name for an inbox: `<purpose>-…`. Delete the inbox with [`Replies::forget`].
#[must_use]
pub fn private_inbox(purpose: &str) -> InboxName {
    let unique = tickfleet_store::incarnation("r", purpose);
    // An incarnation is always a valid ID, but too long for an inbox name if `purpose` is very long.
    InboxName::new(unique.as_str()).unwrap_or_else(|_| private_inbox("reader"))
}

fn submission(turn: &Turn) -> Result<Submission, SubmitError> {
    let calls = turn.calls.len();
    // In dialects in which the model answers in plain text (`in_words`), a turn may have no calls.
    let none = calls == 0 && !dialect_info(turn.dialect).in_words;
    if none || calls > limits::CALLS_PER_TURN_MAX {
        let max = limits::CALLS_PER_TURN_MAX;
        return Err(SubmitError::Invalid(format!("it has {calls} calls; 1 to {max} are allowed")));
    }
    let payload = write_turn(turn);
    if payload.len() > limits::TURN_BYTES_MAX {
        let found = payload.len();
        let max = limits::TURN_BYTES_MAX;
        return Err(SubmitError::Invalid(format!("it has {found} bytes; at most {max} are allowed")));
    }
    Ok(Submission {
        tenant: turn.tenant.clone(),
        turn: turn.id.clone(),
        digest: content_digest(turn),
        reply_to: turn.reply_to.clone(),
        payload: payload.into(),
    })
}

async fn submit_to(store: &Store, turns: Vec<(usize, Submission)>) -> Vec<(usize, Result<Submitted, SubmitError>)> {
    let (indexes, submissions): (Vec<usize>, Vec<Submission>) = turns.into_iter().unzip();
    let mut answers = Vec::with_capacity(indexes.len());
    let mut rest = submissions.as_slice();
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(batch_length(rest));
        rest = later;
        match store.submit(batch).await {
            Ok(words) => answers.extend(batch.iter().zip(words).map(|(turn, word)| answer(turn, word?))),
            Err(error) => {
                let error = SubmitError::from(error);
                answers.extend(batch.iter().map(|_| Err(error.clone())));
            }
        }
    }
    indexes.into_iter().zip(answers).collect()
}

/// Returns at least 1, even if the first turn is too large for a script.
fn batch_length(turns: &[Submission]) -> usize {
    let mut bytes = 0;
    let fits = |turn: &&Submission| {
        bytes += turn.payload.len();
        bytes <= limits::BATCH_BYTES_MAX
    };
    turns.iter().take(limits::BATCH_ENTRIES_MAX).take_while(fits).count().max(1)
}

fn answer(turn: &Submission, word: SubmitStatus) -> Result<Submitted, SubmitError> {
    // The scheduler generates the same turn ID from the inbound entry.
    let minted = |entry: &str| TurnId::new(format!("t{entry}")).map_err(|e| SubmitError::Invalid(e.to_string()));
    match (word, &turn.turn) {
        (SubmitStatus::Accepted { entry }, None) => Ok(Submitted { turn_id: minted(&entry)?, duplicate: false }),
        (SubmitStatus::Accepted { .. }, Some(id)) => Ok(Submitted { turn_id: id.clone(), duplicate: false }),
        (SubmitStatus::Duplicate, Some(id)) => Ok(Submitted { turn_id: id.clone(), duplicate: true }),
        (SubmitStatus::Conflict, Some(id)) => Err(SubmitError::Conflict(id.clone())),
        (SubmitStatus::Duplicate | SubmitStatus::Conflict, None) => {
            Err(SubmitError::Invalid("a turn without an id cannot have been accepted before".into()))
        }
        (SubmitStatus::QueueFull, _) => Err(SubmitError::QueueFull),
        (SubmitStatus::InboxFull, _) => Err(SubmitError::InboxFull),
        (SubmitStatus::TooManyInboxes, _) => Err(SubmitError::TooManyInboxes),
        (SubmitStatus::Pressure, _) => Err(SubmitError::Pressure),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn submission_of(bytes: usize) -> Submission {
        Submission {
            tenant: TenantId::new("acme").unwrap(),
            turn: None,
            digest: String::new(),
            reply_to: None,
            payload: "x".repeat(bytes).into(),
        }
    }

    #[test]
    fn a_batch_is_limited_by_entries_and_bytes_but_has_at_least_one_turn() {
        let small: Vec<_> = (0..300).map(|_| submission_of(10)).collect();
        assert_eq!(batch_length(&small), limits::BATCH_ENTRIES_MAX);
        let large: Vec<_> = (0..8).map(|_| submission_of(limits::TURN_BYTES_MAX)).collect();
        assert_eq!(batch_length(&large), limits::BATCH_BYTES_MAX / limits::TURN_BYTES_MAX);
        assert_eq!(batch_length(&[submission_of(limits::BATCH_BYTES_MAX + 1)]), 1);
    }

    #[test]
    fn a_generated_id_derives_from_the_entry_and_a_given_id_is_kept() {
        let accepted = || SubmitStatus::Accepted { entry: "17-3".into() };
        assert_eq!(answer(&submission_of(1), accepted()).unwrap().turn_id.as_str(), "t17-3");
        let given = Submission { turn: TurnId::new("mine").ok(), ..submission_of(1) };
        assert_eq!(answer(&given, accepted()).unwrap().turn_id.as_str(), "mine");
        assert!(answer(&given, SubmitStatus::Duplicate).unwrap().duplicate);
    }

    #[test]
    fn private_inboxes_differ() {
        let one = private_inbox("cli");
        let two = private_inbox("cli");
        assert_ne!(one, two);
        assert!(one.as_str().starts_with("r-cli-"), "{one}");
    }
}
