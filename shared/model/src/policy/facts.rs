//! Facts: what has happened in a session. Calls of a tool set and clear them when they end, and require or forbid them when
//! they begin.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::RuleMode;
use crate::digest::hash_of;
use crate::tool::said;
use crate::{AgentId, CallResult, Context, Effect, Outcome, SessionName, TaskId, TenantId, limits};

/// For how long a fact is kept, where its row says nothing of it, ms.
pub const FACT_KEPT_MS_DEFAULT: i64 = 86_400_000;
/// The longest such time, ms.
pub const FACT_KEPT_MS_MAX: i64 = 31 * 86_400_000;
/// Arguments that tell facts of one name apart, at most.
const ARGUMENTS_MAX: usize = 4;
/// Hexadecimal characters of the hash of what they say: nobody finds two that are equal.
const HASH_CHARS: usize = 32;

/// The name of a fact, and the arguments of a call that it is about: `read_untrusted`, `quoted_price(/item)`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact {
    /// The name.
    pub name: String,
    /// JSON pointers to arguments: the fact is another for each of their values.
    pub arguments: Vec<String>,
}

/// A fact that calls of a tool set or clear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FactChange {
    /// The fact.
    pub fact: Fact,
    /// The outcomes after which they do.
    pub on: BTreeSet<Outcome>,
    /// For how long it is kept, ms.
    pub kept_ms: i64,
}

/// A fact that has to be there for calls of a tool, or that may not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FactCondition {
    /// The fact.
    pub fact: Fact,
    /// Whether the condition stops anything.
    #[serde(skip_serializing_if = "RuleMode::is_enforced")]
    pub mode: RuleMode,
    /// What is told beside the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What the facts of a row are kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FactScope {
    /// The session that a turn or its task names; else the task; else the agent.
    #[default]
    Session,
    /// The task that a turn runs under; else the agent.
    Task,
    /// The agent, whatever it works on.
    Agent,
}

/// What a row of the permission matrix says of facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FactRow {
    /// Facts that a call sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<FactChange>,
    /// Facts that a call clears.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clears: Vec<FactChange>,
    /// Facts without which no call begins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<FactCondition>,
    /// Facts with which no call begins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbid: Vec<FactCondition>,
    /// What they are kept for.
    pub of: FactScope,
}

impl<'de> serde::Deserialize<'de> for FactRow {
    /// Rows come from the configuration, which has a reader of its own; nobody sends one.
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("facts of a row are read from a configuration alone"))
    }
}

/// Whose facts a call goes by, within its tenant.
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
    /// What a text has to be to name a fact.
    pub const EXPECTED: &'static str =
        "a fact: a name of a-z, 0-9 and `_`, with JSON pointers if it is about arguments, such as quoted_price(/item)";

    /// Reads a fact as configuration writes it; none where the text is none.
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

    /// The fact as it is kept: its name, and a hash of what the call's arguments say, so that none of that is kept. An
    /// argument that is not given says as much as null.
    #[must_use]
    pub fn key(&self, arguments: &RawValue) -> String {
        if self.arguments.is_empty() {
            return self.name.clone();
        }
        let values: Vec<String> = self.arguments.iter().map(|at| said(arguments, at).unwrap_or_default()).collect();
        let hash = hash_of(std::iter::once(self.name.as_str()).chain(values.iter().map(String::as_str)));
        format!("{}({})", self.name, &hash[..HASH_CHARS])
    }
}

/// What a call's end does to a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Becomes {
    /// It is so.
    Set,
    /// It may be so: that forbids, and does not suffice where the fact is required.
    MaybeSet,
    /// It is not so any more.
    Cleared,
    /// It may not be so any more: likewise.
    MaybeCleared,
}

impl FactRow {
    /// Returns true if calls of the tool have nothing to do with facts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.clears.is_empty() && self.require.is_empty() && self.forbid.is_empty()
    }

    /// Returns true if calls of the tool may change facts.
    #[must_use]
    pub fn changes(&self) -> bool {
        !self.sets.is_empty() || !self.clears.is_empty()
    }

    /// Whose facts a call of `agent` goes by.
    #[must_use]
    pub fn session(&self, agent: &AgentId, task: Option<&TaskId>, context: &Context) -> FactsSession {
        let named = context.session_id.as_ref().filter(|_| self.of == FactScope::Session);
        let task = task.filter(|_| self.of != FactScope::Agent);
        let talk = task.filter(|_| self.of == FactScope::Session).and_then(talk_of);
        FactsSession(match (named.map(SessionName::as_str).or(talk), task) {
            (Some(session), _) => format!("session:{session}"),
            (None, Some(task)) => format!("task:{task}"),
            (None, None) => format!("agent:{agent}"),
        })
    }

    /// What the end of a call does to facts. One that did not run changes nothing, but for one that an equal call before it
    /// answers, or whose answer was kept. Of one that may have done something, it may have.
    #[must_use]
    pub fn after(&self, result: &CallResult, effect: Effect) -> Vec<(&FactChange, Becomes)> {
        self.after_end(result.outcome, result.ran(), effect)
    }

    /// As [`Self::after`], of a call of which only this is known.
    #[must_use]
    pub fn after_end(&self, outcome: Outcome, ran: bool, effect: Effect) -> Vec<(&FactChange, Becomes)> {
        let may_have = outcome == Outcome::OutcomeUnknown
            || ran
                && match outcome {
                    Outcome::Internal => effect != Effect::Read,
                    Outcome::Transient | Outcome::Cancelled | Outcome::Expired => effect == Effect::Idempotent,
                    Outcome::Ok
                    | Outcome::Permanent
                    | Outcome::OutcomeUnknown
                    | Outcome::UnknownTool
                    | Outcome::Denied
                    | Outcome::InvalidArguments
                    | Outcome::DailyCapReached
                    | Outcome::Rejected
                    | Outcome::ApprovalRefused => false,
                };
        let of = |changes: &'_ [FactChange], surely: Becomes, maybe: Becomes| -> Vec<(usize, Becomes)> {
            let one = |(at, change): (usize, &FactChange)| {
                if ran && change.on.contains(&outcome) {
                    return Some((at, surely));
                }
                may_have.then_some((at, maybe))
            };
            changes.iter().enumerate().filter_map(one).collect()
        };
        let sets = of(&self.sets, Becomes::Set, Becomes::MaybeSet);
        let clears = of(&self.clears, Becomes::Cleared, Becomes::MaybeCleared);
        // What a call clears and sets anew is set.
        let clears = clears.into_iter().map(|(at, becomes)| (&self.clears[at], becomes));
        clears.chain(sets.into_iter().map(|(at, becomes)| (&self.sets[at], becomes))).collect()
    }
}

/// The session whose facts calls of a turn go by, as auditors are told it: a hash with its tenant, for what it says may be a
/// secret. Empty where there is none: then facts are the task's, or the agent's.
#[must_use]
pub fn session_note(tenant: &TenantId, task: Option<&TaskId>, context: &Context) -> String {
    let named = context.session_id.as_ref().map(SessionName::as_str).or_else(|| task.and_then(talk_of));
    named.map(|session| hash_of([tenant.as_str(), session].into_iter())[..HASH_CHARS].to_owned()).unwrap_or_default()
}

/// The session in which somebody talks with an agent, where the task is one of its exchanges (`ses-<session>-<number>`):
/// what was read in one is known in the next.
fn talk_of(task: &TaskId) -> Option<&str> {
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
    fn a_fact_is_a_name_and_the_arguments_that_it_is_about() {
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
    fn what_may_have_happened_may_have_changed_facts_and_what_did_not_run_changes_none() {
        let after = |outcome, attempts, effect| -> Vec<Becomes> {
            row().after(&result(outcome, attempts), effect).into_iter().map(|(_, becomes)| becomes).collect()
        };
        assert_eq!(after(Outcome::Ok, 1, Effect::Once), [Becomes::Cleared, Becomes::Set]);
        let perhaps = [Becomes::MaybeCleared, Becomes::MaybeSet];
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
    fn facts_are_those_of_the_session_else_of_the_task_else_of_the_agent() {
        let (agent, task) = (AgentId::new("kelly").unwrap(), TaskId::new("k1").unwrap());
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
