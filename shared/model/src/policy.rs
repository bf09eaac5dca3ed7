//! Permissions and caps. The same function decides about a call and filters the tools that an agent is shown.

mod facts;
mod pause;
mod tenant_user;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::approval::ApprovalDemand;
use super::tool::KnownTools;
use super::{AgentId, Limit, Outcome, TenantId, ToolSpec};

pub use facts::{
    FACT_KEPT_MS_DEFAULT, FACT_KEPT_MS_MAX, Fact, FactChange, FactCondition, FactRow, FactScope, FactTransition,
    FactsSession, session_note,
};
pub use pause::{Pause, Paused, PausedTool};
pub use tenant_user::TenantUser;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DayCapAction {
    /// Each call gets the result `daily_cap_reached` with `resets_at`.
    #[default]
    Reject,
    Defer,
}

/// The defaults, unless the agent or the tenant has caps of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caps {
    /// In Redis time.
    pub tick_ms: i64,
    pub calls_per_tick: u32,
    pub calls_per_day: u32,
    /// All agents of the tenant together. `None` without such a cap.
    pub tenant_calls_per_day: Option<u32>,
    pub on_day_cap: DayCapAction,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct AgentPolicy {
    pub roles: BTreeSet<String>,
    pub capabilities: BTreeSet<String>,
    /// Tool to version selector. Without a selector, the agent gets the newest version.
    #[serde(default)]
    pub tool_versions: BTreeMap<String, String>,
    /// `None` means the default.
    pub calls_per_tick: Option<u32>,
    /// `None` means the default.
    pub max_actions_per_day: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct TenantPolicy {
    /// A name that limits and rules can refer to.
    pub plan: String,
    pub features: BTreeSet<String>,
    /// IANA name. `None` means the time zone of the policy.
    pub time_zone: Option<String>,
    /// All agents of the tenant together. `None` without such a cap.
    pub max_actions_per_day: Option<u32>,
    /// Empty means every agent of the configuration.
    pub agents: BTreeSet<AgentId>,
    /// No two users have the same name.
    pub users: BTreeSet<TenantUser>,
    /// The limit's name to the tenant's own maximum, written as in the configuration.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
}

impl TenantPolicy {
    /// Applies the tenant's own maximum, unless tenants share the counters of the limit.
    #[must_use]
    pub fn limit<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        let own = self.limits.get(&limit.name).filter(|_| limit.is_of_tenants());
        match own.and_then(|text| limit.bound.parse_max(text)) {
            Some(max) => Cow::Owned(Limit { bound: limit.bound.with_max(max), ..limit.clone() }),
            None => Cow::Borrowed(limit),
        }
    }
}

/// A denial wins over an allowance. An agent that the row does not allow is denied.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ToolGrant {
    pub agents: BTreeSet<AgentId>,
    pub roles: BTreeSet<String>,
    pub deny_agents: BTreeSet<AgentId>,
    pub deny_roles: BTreeSet<String>,
    /// If true, every agent that is not denied may call the tool.
    pub everyone: bool,
    /// Every call must meet all rules. Digests omit an empty list, so that a policy without rules keeps its digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Digests omit an empty row.
    #[serde(default, skip_serializing_if = "FactRow::is_empty")]
    pub facts: FactRow,
}

/// As written in the configuration. Only workers parse rules.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Rule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Selects calls. `None` means all calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    pub require: String,
    /// Names in braces are replaced with values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Digests omit the mode of an enforced rule.
    #[serde(default, skip_serializing_if = "RuleMode::is_enforced")]
    pub mode: RuleMode,
    /// Approvers may permit a violation. `None` means denial, and digests omit the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise_ask: Option<ApprovalDemand>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleMode {
    #[default]
    Enforce,
    Shadow,
}

impl RuleMode {
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    pub const fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforce)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ShadowDenial {
    /// The path of the rule or limit in the configuration.
    pub rule: String,
    /// Stable. A denied call has the same code in `details.reason`.
    pub reason: std::borrow::Cow<'static, str>,
    pub message: String,
}

impl Rule {
    #[must_use]
    pub fn place(&self, tool: &str, at: usize) -> String {
        match &self.name {
            Some(name) => format!("permissions.{tool}.rules.{name}"),
            None => format!("permissions.{tool}.rules[{at}]"),
        }
    }
}

impl ToolGrant {
    fn decide(&self, caller: Caller<'_>) -> Result<(), Denial> {
        let roles = &caller.policy.roles;
        if self.deny_agents.contains(caller.agent) || !self.deny_roles.is_disjoint(roles) {
            return Err(Denial::DeniedByRule);
        }
        if self.everyone || self.agents.contains(caller.agent) || !self.roles.is_disjoint(roles) {
            return Ok(());
        }
        Err(Denial::NotGranted)
    }
}

/// A reload replaces all permissions at once.
#[derive(Debug, Clone, Default)]
pub struct Permissions {
    pub matrix: BTreeMap<String, ToolGrant>,
    /// IDs or names. No agent may call these tools.
    pub disabled_tools: BTreeSet<String>,
    /// IDs or names of tools that were disabled at run time. These tools stay disabled even if configuration files are
    /// invalid.
    pub switched_off: BTreeSet<String>,
    /// If false, missing capabilities only cause a warning.
    pub strict_capabilities: bool,
    /// Name to roles.
    pub approvers: BTreeMap<String, BTreeSet<String>>,
}

/// An agent may call these tools only if the matrix names the agent. So agents of a production fleet do not see the
/// tools.
pub const TRIAL_TOOLS: [&str; 4] = ["echo", "sleep", "fail", "fail_once"];

/// Without a row in the matrix, every agent may call these tools. The calls debit budgets like any other call.
pub const META_TOOLS: [&str; 3] = ["list_tools", "check_task", "fetch_result"];

/// Without a row in the matrix, no agent may call these tools.
pub const TEAM_TOOLS: [&str; 3] = ["cancel_task", "send_mcp_message", "read_messages"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    Disabled,
    DeniedByRule,
    NotGranted,
    /// The agent lacks the capability, or the turn's task does not grant it.
    MissingCapability(String),
    MissingFeature(String),
    Narrowed,
    NoVersion(String),
}

impl Denial {
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Disabled => "tool_disabled",
            Self::DeniedByRule => "denied_by_rule",
            Self::NotGranted => "not_granted",
            Self::MissingCapability(_) => "missing_capability",
            Self::MissingFeature(_) => "missing_feature",
            Self::Narrowed => "narrowed",
            Self::NoVersion(_) => "no_version",
        }
    }

    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        Outcome::Denied
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    pub agent: &'a AgentId,
    pub policy: &'a AgentPolicy,
    pub tenant: &'a TenantPolicy,
    /// `None` if the turn has no task. The agent must also have the granted capabilities itself.
    pub granted: Option<&'a BTreeSet<String>>,
}

impl Permissions {
    /// Checks in this order: disabled, denied, not granted, capability, feature.
    pub fn decide(&self, caller: Caller<'_>, tool: &ToolSpec) -> Result<(), Denial> {
        self.decide_name(caller, &tool.name, &tool.id)?;
        self.capabilities(caller, tool)?;
        match tool.required_features.iter().find(|f| !caller.tenant.features.contains(*f)) {
            Some(missing) => Err(Denial::MissingFeature(missing.clone())),
            None => Ok(()),
        }
    }

    /// Checks in this order: disabled, denied, not granted.
    pub fn decide_name(&self, caller: Caller<'_>, name: &str, id: &str) -> Result<(), Denial> {
        let off = |names: &BTreeSet<String>| names.contains(name) || names.contains(id);
        if off(&self.disabled_tools) || off(&self.switched_off) {
            return Err(Denial::Disabled);
        }
        match self.matrix.get(name) {
            Some(row) => row.decide(caller),
            None if META_TOOLS.contains(&name) => Ok(()),
            None => Err(Denial::NotGranted),
        }
    }

    /// Checks [`Self::decide`] first, then [`Denial::Narrowed`].
    pub fn decide_narrowed(
        &self,
        caller: Caller<'_>,
        narrowed: Option<&BTreeSet<String>>,
        tool: &ToolSpec,
    ) -> Result<(), Denial> {
        self.decide(caller, tool)?;
        if narrowed.is_none_or(|names| names.contains(&tool.name)) { Ok(()) } else { Err(Denial::Narrowed) }
    }

    #[must_use]
    pub fn is_disabled(&self, tool: &ToolSpec) -> bool {
        names_one(&self.disabled_tools, tool) || names_one(&self.switched_off, tool)
    }

    /// The cause as a path in the configuration (`permissions.post_to_x.deny_agents`), or as a command.
    #[must_use]
    pub fn rule(&self, caller: Caller<'_>, tool: &ToolSpec, denial: &Denial) -> String {
        let name = &tool.name;
        let agent = caller.agent;
        match denial {
            Denial::Disabled if names_one(&self.disabled_tools, tool) => "permission.disabled_tools".into(),
            Denial::Disabled => "tickfleet tools disable".into(),
            Denial::DeniedByRule => {
                let by_name = self.matrix.get(name).is_some_and(|row| row.deny_agents.contains(agent));
                format!("permissions.{name}.{}", if by_name { "deny_agents" } else { "deny_roles" })
            }
            Denial::NotGranted => format!("permissions.{name}"),
            Denial::MissingCapability(capability) if caller.policy.capabilities.contains(capability) => {
                "the task's capabilities".into()
            }
            Denial::MissingCapability(_) => format!("agents.{agent}.capabilities"),
            Denial::MissingFeature(_) => "the tenant's features".into(),
            Denial::Narrowed => "allowed_tools".into(),
            Denial::NoVersion(_) => format!("agents.{agent}.tool_versions.{name}"),
        }
    }

    fn capabilities(&self, caller: Caller<'_>, tool: &ToolSpec) -> Result<(), Denial> {
        let holds = |capability: &String| {
            caller.policy.capabilities.contains(capability)
                && caller.granted.is_none_or(|granted| granted.contains(capability))
        };
        match tool.required_capabilities.iter().find(|c| !holds(c)) {
            Some(missing) if self.strict_capabilities => Err(Denial::MissingCapability(missing.clone())),
            _ => Ok(()),
        }
    }
}

fn names_one(names: &BTreeSet<String>, tool: &ToolSpec) -> bool {
    names.contains(&tool.name) || names.contains(&tool.id)
}

#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// An agent that is not in the map is unknown. Copies share the large map.
    pub agents: Arc<BTreeMap<AgentId, AgentPolicy>>,
    /// A tenant that is not in the map is unknown.
    pub tenants: BTreeMap<TenantId, TenantPolicy>,
    /// The run-time declarations of these tenants are unreadable. All turns are rejected, even if the configuration
    /// files declare the tenants.
    pub withheld: BTreeSet<TenantId>,
    pub paused: BTreeMap<Paused, Pause>,
    /// Set at run time. Calls of these tools wait.
    pub tools_paused: BTreeMap<PausedTool, Pause>,
    pub permissions: Permissions,
    pub defaults: DefaultCaps,
    /// No two limits have the same name.
    pub limits: Arc<Vec<Limit>>,
    pub known_tools: Arc<KnownTools>,
}

impl Policy {
    #[must_use]
    pub fn tool_name<'a>(&'a self, spelling: &'a str) -> Option<&'a str> {
        let name = self.known_tools.meant(spelling);
        let is_known = self.known_tools.traits(name).is_some()
            || self.permissions.matrix.contains_key(name)
            || META_TOOLS.contains(&name);
        is_known.then_some(name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultCaps {
    pub tick_ms: i64,
    pub calls_per_tick: u32,
    /// Per agent and day (`MAX_ACTIONS_PER_DAY`).
    pub max_actions_per_day: u32,
    pub time_zone: String,
    pub on_day_cap: DayCapAction,
}

impl Default for DefaultCaps {
    fn default() -> Self {
        Self {
            tick_ms: 5_000,
            calls_per_tick: 10,
            max_actions_per_day: 1_000,
            time_zone: "UTC".into(),
            on_day_cap: DayCapAction::Reject,
        }
    }
}

impl Policy {
    pub fn look_up(&self, tenant: &TenantId, agent: &AgentId) -> Result<(&TenantPolicy, &AgentPolicy), UnknownCaller> {
        if self.withheld.contains(tenant) {
            return Err(UnknownCaller::Withheld);
        }
        let owner = self.tenants.get(tenant).ok_or(UnknownCaller::Tenant)?;
        let known = self.agents.get(agent).filter(|_| owner.agents.is_empty() || owner.agents.contains(agent));
        Ok((owner, known.ok_or(UnknownCaller::Agent)?))
    }

    /// `None` if some turns may be admitted.
    #[must_use]
    pub fn all_rejected_reason(&self) -> Option<&'static str> {
        if self.agents.is_empty() {
            return Some("no agent is configured: every turn is rejected; agents.yaml names the agents");
        }
        self.tenants.is_empty().then_some(
            "no tenants configured or set at run time: every turn is rejected; tenants.yaml names the tenants",
        )
    }

    #[must_use]
    pub fn caps(&self, tenant: &TenantPolicy, agent: &AgentPolicy) -> Caps {
        Caps {
            tick_ms: self.defaults.tick_ms,
            calls_per_tick: agent.calls_per_tick.unwrap_or(self.defaults.calls_per_tick),
            calls_per_day: agent.max_actions_per_day.unwrap_or(self.defaults.max_actions_per_day),
            tenant_calls_per_day: tenant.max_actions_per_day,
            on_day_cap: self.defaults.on_day_cap,
        }
    }

    #[must_use]
    pub fn time_zone<'a>(&'a self, tenant: &'a TenantPolicy) -> &'a str {
        tenant.time_zone.as_deref().unwrap_or(&self.defaults.time_zone)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownCaller {
    Tenant,
    /// The agent is unknown, or does not belong to the tenant.
    Agent,
    Withheld,
}
