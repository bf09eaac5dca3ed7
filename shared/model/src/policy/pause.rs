//! Operators stop calls temporarily with pauses.

use serde::{Deserialize, Serialize};

use super::{AgentId, Policy, TenantId, ToolSpec};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Paused {
    pub tenant: TenantId,
    /// `None` means all agents of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PausedTool {
    /// `None` means all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// Name or ID.
    pub tool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    pub by: String,
    pub reason: String,
    /// In shard time.
    pub since_ms: i64,
}

impl Policy {
    #[must_use]
    pub fn pause(&self, tenant: &TenantId, agent: &AgentId) -> Option<&Pause> {
        if self.paused.is_empty() {
            return None;
        }
        let of = |agent: Option<AgentId>| self.paused.get(&Paused { tenant: tenant.clone(), agent });
        of(None).or_else(|| of(Some(agent.clone())))
    }

    #[must_use]
    pub fn tool_pause(&self, tenant: &TenantId, tool: &ToolSpec) -> Option<&Pause> {
        if self.tools_paused.is_empty() {
            return None;
        }
        let of = |tenant: Option<&TenantId>, tool: &str| {
            self.tools_paused.get(&PausedTool { tenant: tenant.cloned(), tool: tool.to_owned() })
        };
        [None, Some(tenant)].into_iter().find_map(|whose| of(whose, &tool.name).or_else(|| of(whose, tool.id.as_str())))
    }
}
