//! Runs the guards of the other policy on recorded calls, and compares the results.

use std::sync::Arc;

use tickfleet_config::TaskHandlerDef;
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_model::limit::LimitBound;
use tickfleet_model::policy::UnknownCaller;
use tickfleet_model::{AgentId, Limit, Outcome, Policy, TenantId};
use tickfleet_proof::whatif::facts::{FactCall, FactLifetimes, FactTurn, GuardResult, ToolFacts};
use tickfleet_proof::whatif::recorded::{Arguments, RecordedCall, RecordedDecision};
use tickfleet_proof::whatif::{self, Difference, DifferenceKind};
use tickfleet_tools::Registry;
use worker::calls::logged_call::{LoggedCall, LoggedCallVerdict, facts};

use crate::commands::whatif::Evaluation;
use crate::failure::Failure;
use crate::setup::{Runs, Setup};

const STOPPED: &str =
    "the loop breaker or the maximum of session facts stopped it; the log does not contain their state";
const NO_TENANT: &str = "its tenant is not in the configuration (run-time tenants are not)";
const NO_TOOL: &str = "a task is not a tool call";
const LOST: &str = "its worker was lost or failed before the call ran: the log does not show how far it got";

pub(super) struct Guards {
    active: Arc<ActivePolicy>,
    registry: Arc<Registry>,
    kept: FactLifetimes,
}

impl Guards {
    pub(super) fn new(setup: &Setup) -> Result<Self, Failure> {
        let active = setup.active();
        // Any store is sufficient. Only tools that query the fleet itself would use it, and no tool runs here.
        let stores = setup.stores()?;
        let store = stores.first().ok_or_else(|| Failure::failed(anyhow::anyhow!("no shard is configured")))?;
        let registry = Arc::new(setup.registry(store, &active, Runs::Elsewhere)?);
        let active = active.load();
        Ok(Self { kept: FactLifetimes::of(&active.policy.permissions), active, registry })
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.active.policy
    }

    pub(super) fn report_undecided(&self, evaluation: &mut Evaluation) {
        let policy = self.policy();
        for limit in policy.limits.iter() {
            match limit.bound {
                LimitBound::Tokens(_) | LimitBound::Money(_) => {
                    evaluation.summary.report_undecided(&whatif::limit(&limit.name), whatif::OF_MODELS);
                }
                // A single tenant gets all slots.
                LimitBound::Share(_) if policy.tenants.len() > 1 => {
                    evaluation.summary.report_undecided(&whatif::limit(&limit.name), whatif::SHARE);
                }
                _ => {}
            }
        }
    }

    /// A token or money budget makes a task of a model undecidable.
    fn budgets_of_models(&self, task: &RecordedCall, evaluation: &mut Evaluation) {
        let names = TenantId::new(task.tenant.as_str()).ok().zip(AgentId::new(task.agent.as_str()).ok());
        let Some((tenant, agent)) = names else { return };
        if !self.active.task_handlers.get(&agent).is_some_and(TaskHandlerDef::uses_models) {
            return;
        }
        let Ok((owner, policy)) = self.active.policy.look_up(&tenant, &agent) else { return };
        let counts = |limit: &&Limit| {
            limit.bound.is_of_models() && limit.matches.fits_agent(&agent, policy) && limit.matches.fits_tenant(owner)
        };
        for limit in self.active.policy.limits.iter().filter(counts) {
            evaluation.summary.count_undecidable_limit(&whatif::limit(&limit.name), whatif::OF_MODELS, 1);
        }
    }

    pub(super) async fn evaluate_turn(&self, calls: &[RecordedCall], evaluation: &mut Evaluation) -> Option<FactTurn> {
        let mut by_facts = Vec::new();
        let mut before_ms = None;
        for call in calls {
            evaluation.summary.look_at(call);
            if call.is_task {
                self.budgets_of_models(call, evaluation);
                evaluation.summary.count_undecidable(NO_TOOL, 1);
            } else {
                by_facts.extend(self.evaluate_call(call, before_ms, evaluation).await);
            }
            before_ms = Some(call.ended_ms);
        }
        FactTurn::of(calls.first()?, by_facts)
    }

    /// Reports a difference immediately. If session facts can still stop the call, the difference is reported later.
    async fn evaluate_call(
        &self,
        call: &RecordedCall,
        before_ms: Option<i64>,
        evaluation: &mut Evaluation,
    ) -> Option<FactCall> {
        if is_lost(call) {
            evaluation.summary.count_undecidable(LOST, 1);
        }
        let recall = if call.decision == RecordedDecision::NotReached {
            None
        } else {
            Some(self.recall(call, evaluation).await?)
        };
        let otherwise = recall.as_ref().and_then(|recall| difference(call, recall, evaluation));
        let row = facts(&call.tool, &self.active, &self.registry);
        let row = row.map(|(tool, facts, effect)| ToolFacts { tool, facts, effect });
        let is_stopped = matches!(recall, Some(LoggedCallVerdict::Ends { .. }));
        let guarded = match otherwise {
            Some(difference) if row.is_some() && !is_stopped => GuardResult::Otherwise(Box::new(difference)),
            Some(difference) => {
                evaluation.add_difference(difference);
                GuardResult::Same
            }
            None => GuardResult::Same,
        };
        // If the other policy's guards stop a call, the call does not affect the facts of its session.
        let runs = !is_stopped || matches!(call.decision, RecordedDecision::Ended { .. });
        FactCall::of(call, &row.filter(|_| runs)?, &self.kept, guarded, before_ms)
    }

    async fn recall(&self, call: &RecordedCall, evaluation: &mut Evaluation) -> Option<LoggedCallVerdict> {
        let names = TenantId::new(call.tenant.as_str()).ok().zip(AgentId::new(call.agent.as_str()).ok());
        let is_of = |(tenant, agent): &(TenantId, AgentId)| {
            !matches!(self.active.policy.look_up(tenant, agent), Err(UnknownCaller::Tenant | UnknownCaller::Withheld))
        };
        let Some((tenant, agent)) = names.filter(is_of) else {
            evaluation.summary.count_undecidable(NO_TENANT, 1);
            return None;
        };
        let logged = LoggedCall {
            tenant: &tenant,
            agent: &agent,
            tool: &call.tool,
            arguments: arguments(call),
            policy_inputs: call.policy_inputs.as_ref(),
        };
        Some(logged.evaluate(&self.active, &self.registry).await)
    }
}

/// Guards or approvers may have decided about the call, but the log does not show this.
fn is_lost(call: &RecordedCall) -> bool {
    call.decision == RecordedDecision::NotReached && call.outcome.may_have_run()
}

fn arguments(call: &RecordedCall) -> Option<&str> {
    match &call.arguments {
        Arguments::Whole(text) => Some(text),
        Arguments::Hidden(_) | Arguments::Cut(_) => None,
    }
}

fn difference(call: &RecordedCall, recall: &LoggedCallVerdict, evaluation: &mut Evaluation) -> Option<Difference> {
    // The log lacks arguments that are not JSON or are too long. Both policies then end the call the same way.
    let is_unread =
        matches!(&call.decision, RecordedDecision::Ended { outcome, .. } if *outcome == Outcome::InvalidArguments);
    if is_unread && arguments(call).is_none() && !matches!(recall, LoggedCallVerdict::Ends { .. }) {
        return None;
    }
    match compared(&call.decision, recall) {
        Comparison::Same => None,
        Comparison::Unknown(why) => {
            evaluation.summary.count_undecidable(why, 1);
            None
        }
        Comparison::Other(kind, by) => Some(Difference {
            kind,
            by,
            tenant: call.tenant.clone(),
            agent: call.agent.clone(),
            tool: call.tool.clone(),
            call: format!("{}/{}", call.turn, call.position),
            was: call.decision.words(),
            would: words(recall),
            by_ms: None,
        }),
    }
}

enum Comparison {
    Same,
    Unknown(&'static str),
    /// The text is the rule or the outcome.
    Other(DifferenceKind, String),
}

fn compared(decision: &RecordedDecision, recall: &LoggedCallVerdict) -> Comparison {
    let by_facts = |reason: &str| reason.starts_with("fact_");
    let stop = |outcome: &Outcome, rule: &str| if rule.is_empty() { outcome.as_str() } else { rule }.to_owned();
    match (decision, recall) {
        (RecordedDecision::NotReached, _) => Comparison::Same,
        (_, LoggedCallVerdict::Unknown(why)) => Comparison::Unknown(why),
        // Session facts are evaluated later, and may stop the call under the other policy too.
        (RecordedDecision::Stopped { reason, rule }, LoggedCallVerdict::Passes) if by_facts(reason) => {
            Comparison::Other(DifferenceKind::Allowed, rule.clone())
        }
        (RecordedDecision::Stopped { reason, .. }, LoggedCallVerdict::Asks(by)) if by_facts(reason) => {
            Comparison::Other(DifferenceKind::Asked, by.clone())
        }
        (RecordedDecision::Stopped { .. }, LoggedCallVerdict::Passes | LoggedCallVerdict::Asks(_)) => {
            Comparison::Unknown(STOPPED)
        }
        (RecordedDecision::Stopped { .. }, LoggedCallVerdict::Ends { outcome, rule, .. }) => {
            Comparison::Other(DifferenceKind::Otherwise, stop(outcome, rule))
        }
        (RecordedDecision::Passed, LoggedCallVerdict::Passes)
        | (RecordedDecision::Asked, LoggedCallVerdict::Asks(_)) => Comparison::Same,
        (RecordedDecision::Passed | RecordedDecision::Asked, LoggedCallVerdict::Ends { outcome, rule, .. }) => {
            Comparison::Other(DifferenceKind::Denied, stop(outcome, rule))
        }
        (RecordedDecision::Passed | RecordedDecision::Ended { .. }, LoggedCallVerdict::Asks(by)) => {
            Comparison::Other(DifferenceKind::Asked, by.clone())
        }
        (RecordedDecision::Asked, LoggedCallVerdict::Passes) => {
            Comparison::Other(DifferenceKind::Allowed, "approval".to_owned())
        }
        (RecordedDecision::Ended { outcome, rule, .. }, LoggedCallVerdict::Passes) => {
            Comparison::Other(DifferenceKind::Allowed, stop(outcome, rule))
        }
        (
            RecordedDecision::Ended { outcome, reason, rule },
            LoggedCallVerdict::Ends { outcome: now, reason: why, rule: by },
        ) => {
            if (outcome, reason, rule) == (now, why, by) {
                Comparison::Same
            } else {
                Comparison::Other(DifferenceKind::Otherwise, stop(now, by))
            }
        }
    }
}

fn words(recall: &LoggedCallVerdict) -> String {
    match recall {
        LoggedCallVerdict::Passes => "passed".into(),
        LoggedCallVerdict::Asks(by) => format!("approval requested ({by})"),
        LoggedCallVerdict::Ends { outcome, reason, rule } => {
            RecordedDecision::Ended { outcome: *outcome, reason: reason.clone(), rule: rule.clone() }.words()
        }
        LoggedCallVerdict::Unknown(why) => (*why).to_owned(),
    }
}
