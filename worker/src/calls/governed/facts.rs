//! Facts of sessions: calls require, forbid and change facts. A call waits while a running call may still change a fact
//! that the waiting call needs.

use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_core::call::CallName;
use tickfleet_core::call::facts::{
    AppliedFactChange, CheckFacts, Condition, EndedCall, FactState, KnownFact, PossibleFactChange, SessionName,
};
use tickfleet_core::turn::Slice;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::policy::{FactCondition, FactRow, Permissions, ShadowDenial};
use tickfleet_model::{CallError, CallResult, Effect, Outcome, limits};

use crate::calls::call_attempt::{AttemptOutcome, CallAttempt, may_have_been_held};
use crate::calls::messages;
use crate::config::WorkerConfig;
use crate::tools::{RegisteredTool, Toolbox};

/// A waiting call checks again after this time, in case its wake-up is lost.
pub(in crate::calls) const RECHECK_AFTER: Duration = Duration::from_secs(2);

pub(crate) fn row_of<'c>(config: &'c WorkerConfig, slice: &Slice, name: &str) -> Option<&'c FactRow> {
    if slice.turn.is_task() {
        return None;
    }
    let tool = config.registry.resolve(name)?;
    let row = config.active.policy.permissions.matrix.get(&tool.spec.name)?;
    Some(&row.facts).filter(|facts| !facts.is_empty())
}

pub(in crate::calls) fn session_of(slice: &Slice, row: &FactRow) -> SessionName {
    let head = &slice.turn.head;
    let session = row.session(&head.agent, head.task.as_ref().map(|(task, _)| task), &head.context);
    SessionName::new(&slice.name.tenant, &session)
}

/// If it is unknown whether the call ran, [`EndedCall::changes`] is `None`: each change may have happened.
pub(in crate::calls) fn end_of(
    config: &WorkerConfig,
    slice: &Slice,
    index: usize,
    result: &CallResult,
) -> Option<(SessionName, EndedCall)> {
    let call = &slice.calls[index];
    let row = row_of(config, slice, &call.tool).filter(|row| row.changes())?;
    let effect = config.registry.effect(&call.tool).unwrap_or(Effect::Once);
    let changed = row.after(result, effect);
    let is_known = !changed.is_empty() || result.attempts > 0 || !may_have_been_held(slice);
    // People may have changed some arguments, so use the arguments that the call ran with.
    let changed_by_people = result.approval.as_ref().and_then(|approval| approval.arguments.clone());
    let arguments = changed_by_people.unwrap_or_else(|| arguments_of(&call.arguments));
    let changes = changed.into_iter().map(|(change, transition)| AppliedFactChange {
        fact: change.fact.key(&arguments),
        transition,
        kept_ms: change.kept_ms,
    });
    let call = CallName::new(slice.name.turn.clone(), slice.turn.position + index);
    let changes = is_known.then(|| changes.collect());
    Some((session_of(slice, row), EndedCall { call, changes }))
}

/// Unreadable arguments become null: such a call does not run.
fn arguments_of(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap_or_default()
}

pub(in crate::calls) struct FactsCheck<'a> {
    pub(in crate::calls) check: CheckFacts,
    /// The flag is true for a required fact, and false for a forbidden fact.
    conditions: Vec<(&'a FactCondition, bool)>,
}

pub(in crate::calls) fn check_of<'a>(
    attempt: &CallAttempt<'_>,
    row: &'a FactRow,
    changed: Option<&RawValue>,
) -> FactsCheck<'a> {
    let own = arguments_of(&attempt.call.arguments);
    let arguments = changed.unwrap_or(&own);
    let conditions = row.require.iter().map(|it| (it, true)).chain(row.forbid.iter().map(|it| (it, false)));
    // Only the first attempt evaluates conditions, so that a retry is never reported as not run.
    let conditions: Vec<(&FactCondition, bool)> = conditions.filter(|_| attempt.number == 1).collect();
    let condition = |(condition, required): &(&FactCondition, bool)| Condition {
        fact: condition.fact.key(arguments),
        required: *required,
        shadow: !condition.mode.is_enforced(),
    };
    let changes = row.clears.iter().map(|it| (it, false)).chain(row.sets.iter().map(|it| (it, true)));
    let changes =
        changes.map(|(it, sets)| PossibleFactChange { fact: it.fact.key(arguments), sets, kept_ms: it.kept_ms });
    let check = CheckFacts {
        session: session_of(attempt.slice, row),
        conditions: conditions.iter().map(condition).collect(),
        changes: changes.collect(),
    };
    FactsCheck { check, conditions }
}

impl FactsCheck<'_> {
    /// The rule and the error of a call that does not meet `condition`.
    pub(in crate::calls) fn denied(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        tools: &Toolbox,
        condition: usize,
        known: KnownFact,
    ) -> Option<(String, CallError)> {
        let (condition, required) = *self.conditions.get(condition)?;
        let unmet = UnmetCondition { attempt, tool, tools, condition, required, known: Some(known) };
        Some((unmet.rule(), unmet.error()))
    }

    pub(in crate::calls) fn in_shadow(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        tools: &Toolbox,
        unmet: &[usize],
    ) -> Vec<ShadowDenial> {
        let denials = unmet.iter().filter_map(|at| {
            let (condition, required) = *self.conditions.get(*at)?;
            Some(UnmetCondition { attempt, tool, tools, condition, required, known: None }.in_shadow())
        });
        denials.collect()
    }
}

struct UnmetCondition<'a> {
    attempt: &'a CallAttempt<'a>,
    tool: &'a RegisteredTool,
    tools: &'a Toolbox,
    condition: &'a FactCondition,
    required: bool,
    /// `None` in shadow mode, which does not read the fact.
    known: Option<KnownFact>,
}

impl UnmetCondition<'_> {
    fn reason(&self) -> &'static str {
        match (&self.known, self.required) {
            (Some(KnownFact { state: FactState::Undecided, .. }), _) => "fact_deadlock",
            (_, true) => "fact_missing",
            (_, false) => "fact_forbidden",
        }
    }

    fn rule(&self) -> String {
        let list = if self.required { "require" } else { "forbid" };
        format!("permissions.{}.facts.{list}.{}", self.tool.spec.name, self.condition.fact.name)
    }

    fn in_shadow(&self) -> ShadowDenial {
        let it = if self.required { "required, and it is not set" } else { "forbidden, and it is set" };
        let message = format!("the fact {} is {it}", self.condition.fact);
        ShadowDenial { rule: self.rule(), reason: self.reason().into(), message }
    }

    fn error(&self) -> CallError {
        let name = &self.tool.spec.name;
        let fact = &self.condition.fact;
        let why = self.known.as_ref().map(|known| explain(known, self.required)).unwrap_or_default();
        let advice = match &self.condition.message {
            Some(message) => format!(" {}", message.trim_end()),
            None if self.reason() == "fact_deadlock" => " Try again later, as a new call.".to_owned(),
            None => self.advice(),
        };
        let not = if self.required { "needs" } else { "is not allowed with" };
        let message =
            format!("You may not call {name:?} now: it {not} the fact {:?}, {why}.{advice}", fact.to_string());
        let mut details = json!({ "reason": self.reason(), "rule": self.rule(), "fact": fact.to_string() });
        if let (Some(known), Some(details)) = (&self.known, details.as_object_mut()) {
            let time = |ms: i64| json!(rfc3339(ms));
            details.extend(known.by.as_ref().map(|by| ("by".to_owned(), json!(by.to_string()))));
            details.extend(known.since_ms.map(|ms| ("at".to_owned(), time(ms))));
            details.extend(known.until_ms.map(|ms| ("until".to_owned(), time(ms))));
        }
        CallError { details: Some(details), ..messages::error(Outcome::Denied, message) }
    }

    fn advice(&self) -> String {
        let tenant = &self.attempt.slice.name.tenant;
        let agent = &self.attempt.head().agent;
        let permissions: &Permissions = &self.attempt.config.active.policy.permissions;
        let changes = |name: &str| {
            let row = permissions.matrix.get(name).map(|row| &row.facts);
            let list = row.map(|row| if self.required { &row.sets } else { &row.clears });
            list.is_some_and(|list| list.iter().any(|it| it.fact.name == self.condition.fact.name))
        };
        let may = self.tools.may_call(tenant, agent);
        let names: Vec<&str> = may.iter().map(|tool| tool.spec.name.as_str()).filter(|name| changes(name)).collect();
        match (&names[..], self.required) {
            ([], true) => " None of your tools sets it.".to_owned(),
            ([], false) => " None of your tools clears it, so you cannot do this here.".to_owned(),
            (names, _) => format!(" Call {} first.", names[..names.len().min(5)].join(" or ")),
        }
    }
}

fn explain(known: &KnownFact, required: bool) -> String {
    let by = known.by.as_ref().map_or_else(|| "a call".to_owned(), ToString::to_string);
    let at = known.since_ms.map(|ms| format!(" at {}", rfc3339(ms))).unwrap_or_default();
    match known.state {
        FactState::Never => "which nothing in this session has set".to_owned(),
        FactState::Set => format!("which {by} set{at}"),
        FactState::Perhaps if required => format!("and it is unknown whether {by} set it{at}"),
        FactState::Perhaps => format!("which {by} may have set{at}"),
        FactState::Cleared => format!("which {by} cleared{at}"),
        FactState::Undecided => format!("which {by} may be about to change, and {by} waits for this call"),
        FactState::Over => {
            let until = known.until_ms.map(|ms| format!(" at {}", rfc3339(ms))).unwrap_or_default();
            format!("which {by} set{at}, and which expired{until}")
        }
    }
}

pub(in crate::calls) fn session_full(attempt: &CallAttempt<'_>, name: &str) -> AttemptOutcome {
    let max = limits::FACTS_PER_SESSION_MAX;
    let message = format!("You may not call {name:?} now: its session already has the maximum of {max} facts.");
    let details = Some(json!({ "reason": "facts_full" }));
    attempt.refused(Outcome::Denied, CallError { details, ..messages::error(Outcome::Denied, message) })
}
