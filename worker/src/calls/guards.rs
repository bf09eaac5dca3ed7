//! The guards: what a call has to pass before it runs. `pass` is their one order, for every call of a worker and for
//! `tickfleet tools try`.

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
use crate::calls::governed::cache::Question;
use crate::calls::messages::{self, CallEnding};
use crate::calls::trying::{Disposition, Trying};
use crate::tools::{RegisteredTool, RuleViolation, RuledCall, Toolbox, UnusableTool};

/// One guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The tool is known, and the agent may call it.
    Permission,
    /// The arguments are within bounds, and as the tool's input schema wants them.
    Arguments,
    /// The tool itself finds nothing wrong with them.
    Validation,
    /// The call meets the rules on its arguments and context.
    Rules,
    /// There are people to agree, if the tool or a rule wants that.
    Approval,
}

impl Guard {
    /// All guards, in the order in which a call meets them.
    pub const ALL: [Self; 5] = [Self::Permission, Self::Arguments, Self::Validation, Self::Rules, Self::Approval];

    /// The guard as people read it.
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

    /// The condition that a call has to meet, in words.
    #[must_use]
    pub const fn condition(self) -> &'static str {
        match self {
            Self::Permission => "the tool is known, and the agent may call it",
            Self::Arguments => "the arguments are within bounds, and as the tool's input schema wants them",
            Self::Validation => "the tool itself finds nothing wrong with them",
            Self::Rules => "it meets the rules on its arguments and context",
            Self::Approval => "people agree, if the tool or a rule wants that",
        }
    }
}

/// The call that guards look at.
pub(crate) enum Asked<'a> {
    /// A model's call of a tool, by the name that it used. Of a `strict` answer, the nulls that stand for optional
    /// arguments are left out.
    Tool {
        tools: &'a Toolbox,
        tenant: &'a TenantId,
        agent: &'a AgentId,
        name: &'a str,
        strict: bool,
        context: &'a Context,
        task: Option<&'a (TaskId, TaskGrant)>,
    },
    /// A task: its work is its agent's handler.
    Task { handlers: &'a TaskHandlers, agent: &'a AgentId },
}

/// A call that has passed every guard.
pub(crate) struct Passed {
    pub(crate) tool: Arc<RegisteredTool>,
    /// The arguments as the tool gets them.
    pub(crate) arguments: Box<RawValue>,
    /// The rules in shadow that would have stopped it.
    pub(crate) shadow: Vec<ShadowDenial>,
    /// What asks for people's consent: the call runs only with it.
    pub(crate) asked: Vec<ApprovalReason>,
}

/// A call that has passed every guard, and has begun.
pub(crate) struct Admitted {
    pub(crate) passed: Passed,
    /// People's consent to it.
    pub(crate) approved: Option<CallApproval>,
    /// When facts let it begin, as [`tickfleet_model::CallResult::entered_ms`].
    pub(crate) entered_ms: Option<i64>,
    /// Its question, if its result may be cached.
    pub(super) question: Option<Question>,
    /// The cached result.
    pub(super) cached: Option<CachedResult>,
}

impl Admitted {
    /// What has come of it, with what let it begin: where people have not agreed after all, that is no consent.
    pub(crate) fn told(self, carried: Disposition) -> Disposition {
        let approval = self.approved.filter(|_| !carried.is_refused());
        match carried {
            Disposition::Ended(result, _) => {
                let approval = approval.or(result.approval);
                let result = CallResult { approval, entered_ms: self.entered_ms, ..*result };
                Disposition::Ended(Box::new(result), self.passed.shadow)
            }
            // What it ends as unless somebody finds out.
            Disposition::Reconciles(wait, why, attempt, unknown) => {
                let unknown = CallResult { approval, entered_ms: self.entered_ms, ..*unknown };
                Disposition::Reconciles(wait, why, attempt, Box::new(unknown))
            }
            other => other,
        }
    }
}

/// Passes a call through the guards, in the order of [`Guard::ALL`], up to the first that ends it. `observe` is told
/// what each of them said.
///
/// # Errors
/// The ending of the call, if it does not pass.
pub(crate) async fn pass(
    asked: &Asked<'_>,
    arguments: &str,
    mut observe: impl FnMut(Guard, Result<&RegisteredTool, &CallEnding>),
) -> Result<Passed, Box<CallEnding>> {
    let found = asked.tool();
    observe(Guard::Permission, found.as_deref().map_err(Box::as_ref));
    let tool = found?;
    let fitting = asked.arguments(&tool, arguments).await;
    observe(Guard::Arguments, fitting.as_ref().map(|_| &*tool).map_err(Box::as_ref));
    let arguments = fitting?;
    let validated = validated(&tool, &arguments);
    observe(Guard::Validation, validated.as_ref().map(|()| &*tool).map_err(Box::as_ref));
    validated?;
    let ruled = asked.follows_rules(&tool, &arguments);
    observe(Guard::Rules, ruled.as_ref().map(|_| &*tool).map_err(Box::as_ref));
    let RuleFindings { shadow, asked: by_rules } = ruled?;
    let asked = asked.consent(&tool, &arguments, by_rules);
    observe(Guard::Approval, asked.as_ref().map(|_| &*tool).map_err(Box::as_ref));
    Ok(Passed { asked: asked?, tool, arguments, shadow })
}

impl Asked<'_> {
    /// The tool that is meant.
    fn tool(&self) -> Result<Arc<RegisteredTool>, Box<CallEnding>> {
        match *self {
            Self::Tool { tools, tenant, agent, name, .. } => usable(tools, tenant, agent, name),
            Self::Task { handlers, agent } => handlers.get(agent).cloned().ok_or_else(|| {
                let message = format!("Agent {:?} has no task handler on this fleet any more.", agent.as_str());
                CallEnding::of(Outcome::Permanent, message)
            }),
        }
    }

    /// The arguments as the tool gets them.
    async fn arguments(&self, tool: &RegisteredTool, text: &str) -> Result<Box<RawValue>, Box<CallEnding>> {
        let (checked, name) = match *self {
            Self::Tool { name, strict, .. } => {
                let text = if strict { without_nulls(&tool.spec.input_schema, text) } else { Cow::Borrowed(text) };
                (tool.arguments.check_in_time(&text).await, name)
            }
            Self::Task { .. } => (tool.arguments.check_in_time(text).await, tool.spec.name.as_str()),
        };
        checked.map_err(|error| {
            let told = messages::error(Outcome::InvalidArguments, error.message(name));
            let error = CallError { details: Some(error.details()), ..told };
            Box::new(CallEnding { outcome: Outcome::InvalidArguments, error })
        })
    }
}

impl Asked<'_> {
    /// Decides by the rules of the tool's row. The arguments are those that the tool gets: a rule never judges others. A
    /// task has no row: whoever delegated it made a call that has.
    fn follows_rules(&self, tool: &RegisteredTool, arguments: &RawValue) -> Result<RuleFindings, Box<CallEnding>> {
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

impl Asked<'_> {
    /// What asks for people's consent: the tool, and the rules that the call does not meet. Whether they agree is looked at
    /// by whoever can ask them (`consent`).
    ///
    /// # Errors
    /// The end of a call that nobody could ever agree to: no approvers are configured, or its arguments are too long to be
    /// shown to a person whole. A task asks nobody: whoever delegated it made a call, which can.
    fn consent(
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
        let asked: Vec<ApprovalReason> = by_tool.into_iter().chain(by_rules).collect();
        let can_be_asked = matches!(self, Self::Tool { tools, .. } if !tools.approvers().is_empty());
        let bytes = arguments.get().len();
        if can_be_asked && !asked.is_empty() && bytes > limits::APPROVAL_ARGUMENTS_BYTES_MAX {
            let error = messages::too_long_for_people(&tool.spec.name, bytes);
            return Err(Box::new(CallEnding { outcome: Outcome::InvalidArguments, error }));
        }
        if asked.is_empty() || can_be_asked {
            return Ok(asked);
        }
        let message = "This call needs a person's approval, and this fleet has no way to ask for one.";
        Err(CallEnding::of(Outcome::ApprovalRefused, message))
    }
}

/// The tool that an agent means by `name`: it is known, and the agent may call it.
pub(super) fn usable(
    tools: &Toolbox,
    tenant: &TenantId,
    agent: &AgentId,
    name: &str,
) -> Result<Arc<RegisteredTool>, Box<CallEnding>> {
    let found = tools.find(tenant, agent, name).map(Arc::clone);
    found.map_err(|unusable| not_usable(tools, tenant, agent, name, unusable))
}

/// The end of a call whose tool its agent cannot use.
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

/// Asks the tool itself about arguments that fit its schema.
fn validated(tool: &RegisteredTool, arguments: &RawValue) -> Result<(), Box<CallEnding>> {
    // Two calls that leave it out are not known to be the same, nor to be different.
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

/// The tool and its arguments, if the call passes every guard with these. A task's work is its agent's handler.
pub(super) async fn passed_with(
    trying: &Trying<'_>,
    tools: &Toolbox,
    arguments: &str,
) -> Result<Passed, Box<CallEnding>> {
    let head = trying.head();
    let asked = if trying.is_task() {
        Asked::Task { handlers: &trying.config.task_handlers, agent: &head.agent }
    } else {
        let (tenant, name) = (&trying.slice.name.tenant, trying.call.tool.as_str());
        let (strict, context, task) = (head.strict, &*trying.context, head.task.as_ref());
        Asked::Tool { tools, tenant, agent: &head.agent, name, strict, context, task }
    };
    pass(&asked, arguments, |_, _| {}).await
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
    async fn a_call_meets_the_guards_in_the_order_of_their_list() {
        let agent = AgentId::new("kelly").unwrap();
        let echo = builtin::all().into_iter().find(|tool| tool.spec().name == "echo").unwrap();
        let (spec, handler) = echo.into_parts(Duration::from_secs(1), &Environment::of([]));
        let echo = Arc::new(RegisteredTool::new(spec, handler).unwrap());
        let handlers = TaskHandlers::from([(agent.clone(), echo)]);
        let mut met = Vec::new();
        let asked = Asked::Task { handlers: &handlers, agent: &agent };
        pass(&asked, "{}", |guard, said| met.push((guard, said.is_ok()))).await.unwrap();
        assert_eq!(met, Guard::ALL.map(|guard| (guard, true)));
    }

    #[tokio::test]
    async fn rules_that_nobody_compiled_stop_every_call() {
        let (tenant, agent) = (TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap());
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
            let (tools, tenant, agent, context) = (&tools, &tenant, &agent, &context);
            let asked = Asked::Tool { tools, tenant, agent, name: "echo", strict: false, context, task: None };
            let passed = pass(&asked, "{}", |_, _| {}).await;
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
