//! Facts record events of a session. Calls require or forbid facts at their start, and set or clear facts at their end.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::RuleMode;
use crate::digest::hash_of;
use crate::tool::canonical_argument;
use crate::{AgentId, CallResult, Context, Effect, Outcome, SessionName, TaskId, TenantId, limits};

pub const FACT_KEPT_MS_DEFAULT: i64 = 86_400_000;
pub const FACT_KEPT_MS_MAX: i64 = 31 * 86_400_000;
const ARGUMENTS_MAX: usize = 4;
/// Long enough to make collisions infeasible.
const HASH_CHARS: usize = 32;

/// For example `read_untrusted` or `quoted_price(/item)`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact {
    pub name: String,
    /// JSON pointers. Each combination of argument values is a separate fact.
    pub arguments: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FactChange {
    pub fact: Fact,
    pub on: BTreeSet<Outcome>,
    pub kept_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FactCondition {
    pub fact: Fact,
    #[serde(skip_serializing_if = "RuleMode::is_enforced")]
    pub mode: RuleMode,
    /// Added to the reason of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FactScope {
    /// Without a session, facts belong to the task, or else to the agent.
    #[default]
    Session,
    /// Without a task, facts belong to the agent.
    Task,
    Agent,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FactRow {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<FactChange>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clears: Vec<FactChange>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<FactCondition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbid: Vec<FactCondition>,
    pub of: FactScope,
}

impl<'de> serde::Deserialize<'de> for FactRow {
    /// Always fails, because only the configuration's own parser reads rows.
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("facts of a row are read from a configuration alone"))
    }
}

/// The owner of facts: a session, a task or an agent. Unique within the tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FactsSession(String);

impl fmt::Display for FactsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.arguments.is_empty() {
            write!(f, "({})", self.arguments.join(","))?;
        }
        Ok(())
    }
}

impl Serialize for Fact {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Fact {
    pub const EXPECTED: &'static str =
        "a fact: a name of a-z, 0-9 and `_`, with JSON pointers if it is about arguments, such as quoted_price(/item)";

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, arguments) = match text.split_once('(') {
            Some((name, rest)) => (name, rest.strip_suffix(')')?.split(',').map(|it| it.trim().to_owned()).collect()),
            None => (text, Vec::new()),
        };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_name = !name.is_empty() && name.len() <= limits::NAME_BYTES_MAX && name.chars().all(plain);
        let are_pointers = arguments.len() <= ARGUMENTS_MAX && arguments.iter().all(|it: &String| it.starts_with('/'));
        (is_name && are_pointers).then(|| Self { name: name.to_owned(), arguments })
    }

    /// Argument values are hashed, because they may be private. A missing argument counts as null.
    #[must_use]
    pub fn key(&self, arguments: &RawValue) -> String {
        if self.arguments.is_empty() {
            return self.name.clone();
        }
        let values: Vec<String> =
            self.arguments.iter().map(|at| canonical_argument(arguments, at).unwrap_or_default()).collect();
        let hash = hash_of(std::iter::once(self.name.as_str()).chain(values.iter().map(String::as_str)));
        format!("{}({})", self.name, &hash[..HASH_CHARS])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactTransition {
    Set,
    /// Denies both calls that require the fact and calls that forbid the fact.
    MaybeSet,
    Cleared,
    /// Denies both calls that require the fact and calls that forbid the fact.
    MaybeCleared,
}

impl FactRow {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.clears.is_empty() && self.require.is_empty() && self.forbid.is_empty()
    }

    #[must_use]
    pub fn changes(&self) -> bool {
        !self.sets.is_empty() || !self.clears.is_empty()
    }

    #[must_use]
    pub fn session(&self, agent: &AgentId, task: Option<&TaskId>, context: &Context) -> FactsSession {
        let named = context.session_id.as_ref().filter(|_| self.of == FactScope::Session);
        let task = task.filter(|_| self.of != FactScope::Agent);
        let talk = task.filter(|_| self.of == FactScope::Session).and_then(conversation_of);
        FactsSession(match (named.map(SessionName::as_str).or(talk), task) {
            (Some(session), _) => format!("session:{session}"),
            (None, Some(task)) => format!("task:{task}"),
            (None, None) => format!("agent:{agent}"),
        })
    }

    /// Only a call that ran, or that has the result of another call, changes facts. An uncertain effect makes the
    /// changes uncertain.
    #[must_use]
    pub fn after(&self, result: &CallResult, effect: Effect) -> Vec<(&FactChange, FactTransition)> {
        self.after_end(result.outcome, result.ran(), effect)
    }

    #[must_use]
    pub fn after_end(&self, outcome: Outcome, ran: bool, effect: Effect) -> Vec<(&FactChange, FactTransition)> {
        let may_have = outcome.may_have_taken_effect(ran, effect);
        let of = |changes: &'_ [FactChange],
                  surely: FactTransition,
                  maybe: FactTransition|
         -> Vec<(usize, FactTransition)> {
            let one = |(at, change): (usize, &FactChange)| {
                if ran && change.on.contains(&outcome) {
                    return Some((at, surely));
                }
                may_have.then_some((at, maybe))
            };
            changes.iter().enumerate().filter_map(one).collect()
        };
        let sets = of(&self.sets, FactTransition::Set, FactTransition::MaybeSet);
        let clears = of(&self.clears, FactTransition::Cleared, FactTransition::MaybeCleared);
        // Changes that clear facts come first. So if a call clears and sets the same fact, the fact is set.
        let clears = clears.into_iter().map(|(at, transition)| (&self.clears[at], transition));
        clears.chain(sets.into_iter().map(|(at, transition)| (&self.sets[at], transition))).collect()
    }
}

/// A hash of tenant and session, because the session's name may be secret. Empty without a session.
#[must_use]
pub fn session_note(tenant: &TenantId, task: Option<&TaskId>, context: &Context) -> String {
    let named = context.session_id.as_ref().map(SessionName::as_str).or_else(|| task.and_then(conversation_of));
    named.map(|session| hash_of([tenant.as_str(), session].into_iter())[..HASH_CHARS].to_owned()).unwrap_or_default()
}

/// Returns the session of a task `ses-<session>-<number>`, and `None` for any other task. Facts of one such task also
/// apply to the next.
fn conversation_of(task: &TaskId) -> Option<&str> {
    let (session, number) = task.as_str().strip_prefix("ses-")?.rsplit_once('-')?;
    (!session.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(session)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{CallError, CallId, TurnId};

    fn result(outcome: Outcome, attempts: u32) -> CallResult {
        let id = CallId { turn: TurnId::new("t").unwrap(), position: 0 };
        let error = CallError { code: String::new(), message: String::new(), details: None };
        CallResult { attempts, ..CallResult::refused(&id, None, "pay", outcome, error) }
    }

    fn row() -> FactRow {
        let change = |name: &str| FactChange {
            fact: Fact::parse(name).unwrap(),
            on: [Outcome::Ok].into(),
            kept_ms: FACT_KEPT_MS_DEFAULT,
        };
        FactRow { sets: vec![change("paid")], clears: vec![change("quoted")], ..FactRow::default() }
    }

    #[test]
    fn a_fact_parses_as_a_name_with_argument_pointers() {
        let about = Fact::parse("quoted_price(/item, /to/iban)").unwrap();
        assert_eq!(about.to_string(), "quoted_price(/item,/to/iban)");
        for odd in ["", "Read", "a b", "a(", "a()", "a(item)", "a(/1,/2,/3,/4,/5)", "a(/b)c"] {
            assert_eq!(Fact::parse(odd), None, "{odd}");
        }
        let key = |fact: &str, arguments: &str| {
            Fact::parse(fact).unwrap().key(&serde_json::from_str::<Box<RawValue>>(arguments).unwrap())
        };
        assert_eq!(key("read", r#"{"a":1}"#), "read");
        assert_eq!(key("q(/a)", r#"{"a":1,"b":2}"#), key("q(/a)", r#"{"b":3,"a":1.0}"#));
        assert_ne!(key("q(/a)", r#"{"a":1}"#), key("q(/a)", r#"{"a":"1"}"#));
        assert_eq!(key("q(/a)", r#"{"a":null}"#), key("q(/a)", "{}"));
        assert!(!key("q(/a)", r#"{"a":"secret"}"#).contains("secret"));
    }

    #[test]
    fn an_unknown_outcome_makes_fact_changes_uncertain() {
        let after = |outcome, attempts, effect| -> Vec<FactTransition> {
            row().after(&result(outcome, attempts), effect).into_iter().map(|(_, transition)| transition).collect()
        };
        assert_eq!(after(Outcome::Ok, 1, Effect::Once), [FactTransition::Cleared, FactTransition::Set]);
        let perhaps = [FactTransition::MaybeCleared, FactTransition::MaybeSet];
        assert_eq!(after(Outcome::OutcomeUnknown, 0, Effect::Once), perhaps);
        assert_eq!(after(Outcome::Internal, 1, Effect::Once), perhaps);
        assert_eq!(after(Outcome::Transient, 4, Effect::Idempotent), perhaps);
        for (outcome, attempts, effect) in [
            (Outcome::Denied, 0, Effect::Once),
            (Outcome::Permanent, 1, Effect::Once),
            (Outcome::Transient, 4, Effect::Once),
            (Outcome::Transient, 4, Effect::Read),
            (Outcome::Internal, 1, Effect::Read),
        ] {
            assert_eq!(after(outcome, attempts, effect), [], "{outcome:?}");
        }
        let repeated = CallResult { repeats: Some("t0/0".into()), ..result(Outcome::Ok, 0) };
        assert_eq!(row().after(&repeated, Effect::Once).len(), 2);
    }

    #[test]
    fn fact_scope_falls_back_from_session_to_task_to_agent() {
        let agent = AgentId::new("kelly").unwrap();
        let task = TaskId::new("k1").unwrap();
        let context = Context { session_id: Some(SessionName::new("s").unwrap()), ..Context::default() };
        let of = |of, context: &Context, task: Option<&TaskId>| {
            FactRow { of, ..FactRow::default() }.session(&agent, task, context).to_string()
        };
        let none = Context::default();
        assert_eq!(of(FactScope::Session, &context, Some(&task)), "session:s");
        assert_eq!(of(FactScope::Session, &none, Some(&task)), "task:k1");
        assert_eq!(of(FactScope::Session, &none, None), "agent:kelly");
        let exchange = TaskId::new("ses-release-7-12").unwrap();
        assert_eq!(of(FactScope::Session, &none, Some(&exchange)), "session:release-7");
        assert_eq!(of(FactScope::Task, &none, Some(&exchange)), "task:ses-release-7-12");
        assert_eq!(of(FactScope::Task, &context, Some(&task)), "task:k1");
        assert_eq!(of(FactScope::Task, &context, None), "agent:kelly");
        assert_eq!(of(FactScope::Agent, &context, Some(&task)), "agent:kelly");
    }
}
