//! Pauses: operators stop calls for a while.

use serde::{Deserialize, Serialize};

use super::{AgentId, Policy, TenantId, ToolSpec};

/// A tenant whose calls are stopped, or one of its agents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Paused {
    /// The tenant.
    pub tenant: TenantId,
    /// The tenant's agent; `None`: all of them.
    pub agent: Option<AgentId>,
}

/// A tool whose calls are stopped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PausedTool {
    /// The tenant whose calls are stopped; `None`: all tenants.
    pub tenant: Option<TenantId>,
    /// Its name or id.
    pub tool: String,
}

/// Who paused it, why, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// The operator's name, as given.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when, ms of shard time.
    pub since_ms: i64,
}

impl Policy {
    /// The pause of an agent of a tenant, if any: the tenant's, or its own.
    #[must_use]
    pub fn pause(&self, tenant: &TenantId, agent: &AgentId) -> Option<&Pause> {
        // The usual case.
        if self.paused.is_empty() {
            return None;
        }
        let of = |agent: Option<AgentId>| self.paused.get(&Paused { tenant: tenant.clone(), agent });
        of(None).or_else(|| of(Some(agent.clone())))
    }

    /// The pause of a tool for calls of this tenant, if any: the one for all tenants, or the tenant's.
    #[must_use]
    pub fn tool_pause(&self, tenant: &TenantId, tool: &ToolSpec) -> Option<&Pause> {
        // The usual case.
        if self.tools_paused.is_empty() {
            return None;
        }
        let of = |tenant: Option<&TenantId>, tool: &str| {
            self.tools_paused.get(&PausedTool { tenant: tenant.cloned(), tool: tool.to_owned() })
        };
        [None, Some(tenant)].into_iter().find_map(|whose| of(whose, &tool.name).or_else(|| of(whose, tool.id.as_str())))
    }
}
