//! Evaluates conditions on session facts when a call begins. The call's changes to facts take effect when the call
//! ends.

pub mod replay;

mod session;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::policy::{Fact, FactCondition, FactRow, FactScope, FactTransition, Permissions};
use tickfleet_model::{AgentId, Context, Effect, Outcome, SessionName, TaskId};

use super::Difference;
use super::recorded::{Arguments, RecordedCall, RecordedDecision};

/// Maximum time from the start of a call to its attempt, for calls with a single attempt.
const BEGIN_SLACK_MS: i64 = 1_000;

#[derive(Debug, Clone, Copy)]
pub struct ToolFacts<'a> {
    pub tool: &'a str,
    pub facts: &'a FactRow,
    pub effect: Effect,
}

/// By name: the longest time (ms) for which the policy keeps the fact.
#[derive(Debug, Clone, Default)]
pub struct FactLifetimes(HashMap<String, i64>);

impl FactLifetimes {
    #[must_use]
    pub fn of(permissions: &Permissions) -> Self {
        let mut kept = HashMap::new();
        for change in permissions.matrix.values().flat_map(|row| row.facts.sets.iter().chain(&row.facts.clears)) {
            let longest = kept.entry(change.fact.name.clone()).or_insert(0);
            *longest = change.kept_ms.max(*longest);
        }
        Self(kept)
    }
}

/// Conditions on facts are evaluated after the guards, and can still stop the call.
#[derive(Debug, Default)]
pub enum GuardResult {
    #[default]
    Same,
    /// Differs from the recorded result. The difference is reported if no fact stops the call.
    Otherwise(Box<Difference>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FactTurn {
    pub shard: u32,
    pub tenant: String,
    pub agent: String,
    pub id: String,
    /// From this time on, other turns wait for facts that calls of this turn may set.
    pub at_ms: i64,
    pub calls: Vec<FactCall>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FactCall {
    pub position: usize,
    /// As the model named the tool.
    pub tool: String,
    /// The tenant and the session. `None` if the log lacks the session.
    pub session: Option<String>,
    /// In the order of evaluation, without conditions in shadow mode.
    pub conditions: Vec<FactRequirement>,
    pub may: Vec<PossibleChange>,
    /// Changes at the end of the call. `None` if the log does not show these changes.
    pub did: Option<Vec<ActualChange>>,
    /// Earliest and latest possible start (ms).
    pub began: (i64, i64),
    /// Earliest and latest possible end (ms).
    pub ended: (i64, i64),
    pub was_asked: bool,
    pub outcome: FactsOutcome,
    pub was: String,
    /// Reported only if facts let the call begin.
    pub held: Option<Box<Difference>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FactsOutcome {
    Passed,
    Stopped(String),
    /// A guard stopped the call in the fleet, but would not stop the call under the evaluated policy.
    New,
    NotReached,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FactRequirement {
    /// `None` if the key depends on unknown arguments.
    pub key: Option<String>,
    pub name: String,
    /// If false, the fact is forbidden.
    pub required: bool,
    pub rule: String,
    pub kept_ms: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PossibleChange {
    /// As in [`FactRequirement`].
    pub key: Option<String>,
    pub name: String,
    /// If false, the call clears the fact.
    pub sets: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ActualChange {
    /// As in [`FactRequirement`].
    pub key: Option<String>,
    pub name: String,
    pub change: Change,
    pub kept_ms: i64,
}

/// A serializable copy of [`FactTransition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Set,
    MaybeSet,
    Cleared,
    MaybeCleared,
}

impl From<FactTransition> for Change {
    fn from(transition: FactTransition) -> Self {
        match transition {
            FactTransition::Set => Self::Set,
            FactTransition::MaybeSet => Self::MaybeSet,
            FactTransition::Cleared => Self::Cleared,
            FactTransition::MaybeCleared => Self::MaybeCleared,
        }
    }
}

impl FactTurn {
    /// `first` is the turn's first call in the log. `None` if `calls` is empty.
    #[must_use]
    pub fn of(first: &RecordedCall, calls: Vec<FactCall>) -> Option<Self> {
        let waits = first.waits().first().map(|wait| wait.at_ms);
        let decided_ms = waits.or_else(|| first.admission().map(|note| note.at_ms));
        let at_ms = calls.iter().map(|call| call.began.0).min()?.min(decided_ms.unwrap_or(i64::MAX));
        let tenant = first.tenant.clone();
        let agent = first.agent.clone();
        let id = first.turn.clone();
        Some(Self { shard: first.shard, tenant, agent, id, at_ms, calls })
    }
}

impl FactCall {
    /// `None` for a task, for a tool without facts in its permission row, or for a call that ended before admission.
    /// `before_ms` is the end of the turn's previous call.
    #[must_use]
    pub fn of(
        call: &RecordedCall,
        row: &ToolFacts<'_>,
        kept: &FactLifetimes,
        guarded: GuardResult,
        before_ms: Option<i64>,
    ) -> Option<Self> {
        let policy_inputs = call.policy_inputs.as_ref();
        if row.facts.is_empty()
            || call.is_task
            || call.decision == RecordedDecision::NotReached && call.admitted.is_empty()
        {
            return None;
        }
        let held = match guarded {
            GuardResult::Same => None,
            GuardResult::Otherwise(difference) => Some(difference),
        };
        let outcome = match &call.decision {
            RecordedDecision::Passed => FactsOutcome::Passed,
            RecordedDecision::Asked if call.outcome != Outcome::ApprovalRefused => FactsOutcome::Passed,
            RecordedDecision::Stopped { reason, rule } if reason.starts_with("fact_") => {
                FactsOutcome::Stopped(rule.clone())
            }
            RecordedDecision::Ended { .. } if held.is_some() => FactsOutcome::New,
            RecordedDecision::Asked
            | RecordedDecision::Stopped { .. }
            | RecordedDecision::Ended { .. }
            | RecordedDecision::NotReached => FactsOutcome::NotReached,
        };
        let keys = Keys::of(call);
        let required = row.facts.require.iter().map(|it| (it, true));
        let conditions = required.chain(row.facts.forbid.iter().map(|it| (it, false)));
        let enforced = conditions.filter(|(it, _)| it.mode.is_enforced());
        let clears = row.facts.clears.iter().map(|it| (it, false));
        let changes = clears.chain(row.facts.sets.iter().map(|it| (it, true)));
        Some(Self {
            position: call.position,
            tool: call.tool.clone(),
            session: session(call, row.facts),
            conditions: enforced.map(|(it, required)| keys.asked(row.tool, it, required, kept)).collect(),
            may: changes.map(|(it, sets)| keys.may(&it.fact, sets)).collect(),
            did: if outcome == FactsOutcome::New { None } else { keys.did(call, row) },
            began: began(call, before_ms),
            ended: ended(call),
            was_asked: policy_inputs.is_some_and(|policy_inputs| policy_inputs.facts_evaluated_ms.is_some()),
            outcome,
            was: call.decision.words(),
            held,
        })
    }

    fn asks(&self) -> bool {
        self.outcome != FactsOutcome::NotReached && !self.conditions.is_empty()
    }
}

/// Includes the tenant. `None` if the log lacks the session.
fn session(call: &RecordedCall, row: &FactRow) -> Option<String> {
    let policy_inputs = call.policy_inputs.as_ref();
    let said = policy_inputs.and_then(|policy_inputs| policy_inputs.session.as_deref());
    let is_said = match row.of {
        FactScope::Agent => true,
        FactScope::Task => policy_inputs.is_some(),
        FactScope::Session => said.is_some(),
    };
    let agent = AgentId::new(call.agent.as_str()).ok().filter(|_| is_said)?;
    let task = policy_inputs.and_then(|policy_inputs| TaskId::new(policy_inputs.task.as_deref()?).ok());
    let session_id = said.filter(|said| !said.is_empty()).and_then(|said| SessionName::new(said).ok());
    let context = Context { session_id, ..Context::default() };
    Some(format!("{}:{}", call.tenant, row.session(&agent, task.as_ref(), &context)))
}

/// The earliest and latest possible start; equal if the entry states when facts were evaluated.
fn began(call: &RecordedCall, before_ms: Option<i64>) -> (i64, i64) {
    let said = call
        .policy_inputs
        .as_ref()
        .and_then(|policy_inputs| policy_inputs.facts_evaluated_ms)
        .filter(|at_ms| *at_ms > 0);
    if let Some(at_ms) = said {
        return (at_ms, at_ms);
    }
    let latest_ms = call.ended_ms - call.duration_ms;
    let admitted_ms = call.admission().map(|note| note.at_ms);
    let earliest_ms = admitted_ms.max(before_ms).unwrap_or(latest_ms - BEGIN_SLACK_MS);
    let is_tried_once = call.retries == 0 && call.outcome.is_success();
    let earliest_ms = if is_tried_once { earliest_ms.max(latest_ms - BEGIN_SLACK_MS) } else { earliest_ms };
    (earliest_ms.min(latest_ms), latest_ms)
}

/// The earliest and latest possible end; equal if a worker ended the call and the entry has the shard's time.
fn ended(call: &RecordedCall) -> (i64, i64) {
    let ran = call.policy_inputs.as_ref().is_some_and(|policy_inputs| policy_inputs.ran);
    let (one, other) = match call.over_ms {
        Some(over_ms) if ran => (over_ms, over_ms),
        Some(over_ms) => (over_ms.min(call.ended_ms), call.written_ms),
        None => (call.ended_ms, call.written_ms),
    };
    (one.min(other), one.max(other))
}

/// Arguments for the keys of facts. `None` if the log lacks some of them.
struct Keys(Option<Box<RawValue>>);

impl Keys {
    fn of(call: &RecordedCall) -> Self {
        let text = match call.narrowed.as_ref().unwrap_or(&call.arguments) {
            Arguments::Whole(text) => Some(text.clone()),
            Arguments::Hidden(_) | Arguments::Cut(_) => None,
        };
        Self(text.and_then(|text| RawValue::from_string(text).ok()))
    }

    fn key(&self, fact: &Fact) -> Option<String> {
        if fact.arguments.is_empty() { Some(fact.name.clone()) } else { self.0.as_deref().map(|said| fact.key(said)) }
    }

    fn asked(&self, tool: &str, condition: &FactCondition, required: bool, kept: &FactLifetimes) -> FactRequirement {
        let name = condition.fact.name.clone();
        let list = if required { "require" } else { "forbid" };
        FactRequirement {
            key: self.key(&condition.fact),
            required,
            rule: format!("permissions.{tool}.facts.{list}.{name}"),
            kept_ms: kept.0.get(&name).copied().unwrap_or(0),
            name,
        }
    }

    fn may(&self, fact: &Fact, sets: bool) -> PossibleChange {
        PossibleChange { key: self.key(fact), name: fact.name.clone(), sets }
    }

    /// `None` if the log does not show whether the call began.
    fn did(&self, call: &RecordedCall, row: &ToolFacts<'_>) -> Option<Vec<ActualChange>> {
        let outcome = call.outcome;
        let ran = call.policy_inputs.as_ref().map_or(outcome.is_success(), |policy_inputs| policy_inputs.ran);
        let after = row.facts.after_end(outcome, ran, row.effect);
        if after.is_empty() && !ran && outcome.leaves_run_open() && !call.admitted.is_empty() {
            return None;
        }
        let did = |(change, transition): (&tickfleet_model::policy::FactChange, FactTransition)| ActualChange {
            key: self.key(&change.fact),
            name: change.fact.name.clone(),
            change: transition.into(),
            kept_ms: change.kept_ms,
        };
        Some(after.into_iter().map(did).collect())
    }
}

#[cfg(test)]
mod tests;
