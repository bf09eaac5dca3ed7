//! Separate decisions that change a session of facts.

use std::collections::BTreeSet;

use tickfleet_model::TurnId;
use tickfleet_model::policy::FactTransition;

use super::super::CallName;
use super::{AppliedFactChange, Expected, Session, SessionName, put_session};
use crate::decision::{Context, Decision, Step};
use crate::mutant;
use crate::transaction::Transaction;
use crate::view::{Query, Undecided, View};

/// Further calls are not recorded, so no check waits for them.
const EXPECTED_MAX: usize = 128;

/// The call's turn will be admitted soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedCall {
    pub turn: TurnId,
    pub position: usize,
    pub deadline_ms: i64,
    pub sets: Vec<String>,
}

/// No guarantee depends on expected calls, so the record may lack some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordExpectedCalls {
    pub session: SessionName,
    /// Earliest turn first.
    pub calls: Vec<ExpectedCall>,
}

impl Session {
    pub fn expect(&mut self, call: &ExpectedCall, now_ms: i64) -> bool {
        let name = CallName::new(call.turn.clone(), call.position);
        let is_known = self.running.contains_key(&name) || self.expected.contains_key(&name);
        if is_known || self.expected.len() >= EXPECTED_MAX {
            return false;
        }
        let number = self.numbered(&call.turn);
        let deadline_ms = call.deadline_ms;
        let sets = call.sets.clone();
        self.expected.insert(name, Expected { number, since_ms: now_ms, deadline_ms, sets });
        true
    }

    /// If a fact has a later report, this end only makes the fact uncertain. Returns the number of changes that the
    /// store had lost.
    pub fn apply_end_report(&mut self, end: &CallEndReport, now_ms: i64) -> usize {
        let mut lost = 0;
        let mut begun = BTreeSet::new();
        for changed in &end.changes {
            let fact = self.facts.get(&changed.fact);
            let last = fact.and_then(|fact| fact.perhaps.as_ref().or(fact.certain.as_ref()).or(fact.cleared.as_ref()));
            let mut changed = changed.clone();
            if let Some(last) = last {
                let certain = fact.and_then(|fact| fact.certain.as_ref()).unwrap_or(last);
                let is_known = last.by == end.call || certain.by == end.call || certain.since_ms > end.ended_ms;
                // A call can change the same fact twice. The first change must not make the second change count as
                // known.
                if is_known && !begun.contains(&changed.fact) {
                    continue;
                }
                if last.since_ms > end.ended_ms {
                    changed.transition = perhaps(changed.transition);
                }
            }
            // If the store lost later ends, too, they are reported after this end.
            if self.change(&changed, &end.call, end.ended_ms.min(now_ms), now_ms) {
                begun.insert(changed.fact);
                lost += 1;
            }
        }
        lost
    }
}

const fn perhaps(transition: FactTransition) -> FactTransition {
    match transition {
        FactTransition::Set | FactTransition::MaybeSet => FactTransition::MaybeSet,
        FactTransition::Cleared | FactTransition::MaybeCleared => FactTransition::MaybeCleared,
    }
}

impl Decision for RecordExpectedCalls {
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.session.key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        change(&self.session, view, context, |session| {
            self.calls.iter().filter(|call| session.expect(call, context.now_ms)).count() > 0
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallEndReport {
    pub call: CallName,
    /// [`AppliedFactChange::kept_ms`] is the remaining lifetime.
    pub changes: Vec<AppliedFactChange>,
    pub ended_ms: i64,
}

/// The store may have lost these ends with its last writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportCallEnds {
    pub session: SessionName,
    pub ends: Vec<CallEndReport>,
}

impl Decision for ReportCallEnds {
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.session.key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        change(&self.session, view, context, |session| {
            self.ends.iter().map(|end| session.apply_end_report(end, context.now_ms)).sum::<usize>() > 0
        })
    }
}

fn change(
    name: &SessionName,
    view: &View,
    context: &Context,
    change: impl FnOnce(&mut Session) -> bool,
) -> Result<Step<bool>, Undecided> {
    let key = name.key();
    let stored = view.record::<Session>(&key)?;
    let mut session = stored.as_ref().map(|stored| stored.value.clone()).unwrap_or_default();
    if !change(&mut session) {
        return Ok(Step::Return(false));
    }
    let mut transaction = Transaction::new(context.version.clone());
    transaction.dedupe_record = Some(key.clone());
    if !mutant!("restate_guards_the_session") {
        transaction.guard_read(&key, stored.as_ref());
    }
    put_session(&mut transaction, &key, &session, context.now_ms);
    Ok(Step::Commit(transaction, true))
}
