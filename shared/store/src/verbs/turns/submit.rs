use bytes::Bytes;
use tickfleet_core::Receipt;
use tickfleet_core::turn::submit::{Inbound, Submit, Submitted as Decided};
use tickfleet_model::{InboxName, TenantId, TurnId};

use crate::seam::RunError;
use crate::{Store, StoreError};

#[derive(Debug, Clone)]
pub struct Submission {
    pub tenant: TenantId,
    /// The producer's ID, which makes the submission idempotent.
    pub turn: Option<TurnId>,
    pub digest: String,
    /// An inbox with too many unread replies refuses the submission.
    pub reply_to: Option<InboxName>,
    /// JSON.
    pub payload: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    Accepted {
        /// In the inbound stream. A turn without an ID gets an ID that is derived from this entry.
        entry: String,
    },
    /// Accepted before with the same content.
    Duplicate,
    /// Accepted before with other content.
    Conflict,
    /// The inbound stream is full, or the tenant has too much unfinished work; retry later.
    QueueFull,
    /// The inbox has too many unread replies; read them first.
    InboxFull,
    /// The tenant has too many inboxes; use an existing inbox.
    TooManyInboxes,
    /// Memory is short; retry later.
    Pressure,
}

impl Store {
    /// One result for each turn, in order. After an error, the caller may submit the batch again if its turns have IDs.
    pub async fn submit(&self, turns: &[Submission]) -> Result<Vec<Result<Submitted, StoreError>>, StoreError> {
        let bounds = self.inbound_bounds(Inbound::Turns).await?;
        let submits: Vec<Submit<'_>> = turns
            .iter()
            .map(|turn| Submit {
                to: Inbound::Turns,
                tenant: turn.tenant.clone(),
                given: turn.turn.clone().map(|id| (id, turn.digest.clone())),
                reply_to: turn.reply_to.clone(),
                payload: turn.payload.clone(),
                bounds: &bounds,
            })
            .collect();
        Ok(self.decide_all(&submits).await?.into_iter().map(submitted).collect())
    }

    /// If the ID was already used for other content, the scheduler's reply reports this. After an error, the caller may
    /// submit the task again if it has an ID.
    pub async fn enqueue_task(&self, task: &Submission) -> Result<Submitted, StoreError> {
        let bounds = self.inbound_bounds(Inbound::Tasks).await?;
        let submit = |given| Submit {
            to: Inbound::Tasks,
            tenant: task.tenant.clone(),
            given,
            reply_to: task.reply_to.clone(),
            payload: task.payload.clone(),
            bounds: &bounds,
        };
        let given = task.turn.clone().map(|id| (id, task.digest.clone()));
        match submitted(self.decide(submit(given)).await)? {
            Submitted::Conflict => submitted(self.decide(submit(None)).await),
            other => Ok(other),
        }
    }
}

fn submitted(result: Result<Receipt<Decided>, RunError>) -> Result<Submitted, StoreError> {
    let Receipt { result, committed } = result?;
    Ok(match result {
        Decided::Accepted => {
            // The entry is missing if an earlier attempt of the commit was applied. Only a message with an ID is
            // committed again, so its entry is not needed.
            let entry = committed.and_then(|committed| committed.entries.into_iter().next());
            Submitted::Accepted { entry: entry.map(|entry| entry.as_str().to_owned()).unwrap_or_default() }
        }
        Decided::Duplicate => Submitted::Duplicate,
        Decided::Conflict => Submitted::Conflict,
        Decided::QueueFull => Submitted::QueueFull,
        Decided::InboxFull => Submitted::InboxFull,
        Decided::TooManyInboxes => Submitted::TooManyInboxes,
        Decided::Pressure => Submitted::Pressure,
    })
}
