//! The inbound entry that a scheduler looks into alone.

use crate::verbs::Verb;
use crate::verbs::turns::Inbound;
use crate::{Store, StoreError};
use tickfleet_model::ConsumerId;

impl Store {
    /// Marks the entry of an inbound stream that the consumer is about to read, because it was there when another
    /// died. None clears it. Each stream has a mark of its own, for its own loop reads it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn suspect(&self, from: Inbound, consumer: &ConsumerId, entry: Option<&str>) -> Result<(), StoreError> {
        let mut args = self.args();
        args.text(from.stream().to_string()).show(consumer).text(entry.unwrap_or_default());
        self.run(Verb::Suspect, args).await.map(drop)
    }
}
