//! A conversation with an agent: each user message becomes a task, which also receives the earlier messages.
//!
//! ```no_run
//! use tickfleet_client::model::{AgentId, Context, TenantId};
//! use tickfleet_client::{Client, Session, SessionId, StoreOptions, TaskEvent};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("redis://127.0.0.1/", StoreOptions::default()).await?;
//! let (tenant, agent) = (TenantId::new("demo")?, AgentId::new("atlas")?);
//! let session = Session::open(&client, tenant, agent, SessionId::new("release-7")?, Context::default());
//! let mut exchange = session.send("What is left to do for the release?").await?;
//! while let Some(progress) = exchange.next().await? {
//!     if let TaskEvent::Answer { answer, .. } = progress.event {
//!         println!("{answer}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The conversation is stored in Redis. Opening a session with the same name continues the conversation. An agent that
//! runs on a model stores its answer itself, so the answer is kept even if the client has exited.

use std::fmt;

use serde::{Deserialize, Serialize};
use tickfleet_model::{AgentId, Context, Priority, SessionName, Task, TaskGrant, TaskId, TenantId, limits};
use tickfleet_store::{MessageResult, SessionRecord, Side, Store, StoreError, TurnName};

use crate::tasks::{CanceledTask, TaskEvent, TaskProgress, TaskWatcher, cancel_task};
use crate::{Client, SubmitError};

/// Shorter than an ID, because the IDs of the session's tasks contain the session's name.
const ID_BYTES_MAX: usize = 64;
const TASKS: &str = "ses-";
const PLACES_TRIED: usize = 8;

/// The name of a session within its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SessionId(SessionName);

/// The text is not a session name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a session name: expected 1 to 64 letters, digits, _ or -")]
pub struct InvalidSessionId(String);

impl SessionId {
    /// Checks a session name.
    pub fn new(id: impl Into<String>) -> Result<Self, InvalidSessionId> {
        let id = id.into();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let is_one = !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(plain);
        let invalid = || InvalidSessionId(id.chars().take(80).collect());
        if is_one { SessionName::new(&*id).map(Self).map_err(|_| invalid()) } else { Err(invalid()) }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl std::str::FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        Self::new(text)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A task's position in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeRef {
    /// The session.
    pub session: SessionId,
    /// The number of the exchange, from 1.
    pub number: u64,
}

impl ExchangeRef {
    /// Returns `None` if the ID does not have the form of a session's task ID. A task outside the session can have an
    /// ID of this form.
    #[must_use]
    pub fn of_task(task: &str) -> Option<Self> {
        let (session, number) = task.strip_prefix(TASKS)?.rsplit_once('-')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        Some(Self { session: SessionId::new(session).ok()?, number })
    }

    fn task(&self) -> String {
        format!("{TASKS}{}-{}", self.session, self.number)
    }
}

/// A user message and the agent's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionExchange {
    /// The number, from 1.
    pub number: u64,
    /// The user's message.
    pub user: String,
    /// `None` until an answer is stored. A task can end without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// Includes the task's ID, because a task outside the session can have an ID of the same form.
#[derive(Serialize, Deserialize)]
struct StoredMessage {
    task: String,
    text: String,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The message is empty or too long.
    #[error("a message has 1 to {max} bytes, this one has {found}", max = limits::TASK_DESCRIPTION_BYTES_MAX)]
    Length {
        /// The length found, in bytes.
        found: usize,
    },
    /// The session belongs to another agent.
    #[error("the session {0} belongs to another agent; choose another name")]
    Others(SessionId),
    /// Too many messages were sent concurrently.
    #[error("too many concurrent messages in this session; retry")]
    Busy,
    /// The task was not accepted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The request to Redis failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A conversation with one agent.
#[derive(Debug, Clone)]
pub struct Session {
    client: Client,
    tenant: TenantId,
    agent: AgentId,
    id: SessionId,
    context: Context,
}

impl Session {
    /// Opens a new session, or continues an existing one. Each task of the session receives `context`.
    #[must_use]
    pub fn open(client: &Client, tenant: TenantId, agent: AgentId, id: SessionId, context: Context) -> Self {
        Self { client: client.clone(), tenant, agent, id, context }
    }

    /// The session's name.
    #[must_use]
    pub const fn id(&self) -> &SessionId {
        &self.id
    }

    /// Returns the stored exchanges. At most 50 exchanges and 256 KiB are kept, for 7 days.
    pub async fn history(&self) -> Result<Vec<SessionExchange>, SessionError> {
        let record = self.record().await?;
        Ok(record
            .exchanges
            .into_iter()
            .filter_map(|(number, user, agent)| session_exchange(number, &user, agent))
            .collect())
    }

    /// Submits the message as a task. The task also receives the earlier exchanges.
    ///
    /// # Errors
    /// [`SessionError`]. If the task was not accepted, the message stays in the session without an answer.
    pub async fn send(&self, text: &str) -> Result<Exchange, SessionError> {
        let found = text.len();
        if text.trim().is_empty() || found > limits::TASK_DESCRIPTION_BYTES_MAX {
            return Err(SessionError::Length { found });
        }
        let place = self.reserve_exchange(text).await?;
        let task = TaskId::new(place.task()).map_err(|error| SubmitError::Invalid(error.to_string()))?;
        self.client.delegate(self.task(&task, text)).await?;
        let name = TurnName::task(&self.tenant, &task);
        let watch = TaskWatcher::new(self.store().clone(), name);
        Ok(Exchange { session: self.clone(), place, task, watch, answer: None })
    }

    async fn reserve_exchange(&self, text: &str) -> Result<ExchangeRef, SessionError> {
        for _ in 0..PLACES_TRIED {
            let place = ExchangeRef { session: self.id.clone(), number: self.record().await?.last + 1 };
            let kept = StoredMessage { task: place.task(), text: text.to_owned() };
            let kept = serde_json::to_string(&kept).map_err(|error| SubmitError::Invalid(error.to_string()))?;
            let added = self
                .store()
                .add_message(&self.tenant, &self.id.0, &self.agent, place.number, Side::User, &kept)
                .await?;
            match added {
                MessageResult::Done => return Ok(place),
                MessageResult::OtherAgent => return Err(SessionError::Others(self.id.clone())),
                // Another sender has used this number, even for an equal message (`Already`), so try the next number.
                MessageResult::Already | MessageResult::Conflict | MessageResult::Gap => {}
            }
        }
        Err(SessionError::Busy)
    }

    async fn record(&self) -> Result<SessionRecord, SessionError> {
        let record = self.store().session(&self.tenant, &self.id.0).await?;
        match &record.agent {
            Some(agent) if *agent != self.agent => Err(SessionError::Others(self.id.clone())),
            _ => Ok(record),
        }
    }

    fn store(&self) -> &Store {
        self.client.store(&self.tenant)
    }

    fn task(&self, id: &TaskId, text: &str) -> Task {
        Task {
            id: Some(id.clone()),
            tenant: self.tenant.clone(),
            target: self.agent.clone(),
            delegator: None,
            description: text.to_owned(),
            input: None,
            priority: Priority::High,
            deadline_ms: None,
            reply_to: None,
            parent: None,
            grant: TaskGrant { budget: limits::TASK_BUDGET_DEFAULT, ..TaskGrant::default() },
            context: self.context.clone(),
        }
    }
}

/// A user message and the task that answers it.
#[derive(Debug)]
pub struct Exchange {
    session: Session,
    place: ExchangeRef,
    task: TaskId,
    watch: TaskWatcher,
    /// The answer while the client stores it. If the caller drops the future of `next`, the next call returns the
    /// answer.
    answer: Option<TaskProgress>,
}

impl Exchange {
    /// The task that answers the message.
    #[must_use]
    pub const fn task(&self) -> &TaskId {
        &self.task
    }

    /// Waits for the next event. Returns `None` after the last event.
    ///
    /// # Errors
    /// [`StoreError`]; call `next` again: no event is lost.
    pub async fn next(&mut self) -> Result<Option<TaskProgress>, StoreError> {
        if self.answer.is_none() {
            let progress = self.watch.next().await?;
            match progress {
                Some(progress) if matches!(progress.event, TaskEvent::Answer { .. }) => self.answer = Some(progress),
                other => return Ok(other),
            }
        }
        if let Some(TaskProgress { event: TaskEvent::Answer { answer, .. }, .. }) = &self.answer {
            // If the agent runs on a model, the answer is already stored, and this call changes nothing.
            let session = &self.session;
            store_answer(session.store(), &session.tenant, &session.agent, &self.place, answer).await?;
        }
        Ok(self.answer.take())
    }

    /// Cancels the task, its current turn, and all tasks below it.
    pub async fn cancel(&self, reason: &str) -> Result<CanceledTask, StoreError> {
        cancel_task(self.session.store(), &TurnName::task(&self.session.tenant, &self.task), reason).await
    }
}

/// Returns the exchanges before the exchange of `task`. Returns `None` if `task` belongs to no session of this agent.
pub async fn earlier_exchanges(
    store: &Store,
    tenant: &TenantId,
    agent: &AgentId,
    task: &str,
) -> Result<Option<(ExchangeRef, Vec<SessionExchange>)>, StoreError> {
    let Some(place) = ExchangeRef::of_task(task) else { return Ok(None) };
    let record = store.session(tenant, &place.session.0).await?;
    let is_ours = record.exchanges.iter().any(|(number, user, _)| {
        *number == place.number && serde_json::from_str::<StoredMessage>(user).is_ok_and(|kept| kept.task == task)
    });
    if !is_ours || record.agent.as_ref() != Some(agent) {
        return Ok(None);
    }
    let before = record.exchanges.into_iter().filter(|(number, ..)| *number < place.number);
    let before = before.filter_map(|(number, user, answer)| session_exchange(number, &user, answer)).collect();
    Ok(Some((place, before)))
}

/// Stores the agent's answer. A second call does not replace the answer.
///
/// # Errors
/// [`StoreError`]; the call can be repeated.
pub async fn store_answer(
    store: &Store,
    tenant: &TenantId,
    agent: &AgentId,
    place: &ExchangeRef,
    answer: &str,
) -> Result<(), StoreError> {
    let answer = beginning(answer, limits::SESSION_ANSWER_BYTES_MAX);
    store.add_message(tenant, &place.session.0, agent, place.number, Side::Agent, answer).await.map(|_| ())
}

fn session_exchange(number: u64, user: &str, agent: Option<String>) -> Option<SessionExchange> {
    Some(SessionExchange { number, user: serde_json::from_str::<StoredMessage>(user).ok()?.text, agent })
}

fn beginning(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_task_id_encodes_its_session_and_number() {
        let place = ExchangeRef { session: SessionId::new("release-7").unwrap(), number: 12 };
        assert_eq!(ExchangeRef::of_task(&place.task()), Some(place));
        for other in ["job-1", "ses-x", "ses-x-0", "ses--1", "ses-a:b-1", "ses-x-y"] {
            assert_eq!(ExchangeRef::of_task(other), None, "{other}");
        }
        assert!(SessionId::new("a:b").is_err() && SessionId::new("x".repeat(65)).is_err());
    }
}
