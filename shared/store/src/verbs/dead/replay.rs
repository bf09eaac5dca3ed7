//! Dead letters and failed calls that an operator replays or drops.

use tickfleet_core::audit::AuditAppend;
pub use tickfleet_core::dead::DeadItem;
use tickfleet_core::dead::{DropDead, NotHandled, Replay, ReplayResult};
use tickfleet_core::turn::submit::{Inbound, Submit, Submitted};

use crate::{Store, StoreError, Submission};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleResult {
    Ok,
    Gone,
    /// An operator has already replayed or dropped the item.
    Again,
    /// A turn with the same ID and content exists, so nothing was submitted.
    Duplicate,
    /// The ID belongs to another turn.
    Conflict,
    QueueFull,
    /// The inbox has too many unread replies.
    InboxFull,
    TooManyInboxes,
    Pressure,
    Full,
}

impl From<NotHandled> for HandleResult {
    fn from(why: NotHandled) -> Self {
        match why {
            NotHandled::Gone => Self::Gone,
            NotHandled::Again(_) => Self::Again,
            NotHandled::Full => Self::Full,
        }
    }
}

impl From<Submitted> for HandleResult {
    fn from(submitted: Submitted) -> Self {
        match submitted {
            Submitted::Accepted => Self::Ok,
            Submitted::Duplicate => Self::Duplicate,
            Submitted::Conflict => Self::Conflict,
            Submitted::QueueFull => Self::QueueFull,
            Submitted::InboxFull => Self::InboxFull,
            Submitted::TooManyInboxes => Self::TooManyInboxes,
            Submitted::Pressure => Self::Pressure,
        }
    }
}

impl Store {
    /// Also marks the item as handled. `entry` goes into the audit log. A repeated replay submits only once.
    pub async fn replay(
        &self,
        item: DeadItem,
        to: Inbound,
        new: &Submission,
        entry: AuditAppend,
    ) -> Result<HandleResult, StoreError> {
        let bounds = self.inbound_bounds(to).await?;
        let submission = Submit {
            to,
            tenant: new.tenant.clone(),
            given: new.turn.clone().map(|id| (id, new.digest.clone())),
            reply_to: new.reply_to.clone(),
            payload: new.payload.clone(),
            bounds: &bounds,
        };
        let replay = Replay { item, submission, entry };
        Ok(match self.decide(replay).await?.result {
            ReplayResult::Submitted(result) | ReplayResult::Refused(result) => result.into(),
            ReplayResult::NotHandled(why) => why.into(),
        })
    }

    /// `entry` goes into the audit log.
    pub async fn drop_dead(&self, item: DeadItem, entry: AuditAppend) -> Result<HandleResult, StoreError> {
        let drop = DropDead { item, entry };
        Ok(match self.decide(drop).await?.result {
            Ok(()) => HandleResult::Ok,
            Err(why) => why.into(),
        })
    }
}
