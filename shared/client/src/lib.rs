//! The client for producers in Rust: submit turns, delegate tasks, read replies.
//!
//! ```no_run
//! use std::time::Duration;
//! use tickfleet_client::{Client, StoreOptions, parse_turn, private_inbox};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("redis://127.0.0.1/", StoreOptions::default()).await?;
//! let mut turn = parse_turn(br#"{"tenant":"demo","agent":"kelly","calls":[{"name":"echo","arguments":{"text":"hi"}}]}"#)
//!     .map_err(|refusal| refusal.message)?;
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
//! replies.forget().await?; // the inbox was for this one question
//! # Ok(())
//! # }
//! ```
//!
//! Delivery: a turn with an id of the producer's own ([`Turn::id`]) may be submitted again after any error and is
//! carried out once. One without an id may have been taken in although an error was returned.

pub mod approvals;
pub mod audit;
pub mod dead;
pub mod end_many;
pub mod inner;
mod model_use;
pub mod operate;
mod replies;
pub mod rules;
pub mod session;
pub mod stands;
pub mod stats;
pub mod tasks;
mod undecided;
pub mod usage;
pub mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;

pub use approvals::{Approval, ApprovalError, Counted, Verdict};
pub use replies::{PendingApproval, Recorded, Replies, Reply, ReplyStatus};
pub use session::{Exchange, InvalidSession, Session, SessionError, SessionId};
pub use tasks::{Progress, TaskEvent, Watch};
/// The types of turns, tasks and ids.
pub use tickfleet_model as model;
pub use tickfleet_protocol::{RejectedMessage, parse_turn};
pub use tickfleet_store::{StoreError, StoreOptions};
pub use undecided::Undecided;

use tickfleet_model::ids::shard_of;
use tickfleet_model::{InboxName, Task, TaskId, TenantId, Turn, TurnId, content_digest, limits, task_digest};
use tickfleet_protocol::{about, write_task, write_turn};
use tickfleet_store::{CancelResult, Observer, Store, Submission, Submitted as Word, TurnName};

/// A turn that was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Its id: the producer's own, or the one that was made for it.
    pub turn_id: TurnId,
    /// True if it was submitted before: it is not carried out again, and no second reply comes. What became of it is in
    /// its record; [`Replies::await_reply`] looks there.
    pub duplicate: bool,
}

/// Why a turn or task was not taken in.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SubmitError {
    /// It breaks a bound, whenever it is submitted.
    #[error("invalid turn: {0}")]
    Invalid(String),
    /// Its id belongs to a turn with other content.
    #[error("the id {0} was used for a turn with other content")]
    Conflict(TurnId),
    /// Too many turns wait for admission; try again later.
    #[error("the queue is full (queue_full); retry later")]
    QueueFull,
    /// The inbox has too many unread replies; read them first.
    #[error("the inbox has too many unread replies (inbox_full); read them first")]
    InboxFull,
    /// The tenant has as many inboxes as it may have; use one that it has.
    #[error("the tenant has too many inboxes (too_many_inboxes); use one that it has, or raise queues.inboxes_max")]
    TooManyInboxes,
    /// Redis' memory is nearly full; try again later.
    #[error("Redis memory is nearly full; new work is rejected (pressure); retry later")]
    Pressure,
    /// Redis did not do what it was asked. A turn without an id may have been taken in all the same.
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

/// A producer's end of a fleet. Cheap to clone; all clones share one connection per shard.
#[derive(Debug, Clone)]
pub struct Client {
    shards: Arc<[Store]>,
}

impl Client {
    /// Connects to the fleet at `url`. `options` have to be the fleet's: namespace, number of shards, bounds.
    ///
    /// # Errors
    /// [`StoreError::Url`], [`StoreError::Connect`]; [`StoreError::Shards`] where the fleet has another number of
    /// shards, for then turns would be put where nobody looks for them.
    pub async fn connect(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        let client = Self::open(url, options)?;
        client.check().await?;
        Ok(client)
    }

    /// As [`Self::connect`], for a process that starts while Redis may be away: nothing is connected yet. Submit nothing
    /// before [`Self::check`] has passed.
    ///
    /// # Errors
    /// [`StoreError::Url`].
    pub fn open(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        Ok(Self { shards: Store::open_all(url, &Arc::new(options))?.into() })
    }

    /// Checks that the fleet has as many shards as this client.
    ///
    /// # Errors
    /// [`StoreError::Connect`]; [`StoreError::Shards`].
    pub async fn check(&self) -> Result<(), StoreError> {
        let ours = u32::try_from(self.shards.len()).unwrap_or(u32::MAX);
        for store in self.shards.iter() {
            if let Some(stored) = store.shard_count().await?.filter(|stored| *stored != ours) {
                return Err(StoreError::Shards { ours, stored: stored.to_string() });
            }
        }
        Ok(())
    }

    /// Tells `observer` of everything that Redis is asked.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        let observed = self.shards.iter().map(|store| store.clone().observed_by(Arc::clone(&observer)));
        Self { shards: observed.collect() }
    }

    /// A producer's end over shards that are open already, all of them in order. For simulations.
    #[must_use]
    pub fn over(shards: Vec<Store>) -> Self {
        Self { shards: shards.into() }
    }

    /// The shard of a tenant: for what this client has no word for.
    #[must_use]
    pub fn store(&self, tenant: &TenantId) -> &Store {
        let shard = shard_of(tenant, u32::try_from(self.shards.len()).unwrap_or(1));
        &self.shards[shard as usize]
    }

    /// All shards, in order.
    #[must_use]
    pub fn stores(&self) -> &[Store] {
        &self.shards
    }

    /// Submits one turn.
    ///
    /// # Errors
    /// [`SubmitError`] says why it was not taken in.
    pub async fn submit(&self, turn: Turn) -> Result<Submitted, SubmitError> {
        let missing = || SubmitError::Invalid("it has no answer".into());
        self.submit_many(vec![turn]).await.pop().unwrap_or_else(|| Err(missing()))
    }

    /// Submits many turns with one script per shard and batch; answers in their order. The shards are asked at the
    /// same time; turns of one shard keep their order.
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

    /// Enqueues a task for an agent. A scheduler validates it; a refusal comes as a `rejected` reply. Answers the
    /// task's id: the producer's own, or the one that is made for it.
    ///
    /// # Errors
    /// [`SubmitError`] says why it was not taken in.
    pub async fn delegate(&self, task: Task) -> Result<TaskId, SubmitError> {
        let message = write_task(&task);
        if message.len() > limits::TURN_BYTES_MAX {
            let (found, max) = (message.len(), limits::TURN_BYTES_MAX);
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
            Word::Accepted { entry } => entry,
            // An ID of another task has its reply from the scheduler.
            Word::Duplicate | Word::Conflict => String::new(),
            Word::QueueFull => return Err(SubmitError::QueueFull),
            Word::InboxFull => return Err(SubmitError::InboxFull),
            Word::TooManyInboxes => return Err(SubmitError::TooManyInboxes),
            Word::Pressure => return Err(SubmitError::Pressure),
        };
        match task.id {
            Some(id) => Ok(id),
            None => TaskId::new(format!("k{entry}")).map_err(|error| SubmitError::Invalid(error.to_string())),
        }
    }

    /// Returns true if the id that its producer gave this task belongs to another one, or to a turn. While messages with one id
    /// wait for their decision, none of them has it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_taken(&self, task: &Task) -> Result<bool, StoreError> {
        let Some(id) = &task.id else { return Ok(false) };
        if !has_own_content(task) {
            return Ok(false);
        }
        let found = self.store(&task.tenant).content_of(&TurnName::task(&task.tenant, id)).await?;
        Ok(found.is_some_and(|found| found != task_digest(task)))
    }

    /// Asks for the end of a turn or task. Calls that run already end first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn cancel(&self, name: &TurnName, reason: &str) -> Result<CancelResult, StoreError> {
        self.store(&name.tenant).cancel(name, reason).await
    }

    /// The reply to a turn or task as its record keeps it: for one whose reply was lost on its way, was read by somebody
    /// else, or was to go to no inbox.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reply(&self, name: &TurnName) -> Result<Recorded, StoreError> {
        replies::recorded(self.store(&name.tenant), name).await
    }

    /// What was taken in under this name, and nobody has decided about so far; none of what nobody has taken in, or somebody
    /// has decided about. Whoever asks for this first, and for the record then, misses nothing in between.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn undecided(&self, name: &TurnName) -> Result<Option<Undecided>, StoreError> {
        undecided::undecided(self.store(&name.tenant), name).await
    }

    /// Watches a task: what happens to it as a stream of events, from the beginning to its end.
    #[must_use]
    pub fn watch(&self, task: &TurnName) -> Watch {
        Watch::new(self.store(&task.tenant).clone(), task.clone())
    }

    /// Watches a task from a [position](Progress::position) on.
    #[must_use]
    pub fn watch_from(&self, task: &TurnName, position: usize) -> Watch {
        Watch::from(self.store(&task.tenant).clone(), task.clone(), position)
    }

    /// A tenant's tasks, the newest first: one [page](tasks::task_page).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tasks(
        &self,
        tenant: &TenantId,
        filter: &tasks::TaskFilter,
    ) -> Result<Vec<tasks::TaskSummary>, StoreError> {
        Ok(tasks::task_page(self, &BTreeSet::from([tenant.clone()]), filter, None).await?.tasks)
    }

    /// The story of a task with the tasks below it; none where nothing is known.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn task(&self, task: &TurnName) -> Result<Option<tasks::TaskStory>, StoreError> {
        tasks::task_story(self.store(&task.tenant), task).await
    }

    /// Ends a task, its turn that is out, and the tasks below it.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be asked again.
    pub async fn cancel_task(&self, task: &TurnName, reason: &str) -> Result<tasks::CancelledTask, StoreError> {
        tasks::cancel_task(self.store(&task.tenant), task, reason).await
    }

    /// The approvals of a tenant that wait for people, `count` at most, those first that end first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn approvals(&self, tenant: &TenantId, count: usize) -> Result<Vec<Approval>, StoreError> {
        approvals::list(self.store(tenant), tenant, count).await
    }

    /// One approval; none where it was never asked for, or ended longer ago than they are kept.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn approval(&self, tenant: &TenantId, id: &str) -> Result<Option<Approval>, StoreError> {
        approvals::find(self.store(tenant), tenant, id).await
    }

    /// The approval of this id, whichever of these tenants it is of: one question to each shard for a thousand of them.
    ///
    /// # Errors
    /// [`StoreError`].
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

    /// A person agrees to a call that waits for it, or denies it. Whether that one is who it says is for the caller to
    /// know.
    ///
    /// # Errors
    /// [`ApprovalError`] says why it does not count.
    pub async fn decide_approval(
        &self,
        tenant: &TenantId,
        id: &str,
        verdict: &Verdict<'_>,
    ) -> Result<Counted, ApprovalError> {
        approvals::decide(self.store(tenant), tenant, id, verdict).await
    }

    /// Reads the replies of an inbox, from the oldest that is there.
    #[must_use]
    pub fn replies(&self, tenant: &TenantId, inbox: &InboxName) -> Replies {
        Replies::new(self.store(tenant).clone(), tenant.clone(), inbox.clone())
    }
}

/// Returns true if the digest of the task is known before its decision. Without a delegator, the agent of its parent
/// delegates it.
const fn has_own_content(task: &Task) -> bool {
    task.parent.is_none() || task.delegator.is_some()
}

/// A name for an inbox that nobody else uses: `<purpose>-…`. Give it up with [`Replies::forget`].
#[must_use]
pub fn private_inbox(purpose: &str) -> InboxName {
    let unique = tickfleet_store::incarnation("r", purpose);
    // An incarnation is an id, and short enough for an inbox but for a very long purpose.
    InboxName::new(unique.as_str()).unwrap_or_else(|_| private_inbox("reader"))
}

/// Returns what the store submits, if it is within the bounds of a turn.
fn submission(turn: &Turn) -> Result<Submission, SubmitError> {
    let calls = turn.calls.len();
    // A plain answer may call nothing.
    let none = calls == 0 && !about(turn.dialect).in_words;
    if none || calls > limits::CALLS_PER_TURN_MAX {
        let max = limits::CALLS_PER_TURN_MAX;
        return Err(SubmitError::Invalid(format!("it has {calls} calls; 1 to {max} are allowed")));
    }
    let payload = write_turn(turn);
    if payload.len() > limits::TURN_BYTES_MAX {
        let (found, max) = (payload.len(), limits::TURN_BYTES_MAX);
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

/// Submits turns of one shard in batches that a script takes.
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

/// Counts the turns of these that one script takes: at least one, and no more than its bounds allow.
fn batch_length(turns: &[Submission]) -> usize {
    let mut bytes = 0;
    let fits = |turn: &&Submission| {
        bytes += turn.payload.len();
        bytes <= limits::BATCH_BYTES_MAX
    };
    turns.iter().take(limits::BATCH_ENTRIES_MAX).take_while(fits).count().max(1)
}

fn answer(turn: &Submission, word: Word) -> Result<Submitted, SubmitError> {
    // The same name as the scheduler mints for an inbound entry.
    let minted = |entry: &str| TurnId::new(format!("t{entry}")).map_err(|e| SubmitError::Invalid(e.to_string()));
    match (word, &turn.turn) {
        (Word::Accepted { entry }, None) => Ok(Submitted { turn_id: minted(&entry)?, duplicate: false }),
        (Word::Accepted { .. }, Some(id)) => Ok(Submitted { turn_id: id.clone(), duplicate: false }),
        (Word::Duplicate, Some(id)) => Ok(Submitted { turn_id: id.clone(), duplicate: true }),
        (Word::Conflict, Some(id)) => Err(SubmitError::Conflict(id.clone())),
        (Word::Duplicate | Word::Conflict, None) => {
            Err(SubmitError::Invalid("a turn without an id cannot have been accepted before".into()))
        }
        (Word::QueueFull, _) => Err(SubmitError::QueueFull),
        (Word::InboxFull, _) => Err(SubmitError::InboxFull),
        (Word::TooManyInboxes, _) => Err(SubmitError::TooManyInboxes),
        (Word::Pressure, _) => Err(SubmitError::Pressure),
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
    fn a_batch_is_bounded_by_entries_and_bytes_and_takes_one_turn_at_least() {
        let small: Vec<_> = (0..300).map(|_| submission_of(10)).collect();
        assert_eq!(batch_length(&small), limits::BATCH_ENTRIES_MAX);
        let large: Vec<_> = (0..8).map(|_| submission_of(limits::TURN_BYTES_MAX)).collect();
        assert_eq!(batch_length(&large), limits::BATCH_BYTES_MAX / limits::TURN_BYTES_MAX);
        assert_eq!(batch_length(&[submission_of(limits::BATCH_BYTES_MAX + 1)]), 1);
    }

    #[test]
    fn a_minted_id_derives_from_the_entry_and_a_given_one_stays() {
        let accepted = || Word::Accepted { entry: "17-3".into() };
        assert_eq!(answer(&submission_of(1), accepted()).unwrap().turn_id.as_str(), "t17-3");
        let given = Submission { turn: TurnId::new("mine").ok(), ..submission_of(1) };
        assert_eq!(answer(&given, accepted()).unwrap().turn_id.as_str(), "mine");
        assert!(answer(&given, Word::Duplicate).unwrap().duplicate);
    }

    #[test]
    fn private_inboxes_differ() {
        let (one, two) = (private_inbox("cli"), private_inbox("cli"));
        assert_ne!(one, two);
        assert!(one.as_str().starts_with("r-cli-"), "{one}");
    }
}
