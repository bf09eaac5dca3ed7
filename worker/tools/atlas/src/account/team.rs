//! `get_team_members`: the tenant's agents and people. An agent is `active` if one of its calls was admitted within the
//! last 24 hours.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::{AgentId, Effect, TenantUser};
use tickfleet_store::{AgentBudget, Store};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use super::{Caller, caller, standing};

const MEMBERS_MAX: usize = 500;
const ACTIVE_MS: i64 = 86_400_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filters {
    /// Only members with this role. Default: all roles.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    role_filter: Option<String>,
    /// Only members with this status: active, idle, or a configured status of people, such as invited. Default: all.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    status_filter: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Team {
    /// The matching members, agents first, by name.
    members: Vec<Member>,
    /// The number of matching members.
    total: usize,
    /// True if the list is incomplete.
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct Member {
    /// The name of the agent or person.
    name: String,
    /// `agent` or `person`.
    kind: &'static str,
    /// The roles.
    roles: BTreeSet<String>,
    /// `active`, `idle`, or the configured status of a person.
    status: String,
    /// When an agent's last call was admitted, RFC 3339; null if unknown.
    last_active: Option<String>,
    /// A person's email address, if configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    email: Option<String>,
}

#[must_use]
pub fn get_team_members(store: Store, active: Arc<PolicyHandle>) -> TypedTool {
    TypedTool::new(
        "get_team_members",
        "Lists the members of the tenant's team, agents and people, with roles, status and when they were last active.",
        Effect::Read,
        move |context: CallContext, filters: Filters| {
            let store = store.clone();
            let active = active.clone();
            async move {
                let caller = caller(&active, &context)?;
                let (agents, all) = caller.agents();
                let standing = standing(&store, &context.tenant, &agents).await?;
                let mut members: Vec<Member> = agents
                    .iter()
                    .zip(&standing.agents)
                    .map(|(agent, budget)| member(&caller, agent, budget, standing.now_ms))
                    .collect();
                members.extend(caller.tenant.users.iter().map(person));
                Ok::<_, ToolError>(team(members, &filters, all > agents.len()))
            }
        },
    )
    .category("account")
}

fn member(caller: &Caller, agent: &AgentId, budget: &AgentBudget, now_ms: i64) -> Member {
    let began_ms = Some(budget.tick_began_ms).filter(|at| *at > 0 && (budget.tick_used > 0 || budget.day_used > 0));
    let is_active = began_ms.is_some_and(|at| now_ms - at < ACTIVE_MS);
    Member {
        name: agent.to_string(),
        kind: "agent",
        roles: caller.active.policy.agents.get(agent).map(|policy| policy.roles.clone()).unwrap_or_default(),
        status: if is_active { "active" } else { "idle" }.into(),
        last_active: began_ms.map(|at| rfc3339(at.min(now_ms))),
        email: None,
    }
}

fn person(user: &TenantUser) -> Member {
    Member {
        name: user.name.clone(),
        kind: "person",
        roles: user.roles.clone(),
        status: user.status.clone().unwrap_or_else(|| "active".into()),
        last_active: None,
        email: user.email.clone(),
    }
}

fn team(mut members: Vec<Member>, filters: &Filters, more: bool) -> Team {
    let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other.trim());
    members.retain(|member| {
        let has_role = |role: &String| member.roles.iter().any(|own| same(own, role));
        filters.role_filter.as_ref().is_none_or(has_role)
            && filters.status_filter.as_ref().is_none_or(|status| same(&member.status, status))
    });
    let total = members.len();
    members.truncate(MEMBERS_MAX);
    Team { truncated: more || total > MEMBERS_MAX, members, total }
}
