//! Puts a producer's turn or task on the inbound stream.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_model::{InboxName, TenantId, TurnId};

use super::admit::tenant_room;
use super::end::{GivenId, GivenState};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName, limits};
use crate::mutant;
use crate::record::Stored;
use crate::recovery::inbound::fields;
use crate::transaction::{Conflict, Guard, StreamKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

/// The digest of the content. Present only if the producer chose the message's ID.
pub const DIGEST: &str = "d";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inbound {
    Turns,
    Tasks,
}

impl Inbound {
    #[must_use]
    pub fn stream(self) -> StreamKey {
        match self {
            Self::Turns => keys::turns(),
            Self::Tasks => keys::tasks(),
        }
    }

    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Turns => fields::TURN,
            Self::Tasks => fields::TASK,
        }
    }
}

pub struct Submit<'a> {
    pub to: Inbound,
    pub tenant: TenantId,
    /// The producer's ID, and the digest of the message's content.
    pub given: Option<(TurnId, String)>,
    pub reply_to: Option<InboxName>,
    /// JSON.
    pub payload: Bytes,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// The commit's receipt has the new entry's ID.
    Accepted,
    Duplicate,
    /// The ID was accepted before with other content.
    Conflict,
    QueueFull,
    InboxFull,
    TooManyInboxes,
    Pressure,
}

impl Submit<'_> {
    fn name(&self) -> Option<(TurnName, &str)> {
        let (turn, digest) = self.given.as_ref()?;
        Some((TurnName { tenant: self.tenant.clone(), turn: turn.clone() }, digest))
    }

    fn bytes_left(&self) -> Option<u64> {
        self.bounds.tenant_bytes_max.checked_sub(u64::try_from(self.payload.len()).ok()?)
    }

    fn guard_bounds(&self, bytes_left: u64, transaction: &mut Transaction) {
        let bounds = self.bounds;
        transaction.guard(Guard::MemoryAvailable).guard(Guard::Within(self.to.stream(), bounds.turns_max));
        // Amount 0 only checks the maximum. The counter grows at admission.
        transaction.guard(tenant_room(limits::BYTES, self.tenant.as_str(), 0, bytes_left));
        if let Some(inbox) = &self.reply_to {
            let unread_max = bounds.inbox_unread_max;
            let inboxes_max = bounds.inboxes_max;
            transaction.guard(Guard::Inbox { inbox: keys::inbox(&self.tenant, inbox), unread_max, inboxes_max });
        }
    }

    /// True if the record says that the message waits, but the stream has lost the message. The guard on the record
    /// excludes a concurrent removal.
    fn is_lost(&self, given: &Stored<GivenId>, view: &View) -> Result<bool, Undecided> {
        let (GivenState::Queued, Some(entry)) = (&given.value.state, &given.entry) else { return Ok(false) };
        Ok(view.entry(&self.to.stream(), entry)?.is_none())
    }

    fn entry(&self) -> Vec<(Arc<str>, Bytes)> {
        let mut entry = vec![(self.to.field().into(), self.payload.clone())];
        if let Some((name, digest)) = self.name() {
            entry.push((fields::GIVEN.into(), name.to_string().into()));
            entry.push((DIGEST.into(), digest.to_owned().into()));
        }
        entry
    }
}

impl Decision for Submit<'_> {
    type Output = Submitted;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Submitted>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        // Check the ID first, so that an accepted ID is never refused.
        if let Some((name, digest)) = self.name()
            && !mutant!("submit_knows_the_id")
        {
            // Most IDs are new, so the first attempt skips the read. The conflict returns an existing record.
            let is_known = view.get(&Query::Record(name.given())).is_ok();
            let given = if is_known { view.record::<GivenId>(&name.given())? } else { None };
            if let Some(given) = &given {
                if given.value.digest != digest {
                    return Ok(Step::Return(Submitted::Conflict));
                }
                if !self.is_lost(given, view)? {
                    return Ok(Step::Return(Submitted::Duplicate));
                }
            }
            transaction.guard_read(&name.given(), given.as_ref());
        }
        if let Some(refused) = context.conflicts.iter().find_map(refusal) {
            return Ok(Step::Return(refused));
        }
        let Some(bytes_left) = self.bytes_left() else { return Ok(Step::Return(Submitted::QueueFull)) };
        self.guard_bounds(bytes_left, &mut transaction);
        transaction.write(Write::Enqueue(self.to.stream(), self.entry()));
        if let Some((name, digest)) = self.name() {
            transaction.dedupe_record = Some(name.given());
            transaction.put(&name.given(), &GivenId { digest: digest.to_owned(), state: GivenState::Queued });
        }
        Ok(Step::Commit(transaction, Submitted::Accepted))
    }
}

const fn refusal(conflict: &Conflict) -> Option<Submitted> {
    match conflict {
        Conflict::Pressure => Some(Submitted::Pressure),
        Conflict::Full | Conflict::LimitReached { .. } => Some(Submitted::QueueFull),
        Conflict::InboxFull => Some(Submitted::InboxFull),
        Conflict::TooManyInboxes => Some(Submitted::TooManyInboxes),
        _ => None,
    }
}
