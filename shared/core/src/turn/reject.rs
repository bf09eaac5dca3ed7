//! Rejects an inbound message that cannot be admitted: moves it to the dead letters and replies to its producer.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::{InboxName, RejectionCode, TenantId};

use super::advance::lease_ends_ms;
use super::dead_letter::DeadLetter;
use super::end::{GivenId, GivenState};
use super::submit::Inbound;
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::Record;
use crate::recovery::epoch::recovered_calls;
use crate::recovery::inbound::TakenInbound;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

/// Time (ms) for which the store keeps the record that a tenant is not configured, so that producers can read it.
const ABSENT_MS: i64 = 60_000;

/// If calls of a message may have begun, the scheduler tries to admit the message again after this delay (ms).
const BEGUN_LOOK_MS: i64 = 1_000;

/// True for reasons that may not have applied when the message was first admitted.
const fn depends_on_state(reason: RejectionCode) -> bool {
    use RejectionCode::{InboxFull, TenantQueueFull, TooManyInboxes, UnknownAgent, UnknownTask, UnreadableTenant};
    matches!(reason, InboxFull | TenantQueueFull | TooManyInboxes | UnknownAgent | UnknownTask | UnreadableTenant)
}

pub struct Reject<'a> {
    pub from: Inbound,
    pub entry: TakenInbound,
    pub reason: RejectionCode,
    /// Bounded in size and without secrets.
    pub raw: Bytes,
    pub tenant: Option<RejectedTenant>,
    /// The ID that the producer chose, and the digest of the message's content.
    pub given: Option<(TurnName, String)>,
    /// The name that the message's turn would get, and the digest of the message's content. `None` if the turn is
    /// unreadable. Needed because a restart of the store may have lost the turn's admission and the begin of its
    /// calls.
    pub turn: Option<(TurnName, String)>,
    pub bounds: &'a Bounds,
}

pub enum RejectedTenant {
    Known {
        tenant: TenantId,
        /// The reply is JSON.
        reply: Option<(InboxName, Bytes)>,
    },
    /// The tenant is not configured, so it has no inbox. Producers that wait for a reply read the record
    /// [`AbsentTenant`] instead.
    Absent(TenantId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    Done {
        replied: bool,
    },
    /// Another scheduler has taken over the entry, or the store has restarted. Nothing was written.
    NotHeld,
    /// Calls of the turn may have begun before a restart of the store. Nothing was written. The caller must try to
    /// admit the message again at this time (ms).
    Later(i64),
}

/// Tells producers that a tenant is not configured. This record expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsentTenant {
    #[serde(rename = "t")]
    pub at_ms: i64,
}

impl Record for AbsentTenant {
    const SCHEMA: u32 = 1;
}

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
    /// Returns the time (ms) at which to admit the message again, if its calls may have begun. That is possible
    /// during the first lease after a restart of the store, because workers still report their calls. After this
    /// lease, calls have begun only if a worker has reported one. Messages with invalid content were never admitted,
    /// so other reasons need no check.
    fn may_have_begun(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<Option<i64>, Undecided> {
        let Some((name, digest)) = self.turn.as_ref().filter(|_| depends_on_state(self.reason)) else {
            return Ok(None);
        };
        if let Some(ends_ms) = lease_ends_ms(context, self.bounds) {
            return Ok(Some(ends_ms));
        }
        let recovered = recovered_calls(view, context, name, digest, 0..usize::MAX)?;
        if !recovered.calls.is_empty() {
            return Ok(Some(context.now_ms + BEGUN_LOOK_MS));
        }
        transaction.guards.extend(recovered.guard);
        Ok(None)
    }

    /// Deletes the ID's record, so that the producer can send the message again with the same ID. Keeps a record with
    /// another digest or of an admitted turn, because such a record belongs to another message.
    fn free_id(&self, transaction: &mut Transaction, view: &View) -> Result<(), Undecided> {
        let Some((name, digest)) = &self.given else { return Ok(()) };
        let key = name.given();
        // An unreadable ID record is kept, and must not block the rejection.
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

    /// Sends no reply if the inbox already has twice its maximum of unread replies. The normal maximum must not
    /// apply, because a full inbox is itself a reason to reject. Returns true if a reply is sent.
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
            // A message can name any tenant, so the record about an absent tenant is written only without memory
            // pressure.
            Some(RejectedTenant::Absent(tenant)) if !context.failed(|it| *it == Conflict::Pressure) => {
                transaction.guard(Guard::MemoryAvailable);
                transaction.put_for(&absent_tenant(tenant), &AbsentTenant { at_ms: context.now_ms }, ABSENT_MS);
                false
            }
            _ => false,
        }
    }
}
