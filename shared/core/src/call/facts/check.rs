//! Checks a call: required facts must be set, and forbidden facts must not be set.
//!
//! If another running call may change such a fact, the checked call waits for the running call, regardless of the order
//! of their turns. If a required fact is missing, the checked call also waits for earlier turns that are expected to
//! set it.

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_model::{TurnId, limits};

use super::super::{CallName, wake};
use super::turns::{Dependence, Turns};
use super::{Fact, PossibleFactChange, RunningFactCall, Session, SessionName, put_session};
use crate::decision::Context;
use crate::keys;
use crate::mutant;
use crate::recovery::inbound::redelivered;
use crate::transaction::Transaction;
use crate::turn::Turn;
use crate::view::{Query, Undecided, Value, View};

/// A further call of the session waits.
pub(super) const RUNNING_MAX: usize = 256;
/// An expected call counts as ended if its turn is not admitted within this time.
const ADMITTED_WITHIN_MS: i64 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub fact: String,
    /// False for a forbidden fact.
    pub required: bool,
    /// In shadow mode, an unmet condition has no effect.
    pub shadow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactState {
    Never,
    Set,
    Perhaps,
    Cleared,
    Over,
    /// A running call may change the fact, but waits for the checked call.
    Undecided,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFact {
    pub state: FactState,
    pub since_ms: Option<i64>,
    pub by: Option<CallName>,
    pub until_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    Met {
        shadow: Vec<usize>,
    },
    Running,
    /// If `turn` is the call's own turn, the call waits for no particular turn, and is checked again later.
    Waits {
        turn: TurnId,
    },
    Unmet {
        condition: usize,
        known: KnownFact,
    },
    /// The session has no room for the facts that the call would set.
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckFacts {
    pub session: SessionName,
    /// Empty if the call is retried.
    pub conditions: Vec<Condition>,
    pub changes: Vec<PossibleFactChange>,
}

impl Fact {
    #[must_use]
    pub fn known(&self, now_ms: i64) -> KnownFact {
        let live = |span: &&super::Span| span.until_ms > now_ms;
        let certain = self.certain.as_ref();
        let perhaps = self.perhaps.as_ref();
        let (state, span) = match (certain.filter(live), perhaps.filter(live)) {
            (Some(certain), _) => (FactState::Set, Some(certain)),
            (None, Some(perhaps)) => (FactState::Perhaps, Some(perhaps)),
            (None, None) if certain.is_some() => (FactState::Over, certain),
            (None, None) if self.cleared.is_some() => (FactState::Cleared, self.cleared.as_ref()),
            // An uncertain fact may never have been set.
            (None, None) => (FactState::Never, None),
        };
        let until_ms = if state == FactState::Set { perhaps.or(span) } else { span }.map(|span| span.until_ms);
        KnownFact { state, since_ms: span.map(|span| span.since_ms), by: span.map(|span| span.by.clone()), until_ms }
    }
}

struct Check<'a, 'v> {
    session: &'a mut Session,
    call: &'a CallName,
    turns: &'a mut Turns<'v>,
    now_ms: i64,
    /// `None` for the newest turn.
    number: Option<u64>,
    woken: Vec<TurnId>,
}

enum Changer {
    /// No call may change the fact before the checked call ends.
    None,
    Turn(TurnId),
    /// The call may change the fact, but waits for the checked call.
    Circle(CallName),
    /// A call ended without a report. Check the fact again.
    Gone,
}

impl Check<'_, '_> {
    fn conditions(&mut self, conditions: &[Condition], submitted_ms: i64) -> Result<Precondition, Undecided> {
        let mut shadow = Vec::new();
        let mut waits = None;
        for (index, condition) in conditions.iter().enumerate() {
            let known = match self.condition(condition)? {
                ConditionResult::Met => continue,
                ConditionResult::Waits(turn) => {
                    waits.get_or_insert(turn);
                    continue;
                }
                ConditionResult::Unmet(known) => known,
            };
            if condition.shadow {
                shadow.push(index);
                continue;
            }
            let may_come = condition.required && known.state != FactState::Undecided;
            if may_come && is_early(self.turns.view(), submitted_ms)? {
                return Ok(Precondition::Waits { turn: self.call.turn.clone() });
            }
            return Ok(Precondition::Unmet { condition: index, known });
        }
        Ok(waits.map_or(Precondition::Met { shadow }, |turn| Precondition::Waits { turn }))
    }

    fn condition(&mut self, condition: &Condition) -> Result<ConditionResult, Undecided> {
        loop {
            let fact = self.session.facts.get(&condition.fact);
            let known = fact.cloned().unwrap_or_default().known(self.now_ms);
            let is_so = known.state == FactState::Set || !condition.required && known.state == FactState::Perhaps;
            let is_met = is_so == condition.required;
            if !condition.shadow {
                match self.changer(&condition.fact, !is_so, condition.required && !is_so)? {
                    Changer::Turn(turn) => return Ok(ConditionResult::Waits(turn)),
                    Changer::Circle(by) if is_met => {
                        let state = FactState::Undecided;
                        return Ok(ConditionResult::Unmet(KnownFact {
                            state,
                            since_ms: None,
                            by: Some(by),
                            until_ms: None,
                        }));
                    }
                    Changer::Gone => continue,
                    Changer::Circle(_) | Changer::None => {}
                }
            }
            return Ok(if is_met { ConditionResult::Met } else { ConditionResult::Unmet(known) });
        }
    }

    /// `sets` is true for calls that may set the fact, false for calls that may clear it.
    fn changer(&mut self, fact: &str, sets: bool, is_missing: bool) -> Result<Changer, Undecided> {
        let changes = |entry: &RunningFactCall| entry.changes.iter().any(|it| it.sets == sets && it.fact == fact);
        let running = self.session.running.iter().filter(|(_, entry)| changes(entry)).map(|(call, _)| (call, false));
        let is_before = |number: u64| self.number.is_none_or(|own| number < own);
        let expected = self.session.expected.iter().filter(|(_, entry)| {
            is_missing && sets && is_before(entry.number) && entry.sets.iter().any(|it| it == fact)
        });
        let all = running.chain(expected.map(|(call, _)| (call, true)));
        let all: BTreeMap<CallName, bool> = all.map(|(call, expected)| (call.clone(), expected)).collect();
        self.turns.need(all.keys().map(|call| &call.turn))?;
        let mut circle = None;
        for (call, expected) in all.into_iter().filter(|(call, _)| call.turn != self.call.turn) {
            if !self.is_live(&call)? {
                self.drop_gone(&call);
                return Ok(Changer::Gone);
            }
            match self.turns.dependence(&call.turn)? {
                Dependence::None => return Ok(Changer::Turn(call.turn)),
                Dependence::Circle if !expected => circle = Some(call),
                Dependence::Circle | Dependence::Own => {}
            }
        }
        Ok(circle.map_or(Changer::None, Changer::Circle))
    }

    fn is_live(&mut self, call: &CallName) -> Result<bool, Undecided> {
        let expected = self.session.expected.get(call).map(|entry| entry.since_ms);
        let now_ms = self.now_ms;
        Ok(match self.turns.get(&call.turn)? {
            Some(turn) => turn.position <= call.position,
            // A turn without a record will be admitted soon, or was refused. So wait only a short time.
            None => expected.is_some_and(|since_ms| since_ms + ADMITTED_WITHIN_MS > now_ms),
        })
    }

    /// Removes a call that ended without a report. Any possible change of the call may have happened.
    fn drop_gone(&mut self, call: &CallName) {
        let woken = self.session.end_call(call, None, self.now_ms);
        self.woken.extend(woken);
    }

    /// Drops expired and cleared facts to make room.
    fn has_room(&mut self, changes: &[PossibleFactChange]) -> bool {
        if changes.iter().all(|change| !change.sets || self.session.facts.contains_key(&change.fact)) {
            return true;
        }
        if self.facts_with(changes) > limits::FACTS_PER_SESSION_MAX {
            self.session.drop_past_facts(self.now_ms);
        }
        self.facts_with(changes) <= limits::FACTS_PER_SESSION_MAX
    }

    fn facts_with(&self, changes: &[PossibleFactChange]) -> usize {
        let running = self.session.running.values().flat_map(|entry| &entry.changes);
        let sets = running.chain(changes).filter(|change| change.sets);
        let facts: BTreeSet<&String> = sets.map(|change| &change.fact).chain(self.session.facts.keys()).collect();
        facts.len()
    }

    /// Removes calls that ended without a report to make room.
    fn has_capacity(&mut self) -> Result<bool, Undecided> {
        if self.session.running.len() >= RUNNING_MAX {
            self.turns.need(self.session.running.keys().map(|call| &call.turn))?;
            for call in self.session.running.keys().cloned().collect::<Vec<_>>() {
                if !self.is_live(&call)? {
                    self.drop_gone(&call);
                }
            }
        }
        Ok(self.session.running.len() < RUNNING_MAX)
    }
}

enum ConditionResult {
    Met,
    Waits(TurnId),
    Unmet(KnownFact),
}

/// An earlier turn may set the missing fact. A redelivered turn comes after later turns in the stream, so compare times
/// of submission.
fn is_early(view: &View, submitted_ms: i64) -> Result<bool, Undecided> {
    let first = Query::Entries { stream: keys::turns(), after: None, count: 1 };
    let Value::Entries(entries) = view.get(&first)? else { return Ok(false) };
    let ms = entries.first().and_then(|(entry, _)| entry.as_str().split('-').next()?.parse::<i64>().ok());
    let Some(ms) = ms else { return Ok(false) };
    let redelivered =
        view.score(&redelivered(), keys::turns().as_str())?.filter(|_| !mutant!("early_knows_redelivery"));
    Ok(ms <= submitted_ms || redelivered.is_some_and(|upto_ms| ms.unsigned_abs() <= upto_ms))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    pub precondition: Precondition,
    /// Calls that ended without a report are removed.
    pub session: Session,
    pub woken: Vec<TurnId>,
}

pub fn check(
    mut session: Session,
    call: &CallName,
    asks: &CheckFacts,
    own: &Turn,
    turns: &mut Turns<'_>,
    now_ms: i64,
) -> Result<CheckResult, Undecided> {
    // If the turn has another session, an earlier turn with the same ID ran the call.
    let is_let_in = own.session.as_ref() == Some(&asks.session.session) || mutant!("facts_let_in_this_turn");
    if is_let_in && session.running.contains_key(call) {
        return Ok(CheckResult { precondition: Precondition::Running, session, woken: Vec::new() });
    }
    let number = session.number_of(&call.turn);
    let mut check = Check { session: &mut session, call, turns, now_ms, number, woken: Vec::new() };
    let mut precondition = check.conditions(&asks.conditions, own.head.submitted_ms)?;
    if matches!(precondition, Precondition::Met { .. }) && !asks.changes.is_empty() {
        if !check.has_room(&asks.changes) {
            precondition = Precondition::Full;
        } else if !check.has_capacity()? {
            precondition = Precondition::Waits { turn: call.turn.clone() };
        }
    }
    let woken = check.woken;
    Ok(CheckResult { precondition, session, woken })
}

pub fn add_running_call(session: &mut Session, call: &CallName, changes: &[PossibleFactChange]) {
    let number = session.numbered(&call.turn);
    session.expected.remove(call);
    session.waiting.remove(&call.turn);
    session.running.insert(call.clone(), RunningFactCall { number, changes: changes.to_vec() });
}

impl CheckFacts {
    pub(super) fn checked(
        &self,
        transaction: &mut Transaction,
        view: &View,
        call: &CallName,
        own: &Turn,
        now_ms: i64,
    ) -> Result<(Session, CheckResult), Undecided> {
        let key = self.session.key();
        let stored = view.record::<Session>(&key)?;
        let before = stored.as_ref().map(|stored| stored.value.clone()).unwrap_or_default();
        let mut turns = Turns::new(view, &self.session.tenant, &call.turn, own);
        let checked = check(before.clone(), call, self, own, &mut turns, now_ms)?;
        if !mutant!("facts_guard_the_session") {
            transaction.guard_read(&key, stored.as_ref());
        }
        if !mutant!("facts_guard_other_turns") {
            turns.guard(transaction);
        }
        Ok((before, checked))
    }

    /// Writes only if the call may begin. The caller must commit a refusal, too, because it depends on the guards.
    pub fn add_to(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
        call: &CallName,
        own: &Turn,
    ) -> Result<Precondition, Undecided> {
        let now_ms = context.now_ms;
        let (before, CheckResult { precondition, mut session, woken }) =
            self.checked(transaction, view, call, own, now_ms)?;
        if !matches!(precondition, Precondition::Met { .. }) {
            return Ok(precondition);
        }
        session.waiting.remove(&call.turn);
        if !self.changes.is_empty() {
            add_running_call(&mut session, call, &self.changes);
        }
        if session != before {
            put_session(transaction, &self.session.key(), &session, now_ms);
        }
        woken.iter().for_each(|turn| wake(transaction, &self.session.tenant, turn, now_ms));
        Ok(precondition)
    }
}
