//! Permissions and caps: who may do what, and how much. The function that decides about a call also filters the tools
//! that an agent is shown.

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
    Becomes, FACT_KEPT_MS_DEFAULT, FACT_KEPT_MS_MAX, Fact, FactChange, FactCondition, FactRow, FactScope, FactsSession,
    session_note,
};
pub use pause::{Pause, Paused, PausedTool};
pub use tenant_user::TenantUser;

/// The action if the day's budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DayCapAction {
    /// Each call gets the result `daily_cap_reached` with `resets_at`.
    #[default]
    Reject,
    /// The calls wait until the day begins.
    Defer,
}

/// The caps of one agent as a script receives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caps {
    /// Length of a tick, ms of Redis time.
    pub tick_ms: i64,
    /// Calls per tick.
    pub calls_per_tick: u32,
    /// Calls per agent and day.
    pub calls_per_day: u32,
    /// Calls per tenant and day; `None` if the tenant has no cap of its own.
    pub tenant_calls_per_day: Option<u32>,
    /// The action at the day cap.
    pub on_day_cap: DayCapAction,
}

/// An agent as configuration declares it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct AgentPolicy {
    /// Roles that rows of the matrix may name.
    pub roles: BTreeSet<String>,
    /// The agent's capabilities; tools may require some.
    pub capabilities: BTreeSet<String>,
    /// The version of a tool that the agent gets if there are several: tool → selector. Without a selector, the
    /// newest.
    #[serde(default)]
    pub tool_versions: BTreeMap<String, String>,
    /// Overrides `calls_per_tick`.
    pub calls_per_tick: Option<u32>,
    /// Overrides `MAX_ACTIONS_PER_DAY`.
    pub max_actions_per_day: Option<u32>,
}

/// A tenant as configuration declares it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct TenantPolicy {
    /// The plan's name, for people.
    pub plan: String,
    /// Features of the plan; tools may require some.
    pub features: BTreeSet<String>,
    /// IANA time zone in which the tenant's days begin; `None` means the policy's.
    pub time_zone: Option<String>,
    /// Calls of all the tenant's agents together per day.
    pub max_actions_per_day: Option<u32>,
    /// The tenant's agents; empty means every agent of the configuration.
    pub agents: BTreeSet<AgentId>,
    /// The people behind the tenant, for `user_context` and lists; each name once.
    pub users: BTreeSet<TenantUser>,
    /// The tenant's own numbers for limits, by the limits' names: numbers as people write them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
}

impl TenantPolicy {
    /// A limit as it applies to this tenant. A limit whose counters tenants share is the same for all.
    #[must_use]
    pub fn limit<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        let own = self.limits.get(&limit.name).filter(|_| limit.is_of_tenants());
        match own.and_then(|text| limit.bound.parse_max(text)) {
            Some(max) => Cow::Owned(Limit { bound: limit.bound.with_max(max), ..limit.clone() }),
            None => Cow::Borrowed(limit),
        }
    }
}

/// The agents that may call one tool: names and roles, allowed and denied. Deny wins; deny is the default.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ToolGrant {
    /// Agents by name.
    pub agents: BTreeSet<AgentId>,
    /// Agents by role.
    pub roles: BTreeSet<String>,
    /// Agents by name that may not call the tool, regardless of other rows.
    pub deny_agents: BTreeSet<AgentId>,
    /// Roles that may not call the tool, regardless of other rows.
    pub deny_roles: BTreeSet<String>,
    /// Every agent may, unless denied.
    pub everyone: bool,
    /// Conditions that every call must meet. Omitted from digests if empty, so that a policy without rules keeps its
    /// digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Facts that calls of the tool require, and facts that they change. Omitted from digests if empty.
    #[serde(default, skip_serializing_if = "FactRow::is_empty")]
    pub facts: FactRow,
}

/// A condition on a call's arguments and context, as configuration declares it. Workers evaluate it; everything else
/// treats it as text.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Rule {
    /// Its name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The calls that it applies to; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The condition that must hold.
    pub require: String,
    /// The message if it does not hold. Values are in braces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the rule stops calls. Omitted from digests if it does.
    #[serde(default, skip_serializing_if = "RuleMode::is_enforced")]
    pub mode: RuleMode,
    /// The approvers who may let a call pass that violates the rule; `None` means that the call is denied. Omitted
    /// from digests if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise_ask: Option<ApprovalDemand>,
}

/// Whether a rule stops calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleMode {
    /// The rule stops calls.
    #[default]
    Enforce,
    /// The rule only reports the calls that it would have stopped.
    Shadow,
}

impl RuleMode {
    /// Returns true if the rule stops calls that violate it.
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    pub const fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforce)
    }
}

/// A rule in shadow mode that would have stopped a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowDenial {
    /// The rule's place in the configuration.
    pub rule: String,
    /// A stable word for the reason: the `details.reason` of a denied call.
    pub reason: &'static str,
    /// The reason in words.
    pub message: String,
}

impl Rule {
    /// Its place in the configuration: by its name, or by its position in the row of `tool`.
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

/// The permission policy: pure data, shared by scheduler and workers, reloaded as a whole.
#[derive(Debug, Clone, Default)]
pub struct Permissions {
    /// Tool name → who may call it.
    pub matrix: BTreeMap<String, ToolGrant>,
    /// Tool IDs or names that no agent may call.
    pub disabled_tools: BTreeSet<String>,
    /// The same, disabled at run time. This works even if the configuration files are invalid.
    pub switched_off: BTreeSet<String>,
    /// True if `required_capabilities` are checked. False only warns.
    pub strict_capabilities: bool,
    /// People who may approve calls: name → their roles.
    pub approvers: BTreeMap<String, BTreeSet<String>>,
}

/// Tools of every worker for trying out a fleet. Only agents that the matrix names get them, so that agents of a
/// production fleet are not shown them.
pub const TRIAL_TOOLS: [&str; 4] = ["echo", "sleep", "fail", "fail_once"];

/// Tools about the fleet itself. If the matrix has no row for such a tool, every agent may call it; a row applies as
/// for any other tool. Their calls debit budgets like any other.
pub const META_TOOLS: [&str; 3] = ["list_tools", "check_task", "fetch_result"];

/// Tools for work and messages between agents, besides `delegate_task`. Like any other tool, they need a row.
pub const TEAM_TOOLS: [&str; 3] = ["cancel_task", "send_mcp_message", "read_messages"];

/// Why a call is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The tool is disabled for all agents.
    Disabled,
    /// A deny list of the matrix contains the agent, or one of its roles.
    DeniedByRule,
    /// The matrix does not allow the agent.
    NotGranted,
    /// The task that the turn runs under does not grant a capability.
    MissingCapability(String),
    /// The tenant's plan lacks a feature.
    MissingFeature(String),
    /// The turn, or its task, was narrowed to other tools.
    Narrowed,
    /// No version of the tool matches the agent's selector.
    NoVersion(String),
}

impl Denial {
    /// A stable word for audit, `details.reason` and logs.
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

    /// The outcome of a denied call.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        Outcome::Denied
    }
}

/// The caller of a tool, as needed for the decision.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The agent that calls.
    pub agent: &'a AgentId,
    /// Its declaration.
    pub policy: &'a AgentPolicy,
    /// Its tenant's declaration.
    pub tenant: &'a TenantPolicy,
    /// The capabilities that the turn's task grants, if it has one. The agent's own capabilities are cut to these.
    pub granted: Option<&'a BTreeSet<String>>,
}

impl Permissions {
    /// Decides whether `caller` may call `tool`.
    ///
    /// # Errors
    /// The first [`Denial`] that applies: disabled, denied, not granted, capability, feature.
    pub fn decide(&self, caller: Caller<'_>, tool: &ToolSpec) -> Result<(), Denial> {
        self.decide_name(caller, &tool.name, &tool.id)?;
        self.capabilities(caller, tool)?;
        match tool.required_features.iter().find(|f| !caller.tenant.features.contains(*f)) {
            Some(missing) => Err(Denial::MissingFeature(missing.clone())),
            None => Ok(()),
        }
    }

    /// Decides by name and ID alone: whether the tool is disabled, and what the permission matrix says.
    ///
    /// # Errors
    /// The first [`Denial`] that applies: disabled, denied, not granted.
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

    /// As [`Self::decide`], for a turn that was narrowed to the tools with these names.
    ///
    /// # Errors
    /// As [`Self::decide`]; then [`Denial::Narrowed`].
    pub fn decide_narrowed(
        &self,
        caller: Caller<'_>,
        narrowed: Option<&BTreeSet<String>>,
        tool: &ToolSpec,
    ) -> Result<(), Denial> {
        self.decide(caller, tool)?;
        if narrowed.is_none_or(|names| names.contains(&tool.name)) { Ok(()) } else { Err(Denial::Narrowed) }
    }

    /// Returns true if the tool is disabled, by the configuration or at run time.
    #[must_use]
    pub fn is_disabled(&self, tool: &ToolSpec) -> bool {
        names_one(&self.disabled_tools, tool) || names_one(&self.switched_off, tool)
    }

    /// The rule that a denial comes from, as the configuration or the message spells it
    /// (`permissions.post_to_x.deny_agents`).
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

/// Returns true if a list of names and IDs contains the tool.
fn names_one(names: &BTreeSet<String>, tool: &ToolSpec) -> bool {
    names.contains(&tool.name) || names.contains(&tool.id)
}

/// Everything that decides about agents and tenants, as one consistent whole.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Agent → declaration. An agent that is not listed is unknown. There may be many; copies share them.
    pub agents: Arc<BTreeMap<AgentId, AgentPolicy>>,
    /// Tenant → declaration. A tenant that is not listed is unknown.
    pub tenants: BTreeMap<TenantId, TenantPolicy>,
    /// Tenants that were set at run time and whose declarations cannot be read. Nothing is decided about them, not
    /// even from the configuration.
    pub withheld: BTreeSet<TenantId>,
    /// Paused tenants and agents, with the reason: set at run time.
    pub paused: BTreeMap<Paused, Pause>,
    /// Paused tools, with the reason: set at run time. Their calls wait.
    pub tools_paused: BTreeMap<PausedTool, Pause>,
    /// The permissions: who may call what.
    pub permissions: Permissions,
    /// Caps that agents and tenants can override.
    pub defaults: DefaultCaps,
    /// Further limits on calls, each name once.
    pub limits: Arc<Vec<Limit>>,
    /// Traits of the tools that the configuration knows, for limits.
    pub known_tools: Arc<KnownTools>,
}

impl Policy {
    /// The name of the tool that a model means by `spelling`; `None` if the configuration does not know the tool.
    #[must_use]
    pub fn tool_name<'a>(&'a self, spelling: &'a str) -> Option<&'a str> {
        let name = self.known_tools.meant(spelling);
        let is_known = self.known_tools.traits(name).is_some()
            || self.permissions.matrix.contains_key(name)
            || META_TOOLS.contains(&name);
        is_known.then_some(name)
    }
}

/// The caps that apply if neither agent nor tenant overrides them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultCaps {
    /// Length of a tick, ms.
    pub tick_ms: i64,
    /// Calls per agent and tick.
    pub calls_per_tick: u32,
    /// Calls per agent and day (`MAX_ACTIONS_PER_DAY`).
    pub max_actions_per_day: u32,
    /// IANA time zone in which days begin.
    pub time_zone: String,
    /// The action at the day cap.
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
    /// The declarations of a tenant and its agent.
    ///
    /// # Errors
    /// [`UnknownCaller`] names the unknown one.
    pub fn look_up(&self, tenant: &TenantId, agent: &AgentId) -> Result<(&TenantPolicy, &AgentPolicy), UnknownCaller> {
        if self.withheld.contains(tenant) {
            return Err(UnknownCaller::Withheld);
        }
        let owner = self.tenants.get(tenant).ok_or(UnknownCaller::Tenant)?;
        let known = self.agents.get(agent).filter(|_| owner.agents.is_empty() || owner.agents.contains(agent));
        Ok((owner, known.ok_or(UnknownCaller::Agent)?))
    }

    /// The reason if every turn is rejected, from any sender; `None` if some may be admitted.
    #[must_use]
    pub fn admits_nobody(&self) -> Option<&'static str> {
        if self.agents.is_empty() {
            return Some("no agent is configured: every turn is rejected; agents.yaml names the agents");
        }
        self.tenants.is_empty().then_some(
            "no tenants configured or set at run time: every turn is rejected; tenants.yaml names the tenants",
        )
    }

    /// The caps of an agent of a tenant.
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

    /// The time zone of a tenant's days.
    #[must_use]
    pub fn time_zone<'a>(&'a self, tenant: &'a TenantPolicy) -> &'a str {
        tenant.time_zone.as_deref().unwrap_or(&self.defaults.time_zone)
    }
}

/// Why the policy has no declaration of an agent of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownCaller {
    /// The tenant is unknown.
    Tenant,
    /// The agent is unknown, or the tenant does not have it.
    Agent,
    /// The tenant was set at run time, and its declaration cannot be read.
    Withheld,
}
