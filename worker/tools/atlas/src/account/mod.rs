//! An agent's own tenant: the subscription and the members of the team. Both tools read only the tenant of the call.

mod subscription;
mod team;

pub use subscription::get_subscription_info;
pub use team::get_team_members;

use std::sync::Arc;

use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_model::policy::{AgentPolicy, TenantPolicy};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{Store, StoreError, TenantUsage};
use tickfleet_tools::{CallContext, ToolError};

/// Further agents are not read: a tenant may have very many agents, and Redis must also serve other requests.
const AGENTS_SEEN_MAX: usize = 1_000;

struct Caller {
    active: Arc<ActivePolicy>,
    tenant: TenantPolicy,
    agent: AgentPolicy,
}

fn caller(active: &PolicyHandle, context: &CallContext) -> Result<Caller, ToolError> {
    let active = active.load();
    let found = active.policy.look_up(&context.tenant, &context.agent);
    // The call has passed the permission checks, so the tenant or the agent was removed afterwards.
    let gone = |_| ToolError::Permanent("Your tenant or you are no longer configured here.".into());
    let (tenant, agent) = found.map(|(tenant, agent)| (tenant.clone(), agent.clone())).map_err(gone)?;
    Ok(Caller { active, tenant, agent })
}

impl Caller {
    /// Returns at most [`AGENTS_SEEN_MAX`] agents, and the number of all agents.
    fn agents(&self) -> (Vec<AgentId>, usize) {
        let all = &self.active.policy.agents;
        if self.tenant.agents.is_empty() {
            return (all.keys().take(AGENTS_SEEN_MAX).cloned().collect(), all.len());
        }
        let mut own = self.tenant.agents.iter().filter(|agent| all.contains_key(*agent));
        let seen: Vec<AgentId> = own.by_ref().take(AGENTS_SEEN_MAX).cloned().collect();
        let total = seen.len() + own.count();
        (seen, total)
    }
}

async fn standing(store: &Store, tenant: &TenantId, agents: &[AgentId]) -> Result<TenantUsage, ToolError> {
    let away = |error: StoreError| ToolError::Transient(error.to_string());
    store.tenant_usage(tenant, agents).await.map_err(away)
}
