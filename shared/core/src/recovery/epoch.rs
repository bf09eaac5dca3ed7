//! Restarts of the store. The store may have lost its last writes, including intent records of calls.
//!
//! For one lease after a restart, nothing is reaped, and no `once` call begins ([`settled`]). Meanwhile each worker
//! reports its journal ([`super::journal`]) in order, one decision for each entry, and begins no call before the end of
//! the report.
//!
//! A reported call ([`ReportBegunCall`]) that the turn's record lacks becomes a [`RecoveredCall`] in a separate record.
//! This record stays even if the turn returns to the inbound stream, to a throttle queue or to another worker. A later
//! begin or end of the call reads it ([`recovered_calls`]).

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

/// Guards that the current restart epoch is known, and that it began at least one lease ago.
#[must_use]
pub const fn settled(context: &Context, lease_ms: i64) -> Guard {
    Guard::Epoch { number: context.epoch, lease_ms }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredCalls {
    /// A later turn may reuse the ID for other calls.
    #[serde(rename = "dg")]
    pub digest: String,
    #[serde(rename = "u")]
    pub until_ms: i64,
    #[serde(rename = "m")]
    pub calls: BTreeMap<usize, RecoveredCall>,
}

impl Record for RecoveredCalls {
    const SCHEMA: u32 = 1;
}

/// Several attempts began the call. After a restart, two workers can hold its slice. Neither can withdraw its report,
/// because the other attempt may have had an effect.
const SEVERAL: &str = "*";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredCall {
    #[serde(rename = "by")]
    pub by: String,
    /// If false, the call may begin again.
    #[serde(rename = "o", default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RecoveredResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredResult {
    /// JSON.
    #[serde(rename = "r")]
    pub result: String,
    /// In the turn's dialect, as JSON.
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// JSON.
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub audit: String,
    #[serde(rename = "f", default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

impl From<&RenderedCall> for RecoveredResult {
    fn from(call: &RenderedCall) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { result: text(&call.result), message: text(&call.message), audit: text(&call.audit), failed: call.failed }
    }
}

impl From<&RecoveredResult> for RenderedCall {
    fn from(result: &RecoveredResult) -> Self {
        Self {
            result: result.result.clone().into(),
            message: result.message.clone().into(),
            audit: result.audit.clone().into(),
            failed: result.failed,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveredCallsView {
    pub calls: BTreeMap<usize, RecoveredCall>,
    pub guard: Option<Guard>,
}

impl RecoveredCallsView {
    #[must_use]
    pub fn of_another(&self, position: usize, by: &str) -> Option<&RecoveredCall> {
        self.calls.get(&position).filter(|recovered_call| recovered_call.by != by)
    }
}

/// Ignores calls of another turn with this ID. Reads nothing if the store never restarted.
pub fn recovered_calls(
    view: &View,
    context: &Context,
    name: &TurnName,
    digest: &str,
    positions: Range<usize>,
) -> Result<RecoveredCallsView, Undecided> {
    if context.epoch_began_ms == 0 {
        return Ok(RecoveredCallsView::default());
    }
    let key = keys::recovered_calls(name);
    let Some(stored) = view.record::<RecoveredCalls>(&key)? else {
        return Ok(RecoveredCallsView { calls: BTreeMap::new(), guard: Some(Guard::Absent(key)) });
    };
    let mut calls = if stored.value.digest == digest { stored.value.calls } else { BTreeMap::new() };
    calls.retain(|position, _| positions.contains(position));
    Ok(RecoveredCallsView { calls, guard: Some(Guard::Version(key, stored.version)) })
}

/// A holder runs this decision before it reports calls as not run. For one lease after a restart, workers may still
/// report begun calls, so the result is [`UnrunCallsResult::RetryAt`].
#[derive(Debug, Clone, Copy)]
pub struct QueryUnrunCalls<'a> {
    pub name: &'a TurnName,
    pub digest: &'a str,
    pub from: usize,
    /// Exclusive.
    pub upto: usize,
    pub lease_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnrunCallsResult {
    /// In milliseconds.
    RetryAt(i64),
    Confirmed(ConfirmedUnrunCalls),
}

/// As a [`Section`], its guards make the commit fail if the result is no longer valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmedUnrunCalls {
    /// Calls of other attempts, by position. A call without a result may have run.
    pub began: BTreeMap<usize, RecoveredCall>,
    guards: Vec<Guard>,
}

impl Decision for QueryUnrunCalls<'_> {
    type Output = UnrunCallsResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<UnrunCallsResult>, Undecided> {
        let known_ms = context.epoch_began_ms.saturating_add(self.lease_ms);
        if context.epoch_began_ms > 0 && context.now_ms < known_ms {
            return Ok(Step::Return(UnrunCallsResult::RetryAt(known_ms)));
        }
        let recovered = recovered_calls(view, context, self.name, self.digest, self.from..self.upto)?;
        let mut guards = Vec::new();
        if !mutant!("unrun_guards_the_recovered_calls") {
            guards.extend(recovered.guard);
        }
        if !mutant!("unrun_guards_the_epoch") {
            guards.push(settled(context, self.lease_ms));
        }
        Ok(Step::Return(UnrunCallsResult::Confirmed(ConfirmedUnrunCalls { began: recovered.calls, guards })))
    }
}

impl Section for ConfirmedUnrunCalls {
    fn add_to(&self, transaction: &mut Transaction, _: &View, _: &Context) -> Result<(), Undecided> {
        transaction.guards.extend(self.guards.iter().cloned());
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournaledOutcome {
    /// The call may still run.
    Begun,
    Ended(Box<RenderedCall>),
    /// The call certainly did nothing.
    Undone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportBegunCall {
    pub name: TurnName,
    pub digest: String,
    pub position: usize,
    pub by: String,
    pub once: bool,
    pub outcome: JournaledOutcome,
    /// Must last until the turn can no longer be redelivered.
    pub keep_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportBegunResult {
    /// The report is out of date, or the store has the call's intent record.
    NotNeeded,
    Recorded,
    Late,
    Removed,
}

impl Decision for ReportBegunCall {
    type Output = ReportBegunResult;

    fn reads(&self) -> Vec<Query> {
        [self.name.record(), keys::recovered_calls(&self.name)].into_iter().map(Query::Record).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<ReportBegunResult>, Undecided> {
        let key = keys::recovered_calls(&self.name);
        let known = view.record::<RecoveredCalls>(&key)?;
        if self.outcome == JournaledOutcome::Undone {
            return Ok(self.remove(known, context));
        }
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(reported) = self.known_of_turn(&mut transaction, view)? {
            return Ok(Step::Return(reported));
        }
        transaction.guard_read(&key, known.as_ref());
        let ours = known.map(|known| known.value).filter(|known| known.digest == self.digest);
        let mut recovered =
            ours.unwrap_or_else(|| RecoveredCalls { digest: self.digest.clone(), until_ms: 0, calls: BTreeMap::new() });
        let recovered_call = recovered.calls.entry(self.position).or_insert_with(|| RecoveredCall {
            by: self.by.clone(),
            once: self.once,
            result: None,
        });
        let is_late = recovered_call.by != self.by;
        if is_late {
            if recovered_call.by == SEVERAL || mutant!("a_recovered_call_of_several_attempts_stays") {
                return Ok(Step::Return(ReportBegunResult::Late));
            }
            SEVERAL.clone_into(&mut recovered_call.by);
        } else if let JournaledOutcome::Ended(call) = &self.outcome {
            recovered_call.result = Some(call.as_ref().into());
        }
        recovered.until_ms = recovered.until_ms.max(context.now_ms + self.keep_ms);
        let ttl_ms = recovered.until_ms - context.now_ms;
        transaction.dedupe_record = Some(key.clone());
        transaction.put_for(&key, &recovered, ttl_ms);
        Ok(Step::Commit(transaction, if is_late { ReportBegunResult::Late } else { ReportBegunResult::Recorded }))
    }
}

impl ReportBegunCall {
    /// Guards the records on which the result depends. `None` if the report must be recorded.
    fn known_of_turn(
        &self,
        transaction: &mut Transaction,
        view: &View,
    ) -> Result<Option<ReportBegunResult>, Undecided> {
        let key = self.name.record();
        let Some(turn) = view.record::<Turn>(&key)? else {
            let finished = self.name.finished();
            if !matches!(view.get(&Query::Record(finished.clone()))?, Value::Record(None)) {
                return Ok(Some(ReportBegunResult::NotNeeded));
            }
            transaction.guard(Guard::Absent(key)).guard(Guard::Absent(finished));
            return Ok(None);
        };
        let begun = turn.value.begun.as_ref().filter(|begun| begun.position == self.position);
        // The turn has other calls or is past this call, so no decision would read the recovered call.
        if turn.value.head.digest != self.digest || turn.value.position > self.position {
            return Ok(Some(ReportBegunResult::NotNeeded));
        }
        match begun {
            Some(begun) if begun.by != self.by => return Ok(Some(ReportBegunResult::Late)),
            Some(_) if self.outcome == JournaledOutcome::Begun => return Ok(Some(ReportBegunResult::NotNeeded)),
            _ => {}
        }
        if !mutant!("report_begun_guards_the_turn") {
            transaction.guard(Guard::Version(key, turn.version));
        }
        Ok(None)
    }

    fn remove(&self, known: Option<Stored<RecoveredCalls>>, context: &Context) -> Step<ReportBegunResult> {
        let Some(known) = known.filter(|known| {
            let recovered_call = known.value.calls.get(&self.position);
            known.value.digest == self.digest
                && recovered_call.is_some_and(|recovered_call| recovered_call.by == self.by)
        }) else {
            return Step::Return(ReportBegunResult::Removed);
        };
        let key = keys::recovered_calls(&self.name);
        let mut recovered = known.value;
        recovered.calls.remove(&self.position);
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Version(key.clone(), known.version));
        transaction.put_for(&key, &recovered, (recovered.until_ms - context.now_ms).max(1));
        Step::Commit(transaction, ReportBegunResult::Removed)
    }
}
