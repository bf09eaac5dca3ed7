//! The rules of who may do what, and how much of it: permission and caps. One function decides, and the same one
//! filters the tools that an agent is shown.

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

/// The action when the day's budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DayCapAction {
    /// Each call gets the result `daily_cap_reached` with `resets_at`.
    #[default]
    Reject,
    /// The calls wait until the day begins.
    Defer,
}

/// The caps of one agent as a script gets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caps {
    /// Length of a tick, ms of Redis time.
    pub tick_ms: i64,
    /// Calls per tick.
    pub calls_per_tick: u32,
    /// Calls per agent and day.
    pub calls_per_day: u32,
    /// Calls per tenant and day; none where the tenant has no cap of its own.
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
    /// The version of a tool that the agent gets, if there are several: tool → selector. Else the newest.
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
    /// IANA time zone in which the tenant's days begin; none means the policy's.
    pub time_zone: Option<String>,
    /// Calls of all the tenant's agents together per day.
    pub max_actions_per_day: Option<u32>,
    /// The agents that the tenant has; empty means every agent of the configuration.
    pub agents: BTreeSet<AgentId>,
    /// The people behind the tenant, for `user_context` and lists; each name once.
    pub users: BTreeSet<TenantUser>,
    /// What limits allow the tenant, by their names, where that is not what they allow others: numbers as people write
    /// them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
}

impl TenantPolicy {
    /// A limit as it is for this tenant. One whose counters tenants share is the same for all.
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
    /// Agents by name that may not, whatever else says they may.
    pub deny_agents: BTreeSet<AgentId>,
    /// Roles that may not, whatever else says they may.
    pub deny_roles: BTreeSet<String>,
    /// Every agent may, unless denied.
    pub everyone: bool,
    /// What calls have to meet, all of it, whoever makes them. Left out of digests where there is none, so that a policy
    /// without rules stays the same to the build before this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What calls of the tool require and change of the facts of their session. Left out of digests where there is nothing.
    #[serde(default, skip_serializing_if = "FactRow::is_empty")]
    pub facts: FactRow,
}

/// A condition on a call's arguments and context, as configuration declares it. Workers evaluate it; to all others it is
/// text.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Rule {
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which calls it is about; none means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// What has to be so.
    pub require: String,
    /// What is told where it is not so; values stand in braces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether it stops anything. Left out of digests where it does, as before there was a choice.
    #[serde(default, skip_serializing_if = "RuleMode::is_enforced")]
    pub mode: RuleMode,
    /// Who may let a call pass that does not meet it; none means nobody. Left out of digests likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise_ask: Option<ApprovalDemand>,
}

/// Whether a rule stops anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleMode {
    /// It does.
    #[default]
    Enforce,
    /// It only says what it would have stopped.
    Shadow,
}

impl RuleMode {
    /// Returns true if the rule stops what does not meet it.
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    pub const fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforce)
    }
}

/// A rule in shadow that would have stopped a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowDenial {
    /// The rule, as the configuration has it.
    pub rule: String,
    /// A stable word for why, the one that a denied call has in `details.reason`.
    pub reason: &'static str,
    /// The same in words.
    pub message: String,
}

impl Rule {
    /// Where the configuration has it: by its name, or by its position in the row of `tool`.
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
    /// Tool ids or names that nobody may call.
    pub disabled_tools: BTreeSet<String>,
    /// The same, switched off at run time: no file has to be in order for that.
    pub switched_off: BTreeSet<String>,
    /// True if `required_capabilities` are checked. False only warns.
    pub strict_capabilities: bool,
    /// The people who may consent to calls: name → their roles.
    pub approvers: BTreeMap<String, BTreeSet<String>>,
}

/// Tools that come with every worker for trying a fleet out. They are there only for whom the matrix names: no agent of a
/// real fleet should be shown them.
pub const TRIAL_TOOLS: [&str; 4] = ["echo", "sleep", "fail", "fail_once"];

/// Tools about the fleet itself. Where the matrix has no row for one, every agent may call it; a row decides as for any
/// other tool. They debit like any call.
pub const META_TOOLS: [&str; 3] = ["list_tools", "check_task", "fetch_result"];

/// Tools for work and messages between agents, beside `delegate_task`. As any other, they need a row.
pub const TEAM_TOOLS: [&str; 3] = ["cancel_task", "send_mcp_message", "read_messages"];

/// Why a call is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The tool is disabled for everybody.
    Disabled,
    /// The matrix names the agent, or a role of it, in a deny list.
    DeniedByRule,
    /// Nothing in the matrix allows the agent.
    NotGranted,
    /// The task that the turn runs under does not grant a capability.
    MissingCapability(String),
    /// The tenant's plan lacks a feature.
    MissingFeature(String),
    /// The turn, or the task that it runs under, was narrowed to other tools.
    Narrowed,
    /// No version of the tool is one that the agent's selector takes.
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

/// The caller of a tool, as the decision sees it.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The agent that calls.
    pub agent: &'a AgentId,
    /// Its declaration.
    pub policy: &'a AgentPolicy,
    /// Its tenant's declaration.
    pub tenant: &'a TenantPolicy,
    /// The capabilities that the task grants, where the turn runs under one: the agent's own are cut to these.
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

    /// Decides by names alone: whether the tool is disabled, and what the permission matrix says.
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

    /// Returns true if nobody may call the tool, by the configuration or at run time.
    #[must_use]
    pub fn is_disabled(&self, tool: &ToolSpec) -> bool {
        names_one(&self.disabled_tools, tool) || names_one(&self.switched_off, tool)
    }

    /// The rule that a denial comes from, as the configuration or the message spells it
    /// (`permissions.post_to_x.deny_agents`).
    #[must_use]
    pub fn rule(&self, caller: Caller<'_>, tool: &ToolSpec, denial: &Denial) -> String {
        let (name, agent) = (&tool.name, caller.agent);
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

/// Returns true if a list of names and ids has the tool.
fn names_one(names: &BTreeSet<String>, tool: &ToolSpec) -> bool {
    names.contains(&tool.name) || names.contains(&tool.id)
}

/// Everything that decides about agents and tenants, as one consistent whole.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Agent → declaration. An agent that is not here is unknown. There may be many, and copies share them.
    pub agents: Arc<BTreeMap<AgentId, AgentPolicy>>,
    /// Tenant → declaration. A tenant that is not here is unknown.
    pub tenants: BTreeMap<TenantId, TenantPolicy>,
    /// Tenants that were set at run time, and whose declaration cannot be read: nothing is decided about them, least of
    /// all by what the configuration says.
    pub withheld: BTreeSet<TenantId>,
    /// Tenants and agents whose calls do not go out for now, with why: set at run time.
    pub paused: BTreeMap<Paused, Pause>,
    /// Tools that are not called for now, with why: set at run time. Their calls wait.
    pub tools_paused: BTreeMap<PausedTool, Pause>,
    /// The permissions: who may call what.
    pub permissions: Permissions,
    /// Caps that agents and tenants override.
    pub defaults: DefaultCaps,
    /// What else calls are limited by, each name once.
    pub limits: Arc<Vec<Limit>>,
    /// What limits may ask about the tools that the configuration knows.
    pub known_tools: Arc<KnownTools>,
}

impl Policy {
    /// The name of the tool that a model means by `said`; none where the configuration knows no such tool.
    #[must_use]
    pub fn tool_name<'a>(&'a self, said: &'a str) -> Option<&'a str> {
        let name = self.known_tools.meant(said);
        let is_known = self.known_tools.traits(name).is_some()
            || self.permissions.matrix.contains_key(name)
            || META_TOOLS.contains(&name);
        is_known.then_some(name)
    }
}

/// The caps where neither agent nor tenant says otherwise.
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
    /// The declarations of an agent of a tenant, or which of the two is unknown.
    ///
    /// # Errors
    /// [`Unknown`] names the unknown one.
    pub fn look_up(&self, tenant: &TenantId, agent: &AgentId) -> Result<(&TenantPolicy, &AgentPolicy), Unknown> {
        if self.withheld.contains(tenant) {
            return Err(Unknown::Withheld);
        }
        let owner = self.tenants.get(tenant).ok_or(Unknown::Tenant)?;
        let known = self.agents.get(agent).filter(|_| owner.agents.is_empty() || owner.agents.contains(agent));
        Ok((owner, known.ok_or(Unknown::Agent)?))
    }

    /// Why every turn is refused, whoever sends it; none if some may be admitted.
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

/// Why the policy says nothing about an agent of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// No such tenant.
    Tenant,
    /// No such agent, or the tenant does not have it.
    Agent,
    /// The tenant was set at run time, and its declaration cannot be read.
    Withheld,
}
