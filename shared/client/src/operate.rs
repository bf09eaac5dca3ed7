//! Operations for operators: lists of turns, pauses, disabled tools, and settings of tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tickfleet_core::audit::AuditAppend;
use tickfleet_core::settings::{ChangeSetting, Origin, Setting, SettingResult};
use tickfleet_core::turn::State;
use tickfleet_model::policy::{Paused, PausedTool, TenantPolicy};
use tickfleet_model::{AgentId, TenantId, TurnId, limits};
pub use tickfleet_protocol::Operator;
use tickfleet_protocol::{AuditAction, AuditValue, OperatorAct};
use tickfleet_store::{LiveTurn, Store, StoreError, TurnName, TurnView, worker_of};

use crate::held_slices::held_slices;
use crate::position;
use crate::turn_status::filter_name;

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

/// A position in a list of turns: a shard, and a scan cursor over the keys of the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TurnCursor {
    shard: usize,
    cursor: u64,
}

impl std::fmt::Display for TurnCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.shard, self.cursor)
    }
}

impl std::str::FromStr for TurnCursor {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = text
            .split_once(':')
            .and_then(|(shard, cursor)| Some(Self { shard: shard.parse().ok()?, cursor: cursor.parse().ok()? }));
        read.ok_or_else(|| "expected a position printed by a list, such as 0:1234".to_owned())
    }
}

/// A page of turns.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TurnPage {
    /// The matching turns. Redis scans keys in no particular order.
    pub turns: Vec<TurnSummary>,
    /// The position of the next page; `None` at the end.
    #[serde(serialize_with = "position", skip_serializing_if = "Option::is_none")]
    pub next: Option<TurnCursor>,
}

/// Lists one page of the unfinished turns that match the filter. An index would slow down every turn, so one page scans
/// up to 400 steps (about 50,000 keys). A turn that begins or ends during the scan may be missing.
pub async fn list_turns(shards: &[Store], filter: &TurnFilter, from: TurnCursor) -> Result<TurnPage, StoreError> {
    if filter.in_workers
        && from == TurnCursor::default()
        && let Some(turns) = turns_in_workers(shards, filter).await?
    {
        return Ok(TurnPage { turns, next: None });
    }
    let mut page = TurnPage::default();
    let mut at = from;
    for _ in 0..STEPS_MAX {
        let Some(store) = shards.get(at.shard) else { return Ok(TurnPage { next: None, ..page }) };
        let is_home = filter.tenant.as_ref().is_none_or(|tenant| store.is_home_of(tenant));
        let (next, names) =
            if is_home { store.scan_turns(filter.tenant.as_ref(), at.cursor).await? } else { (0, Vec::new()) };
        add_matching(store, filter, names, &mut page.turns).await?;
        at = if next == 0 { TurnCursor { shard: at.shard + 1, cursor: 0 } } else { TurnCursor { cursor: next, ..at } };
        if page.turns.len() >= filter.limit {
            break;
        }
    }
    page.next = (at.shard < shards.len()).then_some(at);
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

/// Pauses the calls of a tenant, or of one of its agents. After the response, none of these calls is admitted.
pub async fn pause(store: &Store, who: &Paused, operator: Operator<'_>) -> Result<SettingResult, StoreError> {
    let since_ms = store.now_ms().await?;
    let entry = entry(store, &Setting::Pause(who.clone()), Change::Set(&[]), operator, since_ms);
    let change = ChangeSetting::pause(who.clone(), &operator.note(since_ms), Origin::Operator(entry));
    Ok(store.decide(change).await?.result)
}

/// Resumes the calls of a tenant, or of one of its agents. Returns false if they were not paused.
pub async fn resume(store: &Store, who: &Paused, operator: Operator<'_>) -> Result<bool, StoreError> {
    remove(store, Setting::Pause(who.clone()), operator).await
}

/// Returns false if there was no such setting.
async fn remove(store: &Store, setting: Setting, operator: Operator<'_>) -> Result<bool, StoreError> {
    let entry = entry(store, &setting, Change::Removed, operator, store.now_ms().await?);
    let removed = store.decide(ChangeSetting::remove(setting, entry)).await?.result;
    Ok(matches!(removed, SettingResult::Done { .. }))
}

/// The result of pausing a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolPaused {
    /// True if this call paused the tool in at least one shard.
    pub changed: bool,
    /// The shards that have reached their maximum number of pauses. In these shards, the tool is not paused.
    pub full: Vec<u32>,
    /// The number of shards in which the tool is paused after this call.
    pub paused: usize,
}

impl ToolPaused {
    /// Returns a message about the shards that could not pause the tool. `None` if all shards could.
    #[must_use]
    pub fn incomplete_message(&self) -> Option<String> {
        let full: Vec<String> = self.full.iter().map(ToString::to_string).collect();
        let rest = if self.paused == 0 { "nothing was paused" } else { "it is paused in the others" };
        (!full.is_empty())
            .then(|| format!("too many are paused in shard {}: resume some first; {rest}", full.join(", ")))
    }
}

/// Pauses a tool, in its tenant's shard or in all shards. Workers read the pause with their next heartbeat. If one shard has too many pauses, the other shards still
/// pause the tool. After an error, the call can be repeated.
pub async fn pause_tool(shards: &[Store], tool: &PausedTool, operator: Operator<'_>) -> Result<ToolPaused, StoreError> {
    let setting = Setting::ToolPause(tool.clone());
    let mut set = ToolPaused::default();
    for store in of_tool(shards, tool) {
        let since_ms = store.now_ms().await?;
        let entry = entry(store, &setting, Change::Set(&[]), operator, since_ms);
        let change = ChangeSetting::pause_tool(tool.clone(), &operator.note(since_ms), Origin::Operator(entry));
        match store.decide(change).await?.result {
            SettingResult::Full => {
                set.full.push(store.shard());
                continue;
            }
            SettingResult::Done { .. } => set.changed = true,
            SettingResult::Unchanged { .. } => {}
        }
        set.paused += 1;
    }
    Ok(set)
}

/// Resumes the calls of a tool. Returns false if the tool was not paused.
/// After an error, the call can be repeated.
pub async fn resume_tool(shards: &[Store], tool: &PausedTool, operator: Operator<'_>) -> Result<bool, StoreError> {
    let mut changed = false;
    for store in of_tool(shards, tool) {
        changed |= remove(store, Setting::ToolPause(tool.clone()), operator).await?;
    }
    Ok(changed)
}

/// Maximum bytes of the name or ID of a tool to disable or enable.
pub const SWITCHED_BYTES_MAX: usize = 2 * limits::NAME_BYTES_MAX;

/// Returns true if the text has the form of a tool's name or ID. The ID of a tool version contains an `@`.
#[must_use]
pub fn is_switchable_name(tool: &str) -> bool {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '@');
    !tool.is_empty() && tool.len() <= SWITCHED_BYTES_MAX && tool.chars().all(sound)
}

/// Disables or enables a tool for all agents in all shards. Returns false if nothing changed.
/// After an error, the call can be repeated.
pub async fn switch_tool(shards: &[Store], tool: &str, on: bool, operator: Operator<'_>) -> Result<bool, StoreError> {
    let setting = Setting::ToolOff(tool.to_owned());
    let mut changed = false;
    for store in shards {
        if on {
            changed |= remove(store, setting.clone(), operator).await?;
            continue;
        }
        let entry = entry(store, &setting, Change::Set(&[]), operator, store.now_ms().await?);
        match store.decide(ChangeSetting::switch_off(tool.to_owned(), Origin::Operator(entry))).await?.result {
            SettingResult::Done { .. } => changed = true,
            SettingResult::Unchanged { .. } => {}
            SettingResult::Full => {
                return Err(StoreError::Undecided("too many tools are disabled at run time".to_owned()));
            }
        }
    }
    Ok(changed)
}

/// Returns the tools that are disabled for all agents, by name or ID, each with the shards in which it is disabled. An
/// interrupted change leaves a tool disabled in only some shards.
pub async fn switched_off(shards: &[Store]) -> Result<BTreeMap<String, Vec<u32>>, StoreError> {
    let mut off: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for store in shards {
        for tool in store.run_time_config().await?.tools_off {
            off.entry(tool).or_default().push(store.shard());
        }
    }
    Ok(off)
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

fn of_tool<'a>(shards: &'a [Store], tool: &'a PausedTool) -> impl Iterator<Item = &'a Store> {
    shards.iter().filter(|store| tool.tenant.as_ref().is_none_or(|tenant| store.is_home_of(tenant)))
}

#[derive(Clone, Copy)]
enum Change<'a> {
    /// With details for the audit log.
    Set(&'a [(&'static str, AuditValue<'a>)]),
    Removed,
}

fn entry(
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
