//! Evaluates a call from the audit log again with a worker's guards, under any policy. Nothing runs.

use std::sync::Arc;

use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_model::outcome::PolicyInputs;
use tickfleet_model::policy::FactRow;
use tickfleet_model::{AgentId, ApprovalReason, Context, Effect, Outcome, TaskGrant, TaskId, TenantId};

use crate::calls::guards::{self, GuardedCall};
use crate::calls::messages::CallEnding;
use crate::tools::{RegisteredTool, Registry, Toolbox};

/// An audit entry contains values for these names only in its policy inputs.
const ONLY_IN_POLICY_INPUTS: [&str; 3] = ["user_context", "session_data", "task."];

#[derive(Debug, Clone, Copy)]
pub struct LoggedCall<'a> {
    pub tenant: &'a TenantId,
    pub agent: &'a AgentId,
    /// The name that the model used.
    pub tool: &'a str,
    /// `None` if the arguments are incomplete.
    pub arguments: Option<&'a str>,
    pub policy_inputs: Option<&'a PolicyInputs>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoggedCallVerdict {
    /// The facts of the session may still stop the call.
    Passes,
    /// The configuration entries that require approval.
    Asks(String),
    Ends {
        outcome: Outcome,
        /// The value of `details.reason`; may be empty.
        reason: String,
        rule: String,
    },
    /// The log lacks the data that the decision depends on.
    Unknown(&'static str),
}

const HIDDEN: &str = "a rule reads arguments that are incomplete in the log (secrets, or too long)";
const NOT_LOGGED: &str = "a rule reads user, session or task, which the entry lacks (audit.policy_inputs)";

impl LoggedCall<'_> {
    pub async fn evaluate(&self, active: &Arc<ActivePolicy>, registry: &Arc<Registry>) -> LoggedCallVerdict {
        let policy_inputs = self.policy_inputs.cloned().unwrap_or_default();
        let task = policy_inputs
            .task
            .as_deref()
            .and_then(|task| TaskId::new(task).ok())
            .map(|task| (task, grant(&policy_inputs)));
        let grant = task.as_ref().map(|(_, grant)| grant);
        let tools = Toolbox::new(Arc::clone(active), Arc::clone(registry), policy_inputs.allowed_tools.as_ref(), grant);
        let tools = &tools;
        let tenant = self.tenant;
        let agent = self.agent;
        let name = self.tool;
        let found = match guards::usable(tools, tenant, agent, name) {
            Ok(found) => found,
            Err(ending) => return ends(&ending),
        };
        if let Some(why) = self.missing_input(active, tools, &found) {
            return LoggedCallVerdict::Unknown(why);
        }
        let Some(arguments) = self.arguments else { return unseen(&found, tools) };
        let context = Context {
            user_context: policy_inputs.user_context.clone(),
            session_data: policy_inputs.session_data.clone(),
            ..Context::default()
        };
        // Without policy inputs, assume that nulls represent omitted arguments. The logged call passed the guards, and
        // null values would not have passed.
        let strict = self.policy_inputs.is_none_or(|policy_inputs| policy_inputs.strict);
        let task = task.as_ref();
        let call = GuardedCall::Tool { tools, tenant, agent, name, strict, context: &context, task };
        match guards::pass(&call, arguments, |_, _| {}).await {
            Ok(passed) if passed.approvals.is_empty() => LoggedCallVerdict::Passes,
            Ok(passed) => LoggedCallVerdict::Asks(places(&passed.approvals)),
            Err(ending) => ends(&ending),
        }
    }

    fn missing_input(&self, active: &ActivePolicy, tools: &Toolbox, tool: &RegisteredTool) -> Option<&'static str> {
        if tools.rules(tool) == 0 {
            return None;
        }
        if self.arguments.is_none() {
            return Some(HIDDEN);
        }
        let row = active.policy.permissions.matrix.get(&tool.spec.name)?;
        let texts = row.rules.iter().filter(|rule| rule.mode.is_enforced()).flat_map(|rule| {
            [Some(rule.require.as_str()), rule.when.as_deref()].into_iter().flatten().collect::<Vec<_>>()
        });
        let texts: Vec<&str> = texts.collect();
        let asks = |name: &str| texts.iter().any(|text| text.contains(name));
        let is_hidden = |raw: &Option<Box<serde_json::value::RawValue>>| {
            raw.as_ref().is_some_and(|raw| raw.get().contains("[REDACTED]"))
        };
        let is_logged = match self.policy_inputs {
            None => !ONLY_IN_POLICY_INPUTS.iter().any(|name| asks(name)),
            // Policy inputs never contain the chain of agents above a task, so rules about the chain cannot be
            // evaluated.
            Some(policy_inputs) => {
                !(asks("user_context") && is_hidden(&policy_inputs.user_context)
                    || asks("session_data") && is_hidden(&policy_inputs.session_data)
                    || asks("task.chain") && policy_inputs.task.is_some())
            }
        };
        (!is_logged).then_some(NOT_LOGGED)
    }
}

/// `None` if the tool is unknown or its row names no facts. `tool` is the name that the model used.
#[must_use]
pub fn facts<'p>(
    tool: &str,
    active: &'p ActivePolicy,
    registry: &'p Registry,
) -> Option<(&'p str, &'p FactRow, Effect)> {
    let spec = &registry.resolve(tool)?.spec;
    let row = active.policy.permissions.matrix.get(&spec.name).filter(|row| !row.facts.is_empty())?;
    Some((&spec.name, &row.facts, registry.effect(tool).unwrap_or(Effect::Once)))
}

/// The arguments are unknown, but no enforced rule reads them. The guards accepted the call when it was made.
fn unseen(tool: &RegisteredTool, tools: &Toolbox) -> LoggedCallVerdict {
    match (tool.spec.requires_approval, tools.approvers().is_empty()) {
        (false, _) => LoggedCallVerdict::Passes,
        (true, false) => LoggedCallVerdict::Asks(format!("tools.{}.approval", tool.spec.name)),
        (true, true) => {
            LoggedCallVerdict::Ends { outcome: Outcome::ApprovalRefused, reason: String::new(), rule: String::new() }
        }
    }
}

fn grant(policy_inputs: &PolicyInputs) -> TaskGrant {
    TaskGrant {
        capabilities: policy_inputs.capabilities.clone(),
        tools: policy_inputs.task_tools.clone(),
        ..TaskGrant::default()
    }
}

fn places(reasons: &[ApprovalReason]) -> String {
    reasons.iter().map(|reason| reason.place.as_str()).collect::<Vec<_>>().join(", ")
}

fn ends(ending: &CallEnding) -> LoggedCallVerdict {
    let detail = |name: &str| ending.error.details.as_ref().and_then(|details| details.get(name)?.as_str());
    LoggedCallVerdict::Ends {
        outcome: ending.outcome,
        reason: detail("reason").unwrap_or_default().to_owned(),
        rule: detail("rule").unwrap_or_default().to_owned(),
    }
}
