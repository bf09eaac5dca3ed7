//! Decisions of people about an approval.

use std::collections::BTreeSet;

use tickfleet_model::TenantId;

use super::super::wake;
use super::write::Writing;
use super::{Approval, ApprovalState, Vote, key};
use crate::audit::AuditAppend;
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::record::Stored;
use crate::transaction::{Guard, Transaction};
use crate::turn::{Cancellation, Turn};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone)]
pub struct DecideApproval<'a> {
    pub tenant: &'a TenantId,
    pub id: &'a str,
    pub by: &'a str,
    /// In the configuration in force.
    pub roles: &'a BTreeSet<String>,
    pub reason: &'a str,
    pub verdict: Verdict<'a>,
    /// `meta` receives `state` and `missing`.
    pub audit: &'a AuditAppend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    Approve {
        /// Changes (JSON) that the person saw.
        seen: Option<&'a str>,
        /// `None` keeps the arguments as seen.
        narrowed: Option<&'a str>,
        /// `narrowed` without secrets.
        shown: &'a str,
    },
    Deny,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecideResult {
    Counts {
        /// `approved`, `denied`, or `waiting` for more people.
        state: &'static str,
        missing: u32,
    },
    Unknown,
    /// An agent must not approve its own call.
    Own,
    Role,
    /// The approval has ended in this state, as a word.
    Ended(&'static str),
    Gone,
    Changed,
    Again,
}

impl Approval {
    /// New changes drop the earlier votes. Returns false if the person has already agreed to the same arguments.
    pub fn vote(&mut self, by: &str, vote: Vote, narrowed: Option<&str>) -> bool {
        let is_other = narrowed.is_some() && narrowed != self.narrowed.as_deref();
        if !is_other && self.votes.contains_key(by) {
            return false;
        }
        if is_other {
            self.votes.clear();
            self.narrowed = narrowed.map(str::to_owned);
        }
        self.votes.insert(by.to_owned(), vote);
        true
    }
}

impl DecideApproval<'_> {
    fn writing(&self, context: &Context) -> Writing<'_> {
        Writing { tenant: self.tenant, id: self.id, now_ms: context.now_ms }
    }

    fn refusal(&self, approval: &Approval) -> Option<DecideResult> {
        if self.by == approval.agent.as_str() {
            return Some(DecideResult::Own);
        }
        if approval.state.until_ms().is_none() {
            return Some(DecideResult::Ended(approval.state.word()));
        }
        None
    }

    /// An approved call can be denied until it begins.
    fn deny(
        &self,
        transaction: &mut Transaction,
        writing: &Writing<'_>,
        approval: &Approval,
        deadline_ms: i64,
    ) -> DecideResult {
        let by = self.by.to_owned();
        let reason = self.reason.to_owned();
        let event = [("by", by.clone()), ("reason", reason.clone())];
        let state = ApprovalState::Denied { at_ms: writing.now_ms, by, reason };
        let denied = Approval { state, ..approval.clone() };
        writing.put(transaction, &denied, deadline_ms);
        writing.leave(transaction, &approval.agent);
        writing.report(transaction, "denied", &approval.call, &event);
        wake(transaction, self.tenant, &approval.call.turn, writing.now_ms);
        DecideResult::Counts { state: "denied", missing: 0 }
    }

    fn approve(
        &self,
        transaction: &mut Transaction,
        writing: &Writing<'_>,
        mut approval: Approval,
        deadline_ms: i64,
    ) -> DecideResult {
        let Verdict::Approve { seen, narrowed, shown } = self.verdict else { return DecideResult::Unknown };
        if matches!(approval.state, ApprovalState::Approved { .. }) {
            return DecideResult::Ended(approval.state.word());
        }
        if approval.narrowed.as_deref() != seen {
            return DecideResult::Changed;
        }
        let now_ms = writing.now_ms;
        let vote = Vote { at_ms: now_ms, roles: self.roles.clone(), reason: self.reason.to_owned() };
        if !approval.vote(self.by, vote, narrowed) {
            return DecideResult::Again;
        }
        let missing = approval.missing();
        if missing == 0 {
            let counts_ms = approval.expires_ms.map_or(deadline_ms, |expires_ms| deadline_ms.min(now_ms + expires_ms));
            approval.state = ApprovalState::Approved { until_ms: counts_ms };
            writing.leave(transaction, &approval.agent);
            wake(transaction, self.tenant, &approval.call.turn, now_ms);
        }
        writing.put(transaction, &approval, deadline_ms);
        let event = [
            ("by", self.by.to_owned()),
            ("reason", self.reason.to_owned()),
            ("missing", missing.to_string()),
            ("changed", shown.to_owned()),
        ];
        writing.report(transaction, if missing == 0 { "approved" } else { "agreed" }, &approval.call, &event);
        DecideResult::Counts { state: approval.state.word(), missing }
    }

    fn end(&self, context: &Context, stored: &Stored<Approval>, state: ApprovalState) -> Transaction {
        let writing = self.writing(context);
        let mut transaction = Transaction::new(context.version.clone());
        transaction.dedupe_record = Some(writing.key());
        transaction.guard_read(&writing.key(), Some(stored));
        writing.end(&mut transaction, &stored.value, state, context.now_ms);
        transaction
    }
}

fn waits_for(turn: &Turn, approval: &Approval, id: &str, now_ms: i64) -> bool {
    turn.position <= approval.call.position
        && turn.approval.as_deref() == Some(id)
        && turn.canceled.is_none()
        && turn.head.deadline_ms > now_ms
}

impl Decision for DecideApproval<'_> {
    type Output = DecideResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key(self.tenant, self.id))]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<DecideResult>, Undecided> {
        let writing = self.writing(context);
        let now_ms = context.now_ms;
        let Some(stored) = view.record::<Approval>(&writing.key())? else {
            return Ok(Step::Return(DecideResult::Unknown));
        };
        let approval = &stored.value;
        if let Some(refused) = self.refusal(approval) {
            return Ok(Step::Return(refused));
        }
        let until_ms = approval.state.until_ms().unwrap_or(0);
        if until_ms <= now_ms {
            let mut transaction = self.end(context, &stored, ApprovalState::Expired { since_ms: until_ms });
            transaction.guard(Guard::Since(until_ms));
            return Ok(Step::Commit(transaction, DecideResult::Ended("expired")));
        }
        let name = TurnName { tenant: self.tenant.clone(), turn: approval.call.turn.clone() };
        let turn = view.record::<Turn>(&name.record())?;
        let canceled = view.record::<Cancellation>(&name.cancellation())?;
        let is_canceled = |turn: &Turn| canceled.as_ref().is_some_and(|canceled| canceled.value.is_of(turn));
        let waits = turn.as_ref().map(|turn| &turn.value).filter(|turn| waits_for(turn, approval, self.id, now_ms));
        let Some(deadline_ms) = waits.filter(|turn| !is_canceled(turn)).map(|turn| turn.head.deadline_ms) else {
            let mut transaction = self.end(context, &stored, ApprovalState::Void { at_ms: now_ms });
            transaction.guard_read(&name.record(), turn.as_ref());
            transaction.guard_read(&name.cancellation(), canceled.as_ref());
            return Ok(Step::Commit(transaction, DecideResult::Gone));
        };
        if !approval.demands.iter().any(|demand| demand.admits(self.roles)) {
            return Ok(Step::Return(DecideResult::Role));
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.dedupe_record = Some(writing.key());
        if !mutant!("decide_guards_the_approval") {
            transaction.guard_read(&writing.key(), Some(&stored));
        }
        if !mutant!("decide_guards_the_turn") {
            transaction.guard_read(&name.record(), turn.as_ref());
        }
        transaction.guard_read(&name.cancellation(), canceled.as_ref());
        if !mutant!("decide_guards_the_time") {
            transaction.guard(Guard::Before(until_ms));
        }
        let decided = match self.verdict {
            Verdict::Deny => self.deny(&mut transaction, &writing, approval, deadline_ms),
            Verdict::Approve { .. } => self.approve(&mut transaction, &writing, approval.clone(), deadline_ms),
        };
        let DecideResult::Counts { state, missing } = decided else { return Ok(Step::Return(decided)) };
        let meta = [("state", format!("\"{state}\"")), ("missing", missing.to_string())];
        self.audit.with_meta(&meta).append_to(&mut transaction);
        Ok(Step::Commit(transaction, decided))
    }
}
