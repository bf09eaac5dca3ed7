use bytes::Bytes;
use tickfleet_core::turn::Turn;
use tickfleet_core::turn::slice::fields;
pub use tickfleet_core::turn::{Conclude, Concluded};
use tickfleet_core::view::Fields;
use tickfleet_core::{EntryId, Guard, Query, StreamKey, Transaction, Value, Write};
use tickfleet_model::Conclusion;

use crate::seam::TakeRequest;
use crate::{Store, StoreError, TurnName};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedLocal {
    /// Identifies the claim when its lease is renewed, and in [`Store::conclude`].
    pub lease: String,
    /// JSON.
    pub message: Bytes,
}

impl Store {
    /// `None` if the turn offers no local call, or if another process has claimed it. A repeated claim by the same
    /// `claimant` returns the same call, because the first response may be lost.
    pub async fn claim_local(&self, name: &TurnName, claimant: &str) -> Result<Option<ClaimedLocal>, StoreError> {
        let stored = self.record_of::<Turn>(&name.record()).await?;
        let Some(stored) = stored.filter(|stored| stored.value.is_offered()) else { return Ok(None) };
        let Some(entry) = stored.in_flight_entry() else { return Ok(None) };
        let queue = stored.value.queue(&name.tenant);
        let holder = Query::Holder(queue.clone(), entry.clone());
        if let Value::Holder(Some(holder)) = self.query(holder).await? {
            if &*holder != claimant {
                return Ok(None);
            }
            let found = self.query(Query::Entry(queue, entry.clone())).await?;
            let Value::Entry(Some(found)) = found else { return Ok(None) };
            return Ok(claimed(entry, &found));
        }
        let queues = vec![queue.clone()];
        let take = TakeRequest { consumer: claimant.into(), queues, count: 1, wait_ms: 0 };
        match self.seam().take(&take).await?.pop() {
            Some(taken) => Ok(claimed(&taken.entry, &taken.fields)),
            None => {
                self.drop_empty(queue).await?;
                Ok(None)
            }
        }
    }

    pub async fn conclude(
        &self,
        name: &TurnName,
        lease: &str,
        conclusion: Conclusion,
    ) -> Result<Concluded, StoreError> {
        let conclude = Conclude { name: name.clone(), entry: EntryId::new(lease), conclusion };
        Ok(self.decide(conclude).await?.result)
    }

    /// Removes the queue if it is empty. A claim creates the queue, even if the call has already ended.
    async fn drop_empty(&self, queue: StreamKey) -> Result<(), StoreError> {
        let mut transaction = Transaction::new(self.versions().draw());
        transaction.guard(Guard::Within(queue.clone(), 1)).write(Write::DropQueue(queue));
        self.seam().commit(&[transaction]).await.map(drop)
    }
}

fn claimed(entry: &EntryId, of: &Fields) -> Option<ClaimedLocal> {
    let message = of.iter().find(|(field, _)| &**field == fields::CALL_MESSAGE)?.1.clone();
    Some(ClaimedLocal { lease: entry.to_string(), message })
}
