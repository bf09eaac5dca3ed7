//! Facts of sessions: a call of a tool whose row names facts enters its session before it begins, and its end changes them.
//!
//! What it requires or forbids is decided where it begins, in Redis. A call that is under way and may still change that is
//! waited for, without a slot. Its end is written with its result, in one script.

use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::policy::{FactCondition, FactRow, Permissions, ShadowDenial};
use tickfleet_model::{CallError, CallResult, Effect, Outcome, limits};
use tickfleet_ops::metrics::RuleAction;
use tickfleet_store::{
    AskedFact, ChangedFact, Entered, EnteredAt, FactState, FactsEnd, FactsEntry, KnownFact, MayChange, SliceEntry,
};

use crate::calls::call::Calls;
use crate::calls::guards::Passed;
use crate::calls::messages;
use crate::calls::trying::{Disposition, Trying};
use crate::config::WorkerConfig;
use crate::tools::{RegisteredTool, Toolbox};

/// The end of a call wakes those that wait for it. Should that get lost, they look by themselves after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The time between two entries into a Redis that has just restarted.
const HOLD: Duration = Duration::from_millis(500);

/// What the permission matrix says of facts for calls of a tool; none where it says nothing.
pub(crate) fn row_of<'c>(config: &'c WorkerConfig, slice: &SliceEntry, name: &str) -> Option<&'c FactRow> {
    if slice.meta.is_task {
        return None;
    }
    let tool = config.registry.resolve(name)?;
    let row = config.active.policy.permissions.matrix.get(&tool.spec.name)?;
    Some(&row.facts).filter(|facts| !facts.is_empty())
}

/// What the end of a call does to facts; none where its tool has nothing to do with them, or where it is not known whether
/// the call has entered its session.
pub(crate) fn end_of(config: &WorkerConfig, slice: &SliceEntry, index: usize, result: &CallResult) -> Option<FactsEnd> {
    let call = &slice.calls[index];
    let row = row_of(config, slice, &call.tool).filter(|row| row.changes())?;
    let effect = config.registry.effect(&call.tool).unwrap_or(Effect::Once);
    let changed = row.after(result, effect);
    if changed.is_empty() && result.attempts == 0 && slice.may_have_been_held() {
        return None;
    }
    // Those that it ran with, where a person has changed some.
    let changed_by_people = result.approval.as_ref().and_then(|approval| approval.arguments.clone());
    let arguments = changed_by_people.unwrap_or_else(|| arguments_of(&call.arguments));
    let meta = &slice.meta;
    let changes = changed.into_iter().map(|(change, becomes)| ChangedFact {
        fact: change.fact.key(&arguments),
        becomes,
        kept_ms: change.kept_ms,
    });
    let session = row.session(&meta.agent, meta.task.as_ref().map(|(task, _)| task), &meta.context);
    Some(FactsEnd { session, changes: changes.collect() })
}

/// Arguments that cannot be read say nothing: such a call does not run.
fn arguments_of(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap_or_default()
}

/// A call that facts let begin.
#[derive(Default)]
pub(in crate::calls) struct LetIn {
    /// The conditions in shadow that would have stopped it.
    pub(in crate::calls) shadow: Vec<ShadowDenial>,
    /// When they were asked, as [`CallResult::entered_ms`]; none where it does not go by facts.
    pub(in crate::calls) entered_ms: Option<i64>,
}

impl Calls {
    /// A call that is about to begin enters its session; with other arguments than its own, where people have changed some.
    /// Answers the conditions in shadow that would have stopped it, and when they were asked.
    ///
    /// # Errors
    /// What becomes of the call instead: it is denied, or waits.
    pub(in crate::calls) async fn enter(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        changed: Option<&RawValue>,
        tools: &Toolbox,
    ) -> Result<LetIn, Box<Disposition>> {
        let Some(row) = row_of(trying.config, trying.slice, &trying.call.tool) else { return Ok(LetIn::default()) };
        Box::pin(self.ask_session(trying, row, (tool, changed), tools, false)).await
    }

    /// Whether facts would let a call begin just now. It does not begin: people are to be asked first.
    ///
    /// # Errors
    /// What becomes of the call instead: it is denied, or waits.
    pub(in crate::calls) async fn facts_allow(
        &self,
        trying: &Trying<'_>,
        passed: &Passed,
        tools: &Toolbox,
    ) -> Result<(), Disposition> {
        let Some(row) = row_of(trying.config, trying.slice, &trying.call.tool) else { return Ok(()) };
        let looked = self.ask_session(trying, row, (&passed.tool, None), tools, true).await;
        looked.map(drop).map_err(|instead| *instead)
    }

    async fn ask_session(
        &self,
        trying: &Trying<'_>,
        row: &FactRow,
        (tool, changed): (&RegisteredTool, Option<&RawValue>),
        tools: &Toolbox,
        looks: bool,
    ) -> Result<LetIn, Box<Disposition>> {
        let conditions = row.require.iter().map(|it| (it, true)).chain(row.forbid.iter().map(|it| (it, false)));
        // A call is decided about where it begins: another try of it is never told as not run.
        let conditions: Vec<(&FactCondition, bool)> = conditions.filter(|_| trying.attempt == 1).collect();
        let asked = FactsEntry { looks, ..entry_of(trying, row, changed, &conditions) };
        loop {
            let entry = FactsEntry { knows: self.claims.told_to(), ..asked.clone() };
            let told = |at: usize, known: Option<KnownFact>| {
                conditions.get(at).map(|(condition, required)| Told {
                    trying,
                    tool,
                    tools,
                    condition,
                    required: *required,
                    known,
                })
            };
            let (answer, at_ms) = match self.outbox.enter(entry).await {
                Some(EnteredAt { entered, at_ms }) => (Some(entered), at_ms),
                None => (None, None),
            };
            // Of another try, nothing was asked.
            let entered_ms = Some(at_ms.filter(|_| trying.attempt == 1).unwrap_or(0));
            return Err(Box::new(match answer {
                Some(Entered::Ok(shadow)) => {
                    let shadow = shadow.into_iter().filter_map(|at| Some(told(at, None)?.in_shadow())).collect();
                    return Ok(LetIn { shadow, entered_ms });
                }
                // What was done of it is told by its begin.
                Some(Entered::Begun) => return Ok(LetIn { shadow: Vec::new(), entered_ms: Some(0) }),
                Some(Entered::Waits(turn)) => {
                    self.metrics.waited_for_facts();
                    Disposition::WaitsForEqual(turn, LOOK_AGAIN)
                }
                Some(Entered::Unmet(at, known)) => {
                    let Some(told) = told(at, Some(known)) else { return Err(Box::new(Disposition::Lost)) };
                    self.metrics.rule_unmet(&told.rule(), RuleAction::Deny);
                    self.denied(trying, told.error(), entered_ms).await
                }
                Some(Entered::Full) => self.denied(trying, full(&tool.spec.name), None).await,
                Some(Entered::Hold) => {
                    tokio::select! {
                        () = self.now.cancelled() => return Err(Box::new(Disposition::HandBack(false))),
                        () = tokio::time::sleep(HOLD) => continue,
                    }
                }
                Some(Entered::Stale) | None => {
                    self.metrics.fenced("enter");
                    Disposition::Lost
                }
            }));
        }
    }

    /// The end of a call that may not begin. Should somebody who is gone have begun it, that is told instead.
    async fn denied(&self, trying: &Trying<'_>, error: CallError, entered_ms: Option<i64>) -> Disposition {
        match self.begun_by_another(trying).await {
            Some(begun) => begun,
            None => {
                let denied = CallResult { entered_ms, ..trying.result(Outcome::Denied, error) };
                Disposition::Ended(Box::new(denied), Vec::new())
            }
        }
    }
}

fn entry_of(
    trying: &Trying<'_>,
    row: &FactRow,
    changed: Option<&RawValue>,
    conditions: &[(&FactCondition, bool)],
) -> FactsEntry {
    let meta = &trying.slice.meta;
    let own = arguments_of(&trying.call.arguments);
    let arguments = changed.unwrap_or(&own);
    let asked = |(condition, required): &(&FactCondition, bool)| AskedFact {
        fact: condition.fact.key(arguments),
        required: *required,
        shadow: !condition.mode.is_enforced(),
    };
    let changes = row.clears.iter().map(|it| (it, false)).chain(row.sets.iter().map(|it| (it, true)));
    FactsEntry {
        name: trying.slice.name.clone(),
        fence: trying.slice.fence.clone(),
        position: trying.id.position,
        digest: meta.digest.clone(),
        session: row.session(&meta.agent, meta.task.as_ref().map(|(task, _)| task), &meta.context),
        conditions: conditions.iter().map(asked).collect(),
        changes: changes
            .map(|(it, sets)| MayChange { fact: it.fact.key(arguments), sets, kept_ms: it.kept_ms })
            .collect(),
        knows: None,
        submitted_ms: meta.submitted_ms,
        looks: false,
    }
}

/// What is told of a condition that is not met.
struct Told<'a> {
    trying: &'a Trying<'a>,
    tool: &'a RegisteredTool,
    tools: &'a Toolbox,
    condition: &'a FactCondition,
    required: bool,
    /// None in shadow, where it is not asked for.
    known: Option<KnownFact>,
}

impl Told<'_> {
    fn reason(&self) -> &'static str {
        match (&self.known, self.required) {
            (Some(KnownFact { state: FactState::Undecided, .. }), _) => "fact_deadlock",
            (_, true) => "fact_missing",
            (_, false) => "fact_forbidden",
        }
    }

    /// Where the configuration has the condition.
    fn rule(&self) -> String {
        let list = if self.required { "require" } else { "forbid" };
        format!("permissions.{}.facts.{list}.{}", self.tool.spec.name, self.condition.fact.name)
    }

    fn in_shadow(&self) -> ShadowDenial {
        let it = if self.required { "required, and it is not set" } else { "forbidden, and it is set" };
        let message = format!("the fact {} is {it}", self.condition.fact);
        ShadowDenial { rule: self.rule(), reason: self.reason(), message }
    }

    fn error(&self) -> CallError {
        let (name, fact) = (&self.tool.spec.name, &self.condition.fact);
        let why = self.known.as_ref().map(|known| why(known, self.required)).unwrap_or_default();
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
            details.extend(known.by.as_ref().map(|by| ("by".to_owned(), json!(by))));
            details.extend(known.since_ms.map(|ms| ("at".to_owned(), time(ms))));
            details.extend(known.until_ms.map(|ms| ("until".to_owned(), time(ms))));
        }
        CallError { details: Some(details), ..messages::error(Outcome::Denied, message) }
    }

    /// What a model can do: of the tools that it may call, those that make it so.
    fn advice(&self) -> String {
        let (tenant, agent) = (&self.trying.slice.name.tenant, &self.trying.slice.meta.agent);
        let permissions: &Permissions = &self.trying.config.active.policy.permissions;
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

fn why(known: &KnownFact, required: bool) -> String {
    let by = known.by.as_deref().unwrap_or("a call");
    let at = known.since_ms.map(|ms| format!(" at {}", rfc3339(ms))).unwrap_or_default();
    match known.state {
        FactState::Never => "which nothing in this session has set".to_owned(),
        FactState::Set => format!("which {by} set{at}"),
        FactState::Perhaps if required => format!("and whether {by} set it{at} is not known"),
        FactState::Perhaps => format!("which {by} may have set{at}"),
        FactState::Cleared => format!("which {by} cleared{at}"),
        FactState::Undecided => format!("which {by} may be about to change, and {by} waits for this call"),
        FactState::Over => {
            let until = known.until_ms.map(|ms| format!(" at {}", rfc3339(ms))).unwrap_or_default();
            format!("which {by} set{at}, and which expired{until}")
        }
    }
}

fn full(name: &str) -> CallError {
    let max = limits::FACTS_PER_SESSION_MAX;
    let message = format!("You may not call {name:?} now: its session already has the maximum of {max} facts.");
    CallError { details: Some(json!({ "reason": "facts_full" })), ..messages::error(Outcome::Denied, message) }
}
