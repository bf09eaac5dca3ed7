use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tickfleet_core::turn::state::Finished;
use tickfleet_model::{AgentId, Call, TaskId, TenantId};
use tickfleet_protocol::json::with_numbers_as_text;
use tickfleet_store::{LiveTurn, Store, StoreError, TurnName, TurnView};

use crate::replies::Reply;
use crate::{Client, Cursor, Page, VerbError};

const PAGE: usize = 32;
/// Maximum number of tasks that a page reads per tenant.
const WINDOW: usize = 63 * PAGE;
const DESCRIPTION_BYTES_MAX: usize = 400;

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TaskState {
    /// The task waits for a worker, a retry, or a turn or task that it started.
    Waiting,
    /// A worker or a runtime runs the task.
    Running,
    /// The task has ended.
    Ended,
    /// The record has expired.
    RecordExpired,
}

/// A task in a list.
#[derive(Debug, Clone, Serialize)]
pub struct TaskSummary {
    /// The task's tenant.
    pub tenant: TenantId,
    /// The task's ID.
    pub id: TaskId,
    /// The task's state.
    pub state: TaskState,
    /// The agent that does the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The agent that delegated the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegator: Option<String>,
    /// The beginning of the description. `None` if the task has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Time of acceptance (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_ms: Option<i64>,
    /// End of the task (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<i64>,
    /// Deadline (ms of shard time). `None` if the task has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
    /// The outcome of an ended task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The turn or task that this task waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// A filter of tasks. An unset field matches all tasks, except that an unset `state` excludes tasks whose records have
/// expired.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// The agent.
    pub agent: Option<AgentId>,
    /// The state.
    pub state: Option<TaskState>,
    /// The outcome.
    pub outcome: Option<String>,
    /// The minimum time since the task was accepted.
    pub older_than: Option<Duration>,
    /// Maximum number of tasks.
    pub limit: usize,
}

impl TaskFilter {
    fn takes(&self, task: &TaskSummary, now_ms: i64) -> bool {
        let age_ms = task.accepted_ms.map_or(0, |at| i128::from(now_ms - at));
        let least_ms = |least: Duration| i128::try_from(least.as_millis()).unwrap_or(i128::MAX);
        self.state.map_or(task.state != TaskState::RecordExpired, |state| state == task.state)
            && self.agent.as_ref().is_none_or(|agent| task.agent.as_deref() == Some(agent.as_str()))
            && self.outcome.as_ref().is_none_or(|outcome| task.outcome.as_ref() == Some(outcome))
            && self.older_than.is_none_or(|least| age_ms >= least_ms(least))
    }
}

/// The position of a page. A position contains a task ID, so the caller must be allowed to see this task.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TaskPosition {
    tenant: TenantId,
    behind: Option<TaskId>,
    /// The number of windows (of [`WINDOW`] tasks) after `behind` that were read without a match.
    windows: usize,
}

impl TaskPosition {
    fn newest(tenant: &TenantId) -> Self {
        Self { tenant: tenant.clone(), behind: None, windows: 0 }
    }
}

impl fmt::Display for TaskPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tenant, self.behind.as_ref().map(TaskId::as_str).unwrap_or_default())?;
        if self.windows == 0 { Ok(()) } else { write!(f, ":{}", self.windows) }
    }
}

impl FromStr for TaskPosition {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let read = || {
            let (tenant, rest) = text.split_once(':')?;
            let (behind, windows) = rest.split_once(':').unwrap_or((rest, "0"));
            let behind = (!behind.is_empty()).then(|| TaskId::new(behind)).transpose().ok()?;
            let windows = windows.parse::<u16>().ok()?;
            Some(Self { tenant: TenantId::new(tenant).ok()?, behind, windows: windows.into() })
        };
        read().ok_or(())
    }
}

/// Returns true if the caller may see the tasks of this agent. The argument is `None` if the agent is unknown.
pub type TaskVisibility<'a> = &'a (dyn Fn(Option<&str>) -> bool + Sync);

/// Lists one page of tasks. After about 2,000 read tasks, a page does not continue with the next tenant. This bounds
/// the cost of a filter without matches.
pub async fn task_page(
    client: &Client,
    tenants: &BTreeSet<TenantId>,
    filter: &TaskFilter,
    from: Option<&Cursor>,
) -> Result<Page<TaskSummary>, VerbError> {
    task_page_of(client, tenants, filter, from, &|_| true).await
}

/// Lists one page of the tasks that `sees` permits. Other tasks do not count toward the page size.
pub async fn task_page_of(
    client: &Client,
    tenants: &BTreeSet<TenantId>,
    filter: &TaskFilter,
    from: Option<&Cursor>,
    sees: TaskVisibility<'_>,
) -> Result<Page<TaskSummary>, VerbError> {
    let from: Option<TaskPosition> = Cursor::read(from)?;
    let from = from.as_ref();
    let mut page = Page::new(client.now_ms().await?);
    let mut looked_at = 0;
    for tenant in tenants.iter().filter(|tenant| from.is_none_or(|from| **tenant >= from.tenant)) {
        let newest = TaskPosition::newest(tenant);
        if looked_at >= WINDOW {
            page.next = Some(Cursor::of(&newest));
            break;
        }
        looked_at += 1;
        let at = from.filter(|from| from.tenant == *tenant).cloned().unwrap_or(newest);
        if !of_tenant(client.store(tenant), at, (filter, sees), &mut page, &mut looked_at).await? {
            break;
        }
    }
    Ok(page)
}

/// Returns true if the page has room for the tasks of the next tenant.
async fn of_tenant(
    store: &Store,
    mut at: TaskPosition,
    (filter, sees): (&TaskFilter, TaskVisibility<'_>),
    page: &mut Page<TaskSummary>,
    looked_at: &mut usize,
) -> Result<bool, StoreError> {
    let tenant = at.tenant.clone();
    let mut skip = 0;
    if let Some(shown) = at.behind.clone() {
        match newer(store, &tenant, &shown, sees).await? {
            Some(newer) => skip = newer + 1,
            None => (page.list_restarted, at) = (true, TaskPosition::newest(&tenant)),
        }
    }
    skip += at.windows * WINDOW;
    let mut last = at.behind.clone();
    let mut left = WINDOW;
    let mut is_blank = true;
    loop {
        let ids = store.tasks(&tenant, skip, PAGE).await?;
        let is_last = ids.len() < PAGE;
        (skip, left) = (skip + PAGE, left - PAGE);
        let ids = behind(ids, last.as_ref());
        last = ids.last().cloned().or(last);
        if !ids.is_empty() {
            let now_ms = store.now_ms().await?;
            for summary in join_all(ids.into_iter().map(|id| task_summary(store, &tenant, id))).await {
                *looked_at += 1;
                let summary = match summary {
                    // Skip only this task: a damaged record must not affect other tasks.
                    Err(error) if error.is_script_error() => continue,
                    summary => summary?,
                };
                if filter.takes(&summary, now_ms) && sees(summary.agent.as_deref()) {
                    is_blank = false;
                    at = TaskPosition { behind: Some(summary.id.clone()), ..TaskPosition::newest(&tenant) };
                    page.items.push(summary);
                }
                if page.items.len() >= filter.limit {
                    page.next = Some(Cursor::of(&at));
                    return Ok(false);
                }
            }
        }
        if is_last {
            page.next = None;
            return Ok(true);
        }
        if left == 0 {
            at.windows += usize::from(is_blank);
            page.next = Some(Cursor::of(&at));
            return Ok(false);
        }
    }
}

/// Returns `None` if the task does not exist, or if the caller may not see it. Both cases make the same requests, so
/// that the response time does not reveal whether the task exists.
async fn newer(
    store: &Store,
    tenant: &TenantId,
    task: &TaskId,
    sees: TaskVisibility<'_>,
) -> Result<Option<usize>, StoreError> {
    let name = TurnName::task(tenant, task);
    let newer = store.newer_tasks(&name).await?;
    let agent = match store.record(&name).await {
        // A damaged record must not make the list fail.
        Err(error) if error.is_script_error() => None,
        view => summary(tenant, task.clone(), &view?).agent,
    };
    Ok(newer.filter(|_| sees(agent.as_deref())))
}

/// Returns the IDs after `last`. Returns all IDs if `last` is missing.
fn behind(mut ids: Vec<TaskId>, last: Option<&TaskId>) -> Vec<TaskId> {
    let known = last.and_then(|last| ids.iter().position(|id| id == last)).map_or(0, |at| at + 1);
    ids.split_off(known)
}

/// Reads the summary of one task.
pub async fn task_summary(store: &Store, tenant: &TenantId, id: TaskId) -> Result<TaskSummary, StoreError> {
    Ok(summary(tenant, id.clone(), &store.turn_view(&TurnName::task(tenant, &id)).await?))
}

pub(super) fn summary(tenant: &TenantId, id: TaskId, view: &TurnView) -> TaskSummary {
    let blank = TaskSummary {
        tenant: tenant.clone(),
        id,
        state: TaskState::RecordExpired,
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
        TurnView::Live(live) => summary_of_live(blank, live),
        TurnView::Finished(finished) => of_finished(blank, finished),
        TurnView::Unknown => blank,
    }
}

fn summary_of_live(blank: TaskSummary, live: &LiveTurn) -> TaskSummary {
    let turn = &live.turn;
    let grant = turn.head.task.as_ref().map(|(_, grant)| grant);
    TaskSummary {
        state: if live.holder.is_some() { TaskState::Running } else { TaskState::Waiting },
        agent: Some(turn.head.agent.to_string()),
        delegator: grant.and_then(|grant| grant.chain.last().map(ToString::to_string)),
        description: live.first_call().and_then(description),
        accepted_ms: Some(turn.admitted_ms),
        deadline_ms: Some(turn.head.deadline_ms),
        waits_for: turn.state.awaits().map(ToString::to_string),
        ..blank
    }
}

fn of_finished(blank: TaskSummary, finished: &Finished) -> TaskSummary {
    let reply = serde_json::from_str::<Reply>(&finished.reply).ok();
    let outcome =
        reply.as_ref().and_then(|reply| reply.results.first()).map(|result| result.outcome.as_str().to_owned());
    TaskSummary {
        state: TaskState::Ended,
        agent: reply.as_ref().map(|reply| reply.agent.clone()),
        delegator: reply.and_then(|reply| reply.delegator),
        accepted_ms: Some(finished.admitted_ms),
        ended_ms: Some(finished.ended_ms),
        outcome,
        ..blank
    }
}

/// If workers run the task, the message is a call, and the description is in its arguments.
fn description(blob: &str) -> Option<String> {
    let arguments = serde_json::from_str::<Call>(blob).map(|call| call.arguments);
    let task: Value = serde_json::from_str(&with_numbers_as_text(arguments.as_deref().unwrap_or(blob))).ok()?;
    let text = task.get("description").or_else(|| task.get("task_description"))?.as_str()?;
    Some(cut(text, DESCRIPTION_BYTES_MAX))
}

pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_task_cursor_survives_a_round_trip() {
        for text in ["demo:", "demo:job", "demo:job:2", "demo::1"] {
            assert_eq!(text.parse::<TaskPosition>().unwrap().to_string(), text);
        }
        for text in ["demo", "demo:job:", "demo:job:x", "demo:job:-1", "demo:job:1:1", "demo:job:70000", ":job"] {
            assert!(text.parse::<TaskPosition>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_skips_listed_tasks_after_new_tasks_arrived() {
        let ids = |ids: &[&str]| ids.iter().map(|id| TaskId::new(*id).unwrap()).collect::<Vec<_>>();
        let last = TaskId::new("c").unwrap();
        assert_eq!(behind(ids(&["b", "c", "d"]), Some(&last)), ids(&["d"]));
        assert_eq!(behind(ids(&["d", "e"]), Some(&last)), ids(&["d", "e"]));
        assert_eq!(behind(ids(&["a", "b"]), None), ids(&["a", "b"]));
    }
}
