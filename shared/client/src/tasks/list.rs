//! Which tasks there are.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tickfleet_model::{AgentId, Call, TaskId, TenantId};
use tickfleet_protocol::json::with_numbers_as_text;
use tickfleet_store::{FinishedTurn, LiveTurn, Store, StoreError, TurnName, TurnView};

use crate::Client;
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

/// Which tasks are wanted. What is not said takes all.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Those of this agent.
    pub agent: Option<AgentId>,
    /// Those that stand there.
    pub state: Option<TaskState>,
    /// Those that ended so.
    pub outcome: Option<String>,
    /// Those that were accepted at least so long ago.
    pub older_than: Option<Duration>,
    /// So many at most.
    pub limit: usize,
}

impl TaskFilter {
    fn takes(&self, task: &TaskSummary, now_ms: i64) -> bool {
        let age_ms = task.accepted_ms.map_or(0, |at| i128::from(now_ms - at));
        let least_ms = |least: Duration| i128::try_from(least.as_millis()).unwrap_or(i128::MAX);
        self.state.map_or(task.state != TaskState::Forgotten, |state| state == task.state)
            && self.agent.as_ref().is_none_or(|agent| task.agent.as_deref() == Some(agent.as_str()))
            && self.outcome.as_ref().is_none_or(|outcome| task.outcome.as_ref() == Some(outcome))
            && self.older_than.is_none_or(|least| age_ms >= least_ms(least))
    }
}

/// Where a list goes on: behind a task of a tenant, or at a tenant's newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TasksAt {
    tenant: TenantId,
    behind: Option<TaskId>,
}

impl fmt::Display for TasksAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tenant, self.behind.as_ref().map(TaskId::as_str).unwrap_or_default())
    }
}

impl FromStr for TasksAt {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (tenant, behind) = text.split_once(':')?;
            let behind = (!behind.is_empty()).then(|| TaskId::new(behind)).transpose().ok()?;
            Some(Self { tenant: TenantId::new(tenant).ok()?, behind })
        };
        read().ok_or_else(|| "expected a position printed by a list, such as demo:d-1f0c".to_owned())
    }
}

/// A page of tasks.
#[derive(Debug, Clone, Default)]
pub struct TaskPage {
    /// Tenant by tenant, the newest of each first.
    pub tasks: Vec<TaskSummary>,
    /// Where the list goes on; none at its end.
    pub next: Option<TasksAt>,
    /// True if the place to go on from was not found any more: its task is kept no longer. The tenant begins anew.
    pub begun_anew: bool,
}

/// Whether somebody sees what is an agent's; none: of a task whose agent is not known.
pub type Sees<'a> = &'a (dyn Fn(Option<&str>) -> bool + Sync);

/// A page of the tasks of these tenants. At most some 2,000 tasks (and tenants) are looked at a page, so that a filter that
/// nothing passes costs no more. Tasks that come meanwhile are at their tenant's beginning.
///
/// # Errors
/// [`StoreError`].
pub async fn task_page(
    client: &Client,
    tenants: &BTreeSet<TenantId>,
    filter: &TaskFilter,
    from: Option<&TasksAt>,
) -> Result<TaskPage, StoreError> {
    task_page_of(client, tenants, filter, from, &|_| true).await
}

/// As [`task_page`], of those tasks alone whose agent somebody `sees`: what that one does not see takes no place of the page.
///
/// # Errors
/// [`StoreError`].
pub async fn task_page_of(
    client: &Client,
    tenants: &BTreeSet<TenantId>,
    filter: &TaskFilter,
    from: Option<&TasksAt>,
    sees: Sees<'_>,
) -> Result<TaskPage, StoreError> {
    let (mut page, mut looked_at) = (TaskPage::default(), 0);
    for tenant in tenants.iter().filter(|tenant| from.is_none_or(|from| **tenant >= from.tenant)) {
        if looked_at >= LOOKED_AT_MAX {
            page.next = Some(TasksAt { tenant: tenant.clone(), behind: None });
            break;
        }
        looked_at += 1;
        let behind = from.filter(|from| from.tenant == *tenant).and_then(|from| from.behind.as_ref());
        if !of_tenant(client.store(tenant), (tenant, behind), (filter, sees), &mut page, &mut looked_at).await? {
            break;
        }
    }
    Ok(page)
}

/// Adds those of a tenant; answers whether the page has room for more.
async fn of_tenant(
    store: &Store,
    (tenant, behind): (&TenantId, Option<&TaskId>),
    (filter, sees): (&TaskFilter, Sees<'_>),
    page: &mut TaskPage,
    looked_at: &mut usize,
) -> Result<bool, StoreError> {
    let mut skip = 0;
    if let Some(behind) = behind {
        let newer = store.newer_tasks(&TurnName::task(tenant, behind)).await?;
        page.begun_anew = newer.is_none();
        skip = newer.map_or(0, |newer| newer + 1);
    }
    loop {
        let ids = store.tasks(tenant, skip, PAGE).await?;
        let is_last = ids.len() < PAGE;
        skip += PAGE;
        if !ids.is_empty() {
            let now_ms = store.now_ms().await?;
            for summary in join_all(ids.into_iter().map(|id| task_summary(store, tenant, id))).await {
                let summary = match summary {
                    // Rule 18: a key that a hand has damaged costs itself alone.
                    Err(error) if error.is_script_error() => {
                        *looked_at += 1;
                        continue;
                    }
                    summary => summary?,
                };
                *looked_at += 1;
                page.next = Some(TasksAt { tenant: tenant.clone(), behind: Some(summary.id.clone()) });
                if filter.takes(&summary, now_ms) && sees(summary.agent.as_deref()) {
                    page.tasks.push(summary);
                }
                if page.tasks.len() >= filter.limit {
                    return Ok(false);
                }
            }
        }
        if is_last {
            page.next = None;
            return Ok(true);
        }
        if *looked_at >= LOOKED_AT_MAX {
            return Ok(false);
        }
    }
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
    let task: Value = serde_json::from_str(&with_numbers_as_text(arguments.as_deref().unwrap_or(blob))).ok()?;
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
