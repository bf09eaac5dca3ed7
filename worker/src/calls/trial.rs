//! One call outside a fleet: checked by a worker's guards, attempted once, and not recorded.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tickfleet_model::policy::{FactChange, FactCondition, ShadowDenial};
use tickfleet_model::retry::{RetryDecision, RetryDelays};
use tickfleet_model::{
    AgentId, ApprovalReason, CallError, CallId, CallResult, Context, Effect, Outcome, TenantId, TurnId,
    idempotency_key, limits,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::calls::attempt::{self, HandlerOutcome};
use crate::calls::guards::{self, CheckedCall, Guard, GuardedCall};
use crate::calls::messages::CallEnding;
use crate::tools::inner::Inner;
use crate::tools::{CallContext, ProgressSink, RegisteredTool, ToolSecrets, Toolbox};

#[derive(Debug, Clone)]
pub struct Trial {
    pub tenant: TenantId,
    pub agent: AgentId,
    /// The name that a model would use.
    pub tool: String,
    pub arguments: String,
    pub context: Context,
    pub tools: Toolbox,
    /// Only reported: a trial makes one attempt.
    pub retry_delays: RetryDelays,
    pub dry: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TrialStep {
    /// The name of a guard ([`Guard::name`]), or `run` or `output`.
    pub step: &'static str,
    pub passed: bool,
    pub detail: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct TrialResult {
    pub steps: Vec<TrialStep>,
    /// `None` if the trial stopped before the tool ran.
    pub result: Option<CallResult>,
    /// The next step of a worker, if the call would not end here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Trial {
    /// `None` if the tool does not exist, or if the agent may not call the tool.
    #[must_use]
    pub fn effect(&self) -> Option<Effect> {
        self.tools.find(&self.tenant, &self.agent, &self.tool).ok().map(|tool| tool.spec.effect)
    }

    /// The tool's own name, even if the model spells it differently.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.tools.find(&self.tenant, &self.agent, &self.tool).ok().map(|tool| tool.spec.name.clone())
    }

    /// `now_ms` is in milliseconds since the epoch.
    pub async fn run(&self, id: TurnId, now_ms: i64) -> TrialResult {
        let mut tried = TrialResult { steps: Vec::new(), result: None, next: None };
        let call = CallId { turn: id, position: 0 };
        let (tool, arguments) = match self.pass(&mut tried.steps).await {
            Ok(passed) if !passed.approvals.is_empty() => {
                tried.next = Some("A worker would request approval and run the call once approved".to_owned());
                return tried;
            }
            Ok(passed) => (passed.tool, passed.arguments),
            Err(ending) => {
                let CallEnding { outcome, error } = *ending;
                tried.result = Some(self.result(&call, outcome, error));
                return tried;
            }
        };
        if self.dry {
            return tried;
        }
        let context = self.context(&call, now_ms, tool.spec.timeout);
        let never = std::future::pending;
        let started = Instant::now();
        let ran = attempt::run(&tool, &context, &arguments, tool.spec.timeout, never(), never()).await;
        let took = started.elapsed();
        let unfit = matches!(ran, attempt::HandlerEnd::Unfit(_));
        let handler_outcome = attempt::classify(ran, &tool, &call, &self.tool, tool.spec.timeout);
        self.add_run(&mut tried, &tool, &call, handler_outcome, unfit, took);
        tried
    }

    async fn pass(&self, steps: &mut Vec<TrialStep>) -> Result<CheckedCall, Box<CallEnding>> {
        let tools = &self.tools;
        let tenant = &self.tenant;
        let agent = &self.agent;
        let name = self.tool.as_str();
        let context = &self.context;
        let call = GuardedCall::Tool { tools, tenant, agent, name, strict: false, context, task: None };
        let observe = |guard: Guard, check: Result<&RegisteredTool, &CallEnding>| {
            let passed = check.is_ok();
            let detail = match check {
                Ok(tool) => self.passed(guard, tool),
                Err(ending) => format!("{}: {}", ending.outcome.as_str(), ending.error.message),
            };
            steps.push(TrialStep { step: guard.name(), passed, detail });
        };
        let passed = guards::pass(&call, &self.arguments, observe).await?;
        let by_rules = passed.approvals.iter().filter(|reason| reason.place.starts_with("permissions.")).count();
        if let Some(step) = steps.iter_mut().find(|step| step.step == Guard::Rules.name() && by_rules > 0) {
            step.detail =
                format!("{by_rules} of {} require approval; the others are met", self.tools.rules(&passed.tool));
        }
        if let Some(step) = steps.last_mut().filter(|_| !passed.approvals.is_empty()) {
            (step.passed, step.detail) = (false, needs(&passed.approvals));
        }
        if let Some(step) = steps.iter_mut().find(|step| step.step == Guard::Rules.name()) {
            for ShadowDenial { rule, message, .. } in &passed.shadow {
                step.detail.push_str(&format!("; {rule} (shadow) would have denied it: {message}"));
            }
        }
        steps.extend(self.facts(&passed.tool));
        Ok(passed)
    }

    /// Lists facts without evaluating them: a trial has no session.
    fn facts(&self, tool: &RegisteredTool) -> Option<TrialStep> {
        let row = self.tools.facts(tool)?;
        let list = |facts: Vec<String>| facts.join(", ");
        let unmet = |conditions: &[FactCondition]| {
            list(
                conditions
                    .iter()
                    .map(|it| format!("{}{}", it.fact, if it.mode.is_enforced() { "" } else { " (shadow)" }))
                    .collect(),
            )
        };
        let changed = |changes: &[FactChange]| list(changes.iter().map(|it| it.fact.to_string()).collect());
        let unchecked = [
            ("it needs", unmet(&row.require)),
            ("it is forbidden after", unmet(&row.forbid)),
            ("it sets", changed(&row.sets)),
            ("it clears", changed(&row.clears)),
        ];
        let unchecked: Vec<String> = unchecked
            .into_iter()
            .filter(|(_, facts)| !facts.is_empty())
            .map(|(what, facts)| format!("{what} {facts}"))
            .collect();
        let detail = format!("not checked, because a trial has no session: {}", unchecked.join("; "));
        Some(TrialStep { step: "facts", passed: true, detail })
    }

    fn passed(&self, guard: Guard, tool: &RegisteredTool) -> String {
        match guard {
            Guard::Permission => format!("{} may call {}", self.agent, tool.spec.name),
            Guard::Arguments => "they fit the input schema".to_owned(),
            Guard::Validation => "the tool accepts them".to_owned(),
            Guard::Rules => match self.tools.rules(tool) {
                0 => "there are none".to_owned(),
                1 => "the only one is met".to_owned(),
                several => format!("all {several} are met"),
            },
            Guard::Approval => "none is needed".to_owned(),
        }
    }

    fn context(&self, call: &CallId, now_ms: i64, timeout: Duration) -> CallContext {
        CallContext {
            tenant: self.tenant.clone(),
            agent: self.agent.clone(),
            call: call.clone(),
            idempotency_key: idempotency_key(&self.tenant, &call.turn, "", call.position),
            deadline_ms: now_ms.saturating_add(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)),
            attempt: 1,
            context: Arc::new(self.context.clone()),
            task: None,
            tools: self.tools.clone(),
            reply_to: None,
            secrets: ToolSecrets::default(),
            fence: String::new(),
            waited: false,
            may_be_forgotten: false,
            inner: Inner::default(),
            progress: ProgressSink::default(),
            cancel: CancellationToken::new(),
        }
    }

    fn add_run(
        &self,
        tried: &mut TrialResult,
        tool: &RegisteredTool,
        call: &CallId,
        handler_outcome: HandlerOutcome,
        unfit: bool,
        took: Duration,
    ) {
        let seconds = took.as_secs_f64();
        let mut step = |step, passed, detail: String| tried.steps.push(TrialStep { step, passed, detail });
        let mut result = match handler_outcome {
            HandlerOutcome::Output(output) => {
                step("run", true, format!("done in {seconds:.3} s"));
                let fits = if tool.output.is_some() { "it fits the output schema" } else { "no schema is declared" };
                step("output", true, fits.to_owned());
                attempt::succeeded(output, limits::OUTPUT_BYTES_MAX, |outcome, error| self.result(call, outcome, error))
            }
            HandlerOutcome::Failed(CallEnding { outcome, error }) => {
                let detail = format!("{} after {seconds:.3} s: {}", outcome.as_str(), error.message);
                step("run", unfit, if unfit { format!("done in {seconds:.3} s") } else { detail.clone() });
                if unfit {
                    step("output", false, error.message.clone());
                }
                self.result(call, outcome, error)
            }
            HandlerOutcome::Retry { message, after, .. } => {
                step("run", false, format!("failed after {seconds:.3} s, a retry may succeed: {message}"));
                let (next, why) = match self.retry_delays.decide(1, after, Duration::MAX) {
                    RetryDecision::RetryAfter(wait) => {
                        (format!("A worker would retry after {:.1} s", wait.as_secs_f64()), None)
                    }
                    RetryDecision::NoRetry(why) => ("A worker would not retry".to_owned(), Some(why)),
                };
                tried.next = Some(next);
                self.result(
                    call,
                    Outcome::Transient,
                    crate::calls::messages::retries_exhausted(&message, 1, why, after),
                )
            }
            HandlerOutcome::Waits { at_most, .. } => {
                let most = at_most.as_secs_f64();
                step("run", true, format!("started work after {seconds:.3} s and waits for its result"));
                tried.next = Some(format!("A worker would call it again when this work ends, or after {most:.0} s"));
                return;
            }
            // A trial is never canceled or stopped.
            HandlerOutcome::Stopped | HandlerOutcome::Requeue => return,
        };
        result.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        result.attempts = 1;
        tried.result = Some(result);
    }

    fn result(&self, call: &CallId, outcome: Outcome, error: CallError) -> CallResult {
        CallResult::refused(call, None, &self.tool, outcome, error)
    }
}

fn needs(reasons: &[ApprovalReason]) -> String {
    let each = reasons.iter().map(|ApprovalReason { place, why, demand, .. }| {
        let who = match demand.by.iter().map(String::as_str).collect::<Vec<_>>().join(", ") {
            roles if roles.is_empty() => "any approver".to_owned(),
            roles => roles,
        };
        format!("{place} asks {} of {who} ({why})", demand.quorum)
    });
    each.collect::<Vec<_>>().join("; ")
}
