//! Changes of an approval without a decision by people.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_model::{AgentId, TenantId};

use super::super::CallName;
use super::{Approval, ApprovalState, Consent, EXACT, KEPT_MS, events, key, waiting, waiting_of, waiting_of_agent};
use crate::decision::Context;
use crate::mutant;
use crate::section::Section;
use crate::transaction::{Guard, RecordKey, Transaction, Write};
use crate::view::{Undecided, View};

const EVENTS_MAX: u64 = 1_000;

pub(super) struct Writing<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a str,
    pub(super) now_ms: i64,
}

impl Writing<'_> {
    pub(super) fn key(&self) -> RecordKey {
        key(self.tenant, self.id)
    }

    /// The record of an ended approval expires [`KEPT_MS`] after the turn's deadline.
    pub(super) fn put(&self, transaction: &mut Transaction, approval: &Approval, deadline_ms: i64) {
        if approval.state.until_ms().is_some() {
            transaction.put(&self.key(), approval);
            return;
        }
        transaction.put_for(&self.key(), approval, (deadline_ms - self.now_ms).max(0) + KEPT_MS);
        transaction.write(Write::DeleteParts(self.key(), vec![EXACT.into()]));
    }

    pub(super) fn join(&self, transaction: &mut Transaction, agent: &AgentId, until_ms: i64) {
        transaction
            .join(waiting(), format!("{}:{}", self.tenant, self.id), self.now_ms)
            .join(waiting_of(self.tenant), self.id, until_ms)
            .join(waiting_of_agent(self.tenant, agent), self.id, until_ms);
    }

    pub(super) fn leave(&self, transaction: &mut Transaction, agent: &AgentId) {
        transaction
            .leave(waiting(), format!("{}:{}", self.tenant, self.id))
            .leave(waiting_of(self.tenant), self.id)
            .leave(waiting_of_agent(self.tenant, agent), self.id);
    }

    pub(super) fn report(&self, transaction: &mut Transaction, event: &str, call: &CallName, more: &[(&str, String)]) {
        let first = [
            ("event", event.to_owned()),
            ("approval", self.id.to_owned()),
            ("call", call.to_string()),
            ("at_ms", self.now_ms.to_string()),
        ];
        let fields =
            first.iter().chain(more).map(|(name, text)| (Arc::from(*name), Bytes::from(text.clone()))).collect();
        transaction.write(Write::Append { log: events(self.tenant), fields, max_entries: EVENTS_MAX });
    }

    /// Guards the record, and returns `None` for an ended approval.
    fn open(&self, transaction: &mut Transaction, view: &View) -> Result<Option<Approval>, Undecided> {
        let stored = view.record::<Approval>(&self.key())?;
        if !mutant!("void_guards_the_approval") {
            transaction.guard_read(&self.key(), stored.as_ref());
        }
        Ok(stored.map(|stored| stored.value).filter(|approval| approval.state.until_ms().is_some()))
    }

    pub(super) fn end(
        &self,
        transaction: &mut Transaction,
        approval: &Approval,
        state: ApprovalState,
        deadline_ms: i64,
    ) {
        let ended = Approval { state, ..approval.clone() };
        self.put(transaction, &ended, deadline_ms);
        self.leave(transaction, &approval.agent);
        self.report(transaction, ended.state.word(), &approval.call, &[]);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoidApproval<'a> {
    pub tenant: &'a TenantId,
    pub id: &'a str,
}

impl Section for VoidApproval<'_> {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let writing = Writing { tenant: self.tenant, id: self.id, now_ms: context.now_ms };
        if let Some(approval) = writing.open(transaction, view)? {
            writing.end(transaction, &approval, ApprovalState::Void { at_ms: context.now_ms }, context.now_ms);
        }
        Ok(())
    }
}

/// Section of [`crate::turn::Settle`] for a call that did not use its approval. An `Approved` approval stays, because
/// the call was refused for another reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveApproval<'a> {
    pub tenant: &'a TenantId,
    pub id: &'a str,
}

impl Section for LeaveApproval<'_> {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let writing = Writing { tenant: self.tenant, id: self.id, now_ms: context.now_ms };
        let Some(approval) = writing.open(transaction, view)? else { return Ok(()) };
        if matches!(approval.state, ApprovalState::Approved { .. }) {
            // No later transaction ends this approval, so the record expires.
            transaction.put_for(&writing.key(), &approval, KEPT_MS);
            transaction.write(Write::DeleteParts(writing.key(), vec![EXACT.into()]));
        } else {
            writing.end(transaction, &approval, ApprovalState::Void { at_ms: context.now_ms }, context.now_ms);
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UseConsent {
    pub id: String,
    pub binding: String,
}

impl UseConsent {
    pub fn add_to(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
        tenant: &TenantId,
        call: &CallName,
        deadline_ms: i64,
    ) -> Result<Consent, Undecided> {
        let now_ms = context.now_ms;
        let writing = Writing { tenant, id: &self.id, now_ms };
        let stored = view.record::<Approval>(&writing.key())?;
        let Some(approval) = stored.as_ref().map(|stored| &stored.value) else { return Ok(Consent::Unasked) };
        let consent = approval.consent(call, &self.binding, now_ms);
        let Some(until_ms) = approval.state.until_ms() else {
            transaction.guard_read(&writing.key(), stored.as_ref());
            return Ok(consent);
        };
        let state = match consent {
            Consent::Given { .. } => {
                if !mutant!("consent_guards_its_time") {
                    transaction.guard(Guard::Before(until_ms));
                }
                ApprovalState::Used { at_ms: now_ms }
            }
            Consent::Expired { since_ms } => {
                transaction.guard(Guard::Since(since_ms));
                ApprovalState::Expired { since_ms }
            }
            _ => return Ok(consent),
        };
        if !mutant!("consent_guards_the_approval") {
            transaction.guard_read(&writing.key(), stored.as_ref());
        }
        writing.end(transaction, approval, state, deadline_ms);
        Ok(consent)
    }
}
