//! The tools available to one call. They depend on the registry, the policy and the restrictions of the turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_engine::delegation::narrower;
use tickfleet_model::policy::{Caller, Denial, FactRow, UnknownCaller};
use tickfleet_model::{AgentId, Context, TaskGrant, TaskId, TenantId};
use tickfleet_rules::{Facts, RuleDenial, RuleFindings};

use serde_json::value::RawValue;

use super::{RegisteredTool, Registry};

/// The tools of one configuration that a turn may use.
#[derive(Debug, Clone, Default)]
pub struct Toolbox {
    active: Arc<ActivePolicy>,
    registry: Arc<Registry>,
    granted: Option<Arc<BTreeSet<String>>>,
    narrowed: Option<Arc<BTreeSet<String>>>,
}

/// The inputs of the rules for one call.
#[derive(Debug, Clone, Copy)]
pub struct RuledCall<'a> {
    /// The calling agent's tenant.
    pub tenant: &'a TenantId,
    /// The calling agent.
    pub agent: &'a AgentId,
    /// The tool.
    pub tool: &'a RegisteredTool,
    /// The arguments that the tool receives.
    pub arguments: &'a RawValue,
    /// The context of the turn.
    pub context: &'a Context,
    /// The task that the turn runs under, if any.
    pub task: Option<&'a (TaskId, TaskGrant)>,
}

/// Why the rules stop a call.
#[derive(Debug, Clone)]
pub enum RuleViolation {
    /// A rule is not met or cannot be evaluated.
    RuleDenial(RuleDenial),
    /// The calling agent or its tenant is not configured anymore.
    UnusableTool(UnusableTool),
}

/// Why a tool cannot be called by the name that the model gave.
#[derive(Debug, Clone)]
pub enum UnusableTool {
    /// The agent or its tenant is not configured anymore.
    NoAgent,
    /// The tenant was configured at run time, and its declaration cannot be read.
    Withheld,
    /// No tool has this name.
    NoTool,
    /// The tool exists, but the rule named in the text forbids the call.
    Denied(Denial, String),
}

impl Toolbox {
    /// Makes the toolbox of a turn. `allowed` and `grant` may also contain names that a dialect shows.
    #[must_use]
    pub fn new(
        active: Arc<ActivePolicy>,
        registry: Arc<Registry>,
        allowed: Option<&BTreeSet<String>>,
        grant: Option<&TaskGrant>,
    ) -> Self {
        let own_names = |names: &BTreeSet<String>| -> BTreeSet<String> {
            names.iter().filter_map(|name| Some(registry.resolve(name)?.spec.name.clone())).collect()
        };
        let of_task = grant.and_then(|grant| grant.tools.as_ref()).map(own_names);
        let narrowed = narrower(allowed.map(own_names), of_task).map(Arc::new);
        let granted = grant.and_then(|grant| grant.capabilities.clone()).map(Arc::new);
        Self { active, registry, granted, narrowed }
    }

    /// Returns the tools that the turn is restricted to. `None` if the turn may use all tools of its agent.
    #[must_use]
    pub fn narrowed(&self) -> Option<&BTreeSet<String>> {
        self.narrowed.as_deref()
    }

    /// Returns the tool that an agent calls by `name`, if the agent may call it.
    pub fn find(&self, tenant: &TenantId, agent: &AgentId, name: &str) -> Result<&Arc<RegisteredTool>, UnusableTool> {
        let caller = self.caller(tenant, agent)?;
        let tool = self.registry.resolve(name).ok_or(UnusableTool::NoTool)?;
        let permissions = &self.active.policy.permissions;
        match self
            .version(caller, tool)
            .and_then(|tool| permissions.decide_narrowed(caller, self.narrowed(), &tool.spec).map(|()| tool))
        {
            Ok(tool) => Ok(tool),
            Err(denial) => {
                let rule = permissions.rule(caller, &tool.spec, &denial);
                Err(UnusableTool::Denied(denial, rule))
            }
        }
    }

    /// Returns the number of enforced rules for calls of a tool.
    #[must_use]
    pub fn rules(&self, tool: &RegisteredTool) -> usize {
        self.active.rules.enforced(&tool.spec.name)
    }

    /// Returns the conditions on session facts in the tool's permission row. `None` for a row without conditions.
    #[must_use]
    pub fn facts(&self, tool: &RegisteredTool) -> Option<&FactRow> {
        let row = self.active.policy.permissions.matrix.get(&tool.spec.name)?;
        Some(&row.facts).filter(|facts| !facts.is_empty())
    }

    /// Returns the people who may approve calls, with their roles.
    #[must_use]
    pub fn approvers(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.active.policy.permissions.approvers
    }

    /// Evaluates the rules for a call. Shadow rules, and rules that a person may waive, do not stop the call.
    pub fn follow_rules(&self, call: &RuledCall<'_>) -> Result<RuleFindings, RuleViolation> {
        let name = &call.tool.spec.name;
        let declared = self.active.policy.permissions.matrix.get(name).map_or(0, |row| row.rules.len());
        if declared == 0 {
            return Ok(RuleFindings::default());
        }
        if declared != self.active.rules.count(name) {
            return Err(RuleViolation::RuleDenial(RuleDenial::not_compiled(name)));
        }
        let caller = self.caller(call.tenant, call.agent).map_err(RuleViolation::UnusableTool)?;
        let facts = Facts {
            arguments: call.arguments,
            agent: (caller.agent, caller.policy),
            tenant: (call.tenant, caller.tenant),
            tool: &call.tool.spec,
            context: call.context,
            task: call.task,
        };
        self.active.rules.decide(name, &facts).map_err(RuleViolation::RuleDenial)
    }

    /// Returns all tools that an agent is permitted to call, by name.
    #[must_use]
    pub fn may_call(&self, tenant: &TenantId, agent: &AgentId) -> Vec<&Arc<RegisteredTool>> {
        let Ok(caller) = self.caller(tenant, agent) else { return Vec::new() };
        let permissions = &self.active.policy.permissions;
        let versions = self.registry.iter().filter_map(|tool| self.version(caller, tool).ok());
        versions.filter(|tool| permissions.decide_narrowed(caller, self.narrowed(), &tool.spec).is_ok()).collect()
    }

    /// Returns the names in `allowed` that are similar to the unknown name `wrong`.
    #[must_use]
    pub fn similar_names<'a>(&'a self, wrong: &str, allowed: &[&str]) -> Vec<&'a str> {
        self.registry.similar_names(wrong).into_iter().filter(|name| allowed.contains(name)).collect()
    }

    fn version<'a>(
        &'a self,
        caller: Caller<'_>,
        tool: &'a Arc<RegisteredTool>,
    ) -> Result<&'a Arc<RegisteredTool>, Denial> {
        let selector = caller.policy.tool_versions.get(&tool.spec.name).map(String::as_str);
        self.registry.select(tool, selector).ok_or_else(|| Denial::NoVersion(selector.unwrap_or_default().to_owned()))
    }

    fn caller<'a>(&'a self, tenant: &TenantId, agent: &'a AgentId) -> Result<Caller<'a>, UnusableTool> {
        let known = self.active.policy.look_up(tenant, agent).map_err(|unknown| match unknown {
            UnknownCaller::Withheld => UnusableTool::Withheld,
            UnknownCaller::Tenant | UnknownCaller::Agent => UnusableTool::NoAgent,
        });
        known.map(|(tenant, policy)| Caller { agent, policy, tenant, granted: self.granted.as_deref() })
    }
}
