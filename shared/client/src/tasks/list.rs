//! Which tasks there are.

use futures::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tickfleet_model::{AgentId, Call, TaskId, TenantId};
use tickfleet_store::{FinishedTurn, LiveTurn, Store, StoreError, TurnName, TurnView};

use crate::replies::Reply;

/// Tasks that are looked at together.
const PAGE: usize = 32;
/// Tasks that one listing looks at, at most.
const LOOKED_AT_MAX: usize = 2_000;
/// Bytes of a description that a list has.
const DESCRIPTION_BYTES_MAX: usize = 400;

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Nobody holds it: it waits for a worker, for a turn or task that it has begun, or for its next try.
    Waiting,
    /// A worker or a runtime carries it out.
    Running,
    /// It has ended.
    Ended,
    /// It ended longer ago than records are kept.
    Forgotten,
}

/// What a list says of a task.
#[derive(Debug, Clone, Serialize)]
pub struct TaskSummary {
    /// Whose.
    pub tenant: TenantId,
    /// Its id.
    pub id: TaskId,
    /// Where it stands.
    pub state: TaskState,
    /// The agent that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The agent that asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegator: Option<String>,
    /// What is to be done: the beginning; of one that has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When it was accepted, ms of shard time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_ms: Option<i64>,
    /// When it ended, ms of shard time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<i64>,
    /// When it expires, ms of shard time; of one that has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The turn or task that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// Which tasks are wanted.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Those of this agent.
    pub agent: Option<AgentId>,
    /// Those that stand there.
    pub state: Option<TaskState>,
    /// So many at most.
    pub limit: usize,
}

/// A tenant's tasks, the newest first. At most 2,000 are looked at, so that a filter that nothing passes costs no more.
///
/// # Errors
/// [`StoreError`].
pub async fn list_tasks(store: &Store, tenant: &TenantId, filter: &TaskFilter) -> Result<Vec<TaskSummary>, StoreError> {
    let mut found = Vec::new();
    for skip in (0..LOOKED_AT_MAX).step_by(PAGE) {
        let ids = store.tasks(tenant, skip, PAGE).await?;
        let is_last = ids.len() < PAGE;
        for summary in join_all(ids.into_iter().map(|id| task_summary(store, tenant, id))).await {
            let summary = summary?;
            let wanted = filter.state.map_or(summary.state != TaskState::Forgotten, |state| state == summary.state)
                && filter.agent.as_ref().is_none_or(|agent| summary.agent.as_deref() == Some(agent.as_str()));
            if wanted {
                found.push(summary);
            }
        }
        if is_last || found.len() >= filter.limit {
            break;
        }
    }
    found.truncate(filter.limit);
    Ok(found)
}

/// What is known of one task in short.
///
/// # Errors
/// [`StoreError`].
pub async fn task_summary(store: &Store, tenant: &TenantId, id: TaskId) -> Result<TaskSummary, StoreError> {
    Ok(summary(tenant, id.clone(), &store.look(&TurnName::task(tenant, &id)).await?))
}

/// A summary of what is known of a task.
pub(super) fn summary(tenant: &TenantId, id: TaskId, view: &TurnView) -> TaskSummary {
    let blank = TaskSummary {
        tenant: tenant.clone(),
        id,
        state: TaskState::Forgotten,
        agent: None,
        delegator: None,
        description: None,
        accepted_ms: None,
        ended_ms: None,
        deadline_ms: None,
        outcome: None,
        waits_for: None,
    };
    match view {
        TurnView::Live(live) => of_live(blank, live),
        TurnView::Finished(finished) => of_finished(blank, finished),
        TurnView::Unknown => blank,
    }
}

fn of_live(blank: TaskSummary, live: &LiveTurn) -> TaskSummary {
    let record = &live.record;
    let meta = record.slice_meta();
    let delegator = meta.as_ref().and_then(|meta| meta.task.as_ref()?.1.chain.last().map(ToString::to_string));
    let awaits = record.awaits.clone().filter(|awaits| !awaits.is_empty() && record.fence.is_none());
    TaskSummary {
        state: if live.holder.is_some() { TaskState::Running } else { TaskState::Waiting },
        agent: record.agent.clone(),
        delegator,
        description: record.first_call.as_deref().and_then(description),
        accepted_ms: record.admitted_ms,
        deadline_ms: record.deadline_ms,
        waits_for: awaits,
        ..blank
    }
}

fn of_finished(blank: TaskSummary, finished: &FinishedTurn) -> TaskSummary {
    let reply = serde_json::from_str::<Reply>(&finished.reply).ok();
    let outcome =
        reply.as_ref().and_then(|reply| reply.results.first()).map(|result| result.outcome.as_str().to_owned());
    TaskSummary {
        state: TaskState::Ended,
        agent: reply.as_ref().map(|reply| reply.agent.clone()),
        delegator: reply.and_then(|reply| reply.delegator),
        accepted_ms: finished.admitted_ms,
        ended_ms: finished.ended_ms,
        outcome,
        ..blank
    }
}

/// The work in words: of a task that workers carry out, in the arguments of its call; of another, in its message.
fn description(blob: &str) -> Option<String> {
    let arguments = serde_json::from_str::<Call>(blob).map(|call| call.arguments);
    let task: Value = serde_json::from_str(arguments.as_deref().unwrap_or(blob)).ok()?;
    let text = task.get("description").or_else(|| task.get("task_description"))?.as_str()?;
    Some(cut(text, DESCRIPTION_BYTES_MAX))
}

/// The beginning of a text, between characters.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}
