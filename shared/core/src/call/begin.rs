//! Decides whether a call may begin, and writes the call's intent record in the same transaction.
//!
//! Checks run in this order: streak, facts, consent, claim, cache, intent record. After a refusal or a wait, later
//! checks do not run. For example, a call with an unmet fact leaves its consent unused.
//!
//! | Call | Requests to read | Commits |
//! |---|---|---|
//! | `read` or `idempotent`, without facts, consent and claim | 1, or none | none |
//! | with facts, consent or claim, or `once`, or durable | 1, or none | 1 |
//!
//! A worker reads [`Begin::reads`] in one request, checks the consent ([`super::approval::consent`]), and decides from
//! the same view. After a restart of the store, one more read returns the turn's recovered calls. The turn's record is
//! not read: the slice has it, and its version is the fence. The [`Begin`] decisions of a slice run one after another,
//! each from the version that the previous one wrote.

mod result;
#[cfg(test)]
mod tests;

pub use result::{BeginResult, Refusal, Started};

use crate::decision::{Context, Decision, Step};
use crate::mutant;
use crate::recovery::epoch::{RecoveredCallsView, recovered_calls};
use crate::task::cancel::cancel_of;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Version};
use crate::turn::slice::Slice;
use crate::turn::state::UsedConsent;
use crate::turn::{Begun, State, Turn, WaitReason};
use crate::view::{Query, Undecided, View};

use super::CallName;
use super::above;
use super::approval::{self, Approval, Consent, UseConsent};
use super::cache::CacheName;
use super::claim::{ClaimEffect, ClaimResult};
use super::facts::{CheckFacts, Precondition};
use super::streak::{self, StreakName};

#[derive(Debug, Clone)]
pub struct Begin<'a> {
    pub slice: &'a Slice,
    pub position: usize,
    /// The ID of the attempt. A repeated decision keeps this ID.
    pub by: &'a str,
    /// A `once` call gets an intent record.
    pub once: bool,
    /// True if the call waits until this commit is durable. Redis confirms only writes, so such a commit always writes
    /// the turn's record. The confirmation covers all earlier writes, such as the debits of the call's admission.
    pub is_durable: bool,
    /// The last restart epoch for which the worker has reported its begun calls.
    pub epoch: u64,
    /// After a restart of the store, no call begins within this time.
    pub lease_ms: i64,
    /// Absent if the loop breaker excludes the tool, or if the call is retried.
    pub streak: Option<StreakCheck>,
    pub facts: Option<CheckFacts>,
    pub consent: Option<ConsentCheck>,
    pub claim: Option<ClaimEffect>,
    pub cache: Option<CacheName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreakCheck {
    pub name: StreakName,
    /// Hash of tool and arguments.
    pub hash: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsentCheck {
    pub uses: UseConsent,
    /// Changed arguments (JSON) that the worker checked. `None` for unchanged arguments.
    pub narrowed: Option<String>,
}

/// Indexes of unmet shadow-mode conditions, and the time (ms) of the check.
type MetFacts = (Vec<usize>, Option<i64>);

enum CheckOutcome<T> {
    Passes(T),
    Ends(Box<Step<BeginResult>>),
}

impl<T> CheckOutcome<T> {
    /// Only for a result from at most one record: only a commit can check that several records are consistent.
    fn returns(result: BeginResult) -> Self {
        Self::Ends(Box::new(Step::Return(result)))
    }

    /// `transaction` must guard everything on which the result relies.
    fn commits(transaction: Transaction, result: BeginResult) -> Self {
        Self::Ends(Box::new(Step::Commit(transaction, result)))
    }
}

macro_rules! pass {
    ($passage:expr) => {
        match $passage {
            CheckOutcome::Passes(value) => value,
            CheckOutcome::Ends(step) => return Ok(*step),
        }
    };
}

impl Decision for Begin<'_> {
    type Output = BeginResult;

    fn reads(&self) -> Vec<Query> {
        let tenant = &self.slice.name.tenant;
        let records = [
            self.streak.as_ref().map(|streak| streak.name.key()),
            self.facts.as_ref().map(|facts| facts.session.key()),
            self.consent.as_ref().map(|consent| approval::key(tenant, &consent.uses.id)),
            self.claim.as_ref().map(|claim| claim.effect.key()),
            self.cache.as_ref().map(CacheName::key),
        ];
        let records = records.into_iter().flatten().map(Query::Record);
        records.chain(self.cache.as_ref().map(CacheName::query)).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<BeginResult>, Undecided> {
        let Some((turn, version)) = self.present(view, context)? else { return Ok(Step::Return(BeginResult::Stale)) };
        let recovered =
            recovered_calls(view, context, &self.slice.name, &turn.head.digest, self.position..self.position + 1)?;
        pass!(self.check_turn(&turn, &recovered, context));
        pass!(self.refused_streak(view, context)?);
        let base = match self.base(&turn, &version, &recovered, view, context)? {
            Ok(base) => base,
            Err(reason) => return Ok(Step::Return(BeginResult::Canceled { reason })),
        };
        let mut transaction = base.clone();
        let (shadow, checked_ms) = pass!(self.check_facts(&mut transaction, &turn, view, context)?);
        let agreed = pass!(self.use_consent(&mut transaction, &base, &turn, view, context)?);
        pass!(self.claim(&mut transaction, &turn, view, context)?);
        let cached = self.cache.as_ref().map(|name| name.look_up(view, context.now_ms)).transpose()?.flatten();
        let mut started = Started { version, turn, shadow, checked_ms, agreed, cached };
        if !self.commits(&started.turn) {
            return Ok(Step::Return(BeginResult::Started(Box::new(started))));
        }
        if self.changes_turn(&started.turn) {
            self.write(&mut transaction, &mut started.turn, &started.agreed);
            started.version = transaction.version.clone();
        }
        Ok(Step::Commit(transaction, BeginResult::Started(Box::new(started))))
    }
}

impl Begin<'_> {
    fn call(&self) -> CallName {
        CallName::new(self.slice.name.turn.clone(), self.position)
    }

    fn commits(&self, turn: &Turn) -> bool {
        self.facts.is_some() || self.consent.is_some() || self.claim.is_some() || self.changes_turn(turn)
    }

    /// A suspect must be marked as started, because the next crash counts against it only if it ran.
    fn changes_turn(&self, turn: &Turn) -> bool {
        let is_marked = turn.suspect.is_some() && matches!(turn.state, State::Ready { .. });
        self.once || self.is_durable || is_marked || self.facts.as_ref().is_some_and(|facts| !facts.changes.is_empty())
    }

    /// `None` if another holder has the slice. If this attempt has committed before, returns the record that it wrote.
    fn present(&self, view: &View, context: &Context) -> Result<Option<(Turn, Version)>, Undecided> {
        let record = self.slice.name.record();
        if !has_changed(&record, context) {
            return Ok(Some((self.slice.turn.clone(), self.slice.version.clone())));
        }
        let stored = view.record::<Turn>(&record)?.filter(|stored| self.has_written(&stored.value));
        Ok(stored.map(|stored| (stored.value, stored.version)))
    }

    /// The response to an earlier write may be lost. Equal content proves this write: the record contains the slice's
    /// entry.
    fn has_written(&self, stored: &Turn) -> bool {
        let is_ours = |begun: &Begun| begun.position == self.position && begun.by == self.by;
        let mut written = self.slice.turn.clone();
        self.change_turn(&mut written, &[]);
        stored.begun.as_ref().is_some_and(is_ours) || !self.once && *stored == written
    }

    fn check_turn(&self, turn: &Turn, recovered: &RecoveredCallsView, context: &Context) -> CheckOutcome<()> {
        let other = turn.begun.as_ref().filter(|begun| begun.by != self.by);
        // An attempt that began a later call has already run this call.
        let is_begun =
            other.is_some_and(|begun| begun.position == self.position || self.once && begun.position > self.position);
        let recovered_call = recovered.of_another(self.position, self.by);
        if let Some(result) = recovered_call.and_then(|recovered_call| recovered_call.result.as_ref()) {
            return CheckOutcome::returns(BeginResult::Reported { call: result.into() });
        }
        let is_begun = is_begun || recovered_call.is_some_and(|recovered_call| recovered_call.once || self.once);
        if (self.commits(turn) || is_begun) && self.holds(context) {
            return CheckOutcome::returns(BeginResult::Hold);
        }
        if is_begun && !mutant!("begin_respects_the_intent_record") {
            return CheckOutcome::returns(BeginResult::Unknown);
        }
        if turn.state.in_flight_upto().is_none() {
            return CheckOutcome::returns(BeginResult::Stale);
        }
        if let Some(reason) = &turn.canceled {
            return CheckOutcome::returns(BeginResult::Canceled { reason: reason.clone() });
        }
        if turn.head.deadline_ms <= context.now_ms {
            return CheckOutcome::returns(BeginResult::Expired);
        }
        CheckOutcome::Passes(())
    }

    /// The store may have lost intent records, facts and claims in a restart. So calls wait for a lease after the
    /// restart, and for the worker's report.
    const fn holds(&self, context: &Context) -> bool {
        let began_ms = context.epoch_began_ms;
        context.epoch != self.epoch || began_ms > 0 && context.now_ms < began_ms + self.lease_ms
    }

    /// Returns a transaction with the guards of every begin, or the reason of the cancel for a canceled turn.
    fn base(
        &self,
        turn: &Turn,
        version: &Version,
        recovered: &RecoveredCallsView,
        view: &View,
        context: &Context,
    ) -> Result<Result<Transaction, String>, Undecided> {
        let mut base = Transaction::new(context.version.clone());
        if !mutant!("begin_guards_the_version") {
            base.guard(Guard::Version(self.slice.name.record(), version.clone()));
        }
        let cancel = cancel_of(view, &self.slice.name, turn.admitted_ms)?;
        if let Some(reason) = cancel.reason {
            return Ok(Err(reason));
        }
        if !mutant!("begin_guards_the_cancel") {
            base.guard(cancel.guard);
        }
        if !mutant!("begin_guards_the_recovered_calls") {
            base.guards.extend(recovered.guard.clone());
        }
        if !mutant!("begin_guards_the_deadline") {
            base.guard(Guard::Before(turn.head.deadline_ms));
        }
        if !mutant!("begin_guards_the_epoch") {
            base.guard(Guard::Epoch { number: self.epoch, lease_ms: self.lease_ms });
        }
        Ok(Ok(base))
    }

    fn refused_streak(&self, view: &View, context: &Context) -> Result<CheckOutcome<()>, Undecided> {
        let Some(StreakCheck { name, hash }) = &self.streak else { return Ok(CheckOutcome::Passes(())) };
        let until_ms = streak::refusal(view, name, hash, context.now_ms)?;
        let refused = until_ms.map(|until_ms| BeginResult::Refused(Refusal::Streak { until_ms }));
        Ok(refused.map_or(CheckOutcome::Passes(()), CheckOutcome::returns))
    }

    /// A refusal is committed, too: the commit verifies that the facts are unchanged.
    fn check_facts(
        &self,
        transaction: &mut Transaction,
        turn: &Turn,
        view: &View,
        context: &Context,
    ) -> Result<CheckOutcome<MetFacts>, Undecided> {
        let Some(facts) = &self.facts else { return Ok(CheckOutcome::Passes((Vec::new(), None))) };
        let refusal = match facts.add_to(transaction, view, context, &self.call(), turn)? {
            Precondition::Met { shadow } => return Ok(CheckOutcome::Passes((shadow, Some(context.now_ms)))),
            Precondition::Running => return Ok(CheckOutcome::Passes((Vec::new(), Some(0)))),
            Precondition::Waits { turn } => {
                return Ok(CheckOutcome::returns(BeginResult::Waits(WaitReason::Fact { turn })));
            }
            Precondition::Unmet { condition, known } => Refusal::Fact { condition, known },
            Precondition::Full => Refusal::FactsFull,
        };
        Ok(CheckOutcome::commits(transaction.clone(), BeginResult::Refused(refusal)))
    }

    fn use_consent(
        &self,
        transaction: &mut Transaction,
        base: &Transaction,
        turn: &Turn,
        view: &View,
        context: &Context,
    ) -> Result<CheckOutcome<Vec<String>>, Undecided> {
        let Some(ConsentCheck { uses, narrowed: seen }) = &self.consent else {
            return Ok(CheckOutcome::Passes(Vec::new()));
        };
        let tenant = &self.slice.name.tenant;
        let deadline_ms = turn.head.deadline_ms;
        let call = self.call();
        let mut own = Transaction::new(context.version.clone());
        Ok(match uses.add_to(&mut own, view, context, tenant, &call, deadline_ms)? {
            Consent::Given { by, narrowed } if narrowed == *seen => {
                transaction.guards.append(&mut own.guards);
                transaction.writes.append(&mut own.writes);
                CheckOutcome::Passes(by)
            }
            Consent::Given { .. } => CheckOutcome::returns(BeginResult::ConsentChanged),
            Consent::Unasked => CheckOutcome::returns(BeginResult::Asks { before: self.before(turn, view)? }),
            Consent::Waiting { .. } => {
                CheckOutcome::returns(BeginResult::Waits(WaitReason::Approval { approval: uses.id.clone() }))
            }
            Consent::Denied { by, reason } => {
                CheckOutcome::returns(BeginResult::Refused(Refusal::Denied { by, reason }))
            }
            Consent::Expired { since_ms } => {
                let mut expires = base.clone();
                expires.guards.append(&mut own.guards);
                expires.writes.append(&mut own.writes);
                CheckOutcome::commits(expires, BeginResult::Refused(Refusal::ConsentExpired { since_ms }))
            }
            Consent::OtherCall => CheckOutcome::returns(BeginResult::Refused(Refusal::NotAsked)),
        })
    }

    fn before(&self, turn: &Turn, view: &View) -> Result<Option<(String, &'static str)>, Undecided> {
        let own = self.consent.as_ref().map(|consent| &consent.uses.id);
        let Some(before) = turn.approval.as_ref().filter(|before| Some(*before) != own) else { return Ok(None) };
        let stored = view.record::<Approval>(&approval::key(&self.slice.name.tenant, before))?;
        Ok(stored.map(|stored| (before.clone(), stored.value.state.word())))
    }

    fn claim(
        &self,
        transaction: &mut Transaction,
        turn: &Turn,
        view: &View,
        context: &Context,
    ) -> Result<CheckOutcome<()>, Undecided> {
        let Some(claim) = &self.claim else { return Ok(CheckOutcome::Passes(())) };
        Ok(match claim.add_to(transaction, view, context, turn.head.deadline_ms)? {
            ClaimResult::Ours => CheckOutcome::Passes(()),
            ClaimResult::Ended { by, result } => CheckOutcome::returns(BeginResult::AnsweredBy { by, result }),
            ClaimResult::Waits { by }
                if !mutant!("claim_knows_who_waits_for_it")
                    && above::waits_for(view, &by.call, &self.slice.name, turn)? =>
            {
                CheckOutcome::returns(BeginResult::Refused(Refusal::EqualAbove { by: by.call }))
            }
            ClaimResult::Waits { by } => {
                CheckOutcome::returns(BeginResult::Waits(WaitReason::EqualCall { turn: by.call.turn }))
            }
            ClaimResult::Abandoned { by, result } => CheckOutcome::returns(BeginResult::Abandoned { by, result }),
        })
    }

    fn write(&self, transaction: &mut Transaction, turn: &mut Turn, agreed: &[String]) {
        self.change_turn(turn, agreed);
        transaction.put(&self.slice.name.record(), turn);
        transaction.dedupe_record = Some(self.slice.name.record());
    }

    fn change_turn(&self, turn: &mut Turn, agreed: &[String]) {
        let upto = turn.state.in_flight_upto().unwrap_or(turn.position);
        if self.once || self.is_durable || turn.suspect.is_some() {
            turn.state = State::Running { upto };
        }
        if self.once && !mutant!("begin_writes_the_intent_record") {
            let consent = self.consent.as_ref().map(|check| UsedConsent {
                approval: check.uses.id.clone(),
                by: agreed.to_vec(),
                narrowed: check.narrowed.clone(),
            });
            turn.begun = Some(Begun { position: self.position, by: self.by.to_owned(), consent });
        }
        if let Some(facts) = self.facts.as_ref().filter(|facts| !facts.changes.is_empty()) {
            turn.session = Some(facts.session.session.clone());
        }
        turn.entry = Some(self.slice.entry.clone());
    }
}

fn has_changed(record: &RecordKey, context: &Context) -> bool {
    context.failed(|conflict| matches!(conflict, Conflict::Record { key, .. } if key == record))
}
