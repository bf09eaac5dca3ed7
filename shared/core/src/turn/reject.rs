//! Rejects an inbound message: moves it to the dead letters, and replies to the producer.

use bytes::Bytes;
use tickfleet_model::rejection::RejectionCause;
use tickfleet_model::{InboxName, RejectionCode, TenantId};

use super::advance::lease_ends_ms;
use super::dead_letter::DeadLetter;
use super::end::{GivenId, GivenState};
use super::submit::Inbound;
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::Present;
use crate::recovery::epoch::recovered_calls;
use crate::recovery::inbound::TakenInbound;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

/// Time (ms) for which producers can read that a tenant is not configured.
const ABSENT_MS: i64 = 60_000;

/// Delay (ms) before the next attempt to admit a message with calls that may have begun.
const BEGUN_RECHECK_MS: i64 = 1_000;

pub struct Reject<'a> {
    pub from: Inbound,
    pub entry: TakenInbound,
    pub reason: RejectionCode,
    /// Bounded in size and without secrets.
    pub raw: Bytes,
    pub tenant: Option<RejectedTenant>,
    /// The producer's ID, and the digest of the message's content.
    pub given: Option<(TurnName, String)>,
    /// The turn's name, and the digest of the content. `None` if the turn is unreadable.
    pub turn: Option<(TurnName, String)>,
    pub bounds: &'a Bounds,
}

pub enum RejectedTenant {
    Known {
        tenant: TenantId,
        /// JSON.
        reply: Option<(InboxName, Bytes)>,
    },
    /// The tenant has no inbox, so waiting producers read [`absent_tenant`].
    Absent(TenantId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    Done {
        replied: bool,
    },
    /// Another scheduler has the entry, or the store has restarted. Nothing was written.
    NotHeld,
    /// Calls may have begun before a restart of the store. The caller must admit the message again at this time (ms).
    Later(i64),
}

/// The record tells producers that a tenant is not configured. The record expires.
#[must_use]
pub fn absent_tenant(tenant: &TenantId) -> RecordKey {
    RecordKey::new(format!("absent:{tenant}"))
}

impl Decision for Reject<'_> {
    type Output = Rejected;

    fn reads(&self) -> Vec<Query> {
        self.given.iter().map(|(name, _)| Query::Record(name.given())).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Rejected>, Undecided> {
        if self.entry.is_lost(context) {
            return Ok(Step::Return(Rejected::NotHeld));
        }
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(later_ms) = self.may_have_begun(&mut transaction, view, context)? {
            return Ok(Step::Return(Rejected::Later(later_ms)));
        }
        self.free_id(&mut transaction, view)?;
        let tenant = match &self.tenant {
            Some(RejectedTenant::Known { tenant, .. }) => Some(tenant),
            _ => None,
        };
        let stream = self.from.stream();
        let letter = DeadLetter {
            from: stream.as_str(),
            entry: self.entry.id.as_str(),
            reason: self.reason,
            raw: self.raw.clone(),
            tenant,
        };
        letter.add_to(&mut transaction, self.bounds);
        let replied = self.reply(&mut transaction, context);
        self.entry.acknowledge(stream, &mut transaction);
        Ok(Step::Commit(transaction, Rejected::Done { replied }))
    }
}

impl Reject<'_> {
    /// Returns the time (ms) of the next attempt, if calls may have begun. Messages with invalid content never began
    /// calls.
    fn may_have_begun(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<Option<i64>, Undecided> {
        let Some((name, digest)) = self.turn.as_ref().filter(|_| self.reason.cause() != RejectionCause::Message) else {
            return Ok(None);
        };
        if let Some(ends_ms) = lease_ends_ms(context, self.bounds) {
            return Ok(Some(ends_ms));
        }
        let recovered = recovered_calls(view, context, name, digest, 0..usize::MAX)?;
        if !recovered.calls.is_empty() {
            return Ok(Some(context.now_ms + BEGUN_RECHECK_MS));
        }
        transaction.guards.extend(recovered.guard);
        Ok(None)
    }

    /// Frees the ID, so that the producer can send the message again with the same ID. A record with another digest or
    /// of an admitted turn belongs to another message.
    fn free_id(&self, transaction: &mut Transaction, view: &View) -> Result<(), Undecided> {
        let Some((name, digest)) = &self.given else { return Ok(()) };
        let key = name.given();
        // An unreadable record is kept, and must not block the rejection.
        let given = match view.record::<GivenId>(&key) {
            Err(Undecided::Unreadable { .. }) => return Ok(()),
            given => given?,
        };
        if let Some(given) = given
            && given.value.state == GivenState::Queued
            && (given.value.digest == *digest || mutant!("reject_keeps_the_id_of_another"))
        {
            transaction.guard(Guard::Version(key.clone(), given.version)).write(Write::Delete(key));
        }
        Ok(())
    }

    /// Allows twice the normal maximum of unread replies, because a full inbox is itself a reason to reject. Returns
    /// true if a reply is sent.
    fn reply(&self, transaction: &mut Transaction, context: &Context) -> bool {
        match &self.tenant {
            Some(RejectedTenant::Known { tenant, reply: Some((inbox, reply)) }) => {
                if context.failed(|it| matches!(it, Conflict::InboxFull | Conflict::TooManyInboxes)) {
                    return false;
                }
                let inbox = keys::inbox(tenant, inbox);
                let unread_max = self.bounds.inbox_unread_max.saturating_mul(2);
                let inboxes_max = self.bounds.inboxes_max;
                transaction.guard(Guard::Inbox { inbox: inbox.clone(), unread_max, inboxes_max });
                transaction.write(Write::Reply(inbox, reply.clone()));
                true
            }
            // A message can name any tenant, so the record is written only without memory pressure.
            Some(RejectedTenant::Absent(tenant)) if !context.failed(|it| *it == Conflict::Pressure) => {
                transaction.guard(Guard::MemoryAvailable);
                transaction.put_for(&absent_tenant(tenant), &Present {}, ABSENT_MS);
                false
            }
            _ => false,
        }
    }
}
