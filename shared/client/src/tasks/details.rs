use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_core::turn::{State, Turn, WaitReason as Waits};
use tickfleet_model::{Outcome, Redactor, TaskId};
use tickfleet_store::{Store, StoreError, ThrottledTurn, TurnName, TurnView};

use super::history::HistoryStep;
use super::list::{TaskState, TaskSummary, summary};
use super::{task_id, turn_of};
use crate::replies::Reply;
use crate::turn_status::limit_of;

const TREE_MAX: usize = 200;
const CHILDREN_MAX: usize = 50;

/// The details of a task.
#[derive(Debug, Serialize)]
pub struct TaskDetails {
    /// The task as listed.
    #[serde(flatten)]
    pub summary: TaskSummary,
    /// Empty if the task does not run on a model.
    pub rounds: Vec<Round>,
    /// `None` if the task does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<TaskWait>,
    /// The task's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// `None` if the task did not fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The reason of the cancel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<String>,
    /// The tasks that this task delegated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<TaskDetails>,
}

impl TaskDetails {
    /// Sorts failed tasks, and tasks with a failed task below, first at each level. Returns the path to the first
    /// failed task without a failed subtask; empty if no task has failed.
    pub fn failing_first(&mut self) -> Vec<TaskId> {
        let mut first = Vec::new();
        let mut failing = Vec::new();
        let mut others = Vec::new();
        for mut child in std::mem::take(&mut self.children) {
            let path = child.failing_first();
            if path.is_empty() {
                others.push(child);
            } else {
                failing.push(child);
                first = if first.is_empty() { path } else { first };
            }
        }
        self.children = failing.into_iter().chain(others).collect();
        let has_failed = self.summary.outcome.as_ref().is_some_and(|outcome| outcome != Outcome::Ok.as_str());
        if has_failed || !first.is_empty() {
            first.insert(0, self.summary.id.clone());
        }
        first
    }

    /// Removes secrets from texts, arguments and results.
    #[must_use]
    pub fn without_secrets(mut self, redactor: &Redactor) -> Self {
        let text = |text: &mut String| *text = redactor.text(text).into_owned();
        let json = |text: &mut String| *text = redactor.json(text).into_owned();
        self.summary.description.iter_mut().for_each(text);
        self.error.iter_mut().chain(&mut self.cancelled).for_each(text);
        self.output = self.output.map(|output| {
            RawValue::from_string(redactor.json(output.get()).into_owned())
                .unwrap_or_else(|_| RawValue::NULL.to_owned())
        });
        for round in &mut self.rounds {
            std::iter::once(&mut round.text).chain(&mut round.notes).for_each(text);
            for call in &mut round.calls {
                std::iter::once(&mut call.arguments).chain(&mut call.content).for_each(json);
            }
        }
        self.children = self.children.into_iter().map(|child| child.without_secrets(redactor)).collect();
        self
    }
}

/// A round of the model loop.
#[derive(Debug, Default, Serialize)]
pub struct Round {
    /// The round's number, from 1.
    pub number: usize,
    /// The model.
    pub model: String,
    /// The text of the response.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Tokens of the request.
    pub input_tokens: u64,
    /// Tokens of the response.
    pub output_tokens: u64,
    /// The cost, in millionths of the currency.
    pub cost_micros: u64,
    /// `None` if the round has no calls, or if the task's ID is too long for the turn's ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// Time of the turn's admission (ms of shard time). `None` before the admission, or if the turn's record has
    /// expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executed_ms: Option<i64>,
    /// Time of the turn's end (ms of shard time). `None` before the end, or if the turn's record has expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validated_ms: Option<i64>,
    /// The calls.
    pub calls: Vec<TaskCall>,
    /// Notes and messages that the model received in addition to results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A call of a round.
#[derive(Debug, Serialize)]
pub struct TaskCall {
    /// The tool.
    pub tool: String,
    /// The call's arguments, as the model wrote them.
    pub arguments: String,
    /// `None` if the call has no result yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<bool>,
    /// The result, as the model receives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// The wait of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskWait {
    /// The reason.
    #[serde(flatten)]
    pub reason: WaitReason,
    /// The end of the wait, or the time of the next check (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

/// Why a task waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "waits", rename_all = "snake_case")]
pub enum WaitReason {
    /// The turn with the task's calls has not ended.
    Turn {
        /// The turn.
        turn: String,
    },
    /// The task's calls wait for a cap or limit.
    Capped {
        /// The turn.
        turn: String,
        /// The cap or limit.
        limit: String,
    },
    /// A call of the task waits for another task.
    Child {
        /// The turn with the waiting call.
        turn: String,
        /// The task for which the call waits.
        task: String,
    },
    /// A call of the task waits for an approval.
    Approval {
        /// The turn with the waiting call.
        turn: String,
        /// The approval.
        approval: String,
        /// The call's tool.
        tool: String,
    },
    /// The task waits for a retry.
    Retry,
}

impl WaitReason {
    pub(super) fn turn(&self) -> Option<&str> {
        match self {
            Self::Turn { turn }
            | Self::Capped { turn, .. }
            | Self::Child { turn, .. }
            | Self::Approval { turn, .. } => Some(turn),
            Self::Retry => None,
        }
    }
}

/// Returns a task and the tasks below it. Returns `None` for an unknown task.
pub async fn task_details(store: &Store, name: &TurnName) -> Result<Option<TaskDetails>, StoreError> {
    let mut left = TREE_MAX;
    let story = one(store, name, &mut left).await?;
    Ok(Some(story).filter(|story| story.summary.state != TaskState::RecordExpired || !story.rounds.is_empty()))
}

async fn one(store: &Store, name: &TurnName, left: &mut usize) -> Result<TaskDetails, StoreError> {
    let view = store.turn_view(name).await?;
    let steps = store.steps(name, 0).await?;
    let id = task_id(name).ok_or_else(|| StoreError::Reply { verb: "look", found: format!("{name} is not a task") })?;
    let mut story = TaskDetails {
        summary: summary(&name.tenant, id, &view),
        rounds: rounds(steps.iter().map(|entry| HistoryStep::read(entry))),
        waits: None,
        output: None,
        error: None,
        cancelled: None,
        children: Vec::new(),
    };
    match view {
        TurnView::Live(live) => {
            story.waits = wait_of(store, name, &live.turn, live.timer_ms).await?;
            story.cancelled = live.canceled;
        }
        TurnView::Finished(finished) => {
            let reply = serde_json::from_str::<Reply>(&finished.reply).ok();
            if let Some(result) = reply.and_then(|reply| reply.results.into_iter().next()) {
                story.error = result.error.map(|error| error.message);
                story.output = result.output;
            }
            story.cancelled = finished.canceled;
        }
        TurnView::Unknown => {}
    }
    times(store, name, &mut story.rounds).await?;
    for child in store.children(name, CHILDREN_MAX).await? {
        if *left == 0 {
            break;
        }
        *left -= 1;
        story.children.push(Box::pin(one(store, &TurnName::task(&name.tenant, &child), left)).await?);
    }
    Ok(story)
}

fn rounds(steps: impl Iterator<Item = HistoryStep>) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    let mut answered = 0;
    for step in steps {
        match (step, rounds.last_mut()) {
            (HistoryStep::Plan(plan), _) => {
                answered = 0;
                let call = |call: super::PlannedCall| TaskCall {
                    tool: call.tool,
                    arguments: call.arguments,
                    ok: None,
                    content: None,
                };
                rounds.push(Round {
                    number: rounds.len() + 1,
                    model: plan.model,
                    text: plan.text,
                    input_tokens: plan.input,
                    output_tokens: plan.output,
                    cost_micros: plan.cost,
                    calls: plan.calls.into_iter().map(call).collect(),
                    ..Round::default()
                });
            }
            (HistoryStep::Result(result), Some(round)) => {
                if let Some(call) = round.calls.get_mut(answered) {
                    (call.ok, call.content) = (Some(result.ok), Some(result.content));
                }
                answered += 1;
            }
            (HistoryStep::Note { text }, Some(round)) => round.notes.push(text),
            (HistoryStep::AgentMessage { from, text }, Some(round)) => {
                round.notes.push(format!("{from} wrote: {text}"))
            }
            (HistoryStep::Summary(summary), Some(round)) => {
                round.input_tokens += summary.input;
                round.output_tokens += summary.output;
                round.cost_micros += summary.cost;
                round.notes.push(format!("{} summarized the steps so far: {}", summary.model, summary.text));
            }
            (
                HistoryStep::Result(_)
                | HistoryStep::Note { .. }
                | HistoryStep::AgentMessage { .. }
                | HistoryStep::Summary(_)
                | HistoryStep::Other,
                _,
            ) => {}
        }
    }
    rounds
}

async fn times(store: &Store, name: &TurnName, rounds: &mut [Round]) -> Result<(), StoreError> {
    for round in rounds.iter_mut().filter(|round| !round.calls.is_empty()) {
        let Some(turn) = turn_of(name, round.number) else { continue };
        match store.turn_view(&turn).await? {
            TurnView::Live(live) => round.executed_ms = Some(live.turn.admitted_ms),
            TurnView::Finished(finished) => {
                (round.executed_ms, round.validated_ms) = (Some(finished.admitted_ms), Some(finished.ended_ms));
            }
            TurnView::Unknown => {}
        }
        round.turn = Some(turn.turn.to_string());
    }
    Ok(())
}

pub(super) async fn wait_of(
    store: &Store,
    name: &TurnName,
    task: &Turn,
    timer_ms: Option<i64>,
) -> Result<Option<TaskWait>, StoreError> {
    let Some(awaits) = task.state.awaits() else {
        let retry = TaskWait { reason: WaitReason::Retry, until_ms: timer_ms };
        return Ok(matches!(task.state, State::Retrying { .. }).then_some(retry));
    };
    let turn = TurnName { tenant: name.tenant.clone(), turn: awaits.clone() };
    let Some(wait) = store.throttled_turn(&turn).await? else {
        return Ok(Some(TaskWait { reason: WaitReason::Turn { turn: turn.turn.to_string() }, until_ms: None }));
    };
    if let Some(asked) = approval_wait(store, &turn, &wait).await? {
        return Ok(Some(asked));
    }
    Ok(Some(of_turn(turn.turn.to_string(), &wait)))
}

/// `None` if the turn does not wait for an approval, or if the approval no longer waits.
async fn approval_wait(store: &Store, name: &TurnName, wait: &ThrottledTurn) -> Result<Option<TaskWait>, StoreError> {
    let State::Waiting { reason: Waits::Approval { approval }, .. } = &wait.turn.state else { return Ok(None) };
    let asked = crate::approvals::find(store, &name.tenant, approval).await?.filter(|asked| asked.state == "waiting");
    Ok(asked.map(|asked| {
        let reason = WaitReason::Approval { turn: name.turn.to_string(), approval: asked.id, tool: asked.tool };
        TaskWait { reason, until_ms: Some(asked.until_ms) }
    }))
}

fn of_turn(turn: String, wait: &ThrottledTurn) -> TaskWait {
    let state = &wait.turn.state;
    if let Some(task) = state.awaits().filter(|awaits| TaskId::new(awaits.as_str()).is_ok()) {
        let until_ms = Some(wait.turn.head.deadline_ms);
        return TaskWait { reason: WaitReason::Child { turn, task: task.to_string() }, until_ms };
    }
    match state {
        State::Throttled { counter, .. } => {
            TaskWait { reason: WaitReason::Capped { turn, limit: limit_of(counter) }, until_ms: wait.due_ms }
        }
        _ => TaskWait { reason: WaitReason::Turn { turn }, until_ms: None },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_model::TenantId;

    use super::*;

    fn task(id: &str, outcome: Option<&str>, children: Vec<TaskDetails>) -> TaskDetails {
        let summary = TaskSummary {
            tenant: TenantId::new("acme").unwrap(),
            id: TaskId::new(id).unwrap(),
            state: TaskState::Ended,
            agent: None,
            delegator: None,
            description: None,
            accepted_ms: None,
            ended_ms: None,
            deadline_ms: None,
            outcome: outcome.map(Into::into),
            waits_for: None,
        };
        TaskDetails { summary, rounds: vec![], waits: None, output: None, error: None, cancelled: None, children }
    }

    #[test]
    fn the_failed_leaf_comes_first() {
        let leaf = task("d-leaf", Some("permanent"), vec![]);
        let middle = task("d-middle", Some("permanent"), vec![task("d-fine", Some("ok"), vec![]), leaf]);
        let mut root = task("d-root", None, vec![task("d-other", Some("ok"), vec![]), middle]);
        let path: Vec<String> = root.failing_first().iter().map(ToString::to_string).collect();
        assert_eq!(path, ["d-root", "d-middle", "d-leaf"]);
        let order: Vec<&str> = root.children.iter().map(|child| child.summary.id.as_str()).collect();
        assert_eq!(order, ["d-middle", "d-other"]);
        assert_eq!(root.children[0].children[0].summary.id.as_str(), "d-leaf");
        assert!(task("d-root", Some("ok"), vec![task("d-fine", None, vec![])]).failing_first().is_empty());
    }

    #[test]
    fn an_onlooker_sees_no_secrets() {
        let call = TaskCall {
            tool: "pay".into(),
            arguments: r#"{"api_key":"k-1"}"#.into(),
            ok: Some(true),
            content: Some("password: hunter2".into()),
        };
        let round = Round { calls: vec![call], text: "password: hunter2".into(), ..Round::default() };
        let output = Some(RawValue::from_string(r#"{"api_key":"k-1","n":1.10}"#.into()).unwrap());
        let child = TaskDetails { rounds: vec![round], output, ..task("d-child", Some("ok"), vec![]) };
        let shown = task("d-root", Some("ok"), vec![child]).without_secrets(&Redactor::default());
        let shown = serde_json::to_string(&shown).unwrap();
        assert!(!shown.contains("k-1") && !shown.contains("hunter2") && shown.contains("1.10"), "{shown}");
    }
}
