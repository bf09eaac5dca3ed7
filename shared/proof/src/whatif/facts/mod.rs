//! Facts of sessions, decided anew: what a call asks of them where it begins, and what its end does to them.
//!
//! - [`FactTurn`]: the calls of one turn that go by facts under the policy, as the log has them;
//! - [`replay`]: all of them, in the order in which they began and ended;
//! - `session`: what is known of a session's facts at a moment.

pub mod replay;

mod session;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::policy::{Becomes, Fact, FactCondition, FactRow, FactScope, Permissions};
use tickfleet_model::{AgentId, Context, Effect, Outcome, SessionName, TaskId};

use super::Difference;
use super::recorded::{Arguments, Fate, Recorded};

/// A call that was tried once began so long before its last try did, ms, at most.
const BEGIN_SLACK_MS: i64 = 1_000;

/// What the policy says of facts for calls of a tool.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// Its row.
    pub facts: &'a FactRow,
    /// Its effect.
    pub effect: Effect,
}

/// For how long facts are kept at most under the policy, by their names, ms.
#[derive(Debug, Clone, Default)]
pub struct Kept(HashMap<String, i64>);

impl Kept {
    /// As the permission matrix has it.
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

/// What guards say of a call under the policy, where they let facts decide.
#[derive(Debug, Default)]
pub enum Guarded {
    /// What they said.
    #[default]
    Same,
    /// Something else: that is told, unless facts stop the call.
    Otherwise(Box<Difference>),
}

/// The calls of a turn that go by facts under the policy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FactTurn {
    /// The shard.
    pub shard: u32,
    /// The tenant.
    pub tenant: String,
    /// The agent.
    pub agent: String,
    /// Its id.
    pub id: String,
    /// From when on others wait for what its calls may set, ms.
    pub at_ms: i64,
    /// The calls, in order.
    pub calls: Vec<FactCall>,
}

/// A call that goes by facts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FactCall {
    /// Its place in the turn.
    pub position: usize,
    /// The tool as the model named it.
    pub tool: String,
    /// Its session, with its tenant; none where the log does not say it.
    pub session: Option<String>,
    /// What it asks, in order; without what is in shadow.
    pub conditions: Vec<Asked>,
    /// What it may do.
    pub may: Vec<May>,
    /// What its end did; none where it may have done anything of that.
    pub did: Option<Vec<Did>>,
    /// Between which moments it began, ms.
    pub began: (i64, i64),
    /// And ended.
    pub ended: (i64, i64),
    /// Whether facts were asked when it was decided first, by whatever policy.
    pub was_asked: bool,
    /// What became of it.
    pub fate: FactFate,
    /// What it was, in words.
    pub was: String,
    /// What guards would have said otherwise, told if facts let it begin.
    pub held: Option<Box<Difference>>,
}

/// What became of a call where it met facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FactFate {
    /// It passed.
    Passed,
    /// This condition stopped it.
    Stopped(String),
    /// Something else stopped it before, and would not have.
    New,
    /// It did not come so far.
    NotReached,
}

/// A condition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asked {
    /// The fact as it is kept; none where the arguments that it is about are not known.
    pub key: Option<String>,
    /// Its name.
    pub name: String,
    /// True if it is required, false if it is forbidden.
    pub required: bool,
    /// Where the configuration has the condition.
    pub rule: String,
    /// For how long the fact is kept at most, ms.
    pub kept_ms: i64,
}

/// What a call may do to a fact.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct May {
    /// The fact, as in [`Asked`].
    pub key: Option<String>,
    /// Its name.
    pub name: String,
    /// True if it sets it, false if it clears it.
    pub sets: bool,
}

/// What the end of a call did to a fact.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Did {
    /// The fact, as in [`Asked`].
    pub key: Option<String>,
    /// Its name.
    pub name: String,
    /// What it did.
    pub change: Change,
    /// For how long that is kept, ms.
    pub kept_ms: i64,
}

/// As [`Becomes`], which nobody writes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It is so.
    Set,
    /// It may be so.
    MaybeSet,
    /// It is not so any more.
    Cleared,
    /// It may not be so any more.
    MaybeCleared,
}

impl From<Becomes> for Change {
    fn from(becomes: Becomes) -> Self {
        match becomes {
            Becomes::Set => Self::Set,
            Becomes::MaybeSet => Self::MaybeSet,
            Becomes::Cleared => Self::Cleared,
            Becomes::MaybeCleared => Self::MaybeCleared,
        }
    }
}

impl FactTurn {
    /// Makes a turn of its calls that go by facts; none where there are none. `first` is the first call of the turn that the
    /// log has.
    #[must_use]
    pub fn of(first: &Recorded, calls: Vec<FactCall>) -> Option<Self> {
        let waits = first.waits().first().map(|wait| wait.at_ms);
        let decided_ms = waits.or_else(|| first.admission().map(|note| note.at_ms));
        let at_ms = calls.iter().map(|call| call.began.0).min()?.min(decided_ms.unwrap_or(i64::MAX));
        let (tenant, agent, id) = (first.tenant.clone(), first.agent.clone(), first.turn.clone());
        Some(Self { shard: first.shard, tenant, agent, id, at_ms, calls })
    }
}

impl FactCall {
    /// What a call asks of facts and does to them; none where the row has nothing of it, or the call never came near.
    ///
    /// `before_ms`: when the call before it in its turn had ended.
    #[must_use]
    pub fn of(call: &Recorded, row: &Row<'_>, kept: &Kept, guarded: Guarded, before_ms: Option<i64>) -> Option<Self> {
        let premises = call.premises.as_ref();
        if row.facts.is_empty() || call.is_task || call.fate == Fate::NotReached && call.admitted.is_empty() {
            return None;
        }
        let held = match guarded {
            Guarded::Same => None,
            Guarded::Otherwise(difference) => Some(difference),
        };
        let fate = match &call.fate {
            Fate::Passed => FactFate::Passed,
            Fate::Asked if call.outcome != Outcome::ApprovalRefused.as_str() => FactFate::Passed,
            Fate::Stopped { reason, rule } if reason.starts_with("fact_") => FactFate::Stopped(rule.clone()),
            Fate::Ended { .. } if held.is_some() => FactFate::New,
            Fate::Asked | Fate::Stopped { .. } | Fate::Ended { .. } | Fate::NotReached => FactFate::NotReached,
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
            did: if fate == FactFate::New { None } else { keys.did(call, row) },
            began: began(call, before_ms),
            ended: ended(call),
            was_asked: premises.is_some_and(|premises| premises.entered_ms.is_some()),
            fate,
            was: call.fate.words(),
            held,
        })
    }

    /// Whether it came so far that facts are asked.
    fn asks(&self) -> bool {
        self.fate != FactFate::NotReached && !self.conditions.is_empty()
    }
}

/// Whose facts a call goes by, with its tenant; none where the log does not say it.
fn session(call: &Recorded, row: &FactRow) -> Option<String> {
    let premises = call.premises.as_ref();
    let said = premises.and_then(|premises| premises.session.as_deref());
    let is_said = match row.of {
        FactScope::Agent => true,
        FactScope::Task => premises.is_some(),
        FactScope::Session => said.is_some(),
    };
    let agent = AgentId::new(call.agent.as_str()).ok().filter(|_| is_said)?;
    let task = premises.and_then(|premises| TaskId::new(premises.task.as_deref()?).ok());
    let session_id = said.filter(|said| !said.is_empty()).and_then(|said| SessionName::new(said).ok());
    let context = Context { session_id, ..Context::default() };
    Some(format!("{}:{}", call.tenant, row.session(&agent, task.as_ref(), &context)))
}

/// Between which moments a call began: the shard's word where facts were asked then.
fn began(call: &Recorded, before_ms: Option<i64>) -> (i64, i64) {
    let said = call.premises.as_ref().and_then(|premises| premises.entered_ms).filter(|at_ms| *at_ms > 0);
    if let Some(at_ms) = said {
        return (at_ms, at_ms);
    }
    let latest_ms = call.ended_ms - call.duration_ms;
    let admitted_ms = call.admission().map(|note| note.at_ms);
    let earliest_ms = admitted_ms.max(before_ms).unwrap_or(latest_ms - BEGIN_SLACK_MS);
    let is_tried_once = call.retries == 0 && call.outcome == Outcome::Ok.as_str();
    let earliest_ms = if is_tried_once { earliest_ms.max(latest_ms - BEGIN_SLACK_MS) } else { earliest_ms };
    (earliest_ms.min(latest_ms), latest_ms)
}

/// Between which moments it ended: the shard's word where it has it of a call that a worker ended.
fn ended(call: &Recorded) -> (i64, i64) {
    let ran = call.premises.as_ref().is_some_and(|premises| premises.ran);
    let (one, other) = match call.over_ms {
        Some(over_ms) if ran => (over_ms, over_ms),
        Some(over_ms) => (over_ms.min(call.ended_ms), call.written_ms),
        None => (call.ended_ms, call.written_ms),
    };
    (one.min(other), one.max(other))
}

/// The arguments that facts are about.
struct Keys(Option<Box<RawValue>>);

impl Keys {
    /// Those that a call ran with, where they are known.
    fn of(call: &Recorded) -> Self {
        let text = match call.narrowed.as_ref().unwrap_or(&call.arguments) {
            Arguments::Whole(text) => Some(text.clone()),
            Arguments::Hidden(_) | Arguments::Cut(_) => None,
        };
        Self(text.and_then(|text| RawValue::from_string(text).ok()))
    }

    fn key(&self, fact: &Fact) -> Option<String> {
        if fact.arguments.is_empty() { Some(fact.name.clone()) } else { self.0.as_deref().map(|said| fact.key(said)) }
    }

    fn asked(&self, tool: &str, condition: &FactCondition, required: bool, kept: &Kept) -> Asked {
        let (name, list) = (condition.fact.name.clone(), if required { "require" } else { "forbid" });
        Asked {
            key: self.key(&condition.fact),
            required,
            rule: format!("permissions.{tool}.facts.{list}.{name}"),
            kept_ms: kept.0.get(&name).copied().unwrap_or(0),
            name,
        }
    }

    fn may(&self, fact: &Fact, sets: bool) -> May {
        May { key: self.key(fact), name: fact.name.clone(), sets }
    }

    /// What its end did to facts; none where nobody says whether it had entered its session.
    fn did(&self, call: &Recorded, row: &Row<'_>) -> Option<Vec<Did>> {
        let outcome = Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == call.outcome)?;
        let ran = call.premises.as_ref().map_or(outcome.is_success(), |premises| premises.ran);
        let after = row.facts.after_end(outcome, ran, row.effect);
        let is_unsaid = matches!(
            outcome,
            Outcome::Expired | Outcome::Cancelled | Outcome::Internal | Outcome::Transient | Outcome::Permanent
        );
        if after.is_empty() && !ran && is_unsaid && !call.admitted.is_empty() {
            return None;
        }
        let did = |(change, becomes): (&tickfleet_model::policy::FactChange, Becomes)| Did {
            key: self.key(&change.fact),
            name: change.fact.name.clone(),
            change: becomes.into(),
            kept_ms: change.kept_ms,
        };
        Some(after.into_iter().map(did).collect())
    }
}

#[cfg(test)]
mod tests;
