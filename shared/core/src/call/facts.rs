//! Facts that the calls of a session set and clear, and the running calls that may change these facts.
//!
//! The transaction that begins a call checks the facts ([`check`]). The transaction that settles it changes the facts
//! ([`EndCalls`]). All facts of a session are in one record. So a call and a call that may change its facts cannot
//! begin at the same time.

pub mod check;
mod turns;
mod upkeep;
mod wait;

#[cfg(test)]
mod tests;

pub use check::{CheckFacts, Condition, FactState, KnownFact, Precondition};
pub use turns::Turns;
pub use upkeep::{CallEndReport, ExpectedCall, RecordExpectedCalls, ReportCallEnds};
pub use wait::WaitForFacts;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tickfleet_model::policy::{FactTransition, FactsSession};
use tickfleet_model::{TenantId, TurnId, limits};

use super::{CallName, wake};
use crate::decision::Context;
use crate::mutant;
use crate::record::Record;
use crate::section::Section;
use crate::transaction::{RecordKey, Transaction};
use crate::turn::Turn;
use crate::view::{Undecided, View};

/// How long an expired fact is still reported.
const OVER_MS: i64 = 3_600_000;
/// How long an expected call is kept after its turn's deadline.
const EXPECTED_MS: i64 = 86_400_000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionName {
    pub tenant: TenantId,
    pub session: String,
}

impl SessionName {
    #[must_use]
    pub fn new(tenant: &TenantId, session: &FactsSession) -> Self {
        Self { tenant: tenant.clone(), session: session.to_string() }
    }

    #[must_use]
    pub fn key(&self) -> RecordKey {
        RecordKey::new(format!("facts:{}:{}", self.tenant, self.session))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Session {
    #[serde(rename = "f", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, Fact>,
    #[serde(rename = "u", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub running: BTreeMap<CallName, RunningFactCall>,
    /// Calls that have not begun and may set facts.
    #[serde(rename = "e", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expected: BTreeMap<CallName, Expected>,
    /// Waiting turn → awaited turn.
    #[serde(rename = "w", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub waiting: BTreeMap<TurnId, TurnId>,
    #[serde(rename = "n", default)]
    pub numbered: u64,
}

impl Record for Session {
    const SCHEMA: u32 = 1;
}

/// If both spans exist, the uncertain span ends later than the certain span, or was reported later.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fact {
    #[serde(rename = "y", default, skip_serializing_if = "Option::is_none")]
    pub certain: Option<Span>,
    /// The fact may be set.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub perhaps: Option<Span>,
    /// Present only if both other spans are absent.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<Span>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    #[serde(rename = "u")]
    pub until_ms: i64,
    #[serde(rename = "t")]
    pub since_ms: i64,
    #[serde(rename = "by")]
    pub by: CallName,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PossibleFactChange {
    #[serde(rename = "f")]
    pub fact: String,
    /// False to clear the fact.
    #[serde(rename = "s")]
    pub sets: bool,
    #[serde(rename = "k")]
    pub kept_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningFactCall {
    /// Earlier turns have smaller numbers.
    #[serde(rename = "n")]
    pub number: u64,
    #[serde(rename = "c")]
    pub changes: Vec<PossibleFactChange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    #[serde(rename = "n")]
    pub number: u64,
    #[serde(rename = "t")]
    pub since_ms: i64,
    #[serde(rename = "d")]
    pub deadline_ms: i64,
    #[serde(rename = "s")]
    pub sets: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedFactChange {
    pub fact: String,
    pub transition: FactTransition,
    pub kept_ms: i64,
}

impl Fact {
    /// Applies a change to the fact. Only `Cleared` can end the fact before its time: `MaybeCleared` keeps the time,
    /// but makes the fact uncertain. Returns false if nothing changed.
    pub fn change(
        &mut self,
        transition: FactTransition,
        kept_ms: i64,
        by: &CallName,
        ended_ms: i64,
        now_ms: i64,
    ) -> bool {
        let live = |span: &Option<Span>| span.clone().filter(|span| span.until_ms > now_ms);
        let new = Span { until_ms: now_ms + kept_ms, since_ms: ended_ms, by: by.clone() };
        let mut certain = live(&self.certain);
        let mut perhaps = live(&self.perhaps);
        match transition {
            FactTransition::Set => certain = Some(longer(certain, new.clone())),
            FactTransition::MaybeSet => perhaps = Some(longer(perhaps, new.clone())),
            FactTransition::Cleared => (certain, perhaps) = (None, None),
            FactTransition::MaybeCleared => {
                let Some(was) = certain.take() else { return false };
                perhaps = Some(longer(perhaps, Span { until_ms: was.until_ms, ..new.clone() }));
            }
        }
        if let (Some(certain), Some(maybe)) = (&certain, &perhaps)
            && maybe.until_ms <= certain.until_ms
        {
            // The uncertain span does not extend the fact. Keep it only if it was reported later.
            let later = maybe.since_ms > certain.since_ms;
            perhaps = later.then(|| Span { until_ms: certain.until_ms, ..maybe.clone() });
        }
        let cleared = (certain.is_none() && perhaps.is_none()).then_some(new);
        let changed = Self { certain, perhaps, cleared };
        let is_other = *self != changed;
        *self = changed;
        is_other
    }

    fn until_ms(&self) -> i64 {
        [&self.certain, &self.perhaps, &self.cleared].into_iter().flatten().map(|span| span.until_ms).max().unwrap_or(0)
    }
}

fn longer(before: Option<Span>, new: Span) -> Span {
    let Some(before) = before else { return new };
    let until_ms = before.until_ms.max(new.until_ms);
    let last = if before.since_ms > new.since_ms { before } else { new };
    Span { until_ms, ..last }
}

impl Session {
    pub fn change(&mut self, changed: &AppliedFactChange, by: &CallName, ended_ms: i64, now_ms: i64) -> bool {
        let AppliedFactChange { fact, transition, kept_ms } = changed;
        if let Some(fact) = self.facts.get_mut(fact) {
            return fact.change(*transition, *kept_ms, by, ended_ms, now_ms);
        }
        let mut new = Fact::default();
        let is_new = new.change(*transition, *kept_ms, by, ended_ms, now_ms);
        if is_new {
            self.facts.insert(fact.clone(), new);
        }
        is_new
    }

    /// `None` in `changes` means that any possible change may have happened. Returns the turns that wait for the call.
    pub fn end_call(&mut self, call: &CallName, changes: Option<&[AppliedFactChange]>, now_ms: i64) -> Vec<TurnId> {
        let entry = self.running.remove(call);
        let was_expected = self.expected.remove(call).is_some();
        let unreported = || entry.iter().flat_map(|entry| &entry.changes).map(may_have).collect();
        let changes: Vec<AppliedFactChange> = changes.map_or_else(unreported, <[AppliedFactChange]>::to_vec);
        for changed in &changes {
            self.change(changed, call, now_ms, now_ms);
        }
        if entry.is_none() && !was_expected && changes.is_empty() {
            return Vec::new();
        }
        if self.facts.len() > limits::FACTS_PER_SESSION_MAX {
            self.drop_past_facts(now_ms);
        }
        std::mem::take(&mut self.waiting).into_keys().collect()
    }

    fn drop_past_facts(&mut self, now_ms: i64) {
        self.facts.retain(|_, fact| matches!(fact.known(now_ms).state, FactState::Set | FactState::Perhaps));
    }

    #[must_use]
    pub fn lifetime_ms(&self, now_ms: i64) -> Option<i64> {
        if !self.running.is_empty() {
            return None;
        }
        let facts = self.facts.values().map(|fact| fact.until_ms() + OVER_MS);
        let expected = self.expected.values().map(|call| call.deadline_ms + EXPECTED_MS);
        let until_ms = facts.chain(expected).max().unwrap_or(0);
        Some((until_ms - now_ms).max(OVER_MS))
    }

    fn number_of(&self, turn: &TurnId) -> Option<u64> {
        let running = self.running.iter().map(|(call, entry)| (call, entry.number));
        let expected = self.expected.iter().map(|(call, entry)| (call, entry.number));
        running.chain(expected).find(|(call, _)| call.turn == *turn).map(|(_, number)| number)
    }

    fn numbered(&mut self, turn: &TurnId) -> u64 {
        self.number_of(turn).unwrap_or_else(|| {
            self.numbered += 1;
            self.numbered
        })
    }
}

fn may_have(change: &PossibleFactChange) -> AppliedFactChange {
    let transition = if change.sets { FactTransition::MaybeSet } else { FactTransition::MaybeCleared };
    AppliedFactChange { fact: change.fact.clone(), transition, kept_ms: change.kept_ms }
}

/// The caller guards the record.
fn put_session(transaction: &mut Transaction, key: &RecordKey, session: &Session, now_ms: i64) {
    match session.lifetime_ms(now_ms) {
        Some(ttl_ms) => transaction.put_for(key, session, ttl_ms),
        None => transaction.put(key, session),
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedCall {
    pub call: CallName,
    pub changes: Option<Vec<AppliedFactChange>>,
}

/// One section for all calls of a session, because a transaction writes the session's record only once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndCalls {
    pub session: SessionName,
    pub calls: Vec<EndedCall>,
}

impl EndCalls {
    /// Returns `None` for a turn without a session, because its calls cannot change facts.
    #[must_use]
    pub fn unreported(tenant: &TenantId, turn_id: &TurnId, turn: &Turn) -> Option<Self> {
        let session = SessionName { tenant: tenant.clone(), session: turn.session.clone()? };
        let calls = (turn.position..turn.debited.max(turn.position + 1))
            .map(|position| EndedCall { call: CallName::new(turn_id.clone(), position), changes: None })
            .collect();
        Some(Self { session, calls })
    }
}

impl Section for EndCalls {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let key = self.session.key();
        let stored = view.record::<Session>(&key)?;
        if !mutant!("end_calls_guards_the_session") {
            transaction.guard_read(&key, stored.as_ref());
        }
        let before = stored.map(|stored| stored.value).unwrap_or_default();
        let mut session = before.clone();
        let now_ms = context.now_ms;
        for ended in &self.calls {
            for turn in session.end_call(&ended.call, ended.changes.as_deref(), now_ms) {
                wake(transaction, &self.session.tenant, &turn, now_ms);
            }
        }
        if session != before {
            put_session(transaction, &key, &session, now_ms);
        }
        Ok(())
    }
}
