//! `get_subscription_info`: the tenant's plan, its limits and its usage.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::DayCapAction;
use tickfleet_model::{Effect, Limit, day};
use tickfleet_store::{KnowledgeState, Store, StoreError, TenantUsage, Used};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use super::{Caller, caller, standing};

const ROWS_MAX: usize = 100;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Serialize, JsonSchema)]
struct Subscription {
    /// The plan's name.
    plan: String,
    /// `active`, or `daily_cap_reached` if no more actions are allowed today.
    status: &'static str,
    /// The features of the plan.
    features: Vec<String>,
    /// The time zone that determines when the tenant's days begin.
    time_zone: String,
    /// The limits.
    limits: Limits,
    /// The usage.
    usage: Usage,
    /// The number of the tenant's agents.
    agent_count: usize,
    /// The number of the tenant's people.
    user_count: usize,
}

#[derive(Serialize, JsonSchema)]
struct Limits {
    /// Maximum actions per day.
    actions_per_day: Actions,
    /// Maximum actions of one agent per tick.
    calls_per_tick: u32,
    /// The length of a tick in milliseconds.
    tick_ms: i64,
    /// How actions beyond the daily limit are handled: `reject` or `defer`.
    on_day_cap: DayCap,
    /// Further limits that apply to you.
    rows: Vec<Row>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum DayCap {
    Reject,
    Defer,
}

#[derive(Serialize, JsonSchema)]
struct Actions {
    /// By all of the tenant's agents together; null if there is no such limit.
    tenant: Option<u32>,
    /// By you.
    agent: u32,
}

#[derive(Serialize, JsonSchema)]
struct Row {
    /// The name of the limit.
    name: String,
    /// The allowed amount, in words.
    allows: String,
    /// The tools that the limit applies to, with `*` for any characters; empty means all tools.
    tools: Vec<String>,
    /// How actions beyond the limit are handled: `wait`, `reject`, or `shadow` if they are only counted.
    beyond: &'static str,
}

/// The usage.
#[derive(Serialize, JsonSchema)]
struct Usage {
    /// Actions used today.
    actions_today: UsedActions,
    /// When the counters are reset to zero, RFC 3339.
    resets_at: Resets,
    /// Turns and tasks of the tenant that have not ended.
    unfinished_turns: u64,
    /// The size of the tenant's knowledge base and of your memories, in bytes.
    storage_bytes: u64,
    /// Tokens that models have used for the tenant's agents, requests and responses together.
    tokens: Metered,
    /// The cost of these tokens, in millionths of the configured currency.
    money: Metered,
}

/// An amount that is counted per tenant and day.
#[derive(Serialize, JsonSchema)]
struct Metered {
    /// The amount used today.
    used: u64,
    /// The daily limit of the tenant; absent if there is no such limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct UsedActions {
    /// By all of the tenant's agents together.
    tenant: u64,
    /// By you.
    agent: u64,
}

#[derive(Serialize, JsonSchema)]
struct Resets {
    /// The tenant's counter.
    tenant: String,
    /// Your counter.
    agent: String,
}

#[must_use]
pub fn get_subscription_info(store: Store, active: Arc<PolicyHandle>) -> TypedTool {
    TypedTool::new(
        "get_subscription_info",
        "Returns the tenant's subscription: plan, status, features, what is allowed and what was used. It changes \
         nothing.",
        Effect::Read,
        move |context: CallContext, _: Nothing| {
            let store = store.clone();
            let active = active.clone();
            async move {
                let caller = caller(&active, &context)?;
                let standing = standing(&store, &context.tenant, std::slice::from_ref(&context.agent)).await?;
                let zone = day::zone(caller.active.policy.time_zone(&caller.tenant)).map_err(ToolError::internal)?;
                let (today_ms, _) = day::day_bounds(standing.now_ms, zone);
                let (models, kept) = counted(&store, &context, today_ms).await?;
                subscription(&caller, &context, &standing, models, kept)
            }
        },
    )
    .category("account")
    .answers_by_agent()
}

async fn counted(store: &Store, context: &CallContext, today_ms: i64) -> Result<(Used, KnowledgeState), ToolError> {
    let away = |error: StoreError| ToolError::Transient(error.to_string());
    let today = store.usage(&context.tenant, &[today_ms]).await.map_err(away)?;
    let kept = store.knowledge_state(&context.tenant, Some(&context.agent)).await.map_err(away)?;
    Ok((today.first().map(|day| day.total).unwrap_or_default(), kept))
}

fn subscription(
    caller: &Caller,
    context: &CallContext,
    standing: &TenantUsage,
    models: Used,
    kept: KnowledgeState,
) -> Result<Subscription, ToolError> {
    let policy = &caller.active.policy;
    let tenant = &caller.tenant;
    let caps = policy.caps(tenant, &caller.agent);
    let time_zone = policy.time_zone(tenant);
    let zone = day::zone(time_zone).map_err(ToolError::internal)?;
    let (_, today_ends_ms) = day::day_bounds(standing.now_ms, zone);
    let own = standing.agents.first().copied().unwrap_or_default();
    // A counter is valid only until the end of its day. Afterwards, it counts as zero.
    let own_ends_ms = Some(own.day_ends_ms).filter(|end| *end > standing.now_ms);
    let agent_used = own_ends_ms.map_or(0, |_| own.day_used.max(0).unsigned_abs());
    let is_used_up = agent_used >= u64::from(caps.calls_per_day)
        || caps.tenant_calls_per_day.is_some_and(|cap| standing.day_used >= u64::from(cap));
    Ok(Subscription {
        plan: tenant.plan.clone(),
        status: if is_used_up { "daily_cap_reached" } else { "active" },
        features: tenant.features.iter().cloned().collect(),
        time_zone: time_zone.to_owned(),
        limits: Limits {
            actions_per_day: Actions { tenant: caps.tenant_calls_per_day, agent: caps.calls_per_day },
            calls_per_tick: caps.calls_per_tick,
            tick_ms: caps.tick_ms,
            on_day_cap: match caps.on_day_cap {
                DayCapAction::Reject => DayCap::Reject,
                DayCapAction::Defer => DayCap::Defer,
            },
            rows: rows(caller, context),
        },
        usage: Usage {
            actions_today: UsedActions { tenant: standing.day_used, agent: agent_used },
            resets_at: Resets {
                tenant: rfc3339(standing.day_ends_ms.unwrap_or(today_ends_ms)),
                agent: rfc3339(own_ends_ms.unwrap_or(today_ends_ms)),
            },
            unfinished_turns: standing.unfinished,
            storage_bytes: kept.bytes + kept.memory_bytes,
            tokens: Metered {
                used: models.input_tokens.saturating_add(models.output_tokens),
                limit: daily(caller, |bound| if let LimitBound::Tokens(max) = bound { Some(*max) } else { None }),
            },
            money: Metered {
                used: models.cost,
                limit: daily(caller, |bound| if let LimitBound::Money(max) = bound { Some(*max) } else { None }),
            },
        },
        agent_count: caller.agents().1,
        user_count: tenant.users.len(),
    })
}

/// Returns the lowest enforced limit. `amount` returns `None` for a bound of another kind.
fn daily(caller: &Caller, amount: impl Fn(&LimitBound) -> Option<u64>) -> Option<u64> {
    let is_of_all = |limit: &&Limit| {
        limit.mode == LimitMode::Enforce
            && limit.every == LimitWindow::Day
            && limit.per.iter().eq([&LimitKey::Tenant])
            && limit.matches == LimitMatch::default()
    };
    let all = caller.active.policy.limits.iter().filter(is_of_all);
    all.filter_map(|limit| amount(&caller.tenant.limit(limit).bound)).min()
}

/// The tenant's own numbers replace the general numbers of the limits.
fn rows(caller: &Caller, context: &CallContext) -> Vec<Row> {
    let tenant = &caller.tenant;
    let all = caller.active.policy.limits.iter();
    let mine = all
        .filter(|limit| limit.matches.fits_tenant(tenant) && limit.matches.fits_agent(&context.agent, &caller.agent));
    let row = |limit| {
        let limit = tenant.limit(limit);
        Row {
            name: limit.name.clone(),
            allows: limit.to_string(),
            tools: limit.matches.tools.clone(),
            beyond: match (limit.mode, limit.on_reach) {
                (LimitMode::Shadow, _) => "shadow",
                (LimitMode::Enforce, OnReach::Wait) => "wait",
                (LimitMode::Enforce, OnReach::Reject) => "reject",
            },
        }
    };
    mine.take(ROWS_MAX).map(row).collect()
}
