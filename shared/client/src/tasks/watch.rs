//! The events of one task as a stream.

use std::collections::VecDeque;
use std::time::Duration;

use futures::Stream;
use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_core::turn::Turn;
use tickfleet_store::{DeadLetter, Store, StoreError, TaskSteps, TurnName, TurnView};
use tokio::time::Instant;

use super::details::{TaskWait, WaitReason, wait_of};
use super::history::{HistoryStep, PlannedCall};
use super::turn_of;
use crate::replies::Reply;

const POLL_EVERY: Duration = Duration::from_millis(250);
/// After this time, an unknown task may have been rejected, so search the dead letters.
const REFUSED_AFTER: Duration = Duration::from_secs(1);
const LETTERS: usize = 100;

/// An event of a task.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TaskEvent {
    /// The task was stored.
    Accepted {
        /// The agent that does the work.
        agent: String,
        /// Time of acceptance (ms of shard time).
        at_ms: i64,
    },
    /// The model has responded. An answer follows as a separate event.
    Plan {
        /// The model.
        model: String,
        /// The text of the response.
        #[serde(skip_serializing_if = "String::is_empty")]
        text: String,
        /// The calls that the model requested.
        calls: Vec<PlannedCall>,
    },
    /// The calls were submitted as a turn.
    Execute {
        /// The turn.
        turn: String,
    },
    /// A call has a result.
    Result {
        /// The tool.
        tool: String,
        /// True if the call succeeded.
        ok: bool,
        /// The result, as the model receives it.
        content: String,
    },
    /// The model received a note in addition to results.
    Note {
        /// The text.
        text: String,
    },
    /// The model received a message from another agent.
    AgentMessage {
        /// The sender.
        from: String,
        /// The text.
        text: String,
    },
    /// The task waits for another turn or task, an approval, or a retry.
    Waiting {
        /// The reason of the wait, or the ID of a turn or task.
        #[serde(rename = "for")]
        what: String,
        /// The latest end of the wait (ms of shard time), if known.
        #[serde(skip_serializing_if = "Option::is_none")]
        until_ms: Option<i64>,
    },
    /// The task's calls wait for a cap or limit.
    Capped {
        /// The cap or limit.
        limit: String,
        /// The time of the next check (ms of shard time), if known.
        #[serde(skip_serializing_if = "Option::is_none")]
        until_ms: Option<i64>,
    },
    /// The task succeeded.
    Answer {
        /// The answer as text, or the JSON of an output without text.
        answer: String,
        /// The whole output.
        output: Box<RawValue>,
    },
    /// The task failed.
    Failed {
        /// An outcome, `rejected` or `record_expired`.
        outcome: String,
        /// The reason.
        message: String,
    },
}

impl TaskEvent {
    /// True for the last event.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::Answer { .. } | Self::Failed { .. })
    }
}

/// An event and its position.
#[derive(Debug, Clone, Serialize)]
pub struct TaskProgress {
    /// Number of reported history entries. To continue after this event, pass it to [`TaskWatcher::from`].
    pub position: usize,
    /// The event.
    #[serde(flatten)]
    pub event: TaskEvent,
}

/// Watches one task: reads it four times a second.
#[derive(Debug)]
pub struct TaskWatcher {
    store: Store,
    name: TurnName,
    position: usize,
    accepted: bool,
    since: Instant,
    reported_wait: Option<WaitReason>,
    /// The number of plans in the history. `None` if the history before the position is not counted yet.
    plans: Option<usize>,
    executed: bool,
    ready: VecDeque<TaskProgress>,
    ended: bool,
    looked: bool,
}

impl TaskWatcher {
    /// Watches a task from the beginning.
    #[must_use]
    pub fn new(store: Store, name: TurnName) -> Self {
        Self::from(store, name, 0)
    }

    /// Watches a task from a position, without the events before it.
    #[must_use]
    pub fn from(store: Store, name: TurnName, position: usize) -> Self {
        let ready = VecDeque::new();
        let since = Instant::now();
        let accepted = position > 0;
        let plans = (position == 0).then_some(0);
        let reported_wait = None;
        let executed = false;
        let ended = false;
        let looked = false;
        Self { store, name, position, accepted, since, reported_wait, plans, executed, ready, ended, looked }
    }

    /// The watched task.
    #[must_use]
    pub const fn name(&self) -> &TurnName {
        &self.name
    }

    /// Waits for the next event. Returns `None` after the last event.
    ///
    /// # Errors
    /// [`StoreError`]; call again, no event is lost.
    pub async fn next(&mut self) -> Result<Option<TaskProgress>, StoreError> {
        loop {
            if let Some(progress) = self.ready.pop_front() {
                self.ended = progress.event.is_end();
                return Ok(Some(progress));
            }
            if self.ended {
                return Ok(None);
            }
            // If the caller drops the future during this sleep, no event is lost.
            if self.looked {
                tokio::time::sleep(POLL_EVERY).await;
            }
            self.poll().await?;
            self.looked = self.ready.is_empty();
        }
    }

    /// The stream ends after the last event, or after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<TaskProgress, StoreError>> {
        futures::stream::unfold(Some(self), |watch| async {
            let mut watch = watch?;
            match watch.next().await {
                Ok(Some(progress)) => Some((Ok(progress), Some(watch))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    async fn catch_up(&mut self) -> Result<(), StoreError> {
        let steps = self.store.steps(&self.name, 0).await?;
        let mut plans = 0;
        for entry in steps.iter().take(self.position) {
            match HistoryStep::read(entry) {
                HistoryStep::Plan(_) => (plans, self.executed) = (plans + 1, false),
                HistoryStep::Result(_) => self.executed = true,
                HistoryStep::Note { .. }
                | HistoryStep::AgentMessage { .. }
                | HistoryStep::Summary(_)
                | HistoryStep::Other => {}
            }
        }
        self.plans = Some(plans);
        Ok(())
    }

    async fn poll(&mut self) -> Result<(), StoreError> {
        if self.plans.is_none() {
            self.catch_up().await?;
        }
        let pulse = self.store.task_steps(&self.name, self.position).await?;
        if !self.accepted && (pulse.live.is_some() || pulse.ended) {
            self.accept(pulse.live.as_ref()).await?;
        }
        for entry in &pulse.steps {
            self.position += 1;
            self.reported_wait = None;
            self.step(HistoryStep::read(entry));
        }
        if !pulse.steps.is_empty() {
            return Ok(());
        }
        match &pulse.live {
            Some(turn) => self.wait(turn, &pulse).await,
            None if pulse.ended => self.end().await,
            None => self.unknown().await,
        }
    }

    fn step(&mut self, step: HistoryStep) {
        match &step {
            HistoryStep::Plan(_) => {
                self.plans = self.plans.map(|plans| plans + 1);
                self.executed = false;
            }
            // The turn can start and end between two reads. In that case, the event `Execute` is still missing.
            HistoryStep::Result(_) => {
                if let Some(turn) = turn_of(&self.name, self.plans.unwrap_or_default()) {
                    // The position excludes the result: a watcher that continues from here must still receive it.
                    self.execute(turn.turn.as_str(), self.position.saturating_sub(1));
                }
            }
            HistoryStep::Note { .. }
            | HistoryStep::AgentMessage { .. }
            | HistoryStep::Summary(_)
            | HistoryStep::Other => {}
        }
        if let Some(event) = event_of(step) {
            self.push_event(event);
        }
    }

    fn execute(&mut self, turn: &str, position: usize) {
        if !self.executed {
            self.executed = true;
            self.ready.push_back(TaskProgress { position, event: TaskEvent::Execute { turn: turn.to_owned() } });
        }
    }

    fn push_event(&mut self, event: TaskEvent) {
        self.ready.push_back(TaskProgress { position: self.position, event });
    }

    async fn accept(&mut self, live: Option<&Turn>) -> Result<(), StoreError> {
        let (agent, at_ms) = match live {
            Some(turn) => (Some(turn.head.agent.to_string()), Some(turn.admitted_ms)),
            None => match self.store.turn_view(&self.name).await? {
                TurnView::Finished(finished) => {
                    let agent = serde_json::from_str::<Reply>(&finished.reply).ok().map(|reply| reply.agent);
                    (agent, Some(finished.admitted_ms))
                }
                TurnView::Live(_) | TurnView::Unknown => (None, None),
            },
        };
        self.accepted = true;
        self.push_event(TaskEvent::Accepted { agent: agent.unwrap_or_default(), at_ms: at_ms.unwrap_or_default() });
        Ok(())
    }

    async fn wait(&mut self, turn: &Turn, pulse: &TaskSteps) -> Result<(), StoreError> {
        let Some(TaskWait { reason, until_ms }) = wait_of(&self.store, &self.name, turn, pulse.timer_ms).await? else {
            return Ok(());
        };
        if self.reported_wait.as_ref() == Some(&reason) {
            return Ok(());
        }
        if let Some(turn) = reason.turn() {
            self.execute(turn, self.position);
        }
        match &reason {
            WaitReason::Turn { .. } => {}
            WaitReason::Capped { limit, .. } => self.push_event(TaskEvent::Capped { limit: limit.clone(), until_ms }),
            WaitReason::Approval { approval, tool, .. } => {
                let what = format!("an approval of {tool} ({}:{approval})", self.name.tenant);
                self.push_event(TaskEvent::Waiting { what, until_ms });
            }
            WaitReason::Child { task, .. } => self.push_event(TaskEvent::Waiting { what: task.clone(), until_ms }),
            WaitReason::Retry => self.push_event(TaskEvent::Waiting { what: "its next try".into(), until_ms }),
        }
        self.reported_wait = Some(reason);
        Ok(())
    }

    async fn end(&mut self) -> Result<(), StoreError> {
        let event = match self.store.turn_view(&self.name).await? {
            TurnView::Finished(finished) => ended(&finished.reply),
            TurnView::Live(_) => return Ok(()),
            TurnView::Unknown => record_expired(),
        };
        self.push_event(event);
        Ok(())
    }

    async fn unknown(&mut self) -> Result<(), StoreError> {
        if self.accepted {
            self.push_event(record_expired());
            return Ok(());
        }
        if self.since.elapsed() < REFUSED_AFTER {
            return Ok(());
        }
        self.since = Instant::now();
        let letters = self.store.dead_letters(LETTERS).await?;
        if let Some(letter) = letters.into_iter().find(|letter| is_about(letter, &self.name)) {
            let message = format!("The task was rejected: {}.", letter.reason);
            self.push_event(TaskEvent::Failed { outcome: "rejected".into(), message });
        }
        Ok(())
    }
}

/// If the letter has no tenant, compares the tenant in the message.
fn is_about(letter: &DeadLetter, name: &TurnName) -> bool {
    let says = |member: &str, value: &str| {
        ["", " "].iter().any(|blank| letter.raw.contains(&format!("\"{member}\":{blank}\"{value}\"")))
    };
    let tenant = name.tenant.as_str();
    let minted = name.turn.as_str().strip_prefix('k').is_some_and(|entry| entry == letter.entry);
    let of_tenant = letter.tenant == tenant || letter.tenant.is_empty() && says("tenant", tenant);
    letter.from == "tasks" && of_tenant && (minted || says("task_id", name.turn.as_str()))
}

fn event_of(step: HistoryStep) -> Option<TaskEvent> {
    Some(match step {
        HistoryStep::Plan(plan) => TaskEvent::Plan { model: plan.model, text: plan.text, calls: plan.calls },
        HistoryStep::Result(result) => TaskEvent::Result { tool: result.tool, ok: result.ok, content: result.content },
        HistoryStep::Note { text } => TaskEvent::Note { text },
        HistoryStep::AgentMessage { from, text } => TaskEvent::AgentMessage { from, text },
        HistoryStep::Summary(summary) => {
            TaskEvent::Note { text: format!("{} summarized the steps so far: {}", summary.model, summary.text) }
        }
        HistoryStep::Other => return None,
    })
}

fn record_expired() -> TaskEvent {
    TaskEvent::Failed {
        outcome: "record_expired".into(),
        message: "The task has ended, and its record has expired.".into(),
    }
}

fn ended(reply: &str) -> TaskEvent {
    let failed = |outcome: &str, message: String| TaskEvent::Failed { outcome: outcome.to_owned(), message };
    let result = serde_json::from_str::<Reply>(reply).ok().and_then(|reply| reply.results.into_iter().next());
    let Some(result) = result else { return failed("internal", "Its result cannot be read.".into()) };
    match (result.success, result.output) {
        (true, Some(output)) => TaskEvent::Answer { answer: answer_of(&output), output },
        _ => {
            let message = result.error.map_or_else(String::new, |error| error.message);
            failed(result.outcome.as_str(), message)
        }
    }
}

pub(crate) fn answer_of(output: &RawValue) -> String {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum TaskOutput {
        Answer { answer: String },
        Text(String),
    }
    match serde_json::from_str(output.get()) {
        Ok(TaskOutput::Answer { answer: text } | TaskOutput::Text(text)) => text,
        Err(_) => output.get().to_owned(),
    }
}
