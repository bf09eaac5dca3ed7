//! Pauses: operators stop calls temporarily.

use serde::{Deserialize, Serialize};

use super::{AgentId, Policy, TenantId, ToolSpec};

/// A tenant or an agent whose calls are stopped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Paused {
    /// The tenant.
    pub tenant: TenantId,
    /// The agent; `None` means all agents of the tenant.
    pub agent: Option<AgentId>,
}

/// A tool whose calls are stopped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PausedTool {
    /// The tenant whose calls of the tool are stopped; `None` means all tenants.
    pub tenant: Option<TenantId>,
    /// The tool's name or ID.
    pub tool: String,
}

/// Who paused a tenant, agent or tool, why, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// The operator's name, as the request states it.
    pub by: String,
    /// The reason.
    pub reason: String,
    /// Start of the pause, ms of shard time.
    pub since_ms: i64,
}

impl Policy {
    /// The pause that applies to an agent of a tenant, if any: a pause of the tenant or of the agent.
    #[must_use]
    pub fn pause(&self, tenant: &TenantId, agent: &AgentId) -> Option<&Pause> {
        // Usually nothing is paused.
        if self.paused.is_empty() {
            return None;
        }
        let of = |agent: Option<AgentId>| self.paused.get(&Paused { tenant: tenant.clone(), agent });
        of(None).or_else(|| of(Some(agent.clone())))
    }

    /// The pause that applies to this tenant's calls of a tool, if any: a pause for all tenants or for this tenant.
    #[must_use]
    pub fn tool_pause(&self, tenant: &TenantId, tool: &ToolSpec) -> Option<&Pause> {
        // Usually no tool is paused.
        if self.tools_paused.is_empty() {
            return None;
        }
        let of = |tenant: Option<&TenantId>, tool: &str| {
            self.tools_paused.get(&PausedTool { tenant: tenant.cloned(), tool: tool.to_owned() })
        };
        [None, Some(tenant)].into_iter().find_map(|whose| of(whose, &tool.name).or_else(|| of(whose, tool.id.as_str())))
    }
}
