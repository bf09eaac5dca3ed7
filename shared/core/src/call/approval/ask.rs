//! Asks people to approve a call, and parks the call's turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tickfleet_model::{AgentId, TenantId};

use super::super::{CallName, due_at_once};
use super::write::Writing;
use super::{Approval, ApprovalPreview, ApprovalState, Demand, EXACT, VoidApproval, waiting_of, waiting_of_agent};
use crate::decision::Context;
use crate::mutant;
use crate::section::Section;
use crate::transaction::{Conflict, Guard, InboxKey, SetKey, Transaction, Write};
use crate::turn::Turn;
use crate::view::{Query, Undecided, Value, View};

/// An approval is overdue this long after its expiry.
const OVERDUE_MS: i64 = 60_000;
const OVERDUE_MAX: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskApproval {
    pub id: String,
    pub call: CallName,
    pub binding: String,
    pub shown: ApprovalPreview,
    pub exact: Bytes,
    pub demands: Vec<Demand>,
    /// `None` means the turn's deadline.
    pub expires_ms: Option<i64>,
    /// A message for an inbox when the call begins to wait. Replaces `{requested_ms}` and `{until_ms}`.
    pub early: Option<(InboxKey, String)>,
    pub tenant_max: u64,
    pub agent_max: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskResult {
    /// The turn's record names the approval from now on.
    Waits { until_ms: i64 },
    /// People have already decided, so the call is checked again at once.
    Decided,
    Full {
        /// True for the agent's bound, false for the tenant's bound.
        of_agent: bool,
    },
}

/// Section of [`crate::turn::Park`]. If the call need not wait, the turn is due at once.
#[derive(Debug, Clone, Copy)]
pub struct RequestApproval<'a> {
    pub ask: &'a AskApproval,
    pub tenant: &'a TenantId,
    pub turn: &'a Turn,
}

impl Section for RequestApproval<'_> {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let asked = self.ask.add_to(transaction, view, context, self.tenant, self.turn)?;
        if !matches!(asked, AskResult::Waits { .. }) {
            due_at_once(transaction, self.tenant, &self.ask.call.turn, context.now_ms);
        }
        Ok(())
    }
}

impl AskApproval {
    /// `Some(true)` for the agent's bound, `Some(false)` for the tenant's bound.
    pub fn full(
        &self,
        view: &View,
        context: &Context,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Option<bool>, Undecided> {
        let size = |set| match view.get(&Query::Size(set))? {
            Value::Size(size) => Ok::<u64, Undecided>(*size),
            _ => Ok(0),
        };
        let waiting = |set: SetKey| {
            let overdue = overdue(view, &set, context.now_ms)?.len() as u64;
            Ok::<u64, Undecided>(size(set)?.saturating_sub(overdue))
        };
        if waiting(waiting_of(tenant))? >= self.tenant_max {
            return Ok(Some(false));
        }
        // `Conflict::Full` does not name the full set, so assume the agent's set.
        let is_full = waiting(waiting_of_agent(tenant, agent))? >= self.agent_max
            || context.failed(|conflict| matches!(conflict, Conflict::Full));
        Ok(is_full.then_some(true))
    }

    /// Writes only if people can still decide. An approval for an earlier form of the call becomes void.
    pub fn add_to(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
        tenant: &TenantId,
        turn: &Turn,
    ) -> Result<AskResult, Undecided> {
        let writing = Writing { tenant, id: &self.id, now_ms: context.now_ms };
        let stored = view.record::<Approval>(&writing.key())?;
        if !mutant!("ask_guards_the_approval") {
            transaction.guard_read(&writing.key(), stored.as_ref());
        }
        let until_ms = match stored.map(|stored| stored.value.state) {
            Some(ApprovalState::Waiting { until_ms }) if until_ms > context.now_ms => until_ms,
            None | Some(ApprovalState::Void { .. }) => {
                if let Some(of_agent) = self.full(view, context, tenant, &turn.head.agent)? {
                    return Ok(AskResult::Full { of_agent });
                }
                self.write(transaction, &writing, turn, view)?
            }
            Some(_) => return Ok(AskResult::Decided),
        };
        if let Some(before) = turn.approval.as_ref().filter(|before| **before != self.id) {
            VoidApproval { tenant, id: before }.add_to(transaction, view, context)?;
        }
        Ok(AskResult::Waits { until_ms })
    }

    fn write(
        &self,
        transaction: &mut Transaction,
        writing: &Writing<'_>,
        turn: &Turn,
        view: &View,
    ) -> Result<i64, Undecided> {
        let now_ms = writing.now_ms;
        let deadline_ms = turn.head.deadline_ms;
        let agent = &turn.head.agent;
        let until_ms = self.expires_ms.map_or(deadline_ms, |expires_ms| deadline_ms.min(now_ms + expires_ms));
        let approval = Approval {
            call: self.call.clone(),
            binding: self.binding.clone(),
            agent: agent.clone(),
            shown: self.shown.clone(),
            demands: self.demands.clone(),
            expires_ms: self.expires_ms,
            narrowed: None,
            requested_ms: now_ms,
            votes: BTreeMap::new(),
            state: ApprovalState::Waiting { until_ms },
        };
        let of_tenant = waiting_of(writing.tenant);
        let of_agent = waiting_of_agent(writing.tenant, agent);
        let lost = overdue(view, &of_tenant, now_ms)?;
        let lost_of_agent = overdue(view, &of_agent, now_ms)?;
        let fits =
            |set, max, lost: &[_]| Guard::Fits { set, member: self.id.as_str().into(), max: max + lost.len() as u64 };
        if !mutant!("ask_guards_the_bound_of_the_tenant") {
            transaction.guard(fits(of_tenant, self.tenant_max, lost));
        }
        if !mutant!("ask_guards_the_bound_of_the_agent") {
            transaction.guard(fits(of_agent, self.agent_max, lost_of_agent));
        }
        for (id, _) in lost.iter().chain(lost_of_agent) {
            Writing { id, ..*writing }.leave(transaction, agent);
        }
        writing.put(transaction, &approval, deadline_ms);
        if self.shown.abridged {
            transaction.write(Write::PutPart(writing.key(), EXACT.into(), self.exact.clone()));
        }
        writing.join(transaction, agent, until_ms);
        let ApprovalPreview { tool, version, arguments, abridged, bytes, why, .. } = &self.shown;
        let event = [
            ("agent", agent.to_string()),
            ("tool", tool.clone()),
            ("version", version.clone()),
            ("arguments", arguments.clone()),
            ("abridged", if *abridged { "1" } else { "" }.to_owned()),
            ("bytes", bytes.to_string()),
            ("why", why.clone()),
            ("until_ms", until_ms.to_string()),
        ];
        writing.report(transaction, "asked", &self.call, &event);
        if let Some((inbox, message)) = &self.early {
            let message = message.replace("{requested_ms}", &now_ms.to_string());
            let message = message.replace("{until_ms}", &until_ms.to_string());
            transaction.write(Write::Reply(inbox.clone(), message.into()));
        }
        Ok(until_ms)
    }
}

/// Finds approvals with a lost or unreadable turn. Such a turn cannot end its approval.
fn overdue<'v>(view: &'v View, set: &SetKey, now_ms: i64) -> Result<&'v [(Arc<str>, u64)], Undecided> {
    let upto = u64::try_from(now_ms - OVERDUE_MS).ok();
    Ok(match upto {
        Some(_) => view.first(set, upto, OVERDUE_MAX)?,
        None => &[],
    })
}
