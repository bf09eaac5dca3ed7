//! Restarts of the store. The store may have lost its last writes, including intent records of calls.
//!
//! For one lease after a restart, nothing is reaped, and no `once` call begins ([`settled`]). Within this time, each
//! worker reports the calls that it began, with their results ([`Assert`]). The reports come from the worker's journal.
//! If the turn's record lacks a reported call, the store keeps the report as a *mark* in a separate record. The mark
//! stays even if the turn returns to the inbound stream, to a throttle queue or to another worker. A later begin or end
//! of the call reads the turn's marks ([`marks`]).
//!
//! A worker keeps one journal ([`super::journal`]) of events, in order: calls begun and ended, facts, claims. After a
//! restart, the worker reports the journal in this order, each entry with a decision of its own. The worker begins
//! calls only after these reports.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::{Record, Stored};
use crate::section::Section;
use crate::transaction::{Guard, Transaction};
use crate::turn::Turn;
use crate::turn::end::RenderedCall;
use crate::view::{Query, Undecided, Value, View};

/// Returns a guard that holds if the caller knows the current epoch, and this epoch has lasted for one lease.
#[must_use]
pub const fn settled(context: &Context, lease_ms: i64) -> Guard {
    Guard::Epoch { number: context.epoch, lease_ms }
}

/// The marks of a turn: begun calls that the store knows only from reports of workers after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Digest of the turn's content. A later turn may reuse the ID for other calls.
    #[serde(rename = "dg")]
    pub digest: String,
    #[serde(rename = "u")]
    pub until_ms: i64,
    #[serde(rename = "m")]
    pub calls: BTreeMap<usize, Mark>,
}

impl Record for Marks {
    const SCHEMA: u32 = 1;
}

/// The value of [`Mark::by`] if several attempts began the call. After a restart, two workers can hold the call's
/// slice. Neither worker can withdraw the mark, because neither knows whether the other attempt had an effect.
const SEVERAL: &str = "*";

/// A begun call that the store knows only from the report of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The attempt that began the call, or `*` if several attempts began it.
    #[serde(rename = "by")]
    pub by: String,
    /// True if the call must not run twice. If false, the call can begin again, but it is never reported as not run.
    #[serde(rename = "o", default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// The call's result, if known.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub result: Option<MarkedResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedResult {
    /// The call's result, as JSON.
    #[serde(rename = "r")]
    pub result: String,
    /// The dialect's message, as JSON.
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The audit entry, as JSON.
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub audit: String,
    #[serde(rename = "f", default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

impl From<&RenderedCall> for MarkedResult {
    fn from(call: &RenderedCall) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { result: text(&call.result), message: text(&call.message), audit: text(&call.audit), failed: call.failed }
    }
}

impl From<&MarkedResult> for RenderedCall {
    fn from(mark: &MarkedResult) -> Self {
        Self {
            result: mark.result.clone().into(),
            message: mark.message.clone().into(),
            audit: mark.audit.clone().into(),
            failed: mark.failed,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownMarks {
    pub calls: BTreeMap<usize, Mark>,
    /// Guards that the turn's marks are unchanged. `None` if the store never restarted.
    pub guard: Option<Guard>,
}

impl KnownMarks {
    /// Returns the mark of the call at `position`, if an attempt other than `by` began the call.
    #[must_use]
    pub fn of_another(&self, position: usize, by: &str) -> Option<&Mark> {
        self.calls.get(&position).filter(|mark| mark.by != by)
    }
}

/// Returns the marks of the calls at `positions`. Marks of a turn with another digest do not count. Reads nothing if
/// the store never restarted.
///
/// # Errors
/// [`Undecided`] if the marks have to be read first.
pub fn marks(
    view: &View,
    context: &Context,
    name: &TurnName,
    digest: &str,
    positions: Range<usize>,
) -> Result<KnownMarks, Undecided> {
    if context.epoch_began_ms == 0 {
        return Ok(KnownMarks::default());
    }
    let key = keys::marks(name);
    let Some(stored) = view.record::<Marks>(&key)? else {
        return Ok(KnownMarks { calls: BTreeMap::new(), guard: Some(Guard::Absent(key)) });
    };
    let mut calls = if stored.value.digest == digest { stored.value.calls } else { BTreeMap::new() };
    calls.retain(|position, _| positions.contains(position));
    Ok(KnownMarks { calls, guard: Some(Guard::Version(key, stored.version)) })
}

/// Asks which of these calls another attempt began. A holder runs this decision before it reports calls of its slice as
/// not run. For one lease after a restart of the store, the answer is unknown, because workers may still report calls
/// that they began.
#[derive(Debug, Clone, Copy)]
pub struct AskUnrun<'a> {
    pub name: &'a TurnName,
    /// Digest of the turn's content.
    pub digest: &'a str,
    /// Position of the first call that ends without running.
    pub from: usize,
    /// Position after the last call that ends without running.
    pub upto: usize,
    pub lease_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unrun {
    /// Ask again at this time (ms).
    Hold(i64),
    /// The calls that other attempts began. The other calls have not run.
    Known(KnownUnrun),
}

/// The answer to [`AskUnrun`]. It is also a [`Section`] of the transaction that reports calls as not run: it guards
/// that the answer is still valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownUnrun {
    /// The calls that began, by position. If a mark has a result, the call's worker reported this result. Without a
    /// result, the call may have run.
    pub began: BTreeMap<usize, Mark>,
    guards: Vec<Guard>,
}

impl Decision for AskUnrun<'_> {
    type Output = Unrun;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Unrun>, Undecided> {
        let known_ms = context.epoch_began_ms.saturating_add(self.lease_ms);
        if context.epoch_began_ms > 0 && context.now_ms < known_ms {
            return Ok(Step::Return(Unrun::Hold(known_ms)));
        }
        let marks = marks(view, context, self.name, self.digest, self.from..self.upto)?;
        let mut guards = Vec::new();
        if !mutant!("unrun_guards_the_marks") {
            guards.extend(marks.guard);
        }
        if !mutant!("unrun_guards_the_epoch") {
            guards.push(settled(context, self.lease_ms));
        }
        Ok(Step::Return(Unrun::Known(KnownUnrun { began: marks.calls, guards })))
    }
}

impl Section for KnownUnrun {
    fn add_to(&self, transaction: &mut Transaction, _: &View, _: &Context) -> Result<(), Undecided> {
        transaction.guards.extend(self.guards.iter().cloned());
        Ok(())
    }
}

/// The state of a call that a worker began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The call may still run.
    Begun,
    Ended(Box<RenderedCall>),
    /// The call certainly did nothing.
    Undone,
}

/// Reports a call from a worker's journal after a restart of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assert {
    pub name: TurnName,
    /// Digest of the turn's content.
    pub digest: String,
    pub position: usize,
    pub by: String,
    /// True if the call must not run twice.
    pub once: bool,
    pub outcome: Outcome,
    /// Lifetime of a mark. The mark must last until the turn can no longer be redelivered.
    pub keep_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asserted {
    /// No mark is needed: the store has the call's result or intent record, or the ID belongs to another turn.
    Known,
    Marked,
    /// Another attempt has begun the call, too.
    Late,
    /// The store has no mark of this attempt now.
    Unmarked,
}

impl Decision for Assert {
    type Output = Asserted;

    fn reads(&self) -> Vec<Query> {
        [self.name.record(), keys::marks(&self.name)].into_iter().map(Query::Record).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Asserted>, Undecided> {
        let key = keys::marks(&self.name);
        let known = view.record::<Marks>(&key)?;
        if self.outcome == Outcome::Undone {
            return Ok(self.unmark(known, context));
        }
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(asserted) = self.known_of_turn(&mut transaction, view)? {
            return Ok(Step::Return(asserted));
        }
        transaction.guard(match &known {
            Some(known) => Guard::Version(key.clone(), known.version.clone()),
            None => Guard::Absent(key.clone()),
        });
        let ours = known.map(|known| known.value).filter(|known| known.digest == self.digest);
        let mut marks =
            ours.unwrap_or_else(|| Marks { digest: self.digest.clone(), until_ms: 0, calls: BTreeMap::new() });
        let mark = marks.calls.entry(self.position).or_insert_with(|| Mark {
            by: self.by.clone(),
            once: self.once,
            result: None,
        });
        let is_late = mark.by != self.by;
        if is_late {
            if mark.by == SEVERAL || mutant!("a_mark_of_several_attempts_stays") {
                return Ok(Step::Return(Asserted::Late));
            }
            SEVERAL.clone_into(&mut mark.by);
        } else if let Outcome::Ended(call) = &self.outcome {
            mark.result = Some(call.as_ref().into());
        }
        marks.until_ms = marks.until_ms.max(context.now_ms + self.keep_ms);
        let ttl_ms = marks.until_ms - context.now_ms;
        transaction.proof = Some(key.clone());
        transaction.put_for(&key, &marks, ttl_ms);
        Ok(Step::Commit(transaction, if is_late { Asserted::Late } else { Asserted::Marked }))
    }
}

impl Assert {
    /// Returns the result that the turn's own records show. If a mark is needed, returns `None`, and the transaction
    /// guards that these records are unchanged.
    fn known_of_turn(&self, transaction: &mut Transaction, view: &View) -> Result<Option<Asserted>, Undecided> {
        let key = self.name.record();
        let Some(turn) = view.record::<Turn>(&key)? else {
            let finished = self.name.finished();
            if !matches!(view.get(&Query::Record(finished.clone()))?, Value::Record(None)) {
                return Ok(Some(Asserted::Known));
            }
            transaction.guard(Guard::Absent(key)).guard(Guard::Absent(finished));
            return Ok(None);
        };
        let begun = turn.value.begun.as_ref().filter(|begun| begun.position == self.position);
        // The ID belongs to another turn now, or the turn has continued after this call. So nothing would read the
        // mark.
        if turn.value.head.digest != self.digest || turn.value.position > self.position {
            return Ok(Some(Asserted::Known));
        }
        match begun {
            Some(begun) if begun.by != self.by => return Ok(Some(Asserted::Late)),
            Some(_) if self.outcome == Outcome::Begun => return Ok(Some(Asserted::Known)),
            _ => {}
        }
        if !mutant!("assert_guards_the_turn") {
            transaction.guard(Guard::Version(key, turn.version));
        }
        Ok(None)
    }

    fn unmark(&self, known: Option<Stored<Marks>>, context: &Context) -> Step<Asserted> {
        let Some(known) = known.filter(|known| {
            let mark = known.value.calls.get(&self.position);
            known.value.digest == self.digest && mark.is_some_and(|mark| mark.by == self.by)
        }) else {
            return Step::Return(Asserted::Unmarked);
        };
        let key = keys::marks(&self.name);
        let mut marks = known.value;
        marks.calls.remove(&self.position);
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Version(key.clone(), known.version));
        transaction.put_for(&key, &marks, (marks.until_ms - context.now_ms).max(1));
        Step::Commit(transaction, Asserted::Unmarked)
    }
}
