//! Evaluates recorded calls with the guards of a worker under the other policy, and compares the results.

use std::sync::Arc;

use tickfleet_config::TaskHandlerDef;
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_model::limit::LimitBound;
use tickfleet_model::policy::Unknown;
use tickfleet_model::{AgentId, Limit, Policy, TenantId};
use tickfleet_proof::whatif::facts::{FactCall, FactTurn, Guarded, Kept, Row};
use tickfleet_proof::whatif::recorded::{Arguments, Fate, Recorded};
use tickfleet_proof::whatif::{self, Difference, Kind};
use tickfleet_tools::Registry;
use worker::calls::logged_call::{LoggedCall, LoggedCallVerdict, facts};

use crate::commands::whatif::Told;
use crate::failure::Failure;
use crate::setup::{Runs, Setup};

const STOPPED: &str =
    "the loop breaker or the maximum of session facts stopped it; the log does not contain their state";
const NO_TENANT: &str = "its tenant is not in the configuration (run-time tenants are not)";
const NO_TOOL: &str = "a task is not a tool call";
const LOST: &str = "its worker was lost or failed before the call ran: the log does not show how far it got";

/// The other policy, and its tools.
pub(super) struct Guards {
    active: Arc<ActivePolicy>,
    registry: Arc<Registry>,
    /// How long facts are kept.
    kept: Kept,
}

impl Guards {
    /// The guards of a configuration.
    ///
    /// # Errors
    /// Its tools cannot be used.
    pub(super) fn new(setup: &Setup) -> Result<Self, Failure> {
        let active = setup.active();
        // Only tools about the fleet itself would query the store, and no tool is run.
        let stores = setup.stores()?;
        let store = stores.first().ok_or_else(|| Failure::failed(anyhow::anyhow!("no shard is configured")))?;
        let registry = Arc::new(setup.registry(store, &active, Runs::Elsewhere)?);
        let active = active.load();
        Ok(Self { kept: Kept::of(&active.policy.permissions), active, registry })
    }

    /// The policy.
    pub(super) fn policy(&self) -> &Policy {
        &self.active.policy
    }

    /// Lists the limits that cannot be evaluated from any log, whether or not a call debited them.
    pub(super) fn name_undecided(&self, told: &mut Told) {
        let policy = self.policy();
        for limit in policy.limits.iter() {
            match limit.bound {
                LimitBound::Tokens(_) | LimitBound::Money(_) => {
                    told.summary.name_undecided(&whatif::limit(&limit.name), whatif::OF_MODELS);
                }
                // A single tenant has all slots.
                LimitBound::Share(_) if policy.tenants.len() > 1 => {
                    told.summary.name_undecided(&whatif::limit(&limit.name), whatif::SHARE);
                }
                _ => {}
            }
        }
    }

    /// Counts a task for each budget of tokens or money that its requests may have debited.
    fn budgets_of_models(&self, task: &Recorded, told: &mut Told) {
        let names = TenantId::new(task.tenant.as_str()).ok().zip(AgentId::new(task.agent.as_str()).ok());
        let Some((tenant, agent)) = names else { return };
        if !matches!(self.active.task_handlers.get(&agent), Some(TaskHandlerDef::Llm(_))) {
            return;
        }
        let Ok((owner, policy)) = self.active.policy.look_up(&tenant, &agent) else { return };
        let counts = |limit: &&Limit| {
            limit.bound.is_of_models() && limit.matches.fits_agent(&agent, policy) && limit.matches.fits_tenant(owner)
        };
        for limit in self.active.policy.limits.iter().filter(counts) {
            told.summary.cannot_say_of(&whatif::limit(&limit.name), whatif::OF_MODELS, 1);
        }
    }

    /// Evaluates the calls of a turn and reports differences. Returns the calls that depend on facts.
    pub(super) async fn judge(&self, calls: &[Recorded], told: &mut Told) -> Option<FactTurn> {
        let (mut by_facts, mut before_ms) = (Vec::new(), None);
        for call in calls {
            told.summary.look_at(call);
            if call.is_task {
                self.budgets_of_models(call, told);
                told.summary.cannot_say(NO_TOOL, 1);
            } else {
                by_facts.extend(self.judge_call(call, before_ms, told).await);
            }
            before_ms = Some(call.ended_ms);
        }
        FactTurn::of(calls.first()?, by_facts)
    }

    /// Evaluates a call. A difference is reported at once, unless facts may still stop the call.
    async fn judge_call(&self, call: &Recorded, before_ms: Option<i64>, told: &mut Told) -> Option<FactCall> {
        if is_lost(call) {
            told.summary.cannot_say(LOST, 1);
        }
        let recall = if call.fate == Fate::NotReached { None } else { Some(self.recall(call, told).await?) };
        let otherwise = recall.as_ref().and_then(|recall| difference(call, recall, told));
        let row = facts(&call.tool, &self.active, &self.registry);
        let row = row.map(|(tool, facts, effect)| Row { tool, facts, effect });
        let is_stopped = matches!(recall, Some(LoggedCallVerdict::Ends { .. }));
        let guarded = match otherwise {
            Some(difference) if row.is_some() && !is_stopped => Guarded::Otherwise(Box::new(difference)),
            Some(difference) => {
                told.tell(difference);
                Guarded::Same
            }
            None => Guarded::Same,
        };
        // A call that the guards now stop does not reach its session.
        let runs = !is_stopped || matches!(call.fate, Fate::Ended { .. });
        FactCall::of(call, &row.filter(|_| runs)?, &self.kept, guarded, before_ms)
    }

    /// The result of the guards for a call; `None` if they cannot evaluate it.
    async fn recall(&self, call: &Recorded, told: &mut Told) -> Option<LoggedCallVerdict> {
        let names = TenantId::new(call.tenant.as_str()).ok().zip(AgentId::new(call.agent.as_str()).ok());
        let is_of = |(tenant, agent): &(TenantId, AgentId)| {
            !matches!(self.active.policy.look_up(tenant, agent), Err(Unknown::Tenant | Unknown::Withheld))
        };
        let Some((tenant, agent)) = names.filter(is_of) else {
            told.summary.cannot_say(NO_TENANT, 1);
            return None;
        };
        let logged = LoggedCall {
            tenant: &tenant,
            agent: &agent,
            tool: &call.tool,
            arguments: arguments(call),
            premises: call.premises.as_ref(),
        };
        Some(logged.evaluate(&self.active, &self.registry).await)
    }
}

/// Whether it is unknown how far an admitted call got: the guards may have passed it, and people may have approved it.
fn is_lost(call: &Recorded) -> bool {
    call.fate == Fate::NotReached && matches!(call.outcome.as_str(), "internal" | "outcome_unknown")
}

/// The arguments, or `None` if they are incomplete.
fn arguments(call: &Recorded) -> Option<&str> {
    match &call.arguments {
        Arguments::Whole(text) => Some(text),
        Arguments::Hidden(_) | Arguments::Cut(_) => None,
    }
}

/// The difference in the results of the guards for a call.
fn difference(call: &Recorded, recall: &LoggedCallVerdict, told: &mut Told) -> Option<Difference> {
    // Arguments that were not JSON, or too long to be logged, were rejected for that reason.
    let is_unread = matches!(&call.fate, Fate::Ended { outcome, .. } if outcome == "invalid_arguments");
    if is_unread && arguments(call).is_none() && !matches!(recall, LoggedCallVerdict::Ends { .. }) {
        return None;
    }
    match compared(&call.fate, recall) {
        Compared::Same => None,
        Compared::Unknown(why) => {
            told.summary.cannot_say(why, 1);
            None
        }
        Compared::Other(kind, by) => Some(Difference {
            kind,
            by,
            tenant: call.tenant.clone(),
            agent: call.agent.clone(),
            tool: call.tool.clone(),
            call: format!("{}/{}", call.turn, call.position),
            was: call.fate.words(),
            would: words(recall),
            by_ms: None,
        }),
    }
}

enum Compared {
    Same,
    Unknown(&'static str),
    /// The decision would change in this way, because of this rule.
    Other(Kind, String),
}

/// Compares the new result of the guards with the recorded one.
fn compared(fate: &Fate, recall: &LoggedCallVerdict) -> Compared {
    let by_facts = |reason: &str| reason.starts_with("fact_");
    let stop = |outcome: &str, rule: &str| if rule.is_empty() { outcome.to_owned() } else { rule.to_owned() };
    match (fate, recall) {
        (Fate::NotReached, _) => Compared::Same,
        (_, LoggedCallVerdict::Unknown(why)) => Compared::Unknown(why),
        // Unless facts stop it under the other policy, too.
        (Fate::Stopped { reason, rule }, LoggedCallVerdict::Passes) if by_facts(reason) => {
            Compared::Other(Kind::Allowed, rule.clone())
        }
        (Fate::Stopped { reason, .. }, LoggedCallVerdict::Asks(by)) if by_facts(reason) => {
            Compared::Other(Kind::Asked, by.clone())
        }
        (Fate::Stopped { .. }, LoggedCallVerdict::Passes | LoggedCallVerdict::Asks(_)) => Compared::Unknown(STOPPED),
        (Fate::Stopped { .. }, LoggedCallVerdict::Ends { outcome, rule, .. }) => {
            Compared::Other(Kind::Otherwise, stop(outcome, rule))
        }
        (Fate::Passed, LoggedCallVerdict::Passes) | (Fate::Asked, LoggedCallVerdict::Asks(_)) => Compared::Same,
        (Fate::Passed | Fate::Asked, LoggedCallVerdict::Ends { outcome, rule, .. }) => {
            Compared::Other(Kind::Denied, stop(outcome, rule))
        }
        (Fate::Passed | Fate::Ended { .. }, LoggedCallVerdict::Asks(by)) => Compared::Other(Kind::Asked, by.clone()),
        (Fate::Asked, LoggedCallVerdict::Passes) => Compared::Other(Kind::Allowed, "approval".to_owned()),
        (Fate::Ended { outcome, rule, .. }, LoggedCallVerdict::Passes) => {
            Compared::Other(Kind::Allowed, stop(outcome, rule))
        }
        (Fate::Ended { outcome, reason, rule }, LoggedCallVerdict::Ends { outcome: now, reason: why, rule: by }) => {
            if (outcome.as_str(), reason, rule) == (*now, why, by) {
                Compared::Same
            } else {
                Compared::Other(Kind::Otherwise, stop(now, by))
            }
        }
    }
}

fn words(recall: &LoggedCallVerdict) -> String {
    match recall {
        LoggedCallVerdict::Passes => "passed".into(),
        LoggedCallVerdict::Asks(by) => format!("approval requested ({by})"),
        LoggedCallVerdict::Ends { outcome, reason, rule } => {
            Fate::Ended { outcome: (*outcome).to_owned(), reason: reason.clone(), rule: rule.clone() }.words()
        }
        LoggedCallVerdict::Unknown(why) => (*why).to_owned(),
    }
}
