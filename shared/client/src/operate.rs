//! Operations for operators: lists of turns, and settings of tenants.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tickfleet_core::audit::AuditAppend;
use tickfleet_core::settings::{ChangeSetting, Origin, Setting, SettingResult};
use tickfleet_core::turn::State;
use tickfleet_model::policy::{Paused, PausedTool, TenantPolicy};
use tickfleet_model::{AgentId, TenantId, TurnId};
pub use tickfleet_protocol::Operator;
use tickfleet_protocol::{AuditAction, AuditValue, OperatorAct};
use tickfleet_store::{LiveTurn, Store, StoreError, TurnName, TurnView, worker_of};

use crate::held_slices::held_slices;
use crate::turn_status::filter_name;
use crate::{Client, Cursor, Page, VerbError};

const TOGETHER: usize = 32;
/// Redis scans about 128 keys per step.
const STEPS_MAX: usize = 400;

/// State of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TurnState {
    /// The turn waits in a throttle queue: for a tick, the next day, a limit, or the end of a pause.
    Throttled,
    /// The turn waits for a worker.
    Ready,
    /// A worker runs the turn.
    Running,
    /// The turn waits for a retry, or for an operation that it has started.
    Parked,
    /// The turn is ending: its remaining calls do not run.
    Ending,
}

/// An unfinished turn in a list.
#[derive(Debug, Clone, Serialize)]
pub struct TurnSummary {
    /// The turn's tenant.
    pub tenant: TenantId,
    /// The turn's ID.
    pub id: TurnId,
    /// The turn's state.
    pub state: TurnState,
    /// The agent that makes the turn's calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The tools of the calls that have no result yet.
    pub tools: Vec<String>,
    /// The number of calls in the turn.
    pub calls: usize,
    /// The number of calls that already have a result.
    pub done: usize,
    /// The number of calls with a result that is not a success.
    pub failed: usize,
    /// Time when the turn was admitted (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_ms: Option<i64>,
    /// Time when the turn expires (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
    /// The worker that runs the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

/// A filter of turns. An unset field matches all.
#[derive(Debug, Clone, Default)]
pub struct TurnFilter {
    /// Only turns of this tenant.
    pub tenant: Option<TenantId>,
    /// Only turns of this agent.
    pub agent: Option<AgentId>,
    /// Only turns with a call of this tool that has no result yet.
    pub tool: Option<String>,
    /// Only turns in this state.
    pub state: Option<TurnState>,
    /// Only turns that wait for this cap or limit, by the name that `tickfleet limits` shows. Turns of a paused agent
    /// wait for `max_calls_per_tick`.
    pub waits_for: Option<String>,
    /// Only turns that a worker runs. Excludes turns with calls that run in the caller's process.
    pub in_workers: bool,
    /// Only turns that were admitted at least this long ago.
    pub older_than: Option<Duration>,
    /// Only turns that were admitted at or after this time (ms of shard time).
    pub from_ms: Option<i64>,
    /// Only turns that were admitted before this time (ms of shard time).
    pub until_ms: Option<i64>,
    /// Maximum number of turns. A page can exceed the limit by a few turns.
    pub limit: usize,
}

/// A shard, and a scan cursor over the keys of the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct TurnPosition {
    shard: usize,
    cursor: u64,
}

impl std::fmt::Display for TurnPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.shard, self.cursor)
    }
}

impl std::str::FromStr for TurnPosition {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (shard, cursor) = text.split_once(':').ok_or(())?;
        Ok(Self { shard: shard.parse().map_err(drop)?, cursor: cursor.parse().map_err(drop)? })
    }
}

/// Lists one page of the unfinished turns that match the filter. An index would slow down every turn, so one page scans
/// up to 400 steps (about 50,000 keys). A turn that begins or ends during the scan may be missing.
pub async fn list_turns(
    client: &Client,
    filter: &TurnFilter,
    from: Option<&Cursor>,
) -> Result<Page<TurnSummary>, VerbError> {
    let shards = client.stores();
    let mut page = Page::new(client.now_ms().await?);
    if filter.in_workers
        && from.is_none()
        && let Some(items) = turns_in_workers(shards, filter).await?
    {
        return Ok(Page { items, ..page });
    }
    let mut at: TurnPosition = Cursor::read(from)?.unwrap_or_default();
    for _ in 0..STEPS_MAX {
        let Some(store) = shards.get(at.shard) else { return Ok(page) };
        let is_home = filter.tenant.as_ref().is_none_or(|tenant| store.is_home_of(tenant));
        let (next, names) =
            if is_home { store.scan_turns(filter.tenant.as_ref(), at.cursor).await? } else { (0, Vec::new()) };
        add_matching(store, filter, names, &mut page.items).await?;
        at = if next == 0 {
            TurnPosition { shard: at.shard + 1, cursor: 0 }
        } else {
            TurnPosition { cursor: next, ..at }
        };
        if page.items.len() >= filter.limit {
            break;
        }
    }
    page.next = (at.shard < shards.len()).then(|| Cursor::of(&at));
    Ok(page)
}

/// Reads only the turns that workers hold. A scan would read every unfinished turn, and most of these may be waiting.
/// Returns `None` if the turns may be too many for one page.
async fn turns_in_workers(shards: &[Store], filter: &TurnFilter) -> Result<Option<Vec<TurnSummary>>, StoreError> {
    let mut turns = Vec::new();
    let mut held = 0;
    for store in shards {
        if filter.tenant.as_ref().is_some_and(|tenant| !store.is_home_of(tenant)) {
            continue;
        }
        let slices = held_slices(store, None, filter.limit).await?;
        held += slices.len();
        if held >= filter.limit {
            return Ok(None);
        }
        let names: BTreeSet<TurnName> = slices.iter().filter_map(|slice| TurnName::parse(&slice.turn)).collect();
        let is_own = |name: &TurnName| filter.tenant.as_ref().is_none_or(|tenant| name.tenant == *tenant);
        add_matching(store, filter, names.into_iter().filter(is_own).collect(), &mut turns).await?;
    }
    Ok(Some(turns))
}

async fn add_matching(
    store: &Store,
    filter: &TurnFilter,
    names: Vec<TurnName>,
    into: &mut Vec<TurnSummary>,
) -> Result<(), StoreError> {
    if names.is_empty() {
        return Ok(());
    }
    let now_ms = store.now_ms().await?;
    for some in names.chunks(TOGETHER) {
        let looks = join_all(some.iter().map(|name| store.turn_view(name))).await;
        for (name, look) in some.iter().zip(looks) {
            let TurnView::Live(live) = look? else { continue };
            let is_known = into.iter().any(|known| known.id == name.turn && known.tenant == name.tenant);
            if !live.turn.is_task() && !is_known && passes(filter, &live, now_ms) {
                into.push(summary(name, &live));
            }
        }
    }
    Ok(())
}

fn passes(filter: &TurnFilter, live: &LiveTurn, now_ms: i64) -> bool {
    let age_ms = now_ms - live.turn.admitted_ms;
    filter.agent.as_ref().is_none_or(|agent| live.turn.head.agent == *agent)
        && filter.tool.as_ref().is_none_or(|tool| live.remaining_tools().contains(tool))
        && filter.state.is_none_or(|state| state == turn_state(live))
        && filter.waits_for.as_ref().is_none_or(|limit| waits_for(live) == Some(limit))
        && (!filter.in_workers || live.holder.as_deref().is_some_and(|holder| worker_of(holder).is_some()))
        && filter.from_ms.is_none_or(|from_ms| live.turn.admitted_ms >= from_ms)
        && filter.until_ms.is_none_or(|until_ms| live.turn.admitted_ms < until_ms)
        && filter
            .older_than
            .is_none_or(|least| i128::from(age_ms) >= i128::try_from(least.as_millis()).unwrap_or(i128::MAX))
}

fn waits_for(live: &LiveTurn) -> Option<&str> {
    match &live.turn.state {
        State::Throttled { counter, .. } => Some(filter_name(counter)),
        _ => None,
    }
}

fn is_success(result: &str) -> bool {
    #[derive(Deserialize)]
    struct StoredResult {
        success: bool,
    }
    serde_json::from_str::<StoredResult>(result).is_ok_and(|result| result.success)
}

fn summary(name: &TurnName, live: &LiveTurn) -> TurnSummary {
    let turn = &live.turn;
    TurnSummary {
        tenant: name.tenant.clone(),
        id: name.turn.clone(),
        state: turn_state(live),
        agent: Some(turn.head.agent.to_string()),
        tools: live.remaining_tools().into_iter().collect(),
        calls: turn.head.calls,
        done: turn.position,
        failed: live.results.iter().filter(|result| !is_success(result)).count(),
        accepted_ms: Some(turn.admitted_ms),
        deadline_ms: Some(turn.head.deadline_ms),
        holder: live.holder.clone(),
    }
}

/// Returns the state of an unfinished turn in the form that operators see.
#[must_use]
pub const fn turn_state(live: &LiveTurn) -> TurnState {
    match live.turn.state {
        State::Throttled { .. } => TurnState::Throttled,
        State::Ready { .. } | State::Running { .. } if live.holder.is_some() => TurnState::Running,
        State::Ready { .. } | State::Running { .. } => TurnState::Ready,
        State::Retrying { .. } | State::Waiting { .. } => TurnState::Parked,
        State::Ending { .. } => TurnState::Ending,
    }
}

/// Returns false if there was no such setting.
pub(crate) async fn remove(store: &Store, setting: Setting, operator: Operator<'_>) -> Result<bool, StoreError> {
    let entry = entry(store, &setting, Change::Removed, operator, store.now_ms().await?);
    let removed = store.decide(ChangeSetting::remove(setting, entry)).await?.result;
    Ok(matches!(removed, SettingResult::Done { .. }))
}

/// Sets the run-time settings of a tenant in its shard. After that, no call is admitted with the earlier settings.
pub async fn set_tenant(
    store: &Store,
    tenant: &TenantId,
    policy: &TenantPolicy,
    operator: Operator<'_>,
) -> Result<(), StoreError> {
    let declared = serde_json::to_string(policy).unwrap_or_default();
    let details = [("declared", AuditValue::Text(&declared))];
    let setting = Setting::Tenant(tenant.clone());
    let entry = entry(store, &setting, Change::Set(&details), operator, store.now_ms().await?);
    match store.decide(ChangeSetting::set_tenant(tenant.clone(), policy, Origin::Operator(entry))).await?.result {
        SettingResult::Done { .. } | SettingResult::Unchanged { .. } => Ok(()),
        SettingResult::Full => Err(StoreError::Undecided("too many tenants are declared at run time".to_owned())),
    }
}

/// Removes the run-time settings of a tenant. Returns false if the tenant had none.
pub async fn unset_tenant(store: &Store, tenant: &TenantId, operator: Operator<'_>) -> Result<bool, StoreError> {
    remove(store, Setting::Tenant(tenant.clone()), operator).await
}

#[derive(Clone, Copy)]
pub(crate) enum Change<'a> {
    /// With details for the audit log.
    Set(&'a [(&'static str, AuditValue<'a>)]),
    Removed,
}

pub(crate) fn entry(
    store: &Store,
    setting: &Setting,
    change: Change<'_>,
    operator: Operator<'_>,
    timestamp_ms: i64,
) -> AuditAppend {
    let (action, verb) = match (setting, change) {
        (Setting::Tenant(_), Change::Set(_)) => (AuditAction::SetTenant, "set"),
        (Setting::Tenant(_), Change::Removed) => (AuditAction::UnsetTenant, "removed the run-time settings of"),
        (Setting::Pause(_), Change::Set(_)) => (AuditAction::Pause, "paused"),
        (Setting::Pause(_), Change::Removed) => (AuditAction::Resume, "resumed"),
        (Setting::ToolPause(_), Change::Set(_)) => (AuditAction::PauseTool, "paused"),
        (Setting::ToolPause(_), Change::Removed) => (AuditAction::ResumeTool, "resumed"),
        (Setting::ToolOff(_), Change::Set(_)) => (AuditAction::DisableTool, "disabled"),
        (Setting::ToolOff(_), Change::Removed) => (AuditAction::EnableTool, "enabled"),
    };
    let (entity_type, id, tenant) = match setting {
        Setting::Tenant(tenant) | Setting::Pause(Paused { tenant, agent: None }) => {
            ("tenant", tenant.to_string(), Some(tenant))
        }
        Setting::Pause(Paused { tenant, agent: Some(agent) }) => ("agent", format!("{tenant}:{agent}"), Some(tenant)),
        Setting::ToolPause(PausedTool { tenant, tool }) => ("tool", tool.clone(), tenant.as_ref()),
        Setting::ToolOff(tool) => ("tool", tool.clone(), None),
    };
    let did = format!("{verb} {id}");
    let details = if let Change::Set(details) = change { details } else { &[] };
    let act = OperatorAct { action, entity_type, entity_id: &id, did: &did, tenant, details };
    store.audit_append(&act, operator, timestamp_ms)
}
