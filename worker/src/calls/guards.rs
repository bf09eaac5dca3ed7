//! The guards that a call must pass before it runs. `tickfleet tools try` applies the same guards.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::value::RawValue;
use tickfleet_core::call::cache::CachedResult;
use tickfleet_model::outcome::CallApproval;
use tickfleet_model::policy::ShadowDenial;
use tickfleet_model::{
    AgentId, ApprovalReason, CallError, CallResult, Context, Outcome, TaskGrant, TaskId, TenantId, limits,
};
use tickfleet_protocol::without_nulls;
use tickfleet_rules::RuleFindings;

use crate::agents::TaskHandlers;
use crate::calls::call_attempt::{AttemptOutcome, CallAttempt};
use crate::calls::governed::cache::CacheLookup;
use crate::calls::messages::{self, CallEnding};
use crate::tools::{RegisteredTool, RuleViolation, RuledCall, Toolbox, UnusableTool};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Permission,
    Arguments,
    /// The tool's own validation accepts the arguments.
    Validation,
    Rules,
    /// Approvers exist, if the tool or a rule requires approval.
    Approval,
}

impl Guard {
    pub const ALL: [Self; 5] = [Self::Permission, Self::Arguments, Self::Validation, Self::Rules, Self::Approval];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Permission => "tool and permission",
            Self::Arguments => "arguments",
            Self::Validation => "validation",
            Self::Rules => "rules",
            Self::Approval => "approval",
        }
    }

    #[must_use]
    pub const fn condition(self) -> &'static str {
        match self {
            Self::Permission => "the tool is known, and the agent may call it",
            Self::Arguments => "the arguments are within bounds and match the tool's input schema",
            Self::Validation => "the tool's own validation accepts them",
            Self::Rules => "it meets the rules on its arguments and context",
            Self::Approval => "people approve, if the tool or a rule requires it",
        }
    }
}

pub(crate) enum GuardedCall<'a> {
    /// `name` is the name that the model used. If `strict` is true, nulls represent omitted arguments.
    Tool {
        tools: &'a Toolbox,
        tenant: &'a TenantId,
        agent: &'a AgentId,
        name: &'a str,
        strict: bool,
        context: &'a Context,
        task: Option<&'a (TaskId, TaskGrant)>,
    },
    /// The tool is the handler of the task's agent.
    Task { handlers: &'a TaskHandlers, agent: &'a AgentId },
}

pub(crate) struct CheckedCall {
    pub(crate) tool: Arc<RegisteredTool>,
    pub(crate) arguments: Box<RawValue>,
    pub(crate) shadow: Vec<ShadowDenial>,
    pub(crate) approvals: Vec<ApprovalReason>,
}

pub(crate) struct BegunCall {
    pub(crate) passed: CheckedCall,
    pub(crate) approved: Option<CallApproval>,
    /// The time of the facts check, in the encoding of [`tickfleet_model::CallResult::facts_evaluated_ms`].
    pub(crate) facts_evaluated_ms: Option<i64>,
    pub(super) lookup: Option<CacheLookup>,
    pub(super) cached: Option<CachedResult>,
}

impl BegunCall {
    /// Adds the consent only to a call that people have approved.
    pub(crate) fn annotate(self, outcome: AttemptOutcome) -> AttemptOutcome {
        let approval = self.approved.filter(|_| !outcome.is_refused());
        match outcome {
            AttemptOutcome::Ended(result, _) => {
                let approval = approval.or(result.approval);
                let result = CallResult { approval, facts_evaluated_ms: self.facts_evaluated_ms, ..*result };
                AttemptOutcome::Ended(Box::new(result), self.passed.shadow)
            }
            AttemptOutcome::Reconcile(wait, why, attempt, unknown) => {
                let unknown = CallResult { approval, facts_evaluated_ms: self.facts_evaluated_ms, ..*unknown };
                AttemptOutcome::Reconcile(wait, why, attempt, Box::new(unknown))
            }
            other => other,
        }
    }
}

/// Applies the guards in the order of [`Guard::ALL`]. `observe` receives the result of each guard.
pub(crate) async fn pass(
    call: &GuardedCall<'_>,
    arguments: &str,
    mut observe: impl FnMut(Guard, Result<&RegisteredTool, &CallEnding>),
) -> Result<CheckedCall, Box<CallEnding>> {
    let found = call.tool();
    observe(Guard::Permission, found.as_deref().map_err(Box::as_ref));
    let tool = found?;
    let fitting = call.arguments(&tool, arguments).await;
    observe(Guard::Arguments, fitting.as_ref().map(|_| &*tool).map_err(Box::as_ref));
    let arguments = fitting?;
    let validated = validated(&tool, &arguments);
    observe(Guard::Validation, validated.as_ref().map(|()| &*tool).map_err(Box::as_ref));
    validated?;
    let ruled = call.evaluate_rules(&tool, &arguments);
    observe(Guard::Rules, ruled.as_ref().map(|_| &*tool).map_err(Box::as_ref));
    let RuleFindings { shadow, approvals: by_rules } = ruled?;
    let approvals = call.required_approvals(&tool, &arguments, by_rules);
    observe(Guard::Approval, approvals.as_ref().map(|_| &*tool).map_err(Box::as_ref));
    Ok(CheckedCall { approvals: approvals?, tool, arguments, shadow })
}

impl GuardedCall<'_> {
    fn tool(&self) -> Result<Arc<RegisteredTool>, Box<CallEnding>> {
        match *self {
            Self::Tool { tools, tenant, agent, name, .. } => usable(tools, tenant, agent, name),
            Self::Task { handlers, agent } => handlers.get(agent).cloned().ok_or_else(|| {
                let message = format!("Agent {:?} no longer has a task handler in this fleet.", agent.as_str());
                CallEnding::of(Outcome::Permanent, message)
            }),
        }
    }

    async fn arguments(&self, tool: &RegisteredTool, text: &str) -> Result<Box<RawValue>, Box<CallEnding>> {
        let (checked, name) = match *self {
            Self::Tool { name, strict, .. } => {
                let text = if strict { without_nulls(&tool.spec.input_schema, text) } else { Cow::Borrowed(text) };
                (tool.arguments.check_in_time(&text).await, name)
            }
            Self::Task { .. } => (tool.arguments.check_in_time(text).await, tool.spec.name.as_str()),
        };
        checked.map_err(|error| {
            let base = messages::error(Outcome::InvalidArguments, error.message(name));
            let error = CallError { details: Some(error.details()), ..base };
            Box::new(CallEnding { outcome: Outcome::InvalidArguments, error })
        })
    }
}

impl GuardedCall<'_> {
    /// A task has no permission row, so no rules apply here. The rules applied to the call that delegated the task.
    fn evaluate_rules(&self, tool: &RegisteredTool, arguments: &RawValue) -> Result<RuleFindings, Box<CallEnding>> {
        let Self::Tool { tools, tenant, agent, name, context, task, .. } = *self else {
            return Ok(RuleFindings::default());
        };
        let call = RuledCall { tenant, agent, tool, arguments, context, task };
        tools.follow_rules(&call).map_err(|ruled| match ruled {
            RuleViolation::RuleDenial(unmet) => {
                Box::new(CallEnding { outcome: Outcome::Denied, error: messages::unmet(name, &unmet) })
            }
            RuleViolation::UnusableTool(unusable) => not_usable(tools, tenant, agent, name, unusable),
        })
    }
}

impl GuardedCall<'_> {
    /// A task needs no approval. The call that delegated the task may have needed one.
    fn required_approvals(
        &self,
        tool: &RegisteredTool,
        arguments: &RawValue,
        by_rules: Vec<ApprovalReason>,
    ) -> Result<Vec<ApprovalReason>, Box<CallEnding>> {
        let by_tool = tool.spec.requires_approval.then(|| ApprovalReason {
            place: format!("tools.{}.approval", tool.spec.name),
            why: "each call of this tool needs approval".into(),
            terms: String::new(),
            demand: tool.spec.approval.clone().unwrap_or_default(),
        });
        let approvals: Vec<ApprovalReason> = by_tool.into_iter().chain(by_rules).collect();
        let can_be_asked = matches!(self, Self::Tool { tools, .. } if !tools.approvers().is_empty());
        let bytes = arguments.get().len();
        if can_be_asked && !approvals.is_empty() && bytes > limits::APPROVAL_ARGUMENTS_BYTES_MAX {
            let error = messages::too_long_for_approval(&tool.spec.name, bytes);
            return Err(Box::new(CallEnding { outcome: Outcome::InvalidArguments, error }));
        }
        if approvals.is_empty() || can_be_asked {
            return Ok(approvals);
        }
        let message = "This call needs a person's approval, but this fleet cannot request one.";
        Err(CallEnding::of(Outcome::ApprovalRefused, message))
    }
}

pub(super) fn usable(
    tools: &Toolbox,
    tenant: &TenantId,
    agent: &AgentId,
    name: &str,
) -> Result<Arc<RegisteredTool>, Box<CallEnding>> {
    let found = tools.find(tenant, agent, name).map(Arc::clone);
    found.map_err(|unusable| not_usable(tools, tenant, agent, name, unusable))
}

fn not_usable(
    tools: &Toolbox,
    tenant: &TenantId,
    agent: &AgentId,
    name: &str,
    unusable: UnusableTool,
) -> Box<CallEnding> {
    let may = tools.may_call(tenant, agent);
    let allowed: Vec<&str> = may.iter().map(|tool| tool.spec.name.as_str()).collect();
    match unusable {
        UnusableTool::NoAgent => {
            CallEnding::of(Outcome::Denied, format!("Agent {:?} is no longer configured.", agent.as_str()))
        }
        UnusableTool::Withheld => CallEnding::of(Outcome::Denied, tickfleet_engine::delegation::unreadable(tenant)),
        UnusableTool::NoTool => {
            let error = messages::unknown_tool(name, &tools.similar_names(name, &allowed), &allowed);
            Box::new(CallEnding { outcome: Outcome::UnknownTool, error })
        }
        UnusableTool::Denied(denial, rule) => {
            let error = messages::denied(name, &denial, &rule, &allowed);
            Box::new(CallEnding { outcome: Outcome::Denied, error })
        }
    }
}

fn validated(tool: &RegisteredTool, arguments: &RawValue) -> Result<(), Box<CallEnding>> {
    // Without an argument of the effect key, it is unknown whether two calls are equal, so the call is rejected.
    if let Some(pointer) = tool.spec.effect_key.as_ref().and_then(|key| key.missing(arguments)) {
        let error = messages::no_effect_key(&tool.spec.name, pointer);
        return Err(Box::new(CallEnding { outcome: Outcome::InvalidArguments, error }));
    }
    match catch_unwind(AssertUnwindSafe(|| tool.handler.validate(arguments))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(problem)) => {
            let error = messages::invalid_arguments(&tool.spec.name, &problem);
            Err(Box::new(CallEnding { outcome: Outcome::InvalidArguments, error }))
        }
        Err(_) => {
            tracing::error!(tool = tool.spec.name, "tool validation panicked");
            Err(Box::new(CallEnding { outcome: Outcome::Internal, error: messages::internal() }))
        }
    }
}

pub(super) async fn passed_with(
    attempt: &CallAttempt<'_>,
    tools: &Toolbox,
    arguments: &str,
) -> Result<CheckedCall, Box<CallEnding>> {
    let head = attempt.head();
    let call = if attempt.is_task() {
        GuardedCall::Task { handlers: &attempt.config.task_handlers, agent: &head.agent }
    } else {
        let tenant = &attempt.slice.name.tenant;
        let name = attempt.call.tool.as_str();
        let strict = head.strict;
        let context = &*attempt.context;
        let task = head.task.as_ref();
        GuardedCall::Tool { tools, tenant, agent: &head.agent, name, strict, context, task }
    };
    pass(&call, arguments, |_, _| {}).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
    use tickfleet_model::policy::{AgentPolicy, Rule, TenantPolicy, ToolGrant};

    use super::*;
    use crate::tools::builtin;
    use crate::tools::{Environment, Registry};

    #[tokio::test]
    async fn guards_run_in_their_listed_order() {
        let agent = AgentId::new("kelly").unwrap();
        let echo = builtin::all().into_iter().find(|tool| tool.spec().name == "echo").unwrap();
        let (spec, handler) = echo.into_parts(Duration::from_secs(1), &Environment::of([]));
        let echo = Arc::new(RegisteredTool::new(spec, handler).unwrap());
        let handlers = TaskHandlers::from([(agent.clone(), echo)]);
        let mut met = Vec::new();
        let call = GuardedCall::Task { handlers: &handlers, agent: &agent };
        pass(&call, "{}", |guard, said| met.push((guard, said.is_ok()))).await.unwrap();
        assert_eq!(met, Guard::ALL.map(|guard| (guard, true)));
    }

    #[tokio::test]
    async fn uncompiled_rules_reject_every_call() {
        let tenant = TenantId::new("acme").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        let echo = builtin::all().into_iter().find(|tool| tool.spec().name == "echo").unwrap();
        let (spec, handler) = echo.into_parts(Duration::from_secs(1), &Environment::of([]));
        let mut registry = Registry::default();
        registry.register(RegisteredTool::new(spec, handler).unwrap()).unwrap();
        let registry = Arc::new(registry);
        let mut active = ActivePolicy::default();
        let rule = Rule { require: "1 < 2".into(), ..Rule::default() };
        let row = ToolGrant { everyone: true, rules: vec![rule], ..ToolGrant::default() };
        active.policy.permissions.matrix.insert("echo".into(), row);
        active.policy.tenants.insert(tenant.clone(), TenantPolicy::default());
        active.policy.agents = Arc::new([(agent.clone(), AgentPolicy::default())].into());
        let past_the_handle = Arc::new(active.clone());
        let context = Context::default();
        for (active, passes) in [(past_the_handle, false), (PolicyHandle::new(active).load(), true)] {
            let tools = Toolbox::new(active, Arc::clone(&registry), None, None);
            let tools = &tools;
            let tenant = &tenant;
            let agent = &agent;
            let context = &context;
            let call = GuardedCall::Tool { tools, tenant, agent, name: "echo", strict: false, context, task: None };
            let passed = pass(&call, "{}", |_, _| {}).await;
            let stopped = passed.err().map(|ending| ending.error);
            assert_eq!(stopped.is_none(), passes, "{stopped:?}");
        }
    }

    #[test]
    fn the_documentation_lists_the_guards_in_their_order() {
        let page = include_str!("../../../docs/govern/permissions.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let named = |name: &str| Guard::ALL.into_iter().find(|guard| guard.name() == name);
        let found: Vec<_> = rows.filter_map(|(name, rest)| Some((named(name)?, rest))).collect();
        assert_eq!(found.iter().map(|(guard, _)| *guard).collect::<Vec<_>>(), Guard::ALL);
        for (guard, rest) in found {
            assert!(rest.starts_with(guard.condition()), "{}: {rest}", guard.name());
        }
    }
}
